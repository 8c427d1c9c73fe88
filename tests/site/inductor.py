"""`python -m tests.site.inductor`: the table beside Inductor in docs/benchmarks/README.md, from docs/benchmarks/inductor.json.

That file is what `python -m tests.benchmarks.bench_peers --inductor` wrote, copied.
"""

from typing import Any

from tests.benchmarks.inductor_rows import BUDGETS, CASES, OURS, WITHOUT
from tests.site.evidence import FOLDER, Row, renewed, stored, table
from tests.site.peers import NAMES as PEERS

PAGE = FOLDER / "README.md"
MAKER = "tests.site.inductor"
NAMES = {model: PEERS.get(model, "ResNet-18") for model in CASES}
SHARE = BUDGETS[0]
COLUMNS = {
    WITHOUT: WITHOUT,
    f"{WITHOUT} {SHARE:g}": f"{WITHOUT} {f'{SHARE:g}'.lstrip('0')}",
    f"remat at {SHARE:g}": "`remat`, that peak",
    f"{OURS} at {SHARE:g}": "`remat` through Inductor, that peak",
}
"""Methods of the benchmark, and their words in the table."""
WRONG_BUFFERS = ", other BatchNorm statistics"
JUDGED = (f"{WITHOUT} {SHARE:g}", f"remat at {SHARE:g}", f"{OURS} at {SHARE:g}")
"""Columns that say whether the step is right; Inductor without a budget is what its column with a budget is compared with."""


def cell(row: Row | None, bare: Row) -> str:
    """Peak and time over the bare step's, and in words how near the step is to what it is compared with."""
    if row is None:
        return "not run"
    if "time" not in row:
        return "fails"
    step = row["step"]
    words = f"gradients off by {float(step.split()[1]):.0%}".replace("%", " %") if step.startswith("off") else step
    text = f"{row['peak'] / bare['peak']:.0%}, ×{row['time']:.2f}".replace("%", " %", 1)
    text += f", {words}" if row["method"] in JUDGED else ""
    return text + WRONG_BUFFERS * (row["buffers"] == "WRONG")


def rows_of(document: Row) -> dict[str, dict[str, Any]]:
    """The rows by model and method, in the order of the benchmark."""
    return {
        model: {row["method"]: row for row in document["rows"] if row["model"] == model}
        for model in CASES
        if any(row["model"] == model for row in document["rows"])
    }


def plans(row: Row) -> int | None:
    """How many plans were compiled until the measured peak was within the budget; None: none was, or the row failed."""
    return row["trials"].count("planned for") + 1 if "time" in row else None


def lines_of(document: Row) -> list[str]:
    """The table, on what it was measured, what failed, and the bars that were missed."""
    models = rows_of(document)
    cells = [
        [NAMES[model], *(cell(rows.get(method), rows["bare"]) for method in COLUMNS)] for model, rows in models.items()
    ]
    ours = {model: rows.get(f"{OURS} at {SHARE:g}") for model, rows in models.items()}
    counts = [(NAMES[model], plans(row), row) for model, row in ours.items() if row is not None]
    trials = [f"{name} {count} in {row['first']:.0f} s" for name, count, row in counts if count is not None]
    failed = [
        f"* {NAMES[row['model']]}, {row['method']}: {row['failed']}" for row in document["rows"] if "failed" in row
    ]
    bars = [f"* {line}" for line in document["missed"]] or ["* none."]
    versions = ", ".join(f"{name} {version}" for name, version in document["versions"].items())
    rounds = sorted({row["rounds"] for row in document["rows"]})
    missing = [name for model, name in NAMES.items() if model not in models]
    return [
        *table(["model", *COLUMNS.values()], cells),
        "Plans compiled until the measured peak was within the budget, and CPU time of the three steps that compile them: "
        f"{', '.join(trials)}.",
        f"Measured on a CPU ({document['machine']}; {versions}; {document['date']}), with other programs running: times are",
        f"thread CPU time, medians of {' or '.join(map(str, rounds))} interleaved steps. No GPU was measured"
        + (f", nor were {', '.join(missing)}." if missing else "."),
        "",
        *(["What failed:", "", *failed, ""] if failed else []),
        "Bars that were missed:",
        "",
        *bars,
        "",
    ]


def main() -> None:
    """Write the table."""
    PAGE.write_text(renewed(PAGE.read_text(), {"inductor": lines_of(stored("inductor"))}, MAKER), encoding="utf-8")


if __name__ == "__main__":
    main()
