"""The page of the wide zoo shows the stored rows, and which bars are missed."""

from tests.site import wide_zoo
from tests.site.evidence import renewed, stored


def test_the_page_is_made_from_the_stored_rows():
    text = wide_zoo.PAGE.read_text()
    assert text == renewed(text, wide_zoo.parts(), wide_zoo.MAKER), "python -m tests.site.wide_zoo"


def test_a_row_without_an_end_and_a_better_method_are_said():
    row = next(row for row in stored("wide")["rows"] if row.get("time") is not None and "beside" in row)
    assert "timeout" in wide_zoo.cells({key: row[key] for key in ("name", "half", "share")} | {"status": "timeout"})
    better = {**row, "time": 1.5, "beside": {**row["beside"], "dtr": 1.25}}
    (line,) = [line for line in wide_zoo.won([better]) if line.startswith("| DTR")]
    assert line == "| DTR | 1 of 1 | 1 | 0.5 |"
