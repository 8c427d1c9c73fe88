"""`python -m tests.site.stacks`: the table of docs/benchmarks/stacks.md, from docs/benchmarks/stacks.json.

That file is what `make stacks` wrote, copied.
"""

from tests.site.evidence import FOLDER, Row, renewed, stored, table
from tests.stacks.__main__ import cells_of

PAGE = FOLDER / "stacks.md"
MAKER = "tests.site.stacks"
HEAD = ["stack", "type", "planned", "exact", "within budget", "planned once", "figures"]


def lines_of(document: Row) -> list[str]:
    """The table."""
    return table(HEAD, [cells_of(row) for row in document["rows"]])


def conditions(document: Row) -> list[str]:
    """How many rows are as they should be, and what they were run with."""
    rows = document["rows"]
    run = [row for row in rows if "missing" not in row]
    good = sum(bool(row.get("good")) for row in run)
    versions = ", ".join(f"{name} {version}" for name, version in document["versions"].items())
    left_out = f", {len(rows) - len(run)} were not run" if len(run) < len(rows) else ""
    return [
        f"{good} of the {len(run)} rows that were run are planned once, exact and within the budget{left_out}",
        f"({document['machine']}; {versions}; {document['date']}).",
        "",
    ]


def main() -> None:
    """Write the table."""
    document = stored("stacks")
    parts = {"conditions": conditions(document), "stacks": lines_of(document)}
    PAGE.write_text(renewed(PAGE.read_text(), parts, MAKER), encoding="utf-8")


if __name__ == "__main__":
    main()
