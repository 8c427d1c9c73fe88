"""`make bench-offload`: recomputation alone, copies alone, and both in one plan, with the bound for every schedule with copies.

    python -m tests.benchmarks.bench_offload [FILES …]   the table, on the captured graphs in tests/data and on FILES
    … --only NAMES --speeds 12,50,900 --budgets 0.7,0.5,0.35,0.25,0      parts of it; budget 0: the lowest found without copies
    … --again          forget the rows of earlier runs

Numbers are time over the time without recomputation; speeds are GB/s each way, without latency; seconds are process CPU.
Writes build/bench/offload.json after each row and goes on from there. Exits 1 where both is slower than either, or more than
.2 % slower than the prototype's figures.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

from remat.algorithms._copies.copy_passes import CopiesAlone
from remat.algorithms._copies.copy_search import CopySearch
from remat.algorithms._core.clock import Clock
from remat.algorithms._core.outcome import IMPOSSIBLE, Outcome
from remat.algorithms._core.problem import Problem
from remat.algorithms._curves.budget_sweep import quick_lowest_budget
from remat.algorithms._search.auto import auto
from remat.algorithms._whole.baselines import store_all_peak
from remat.ir import Graph, Link, load, read_joint_graph
from remat.ir.cost import Lane

CAPTURED = Path(__file__).parents[1] / "data" / "captured"
OUT = Path("build/bench/offload.json")

PROTOTYPE = {
    ("gpt12", 0.7, 12): 1.0086,
    ("gpt12", 0.5, 12): 1.0335,
    ("gpt12", 0.5, 25): 1.0107,
    ("gpt12", 0.5, 50): 1.0,
    ("gpt12", 0.35, 12): 1.0784,
    ("gpt12", 0.35, 25): 1.0328,
    ("gpt12", 0.35, 50): 1.0131,
    ("unet", 0.5, 12): 1.0171,
    ("unet", 0.5, 25): 1.0,
    ("unet", 0.5, 50): 1.0,
    ("unet", 0.35, 12): 1.0277,
    ("unet", 0.35, 25): 1.0147,
    ("unet", 0.35, 50): 1.0042,
    ("encdec6", 0.5, 12): 1.0404,
    ("encdec6", 0.5, 25): 1.0165,
    ("encdec6", 0.5, 50): 1.0,
    ("encdec6", 0.35, 12): 1.0641,
    ("encdec6", 0.35, 25): 1.0298,
    ("encdec6", 0.35, 50): 1.0076,
    ("encdec6", 0.25, 12): 1.1081,
    ("encdec6", 0.25, 25): 1.0597,
    ("encdec6", 0.25, 50): 1.0149,
    ("resnet101", 0.5, 12): 1.0483,
    ("resnet101", 0.5, 25): 1.0230,
    ("resnet101", 0.5, 50): 1.0,
    ("resnet101", 0.35, 12): 1.0806,
    ("resnet101", 0.35, 25): 1.0480,
    ("resnet101", 0.35, 50): 1.0045,
    ("resnet101", 0.25, 12): 1.1107,
    ("resnet101", 0.25, 25): 1.0714,
    ("resnet101", 0.25, 50): 1.0185,
}
"""The best of the prototype (2026), by graph, share of the peak and GB/s."""

SLACK = 0.002
"""How much slower than the prototype a plan may be."""


class Recomputing:
    """Plans without copies, one per budget."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.plans: dict[int, tuple[Outcome, float]] = {}

    def at(self, budget: int) -> tuple[Outcome, float]:
        """The plan within a budget, and its CPU seconds."""
        if budget not in self.plans:
            start = time.process_time()
            outcome = auto.solve(Problem(graph=self.graph, budget=budget))
            self.plans[budget] = outcome, time.process_time() - start
        return self.plans[budget]


def row(name: str, recomputing: Recomputing, share: float, budget: int, speed: float) -> dict[str, object]:
    """One row of the table."""
    graph = recomputing.graph
    problem = Problem(graph=graph, budget=budget, link=Link.symmetric(gb_per_s=speed))
    plain, plain_cpu = recomputing.at(budget)
    alone = CopySearch(problem, Clock(), 0, "copies alone")
    CopiesAlone().improve(alone)
    start, clock = time.process_time(), Clock(now=time.process_time)
    both = auto.solve(problem, clock=clock)
    cpu = time.process_time() - start
    copied = (
        None
        if both.cost is None
        else sum(way.end - way.start for way in both.cost.intervals if way.lane is not Lane.COMPUTE)
    )
    return {
        "graph": name,
        "share": share,
        "gb_per_s": speed,
        "recomputation": ratio(plain.upper, graph),
        "copies": None if alone.best is None else ratio(alone.best.time, graph),
        "both": ratio(both.upper, graph),
        "bound": None if both.lower == IMPOSSIBLE else ratio(both.lower, graph),
        "impossible": both.lower == IMPOSSIBLE,
        "gap_percent": None if both.gap is None else 100 * both.gap,
        "reruns": None if both.cost is None else both.cost.reruns,
        "host_peak": None if both.cost is None else both.cost.host_peak,
        "idle": None if both.cost is None else both.cost.idle / graph.time,
        "lane_time": None if copied is None else copied / graph.time,
        "cpu": cpu,
        "bound_cpu": clock.spent.get("bound", 0.0),
        "cpu_without_link": plain_cpu,
    }


def ratio(time_: float, graph: Graph) -> float | None:
    """Time over that without recomputation; None: there is no plan."""
    return None if time_ == float("inf") else time_ / graph.time


def missed(entry: dict[str, object]) -> list[str]:
    """The bars that a row misses."""
    both = _number(entry["both"])
    bars = {what: _number(entry[what]) for what in ("recomputation", "copies")}
    wrong = [f"slower than {what} alone" for what, value in bars.items() if both > value + 1e-9]
    before = PROTOTYPE.get((str(entry["graph"]), _number(entry["share"]), _number(entry["gb_per_s"])))
    if before is not None and both > before * (1 + SLACK):
        wrong.append(f"prototype {before}")
    return wrong


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else float("inf")


def shown(value: object) -> str:
    """A number or a dash."""
    return f"{value:.4f}" if isinstance(value, float) else "-"


def table(args: argparse.Namespace) -> int:
    """The rows asked for, those of earlier runs included."""
    rows: dict[str, dict[str, object]] = {}
    if OUT.exists() and not args.again:
        rows = {key_of(entry): entry for entry in json.loads(OUT.read_text())["rows"]}
    print("graph f GB/s | recomputation | copies | both | bound | gap % | reruns | CPU s, without link, bound | missed")
    for name, graph in graphs(args):
        recomputing, peak = Recomputing(graph), store_all_peak(graph)
        for share in args.budgets:
            wanted = [speed for speed in args.speeds if key(name, share, speed) not in rows]
            budget = int(peak * share) if share or not wanted else quick_lowest_budget(graph).point.budget
            for speed in wanted:
                entry = row(name, recomputing, share, budget, speed) | {"budget": budget, "of_peak": budget / peak}
                rows[key(name, share, speed)] = entry
                OUT.parent.mkdir(parents=True, exist_ok=True)
                OUT.write_text(json.dumps({"rows": list(rows.values())}, indent=1))
            for speed in args.speeds:
                show(rows[key(name, share, speed)])
    return summary(list(rows.values()))


def key(name: str, share: float, speed: float) -> str:
    """What a row is known by."""
    return f"{name} {share:g} {speed:g}"


def key_of(entry: dict[str, object]) -> str:
    """What a row of an earlier run is known by."""
    return key(str(entry["graph"]), _number(entry["share"]), _number(entry["gb_per_s"]))


def show(entry: dict[str, object]) -> None:
    """Print a row."""
    times = " | ".join(shown(entry[what]) for what in ("recomputation", "copies", "both", "bound", "gap_percent"))
    seconds = ", ".join(f"{_number(entry[what]):.1f}" for what in ("cpu", "cpu_without_link", "bound_cpu"))
    print(f"{key_of(entry)} | {times} | {entry['reruns']} | {seconds} | {'; '.join(missed(entry)) or '-'}", flush=True)


def summary(rows: list[dict[str, object]]) -> int:
    """What all rows say; 1 when a bar is missed."""
    gaps = [_number(entry["gap_percent"]) for entry in rows if entry["gap_percent"] is not None]
    if gaps:
        near = [sum(gap <= bar for gap in gaps) for bar in (0.5, 2.0)]
        print(
            f"gap: {near[0]} of {len(gaps)} rows within .5 %, {near[1]} within 2 %, median {statistics.median(gaps):.3f} %"
        )
    saved = [
        1 - (_number(entry["both"]) - 1) / (_number(entry["recomputation"]) - 1)
        for entry in rows
        if isinstance(entry["recomputation"], float) and entry["recomputation"] > 1.0001 and entry["both"] is not None
    ]
    if saved:
        print(
            f"overhead of recomputation that goes: {min(saved):.0%} to {max(saved):.0%}, median {statistics.median(saved):.0%}"
        )
    slower = [_number(entry["cpu"]) / _number(entry["cpu_without_link"]) for entry in rows]
    if slower:
        print(f"CPU with a link over without: median {statistics.median(slower):.1f}, largest {max(slower):.1f}")
    wrong = [f"{key_of(entry)}: {', '.join(missed(entry))}" for entry in rows if missed(entry)]
    print(f"{len(wrong)} of {len(rows)} rows miss a bar", *wrong, sep="\n  ")
    return bool(wrong)


def graphs(args: argparse.Namespace) -> list[tuple[str, Graph]]:
    """The graphs asked for, by name."""
    named = [(path.name.split(".")[0], read_joint_graph(path)) for path in sorted(CAPTURED.glob("*.json.gz"))]
    named += [(Path(path).name.split(".")[0], load(path)) for path in args.files]
    chosen = args.only.split(",") if args.only else None
    return [(name, graph) for name, graph in named if chosen is None or name in chosen]


def numbers(text: str) -> tuple[float, ...]:
    """A list of numbers."""
    return tuple(map(float, text.split(",")))


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*")
    parser.add_argument("--only")
    parser.add_argument("--speeds", type=numbers, default=(12, 50, 900))
    parser.add_argument("--budgets", type=numbers, default=(0.7, 0.5, 0.35, 0.25, 0))
    parser.add_argument("--again", action="store_true")
    warm = read_joint_graph(CAPTURED / "fno.json.gz")
    link = Link.symmetric(gb_per_s=12)
    auto.solve(Problem(graph=warm, budget=store_all_peak(warm) // 2, link=link))  # load the compiled kernels
    return table(parser.parse_args())


if __name__ == "__main__":
    raise SystemExit(main())
