"""The tables beside Inductor and of stacks are those of the stored runs, and say what is wrong and what was not run."""

import json

import pytest

from tests.benchmarks import inductor_rows
from tests.site import inductor, stacks
from tests.site.evidence import renewed, stored
from tests.stacks.__main__ import cells_of
from tests.stacks.scripts import STACKS

INDUCTOR, STORED = stored("inductor"), stored("stacks")


def test_the_pages_are_made_from_the_stored_runs():
    text = inductor.PAGE.read_text()
    assert text == renewed(text, {"inductor": inductor.lines_of(INDUCTOR)}, inductor.MAKER), "tests.site.inductor"
    text = stacks.PAGE.read_text()
    parts = {"conditions": stacks.conditions(STORED), "stacks": stacks.lines_of(STORED)}
    assert text == renewed(text, parts, stacks.MAKER), "python -m tests.site.stacks"


def test_every_model_and_every_stack_has_its_rows():
    models = inductor.rows_of(INDUCTOR)
    assert list(models) == list(inductor_rows.CASES) == list(inductor.NAMES)
    assert all(set(inductor.COLUMNS) <= set(rows) for rows in models.values())
    assert [(row["stack"], row["type"]) for row in STORED["rows"]] == [
        (s.name, kind) for s in STACKS for kind in s.types
    ]


BARE = {"model": "gpt2", "method": "bare", "peak": 200, "time": 1.0, "step": "exact", "buffers": "-"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"method": "Inductor", "step": "draws"}, "45 %, ×0.90"),
        ({"method": "Inductor 0.5", "step": "off 0.27"}, "45 %, ×0.90, gradients off by 27 %"),
        ({"method": "remat at 0.5", "buffers": "WRONG"}, "45 %, ×0.90, exact, other BatchNorm statistics"),
        ({"method": "remat, Inductor at 0.5", "step": "rounding"}, "45 %, ×0.90, rounding"),
    ],
)
def test_a_cell_beside_inductor_says_how_near_the_step_is(changes, expected):
    assert inductor.cell(BARE | {"peak": 90, "time": 0.9} | changes, BARE) == expected


def test_what_failed_or_was_not_run_is_said():
    document = json.loads(json.dumps(INDUCTOR)) | {"missed": ["a bar"]}
    document["rows"] = [row for row in document["rows"] if row["model"] != "unet"]
    (failing,) = (row for row in document["rows"] if (row["model"], row["method"]) == ("bert", "Inductor"))
    del failing["time"]
    failing["failed"] = "RuntimeError: no"
    text = "\n".join(inductor.lines_of(document))
    assert "nor were U-Net" in text and "* a bar" in text
    assert "| BERT | fails |" in text and "* BERT, Inductor: RuntimeError: no" in text
    assert inductor.cell(None, BARE) == "not run"


def test_a_stack_that_fails_or_is_not_installed_is_no_row_of_yes():
    (row, *_) = (row for row in STORED["rows"] if row["good"])
    assert cells_of(row)[2:6] == ["yes"] * 4
    assert cells_of(row | {"within": False, "plannings": 2})[2:6] == ["yes", "yes", "NO", "NO"]
    named = {"stack": "S", "type": "bf16"}
    assert cells_of(named | {"missing": ["trl"]})[-1] == "not run: trl not installed"
    assert cells_of(named | {"failed": "ValueError: x"})[2] == "failed"
    text = " ".join(stacks.conditions(STORED | {"rows": [row, row | {"good": False}, named | {"missing": ["trl"]}]}))
    assert "1 of the 2 rows that were run" in text and "1 were not run" in text
