"""`python -m tests.site.wide_zoo`: the tables of docs/benchmarks/wide_zoo.md, from the stored run of the wide zoo."""

from tests.benchmarks.bench_wide import missed
from tests.site.evidence import FOLDER, Row, renewed, stored, table

PAGE = FOLDER / "wide_zoo.md"
MAKER = "tests.site.wide_zoo"
BESIDE = {"per layer": "per layer", "rotor": "Rotor", "dtr": "DTR", "tw-remat": "TW-Remat", "min-cut": "PyTorch"}
HEADS = ["graph, budget", "nodes", "time", "bound", "gap", "captured order", "plan", "bound of it", *BESIDE.values()]
NOTHING = "—"


def ratio(value: object, digits: int = 4) -> str:
    """A number, words, or a dash."""
    return value if isinstance(value, str) else f"{value:.{digits}f}" if isinstance(value, float) else NOTHING


def cells(row: Row) -> list[str]:
    """A line of the table of budgets."""
    head = [f"{row['name']}, {100 * float(row['share']):.0f} %", f"{row['nodes']:,}" if "nodes" in row else NOTHING]
    if "time" not in row:
        return [*head, row["status"], *[NOTHING] * (len(HEADS) - 3)]
    if row["status"] == "infeasible":
        return [*head, "proved impossible", *[NOTHING] * (len(HEADS) - 3)]
    gap = NOTHING if row["gap"] is None else f"{row['gap']:.3f} %"
    middle = [ratio(row["time"]), ratio(row["bound"]), gap, ratio(row["captured_order"])]
    seconds = [f"{row[key]:.1f} s" for key in ("plan_cpu", "bound_cpu")]
    return [*head, *middle, *seconds, *(ratio(row["beside"][name], 3) for name in BESIDE)]


def limits(rows: list[Row]) -> list[str]:
    """The lowest budgets."""
    lines = []
    for row in rows:
        if "lowest" not in row:
            lines.append([row["name"], row["status"], *[NOTHING] * 4])
            continue
        ends = [ratio(row[key], 3) for key in ("lowest", "impossible")]
        apart = ratio(row["lowest"] - row["impossible"], 3)
        seconds = f"{row['plan_cpu'] + row['bound_cpu']:.1f} s"
        lines.append([row["name"], *ends, apart, ratio(row["time"], 3), seconds])
    return table(["graph", "found at", "proved impossible", "apart", "time", "seconds"], lines)


def won(rows: list[Row]) -> list[str]:
    """How each other method does where it has a plan."""
    lines = []
    planned = [row for row in rows if row.get("time") is not None and "beside" in row]
    for key, name in BESIDE.items():
        both = [(row["time"], row["beside"][key]) for row in planned if isinstance(row["beside"][key], float)]
        better = sum(theirs < ours for ours, theirs in both)
        rest = sorted((theirs - 1) / (ours - 1) for ours, theirs in both if ours > 1)
        middle = f"{rest[len(rest) // 2]:.1f}" if rest else NOTHING
        lines.append([name, f"{len(both)} of {len(planned)}", str(better), middle])
    return table(["method", "rows with a plan", "rows on which it is faster", "its overhead over ours, median"], lines)


def parts() -> Row:
    """The parts of the page, by the name of their comments."""
    document = stored("wide")
    made: Row = {"conditions": [f"{document['machine']}; {document['date']}.", ""]}
    halves = sorted({row["half"] for row in document["rows"]}, reverse=True)
    for half in halves:
        rows = [row for row in document["rows"] if row["half"] == half]
        budgets = [row for row in rows if row["share"] != "lowest"]
        made[f"bars of {half}"] = [*(f"* {line}" for line in missed(rows)[0]), ""]
        made[f"beside {half}"] = won(budgets)
        made[f"rows of {half}"] = table(HEADS, [cells(row) for row in budgets])
        made[f"limits of {half}"] = limits([row for row in rows if row["share"] == "lowest"])
    return made


def main() -> None:
    """Write the tables."""
    PAGE.write_text(renewed(PAGE.read_text(), parts(), MAKER), encoding="utf-8")


if __name__ == "__main__":
    main()
