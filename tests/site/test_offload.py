"""The page of plans with copies shows the stored rows, and says which bars they meet."""

import json

from tests.site import offload
from tests.site.evidence import renewed, stored

DOCUMENT = stored("offload")
ROWS = offload.rows_of(DOCUMENT)


def test_the_page_is_made_from_the_stored_rows():
    text = offload.PAGE.read_text()
    assert text == renewed(text, offload.parts(), offload.MAKER), "python -m tests.site.offload"
    assert "@@" not in text


def test_each_row_stands_in_one_section_once():
    assert {offload.section(row) for row in ROWS} == {
        name for place in offload.SECTIONS for name in (place, f"{place}, lowest")
    }
    assert len({tuple(row[key] for key in ("device", "graph", "share", "gb_per_s")) for row in ROWS}) == len(ROWS)


def test_a_slower_plan_and_one_that_was_not_found_are_said():
    planned = [row for row in ROWS if row["recomputation"] is not None and row["both"] is not None]
    worse = [planned[0] | {"both": 9.0, "gap_percent": 700.0}, *planned[1:4]]
    text = " ".join(
        offload.whole(
            {
                "date": "today",
                "columns": offload.COLUMNS,
                "rows": [[row[key] for key in offload.COLUMNS] for row in worse],
            }
        )
    )
    assert "Of 4 with a plan" in text and "1 rows take longer" in text
    none = [row | {"both": None, "gap_percent": None} for row in worse]
    assert "4 rows take longer" in " ".join(
        offload.whole(DOCUMENT | {"rows": [[row[key] for key in offload.COLUMNS] for row in [*none, planned[5]]]})
    )
    nothing = planned[4] | {"both": None, "gap_percent": None, "impossible": False}
    assert f"undecided: {nothing['graph']} at" in " ".join(offload.facts([*planned[:4], nothing]))


def test_a_run_is_stored_in_short_and_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr(offload, "STORED", tmp_path / "offload.json")
    (tmp_path / "run.json").write_text(json.dumps({"rows": [row | {"host_peak": 1} for row in reversed(ROWS)]}))
    offload.store(tmp_path / "run.json")
    assert offload.rows_of(json.loads(offload.STORED.read_text())) == ROWS
