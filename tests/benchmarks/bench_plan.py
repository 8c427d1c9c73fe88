"""`make bench-plan`: how good and how fast the default planner is, beside what users know, on captured whole models.

    python -m tests.benchmarks.bench_plan [FILES …]    the table, on the captured graphs in tests/data and on FILES
    … --zoo NAMES      also capture these models of remat.zoo.large without weights (needs torch), e.g. gpt24,regnet,uno
    … --zoo wide       instead: the wide zoo, row by row, goes on where it stopped (tests.benchmarks.bench_wide)
    … --only NAMES     only graphs of these names
    … --lowest         also the lowest budget a plan is found for
    … --seeds 10       instead: spread of the time over seeds at .35 and .25
    … --tiny 5000      instead: against the oracle on random tiny graphs
    … --first          instead: wall seconds from the call to the first plan, fresh process, warm compilation cache

Times are process CPU seconds. Writes build/bench/plan*.json; exits 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from remat.algorithms._bounds.instants import Dependencies, instant_formulation
from remat.algorithms._core.clock import Clock
from remat.algorithms._core.outcome import IMPOSSIBLE
from remat.algorithms._core.problem import Problem
from remat.algorithms._core.solver import Solver
from remat.algorithms._curves.budget_sweep import lowest_budget
from remat.algorithms._milp.direct import solve_relaxed
from remat.algorithms._search.auto import auto
from remat.algorithms._search.on_demand import recompute_on_demand
from remat.algorithms._search.state import Search
from remat.algorithms._whole.baselines import PerLayerCheckpoint, store_all_peak
from remat.algorithms._whole.exhaustive import Exhaustive
from remat.algorithms.named import dtr, rotor, tw_remat
from remat.ir import Graph, load, read_joint_graph
from tests.benchmarks.tiny import tiny_graph

CAPTURED = Path(__file__).parents[1] / "data" / "captured"
OUT = Path("build/bench")
BUDGETS = (0.7, 0.5, 0.35, 0.25, 0.2)

BESIDE: dict[str, Solver] = {"per layer": PerLayerCheckpoint(), "rotor": rotor, "dtr": dtr, "tw-remat": tw_remat}
"""What users know, in columns beside the planner."""

PROTOTYPE = {
    "gpt12": (1.0179, 1.0754, 1.1943),
    "encdec6": (1.0207, 1.0543, 1.1217, 1.1837, 1.2172),
    "resnet101": (1.0330, 1.0745, 1.1125, 1.1432, 1.1850),
    "mixer": (1.0225, 1.0413, 1.0780, 1.1335, 1.1606),
    "unet": (1.0185, 1.0388, 1.1530),
    "fno": (1.0310, 1.1723),
}
"""The best of the prototype (2026) on the six captured graphs, at `BUDGETS`; nothing may be worse by more than `.001`."""

NEAR = 0.03
"""How near the lowest budget found is to be to what is proved impossible, in parts of the peak."""


def bars(name: str, share: float, nodes: int) -> dict[str, float]:
    """What is asked of a plan: gap in per cent, CPU seconds of plan and bound. Missing: nothing is asked."""
    seconds = {"bound": 10 if nodes <= 1700 else 60}
    if name.startswith(("gpt", "encdec")) and share >= 0.25:
        return {"gap": 0.2, "plan": 2 if nodes <= 1700 else 10, **seconds}
    if name.startswith(("resnet", "regnet")):
        return {"gap": 0.15 if share >= 0.35 else 1.2 if share >= 0.25 else 3.0, "plan": 5, **seconds}
    if name.startswith("mixer"):
        return {"gap": 0.5, "plan": 2, **seconds}
    if name.startswith("unet"):
        gap = {0.7: 0.1, 0.5: 0.6, 0.35: 5.0}.get(share)
        return {"plan": 3, **seconds} if gap is None else {"gap": gap, "plan": 3, **seconds}
    return seconds


def graphs(args: argparse.Namespace) -> list[tuple[str, Graph]]:
    """The graphs asked for, by name."""
    found = [(path.name.split(".")[0], read_joint_graph(path)) for path in sorted(CAPTURED.glob("*.json.gz"))]
    found += [(Path(one).name.split(".")[0], load(one)) for one in args.files]
    if args.zoo:
        from remat.exec.weightless import capture_without_weights
        from remat.zoo import large

        found += [(one, capture_without_weights(getattr(large, one)).graph()) for one in args.zoo.split(",")]
    chosen = args.only.split(",") if args.only else None
    return [(name, graph) for name, graph in found if chosen is None or name in chosen]


def loss_knapsack(graph: Graph, budget: int) -> int | None:
    """Time of the best plan from the saved-set formulation at the loss alone, recomputed on demand, not repaired."""
    search = Search(Problem(graph=graph, budget=budget), Clock(), 0, "loss knapsack")
    dependencies, best = Dependencies(search.flat), None
    for share in np.linspace(1.0, 0.4, 14):
        instant = instant_formulation(search.flat, dependencies, graph.loss, int(budget * share), fixed=True)
        answer = None if instant.impossible else solve_relaxed(instant.linear)
        if answer is None or answer.point is None:
            continue
        saved = np.ones(len(graph.data), np.bool_)
        saved[instant.resident >= 0] = answer.point[instant.resident[instant.resident >= 0]] >= 0.5
        sequence = recompute_on_demand(search.flat, search.base, np.array([graph.loss], np.int32), saved[None, :])
        if search.arrays.fits(sequence):
            best = min(best or math.inf, search.arrays.time_of(sequence))
    return best


def measured(name: str, graph: Graph, share: float, peak: int) -> dict[str, object]:
    """One row of the table."""
    problem = Problem(graph=graph, budget=int(peak * share))
    start = time.process_time()
    clock = cpu_clock()
    outcome = auto.solve(problem, clock=clock)
    total = time.process_time() - start
    bound = clock.spent.get("bound", 0.0)
    base = graph.time
    knapsack = loss_knapsack(graph, problem.budget)
    beside = max((one.value for one in outcome.class_bounds), default=None)
    row: dict[str, object] = {
        "graph": name,
        "nodes": len(graph),
        "share": share,
        "status": outcome.status.value,
        "time": None if outcome.cost is None else outcome.cost.time / base,
        "bound": None if outcome.lower == IMPOSSIBLE else outcome.lower / base,
        "gap": None if outcome.gap is None else 100 * outcome.gap,
        "fixed_order_bound": None if beside in (None, IMPOSSIBLE) else beside / base,
        "plan_cpu": total - bound,
        "bound_cpu": bound,
        "loss_knapsack": None if knapsack is None else knapsack / base,
        "beside": {known: ratio_by(solver, problem) for known, solver in BESIDE.items()},
    }
    asked = bars(name, share, len(graph))
    missed = []
    if outcome.status.value != "infeasible" and "gap" in asked and (row["gap"] is None or row["gap"] > asked["gap"]):
        missed.append(f"gap {asked['gap']} %")
    missed += [
        f"{what} {asked[what]} s" for what in ("plan", "bound") if row[f"{what}_cpu"] > asked.get(what, math.inf)
    ]
    before = dict(zip(BUDGETS, PROTOTYPE.get(name, ()), strict=False)).get(share)
    if before is not None and (row["time"] is None or row["time"] > before + 0.001):
        missed.append(f"the prototype's {before}")
    row["missed"] = missed
    return row


def cpu_clock() -> Clock:
    """A clock that charges process CPU: `spent["bound"]` are seconds of bounds; all else is the plan's."""
    return Clock(now=time.process_time)


def ratio_by(solver: Solver, problem: Problem) -> float | None:
    """Time of another solver's plan over the time without recomputation; None: it has no plan, or cannot plan the graph."""
    if solver.refuses(problem.graph):
        return None
    outcome = solver.solve(problem)
    return None if outcome.cost is None else outcome.cost.time / problem.graph.time


def shown(value: object, digits: int = 4) -> str:
    """A number or a dash."""
    return f"{value:.{digits}f}" if isinstance(value, float) else "-"


def table(args: argparse.Namespace) -> int:
    """The main table."""
    rows, lowest = [], []
    warm = read_joint_graph(CAPTURED / "fno.json.gz")
    auto.solve(Problem(graph=warm, budget=int(store_all_peak(warm) * 0.5)))  # load the compiled kernels
    heads = "graph f | time | bound | gap % | fixed order | plan s | bound s"
    print(heads, "loss knapsack", *BESIDE, "missed", sep=" | ")
    for name, graph in graphs(args):
        peak = store_all_peak(graph)
        for share in args.budgets:
            row = measured(name, graph, share, peak)
            rows.append(row)
            cells = [row["status"] if row["time"] is None else shown(row["time"]), shown(row["bound"])]
            cells += [shown(row["gap"], 3), shown(row["fixed_order_bound"])]
            cells += [shown(row["plan_cpu"], 2), shown(row["bound_cpu"], 2), shown(row["loss_knapsack"])]
            cells += [*map(shown, row["beside"].values()), ", ".join(row["missed"]) or "-"]
            print(f"{name} {share} | " + " | ".join(str(one) for one in cells), flush=True)
        if args.lowest:
            lowest.append(lowest_of(name, graph, peak))
            print("lowest budget", lowest[-1], flush=True)
    write("plan", {"rows": rows, "lowest": lowest})
    missed = [f"{row['graph']} {row['share']}: {', '.join(row['missed'])}" for row in rows if row["missed"]]
    print(f"{len(missed)} of {len(rows)} rows miss a bar", *missed, sep="\n  ")
    far = [str(one["graph"]) for one in lowest if not one["near"]]
    if lowest:
        print(f"lowest budget within {NEAR} of the proved limit: {len(lowest) - len(far)} of {len(lowest)}; not:", *far)
    return bool(missed) or 11 * len(far) > 3 * len(lowest)


def lowest_of(name: str, graph: Graph, peak: int) -> dict[str, object]:
    """The lowest budget found and what is proved impossible, in parts of the peak."""
    start = time.process_time()
    found = lowest_budget(graph)
    limits = {"floor": found.floor, "impossible": found.impossible, "found": found.point.budget}
    return {
        "graph": name,
        **{key: round(value / peak, 4) for key, value in limits.items()},
        "time": round(found.point.outcome.upper / graph.time, 4),
        "near": found.point.budget - max(found.floor, found.impossible) <= NEAR * peak,
        "cpu": round(time.process_time() - start, 1),
    }


def seeds(args: argparse.Namespace) -> int:
    """Spread of the time over seeds."""
    rows = []
    for name, graph in graphs(args):
        peak = store_all_peak(graph)
        for share in (0.35, 0.25):
            problem = Problem(graph=graph, budget=int(peak * share))
            times = [auto.solve(problem, seed=seed).upper / graph.time for seed in range(args.seeds)]
            row = {
                "graph": name,
                "share": share,
                "min": min(times),
                "median": statistics.median(times),
                "max": max(times),
            }
            rows.append(row)
            print(row, flush=True)
            write("plan-seeds", {"rows": rows})
    return 0


def tiny(args: argparse.Namespace) -> int:
    """Against the oracle: with explicit sums as captures have them, and with data of several writers."""
    rows = {"explicit sums": tiny_class(args.tiny, summed=False), "several writers": tiny_class(args.tiny, summed=True)}
    write("plan-tiny", rows)
    missed = [name for name, row in rows.items() if row["unsound"] or row["optimal"] < 0.98 or row["found"] < 0.99]
    print("missed:" if missed else "all bars held", ", ".join(missed))
    return bool(missed)


def tiny_class(instances: int, *, summed: bool) -> dict[str, float]:
    """Every budget from the peak down to the first infeasible one, on random graphs, until `instances` were feasible."""
    rng = random.Random(0)
    feasible = infeasible = found = optimal = proved = unsound = 0
    while feasible < instances:
        graph = tiny_graph(rng, rng.choice((3, 4, 5)), summed)
        for budget in range(store_all_peak(graph), 0, -1):
            problem = Problem(graph=graph, budget=budget)
            exact, answer = Exhaustive().solve(problem), auto.solve(problem)
            unsound += answer.lower > exact.upper or answer.upper < exact.upper
            if exact.cost is None:
                infeasible += 1
                break
            feasible += 1
            found += answer.cost is not None
            optimal += answer.upper == exact.upper
            proved += answer.lower == answer.upper
    row = {"feasible": feasible, "infeasible": infeasible, "unsound": unsound}
    row |= {"found": found / feasible, "optimal": optimal / feasible, "proved": proved / feasible}
    print("several writers" if summed else "explicit sums", row, flush=True)
    return row


_FIRST = """
import sys, time
from remat.algorithms._whole.baselines import store_all_peak
from remat.algorithms._core.problem import Problem
from remat.algorithms._core.clock import Clock
from remat.ir import read_joint_graph
graph = read_joint_graph(sys.argv[1])
budget = store_all_peak(graph) // 2
start = time.monotonic()
from remat.algorithms._search.auto import auto
class Found(Exception): pass
def listener(progress):
    if progress.best is not None:
        print(time.monotonic() - start)
        raise Found
try:
    auto.solve(Problem(graph=graph, budget=budget), clock=Clock(listener=listener))
except Found:
    pass
"""


def first(args: argparse.Namespace) -> int:
    """Wall seconds to the first plan in a fresh process; the first run of all warms the compilation cache."""
    seconds = []
    for _ in range(4):
        command = [sys.executable, "-c", _FIRST, str(CAPTURED / "gpt12.json.gz")]
        seconds.append(float(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    print("first plan of gpt12, seconds of wall time after the import of the graph:", seconds[1:])
    write("plan-first", {"seconds": seconds[1:]})
    return statistics.median(seconds[1:]) > 1.0


def write(name: str, content: dict[str, object]) -> None:
    """JSON under build/bench."""
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / f"{name}.json").write_text(json.dumps(content, indent=1))


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", help="graphs in the library's JSON form")
    parser.add_argument("--zoo", default="")
    parser.add_argument("--only", default="")
    parser.add_argument("--budgets", type=lambda text: [float(one) for one in text.split(",")], default=list(BUDGETS))
    parser.add_argument("--lowest", action="store_true")
    parser.add_argument("--seeds", type=int, default=0)
    parser.add_argument("--tiny", type=int, default=0)
    parser.add_argument("--first", action="store_true")
    parser.add_argument("--half", choices=("develop", "report"), default="", help="of the wide zoo")
    parser.add_argument("--limit", type=float, default=300.0, help="of a row of the wide zoo [s of wall time]")
    parser.add_argument("--print", action="store_true", help="of the wide zoo, only rows that are there")
    args = parser.parse_args()
    if args.zoo == "wide":
        from tests.benchmarks import bench_wide

        return bench_wide.main(args)
    if args.seeds:
        return seeds(args)
    if args.tiny:
        return tiny(args)
    return first(args) if args.first else table(args)


if __name__ == "__main__":
    sys.exit(main())
