"""The tables beside other ways are those of the stored run, and say what was wrong and what was not run."""

import json

import pytest

from tests.benchmarks.peers import CASES
from tests.site import peers

STORED = json.loads(peers.DATA.read_text())


@pytest.mark.parametrize("path", peers.PAGES, ids=lambda path: str(path.relative_to(peers.ROOT)))
def test_the_tables_are_made_from_the_stored_run(path):
    text = path.read_text()
    assert text == peers.renewed(text, peers.PAGES[path](STORED)), "python -m tests.site.peers"


def test_every_model_of_the_benchmark_has_its_word():
    assert list(peers.NAMES) == list(CASES)
    assert {row["method"] for row in STORED["rows"]} >= {"bare", *peers.COLUMNS}


def document(**changes):
    bare = {"model": "gpt2", "method": "bare", "peak": 200, "time": 1.0, "step": "exact", "buffers": "-", "rounds": 8}
    row = bare | {"method": "per layer", "peak": 50, "time": 1.5} | changes
    return {
        "rows": [bare, row], "missed": [], "machine": "x", "versions": {"torch": "2"}, "date": "2026-11-22", "seconds": 3.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "expected", "note"),
    [
        ({}, "25 %, ×1.50", ""),
        ({"step": "draws"}, "25 %, ×1.50†", "dropout masks"),
        ({"step": "off 0.2", "buffers": "WRONG"}, "25 %, ×1.50§‡", "BatchNorm"),
        ({"step": "rounding", "buffers": "right"}, "25 %, ×1.50", ""),
    ],
)
def test_a_cell_says_what_is_not_as_in_bare_training(changes, expected, note):
    lines = peers.table(document(**changes))
    assert lines[-1] == f"| GPT-2 | {expected} | {' | '.join(['not run'] * 5)} |"
    assert note in peers.notes(lines) and bool(note) == bool(peers.notes(lines))


def test_what_failed_and_what_was_missed_is_said():
    failing = document()
    del failing["rows"][1]["time"]
    failing["rows"][1]["failed"] = "RuntimeError: no"
    assert "| fails |" in peers.table(failing)[-1] and "RuntimeError: no" in peers.long(failing)
    assert "* none." in peers.long(failing) and "* a bar" in peers.long(failing | {"missed": ["a bar"]})
    assert "nor were BERT, Llama" in peers.conditions(failing)


@pytest.mark.parametrize(("floor", "words"), [(60, "half is 0.125 and impossible"), (20, "neither plan nor proof")])
def test_a_floor_is_said_where_half_has_no_plan(floor, words):
    half = peers.long(document(method="remat at half", found=80, asked=25, floor=floor))
    assert words in half and "0.400" in half and f"{floor / 200:.3f}" in half


def test_a_page_without_the_comments_is_an_error():
    with pytest.raises(ValueError, match="substring not found"):
        peers.renewed("no comments", "text")
