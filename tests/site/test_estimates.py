"""The page of estimates shows the stored rows, and says what is missed."""

import copy

import pytest

from tests.benchmarks.bench_estimates import MODELS, missed
from tests.site import estimates
from tests.site.evidence import renewed, stored

ROWS = stored("estimates")["rows"]
ROW = {
    "first": {
        "batch": 4,
        "estimated": {"states": 8, "before": 100, "step": 1000, "total": 1100},
        "measured": {"states": 8, "before": 100, "step": 1000, "total": 1100},
    },
    "memory": 2600,
    "largest": {"batch": 10, "estimated": 2600, "measured": 2600},
    "beyond": {"batch": 11, "estimated": 2700, "measured": 2700},
    "planned": {"batch": 20, "ratio": 1.1, "budget": 2500, "measured": 2600},
}


def test_the_page_is_made_from_the_stored_rows():
    text = estimates.PAGE.read_text()
    assert text == renewed(text, estimates.parts(), estimates.MAKER), "python -m tests.site.estimates"


def test_twenty_models_were_run_and_what_they_miss_is_said():
    assert set(ROWS) <= set(MODELS) and len(ROWS) >= 20
    text = estimates.PAGE.read_text()
    assert all(f"* {line}." in text for line in missed(ROWS))


@pytest.mark.parametrize(
    ("path", "value", "word"),
    [
        (("first", "estimated", "step"), 1021, "the step's peak is estimated"),
        (("first", "measured", "step"), 1021, "the step's peak is estimated"),
        (("first", "measured", "total"), 1130, "with the optimizer"),
        (("first", "measured", "states"), 9, "states of 8 B estimated, 9 B made"),
        (("largest", "measured"), 2601, "10 samples hold 2601 B of 2600 B"),
        (("beyond", "measured"), 2600, "11 samples hold 2600 B and fit"),
        (("beyond", "batch"), 12, "more than 3 % beyond"),
        (("planned", "measured"), 2601, "20 planned samples hold"),
    ],
)
def test_each_bar_can_be_missed(path, value, word):
    row = copy.deepcopy(ROW)
    assert missed({"a": row}) == []
    part = row
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    (line,) = missed({"a": row})
    assert word in line


def test_a_refused_batch_is_a_missed_bar_and_a_cell():
    row = ROW | {"planned": {"batch": 20, "ratio": None, "budget": 2500, "measured": None, "refused": "X"}}
    assert missed({"a": row}) == ["a: 20 samples are refused: X"]
    assert estimates.sizes({"a": row})[2].endswith("| 20: — |  |")
