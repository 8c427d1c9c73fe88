"""`make bench-offload`: recomputation alone, copies alone, and both in one plan, with the bound for every schedule with copies.

    python -m tests.benchmarks.bench_offload                    all of it, one to two hours on two cores
    … --sets captured,large,large-h100,wide --only NAMES        parts of it
    … FILES --speeds 12,50,900 --budgets 0.7,0.5,0.35,0.25,0    graphs of files; budget 0: the lowest found without copies
    … --again          forget the rows of earlier runs

Captured graphs of tests/data with the times of a V100, large models with those of a V100 and an H100, the wide zoo with those of
an H100; what is not in build/graphs and build/h100 is captured first. Numbers are time over the time without recomputation;
speeds are GB/s each way, without latency; seconds are process CPU. Writes build/bench/offload.json after each budget of a graph
and goes on from there, the lowest budgets last.
Exits 1 where both is slower than either, or more than .2 % slower than the prototype's figures.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import time
from pathlib import Path

from attrs import frozen

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
from tests.benchmarks import capture_graphs

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

LONG = 0.3
"""Planning without a link that takes less says little of how much longer it takes with one [s]."""
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
    known_by = (str(entry["graph"]), _number(entry["share"]), _number(entry["gb_per_s"]))
    before = PROTOTYPE.get(known_by) if entry["device"] == "v100" else None
    if before is not None and both > before * (1 + SLACK):
        wrong.append(f"prototype {before}")
    return wrong


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else float("inf")


def shown(value: object) -> str:
    """A number or a dash."""
    return f"{value:.4f}" if isinstance(value, float) else "-"


@frozen
class Unit:
    """What a worker plans at once: a budget of a graph, with links of all speeds.

    Attributes:
        device: whose times the graph has. path: of the graph. share: of the peak; 0: the lowest budget found without copies.
        speeds: of the links [GB/s].
    """

    device: str
    path: Path
    share: float
    speeds: tuple[float, ...]

    @property
    def name(self) -> str:
        """Of the graph."""
        return self.path.name.split(".")[0]

    def row_keys(self) -> list[str]:
        """What its rows are known by."""
        return [key(self.device, self.name, self.share, speed) for speed in self.speeds]


def planned(unit: Unit) -> list[dict[str, object]]:
    """The rows of a unit."""
    graph = read_joint_graph(unit.path) if unit.path.parent == CAPTURED else load(unit.path)
    peak = store_all_peak(graph)
    budget = int(peak * unit.share) if unit.share else quick_lowest_budget(graph).point.budget
    recomputing = Recomputing(graph)
    facts = {"device": unit.device, "budget": budget, "of_peak": budget / peak}
    return [row(unit.name, recomputing, unit.share, budget, speed) | facts for speed in unit.speeds]


def table(args: argparse.Namespace) -> int:
    """The rows asked for, those of earlier runs included."""
    rows: dict[str, dict[str, object]] = {}
    if OUT.exists() and not args.again:
        rows = {key_of(entry): entry for entry in json.loads(OUT.read_text())["rows"]}
    units = units_of(args)
    missing = [unit for unit in units if not all(name in rows for name in unit.row_keys())]
    missing.sort(key=lambda unit: -unit.share)
    print(
        "device graph f GB/s | recomputation | copies | both | bound | gap % | reruns | CPU s, without link, bound | missed"
    )
    with multiprocessing.get_context("spawn").Pool(args.jobs, initializer=warm) as pool:
        for entries in pool.imap_unordered(planned, missing):
            for entry in entries:
                rows[key_of(entry)] = entry
                show(entry)
            OUT.parent.mkdir(parents=True, exist_ok=True)
            OUT.write_text(json.dumps({"rows": list(rows.values())}, indent=1))
    return summary([rows[name] for unit in units for name in unit.row_keys()])


def key(device: str, name: str, share: float, speed: float) -> str:
    """What a row is known by."""
    return f"{device} {name} {share:g} {speed:g}"


def key_of(entry: dict[str, object]) -> str:
    """What a row of an earlier run is known by."""
    return key(str(entry["device"]), str(entry["graph"]), _number(entry["share"]), _number(entry["gb_per_s"]))


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
    slower = [
        _number(entry["cpu"]) / _number(entry["cpu_without_link"])
        for entry in rows
        if _number(entry["cpu_without_link"]) >= LONG and entry["recomputation"] is not None
    ]
    alone = [_number(entry["cpu"]) for entry in rows if entry["recomputation"] is None and entry["both"] is not None]
    if slower:
        print(
            f"CPU with a link over without, where that finds a plan and takes {LONG} s or more: median "
            f"{statistics.median(slower):.1f}, largest {max(slower):.1f}, above five {sum(ratio > 5 for ratio in slower)} of "
            f"{len(slower)}"
        )
    if alone:
        print(f"CPU with a link where there is no plan without copies: {min(alone):.1f} to {max(alone):.1f} s")
    wrong = [f"{key_of(entry)}: {', '.join(missed(entry))}" for entry in rows if missed(entry)]
    print(f"{len(wrong)} of {len(rows)} rows miss a bar", *wrong, sep="\n  ")
    return bool(wrong)


@frozen
class Set:
    """Graphs with the links and budgets that they are planned for.

    Attributes:
        device: whose times they have. zoo: which models are captured; None: the graphs of tests/data.
        speeds: of the links [GB/s]. shares: of the peak.
    """

    device: str
    zoo: str | None
    speeds: tuple[float, ...]
    shares: tuple[float, ...]

    def paths(self) -> list[Path]:
        """Its graphs, captured where they are not there."""
        stored = sorted(CAPTURED.glob("*.json.gz"))
        if self.zoo is None:
            return stored
        into = Path("build/graphs" if self.device == "v100" else f"build/{self.device}")
        capture_graphs.main(["--zoo", self.zoo, "--device-model", self.device, "--into", str(into)])
        names = capture_graphs.LARGE if self.zoo == "large" else capture_graphs.wide()
        left_out = {path.name.split(".")[0] for path in stored} if self.device == "v100" else ()
        return [into / f"{name}.json.gz" for name in names if name not in left_out]


SHARES = (0.7, 0.5, 0.35, 0.25)
SETS = {
    "captured": Set("v100", None, (12, 50, 900), (*SHARES, 0)),
    "large": Set("v100", "large", (12, 50, 900), (*SHARES, 0)),
    "large-h100": Set("h100", "large", (50, 900), (*SHARES, 0)),
    "wide": Set("h100", "wide", (50, 900), (*SHARES, 0)),
}


def units_of(args: argparse.Namespace) -> list[Unit]:
    """The units asked for."""
    chosen = args.only.split(",") if args.only else None
    if args.files:
        units = [Unit("file", Path(path), share, args.speeds) for path in args.files for share in args.budgets]
    else:
        asked = [SETS[name] for name in args.sets.split(",")]
        units = [
            Unit(one.device, path, share, one.speeds) for one in asked for path in one.paths() for share in one.shares
        ]
    return [unit for unit in units if chosen is None or unit.name in chosen]


def warm() -> None:
    """Load the compiled kernels."""
    graph = read_joint_graph(CAPTURED / "fno.json.gz")
    auto.solve(Problem(graph=graph, budget=store_all_peak(graph) // 2, link=Link.symmetric(gb_per_s=12)))


def numbers(text: str) -> tuple[float, ...]:
    """A list of numbers."""
    return tuple(map(float, text.split(",")))


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*")
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--only")
    parser.add_argument("--speeds", type=numbers, default=(12, 50, 900))
    parser.add_argument("--budgets", type=numbers, default=(*SHARES, 0))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--again", action="store_true")
    return table(parser.parse_args())


if __name__ == "__main__":
    raise SystemExit(main())
