"""The interactive page: it is whole in itself, its data are those of the replay, and no name becomes markup.

What it does in a browser is in tests/site, which `make site-check` runs.
"""

import json
import re
from html.parser import HTMLParser

import pytest

from remat.errors import BadArgument
from remat.viz.page import print_page, reason
from tests.viz.examples import SPOOF, copied, recomputed


class Tags(HTMLParser):
    """Every tag with its attributes, and the text of every script."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.scripts, self.open = [], {}, None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.open = dict(attributes).get("id", "") if tag == "script" else None

    def handle_data(self, data):
        if self.open is not None:
            self.scripts[self.open] = self.scripts.get(self.open, "") + data

    def handle_endtag(self, tag):
        self.open = None


def data_of(text):
    return json.loads(Tags(text).scripts["data"])


def test_the_page_loads_nothing_and_says_so():
    page = Tags(print_page(recomputed()))
    linked = [value for _, attributes in page.tags for key, value in attributes.items() if key in ("src", "href")]
    assert linked == ["data:,"]
    (policy,) = (a["content"] for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'") and "http" not in policy
    assert "http" not in print_page(recomputed()).replace("http-equiv", "")
    assert not re.search(r"\b(fetch|XMLHttpRequest|import|eval|innerHTML)\b", page.scripts[""])


def test_every_part_that_the_program_asks_for_is_in_the_page_once():
    page = Tags(print_page(recomputed()))
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    asked = set(re.findall(r'element\("([\w-]+)"\)|canvas\("([\w-]+)"\)', page.scripts[""]))
    assert {name for pair in asked for name in pair if name} <= set(ids)


def test_the_data_of_the_page_are_those_of_the_replay():
    memory = recomputed()
    data = data_of(print_page(memory, budget=90))
    assert (data["peak"], data["time"], data["budget"], data["loss_time"]) == (81, 17000, 90, 6000)
    assert ["budget", "90 B, kept"] in data["summary"]
    rows = [dict(zip(data["columns"], row, strict=True)) for row in data["stays"]]
    assert [row["name"] for row in rows] == [stay.name for stay in memory.stays]
    live, most = 0, 0
    for _, place in data["changes"]:
        live += rows[place]["size"] if place >= 0 else -rows[-1 - place]["size"]
        most = max(most, live)
    assert most == data["peak"] and live == 0
    again = [row for row in rows if row["again"]]
    assert [(row["name"], row["module"], row["start"]) for row in again] == [("a", "net.low", 10000)]
    steps = {run[4] for run in data["runs"]}
    assert all(set(row["reads"]) <= steps for row in rows)


@pytest.mark.parametrize(
    ("place", "why"),
    [
        (0, "read once, by H; then it is dropped"),
        (1, "read 2 times, the last time by BH; then it is dropped"),
        (2, "kept: autograd holds it to the end of the backward"),
        (3, "kept: it is the gradient of a parameter, a result of the step"),
        (4, "its workspace exists while BH runs"),
        (6, "a further contribution to s, beside the sum so far, exists while BF runs"),
    ],
)
def test_the_page_says_why_each_tensor_is_resident(place, why):
    memory = recomputed()
    assert reason(memory, memory.stays[place]) == why


def test_what_ends_a_stay_is_said():
    memory = copied()
    whys = [reason(memory, stay) for stay in memory.stays if stay.name in ("P", "a")]
    assert whys == [
        "read once, by L; then it is replaced by another run of its node",
        "nothing reads it before it is copied to the host",
        "read once, by B; then it is left at the end of the step",
        "read once, by B; then it is left at the end of the step",
    ]


def test_no_name_becomes_markup_or_turns_a_line_around():
    text = print_page(recomputed(SPOOF), budget=1)
    assert text.count("</script>") == 2 and "<b>" not in text and "\u202e" not in text and "\x1b" not in text
    assert data_of(text)["stays"][0][0] == "</script><b>a\\u202egnp\\x1b[31m"
    assert ["budget", "1 B, exceeded"] in data_of(text)["summary"]


def test_a_name_with_the_marks_of_the_template_is_a_name():
    assert data_of(print_page(copied(name="@@")))["name"] == "@@"


def test_a_page_of_nothing_is_refused():
    memory = recomputed()
    from attrs import evolve

    with pytest.raises(BadArgument, match="V-EMPTY"):
        print_page(evolve(memory, stays=()))
