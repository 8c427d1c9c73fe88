"""`python -m tests.site.certificates`: the table of docs/benchmarks/proofs.md, from the stored run of `make bench-proofs`."""

from tests.benchmarks.bench_proofs import ASKED, JUDGED, LOSS
from tests.site.evidence import FOLDER, Row, renewed, stored, table

PAGE = FOLDER / "proofs.md"
MAKER = "tests.site.certificates"
HEADS = [
    "graph, budget",
    "theorem",
    "claimed",
    "proved",
    "leaves",
    "bytes",
    "plan",
    "trees",
    "write",
    "check",
    "`auto`",
]


def named(row: Row) -> str:
    """A graph and its budget."""
    return f"{row['graph']}, {100 * row['share']:.0f} %"


def seconds(value: float) -> str:
    """CPU seconds."""
    return f"{value:.2f} s"


def ratio(value: float | None) -> str:
    """A bound over the time without recomputation."""
    return "no plan exists" if value is None else f"{value:.6f}"


def rows_of(rows: list[Row]) -> list[str]:
    """A line for each row."""
    lines = []
    for row in rows:
        instants = "two instants" if row["instants"] == 2 else "one instant"
        theorem = "floor" if row["theorem"] == "floor" else instants
        claimed = ratio(row["claimed"]) + (" (integers)" if row["integers"] else "")
        times = [seconds(row[f"{what}_cpu"]) for what in ("plan", "grow", "write", "check")]
        both = f"{seconds(row['bare_cpu'])}, {seconds(row['asked_cpu'])}"
        cells = [named(row), theorem, claimed, ratio(row["proved"])]
        lines.append([*cells, f"{row['leaves']:,}", f"{row['compressed']:,}", *times, both])
    return table(HEADS, lines)


def facts(rows: list[Row]) -> list[str]:
    """What the rows say together, bars first."""
    whole = [row for row in rows if row["integers"]]
    near = [row for row in whole if row["lost"] <= LOSS]
    far = [f"{named(row)} loses {row['lost']:.3f} %" for row in whole if row["lost"] > LOSS]
    above = sum(row["proved"] is not None and row["proved"] > row["claimed"] for row in whole)
    bare, asked = (sum(row[key] for row in rows) for key in ("bare_cpu", "asked_cpu"))
    long = [row for row in rows if row["bare_cpu"] >= JUDGED]
    over = [row for row in long if row["proof_cpu"] > ASKED * row["bare_cpu"]]
    short = [row for row in rows if row["bare_cpu"] < JUDGED and row["proof_cpu"] > ASKED * row["bare_cpu"]]
    few = f" ({', '.join(sorted({row['graph'] for row in short}))})" if short else ""
    return [
        f"* Of {len(whole)} rows with integers {len(near)} lose at most {LOSS} % of the time against the claim (9 of 10 asked"
        + "".join(f"; {line}" for line in far)
        + f"); {above} are proved above the claim.",
        f"* Checking takes at most {seconds(max(row['check_cpu'] for row in rows))}; a tenth of planning or 2 s is asked.",
        f"* `auto` over all rows takes {bare:.1f} s without evidence and {asked:.1f} s with its proof, written and checked: "
        f"{100 * (asked / bare - 1):+.1f} % (10 asked).",
        f"* The proof alone is over a tenth of planning on {len(over)} of {len(long)} rows that plan for {JUDGED:g} s and longer",
        f"  and on {len(short)} of {len(rows) - len(long)} shorter ones{few}.",
        "",
    ]


def parts() -> Row:
    """The parts of the page, by the name of their comments."""
    document = stored("proofs")
    rows = document["rows"]
    made = f"`make bench-proofs`, {len(rows)} rows; {document['machine']}; {document['date']}."
    return {"conditions": [made, ""], "rows": rows_of(rows), "facts": facts(rows)}


def main() -> None:
    """Write the table."""
    PAGE.write_text(renewed(PAGE.read_text(), parts(), MAKER), encoding="utf-8")


if __name__ == "__main__":
    main()
