"""`python -m tests.site.offload [ROWS]`: the tables of docs/benchmarks/offload.md, from the stored run of `make bench-offload`.

With the file of a run (build/bench/offload.json) its rows are stored first, in docs/benchmarks/offload.json, in short.
"""

import datetime
import json
import statistics
import sys
from pathlib import Path

from tests.benchmarks import capture_graphs
from tests.benchmarks.bench_offload import CAPTURED, LONG, SLACK, missed
from tests.site.evidence import FOLDER, Row, renewed, stored, table

PAGE, STORED = FOLDER / "offload.md", FOLDER / "offload.json"
MAKER = "tests.site.offload"
NOTHING = "–"
WHOLE = ("device", "graph", "share", "gb_per_s", "impossible", "reruns")
ROUNDED = {"of_peak": 4, "recomputation": 5, "copies": 5, "both": 5, "bound": 5, "gap_percent": 6}
SECONDS = {"cpu": 2, "cpu_without_link": 2}
COLUMNS = (*WHOLE, *ROUNDED, *SECONDS)
NEAR, WITHIN = 0.5, 2.0
"""Gaps that are asked of half of the rows and of nine of ten [%]."""

SECTIONS = ("captured", "large", "large-h100", "wide")


def store(source: Path) -> None:
    """Store the rows of a run."""
    digits = ROUNDED | SECONDS
    rows = [
        [round(row[key], digits[key]) if key in digits and row[key] is not None else row[key] for key in COLUMNS]
        for row in sorted(json.loads(source.read_text())["rows"], key=in_order)
    ]
    document = {"date": str(datetime.date.fromtimestamp(source.stat().st_mtime)), "columns": COLUMNS}
    lines = ",\n".join(json.dumps(row) for row in rows)
    STORED.write_text(f'{json.dumps(document)[:-1]}, "rows": [\n{lines}\n]}}\n', encoding="utf-8")


def rows_of(document: Row) -> list[Row]:
    """The stored rows."""
    return [dict(zip(document["columns"], row, strict=True)) for row in document["rows"]]


def section(row: Row) -> str:
    """The section of a row."""
    captured = {path.name.split(".")[0] for path in CAPTURED.glob("*.json.gz")}
    of_device = {
        "v100": "captured" if row["graph"] in captured else "large",
        "h100": "large-h100" if row["graph"] in capture_graphs.LARGE else "wide",
    }
    place = of_device[row["device"]]
    return place if row["share"] else f"{place}, lowest"


def in_order(row: Row) -> tuple[str, str, float, float]:
    """How the rows of a table are sorted."""
    return row["device"], row["graph"], -row["share"], row["gb_per_s"]


def time(value: float | None) -> str:
    """A time over the time without recomputation."""
    return NOTHING if value is None else f"{value:.4f}"


def share(row: Row) -> str:
    """Of the peak."""
    return f"{100 * row['of_peak']:.1f} %" if not row["share"] else f"{100 * row['share']:.0f} %"


def gap(row: Row) -> str:
    """Of the plan to the bound."""
    return NOTHING if row["gap_percent"] is None else f"{row['gap_percent']:.2f}"


def lines_of(rows: list[Row]) -> list[str]:
    """A table with a line for each row."""
    head = ["graph", "of the peak", "GB/s", "recomputation", "copies", "both", "bound", "gap %", "reruns", "seconds"]
    lines = []
    for row in (row for row in rows if not row["impossible"]):
        times = [time(row[key]) for key in ("recomputation", "copies", "both", "bound")]
        reruns = NOTHING if row["reruns"] is None else str(row["reruns"])
        seconds = f"{row['cpu']:.1f}, {row['cpu_without_link']:.1f}"
        place = [row["graph"], share(row), f"{row['gb_per_s']:.0f}"]
        lines.append([*place, *times, gap(row), reruns, seconds])
    return table(head, lines)


def pairs_of(rows: list[Row]) -> list[str]:
    """A table with a line for the two speeds of each graph and budget."""
    head = ["graph", "of the peak", "recomputation"]
    head += ["copies, 50", "both, 50", "bound, 50", "gap %", "both, 900", "gap %, 900"]
    pairs: dict[tuple[str, float], dict[float, Row]] = {}
    for row in rows:
        pairs.setdefault((row["graph"], row["share"]), {})[row["gb_per_s"]] = row
    lines = []
    for slow, fast in ((pair[50], pair[900]) for pair in pairs.values()):
        if slow["impossible"] and fast["impossible"]:
            continue
        times = [time(slow[key]) for key in ("recomputation", "copies", "both", "bound")]
        lines.append([slow["graph"], share(slow), *times, gap(slow), time(fast["both"]), gap(fast)])
    return table(head, lines)


def count(rows: list[Row], most: float) -> int:
    """Rows within a gap [%]."""
    return sum(row["gap_percent"] <= most for row in rows)


def gaps(rows: list[Row]) -> str:
    """Rows within both gaps, and the median gap."""
    if not rows:
        return "no plan"
    half = statistics.median(row["gap_percent"] for row in rows)
    return f"{count(rows, NEAR)} and {count(rows, WITHIN)} of {len(rows)}, median {half:.3f} %"


def named(row: Row) -> str:
    """A row, in a sentence."""
    return f"{row['graph']} at {share(row)}, {row['gb_per_s']:.0f} GB/s"


def percent(part: float) -> str:
    """A share, without digits."""
    return f"{100 * part:.0f} %"


def saved(row: Row) -> float:
    """How much of the overhead of recomputation goes."""
    return float(1 - (row["both"] - 1) / (row["recomputation"] - 1))


def slower(row: Row) -> float:
    """Seconds with the link over seconds without."""
    return float(row["cpu"] / row["cpu_without_link"])


def facts(rows: list[Row]) -> list[str]:
    """What the rows of a section say."""
    planned = [row for row in rows if row["both"] is not None]
    open_ = sorted({f"{row['graph']} at {share(row)}" for row in rows if row["both"] is None and not row["impossible"]})
    undecided = f", undecided: {', '.join(open_)}" if open_ else ""
    impossible = sum(row["impossible"] for row in rows)
    by_speed = {
        speed: [row for row in planned if row["gb_per_s"] == speed]
        for speed in sorted({row["gb_per_s"] for row in rows})
    }
    each = "; ".join(f"at {speed:.0f} GB/s {gaps(part)}" for speed, part in by_speed.items())
    lines = [
        f"* {len(rows)} rows, {len(planned)} with a plan; {impossible} impossible by the bound with copies{undecided}.",
        f"* Gap to the bound, rows within .5 and 2 %: {gaps(planned)}; {each}.",
    ]
    if planned:
        worst = max(planned, key=lambda row: row["gap_percent"])
        lines.append(f"* Largest gap: {worst['gap_percent']:.1f} % ({named(worst)}).")
    both = [row for row in planned if (row["recomputation"] or 0) > 1.0001]
    slow = [row for row in both if row["gb_per_s"] == min(by_speed)]
    if both:
        ends = [f"{percent(min(map(saved, part)))} to {percent(max(map(saved, part)))}" for part in (both, slow)]
        lines.append(
            f"* Of the overhead of recomputation {ends[0]} goes, median {percent(statistics.median(map(saved, both)))}; "
            f"at {min(by_speed):.0f} GB/s alone {ends[1]}, median {percent(statistics.median(map(saved, slow)))}."
        )
    alone = [row["cpu"] for row in planned if row["recomputation"] is None]
    if alone:
        lines.append(
            f"* Where there is no plan without copies: {min(alone):.1f} to {max(alone):.1f} seconds with the link."
        )
    timed = [row for row in planned if row["cpu_without_link"] >= LONG and row["recomputation"] is not None]
    if not timed:
        return [*lines, ""]
    most, above_five = max(timed, key=slower), sum(slower(row) > 5 for row in timed)
    seconds = f"{most['cpu']:.1f} s beside {most['cpu_without_link']:.1f}"
    return [
        *lines,
        f"* Seconds with the link over without, where planning without finds a plan and takes {LONG} s or more: median "
        f"{statistics.median(map(slower, timed)):.1f}, at most {slower(most):.1f} ({named(most)}: {seconds}), above five in "
        f"{above_five} of {len(timed)} rows; most seconds: {max(row['cpu'] for row in rows):.0f}.",
        "",
    ]


def whole(document: Row) -> list[str]:
    """What all rows say together."""
    rows = rows_of(document)
    planned = [row for row in rows if row["both"] is not None]
    near, within = (
        f"{count(planned, most)} ({100 * count(planned, most) / len(planned):.1f} %)" for most in (NEAR, WITHIN)
    )
    return [
        f"{document['date']}, {len(rows)} rows. Of {len(planned)} with a plan {near} are within .5 % of their bound, {within} "
        "within 2 %;",
        f"{sum(bool(missed(row)) for row in rows)} rows take longer than recomputation or copies alone, or over "
        f"{100 * SLACK:g} % longer than the prototype's.",
        "",
    ]


def above(rows: list[Row]) -> list[str]:
    """Which rows are above 2 %."""
    planned = [row for row in rows if row["both"] is not None]
    far = [row for row in planned if row["gap_percent"] > WITHIN]
    lowest = sum(not row["share"] for row in far)
    wide = sum(section(row) == "wide" for row in far)
    below = sum(row["recomputation"] is None for row in far)
    return [
        f"{len(far)} of the {len(planned)} rows: {lowest} of the lowest budgets, {wide} of the wide zoo at shares of 25 % and "
        f"more, {len(far) - lowest - wide} of the captured and large graphs. {below} of them have no plan without copies.",
        "",
    ]


def parts() -> Row:
    """The parts of the page, by the name of their comments."""
    document = stored("offload")
    rows = rows_of(document)
    made: Row = {"whole": whole(document)}
    for place in SECTIONS:
        for name in (place, f"{place}, lowest"):
            here = [row for row in rows if section(row) == name]
            made[f"facts of {name}"] = facts(here)
            made[f"rows of {name}"] = pairs_of(here) if place == "wide" else lines_of(here)
    return made | {"above": above(rows)}


def main() -> None:
    """Store the rows of a run, if one is given, and write the tables."""
    for source in sys.argv[1:]:
        store(Path(source))
    PAGE.write_text(renewed(PAGE.read_text(), parts(), MAKER), encoding="utf-8")


if __name__ == "__main__":
    main()
