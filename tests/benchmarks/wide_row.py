"""One row of the wide zoo, in a process of its own: `python -m tests.benchmarks.wide_row GRAPH.json.gz SHARE|lowest OUT.json`.

Kernels are loaded before anything is timed. Seconds are CPU seconds of the process.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from remat.algorithms._core.clock import Clock
from remat.algorithms._core.outcome import IMPOSSIBLE, Outcome
from remat.algorithms._core.problem import Problem
from remat.algorithms._core.solver import Solver
from remat.algorithms._curves.budget_sweep import lowest_budget
from remat.algorithms._search.auto import auto
from remat.algorithms._search.multi_instant import MultiInstant
from remat.algorithms._search.pipeline import Polish
from remat.algorithms._search.single_instant import SingleInstant
from remat.algorithms._search.warmup import warm_up
from remat.algorithms._whole.baselines import PerLayerCheckpoint, store_all_peak
from remat.algorithms.named import dtr, rotor, tw_remat
from remat.ir import Graph, load

BESIDE: dict[str, Solver] = {"per layer": PerLayerCheckpoint(), "rotor": rotor, "dtr": dtr, "tw-remat": tw_remat}
"""What users know, in columns beside the planner."""
BESIDE_SECONDS = 15.0
"""The deadline of each of them [s]."""

LARGE_GAP = 0.01
"""Gap above which a row shows the bound of the captured order."""

Row = dict[str, Any]


def planned(graph: Graph, share: float, peak: int) -> Row:
    """Plan, bound and what stands beside them at a share of the peak."""
    problem = Problem(graph=graph, budget=int(peak * share))
    start, clock = time.process_time(), Clock(now=time.process_time)
    outcome = auto.solve(problem, clock=clock)
    total, bound = time.process_time() - start, clock.spent.get("bound", 0.0)
    return {
        "status": outcome.status.value,
        "time": None if outcome.cost is None else outcome.cost.time / graph.time,
        "bound": None if outcome.lower == IMPOSSIBLE else outcome.lower / graph.time,
        "gap": None if outcome.gap is None else 100 * outcome.gap,
        "captured_order": captured_order(outcome, problem),
        "plan_cpu": total - bound,
        "bound_cpu": bound,
        "beside": {name: time_of(solver, problem) for name, solver in BESIDE.items()},
    }


def captured_order(outcome: Outcome, problem: Problem) -> float | None:
    """The bound of the captured order, where the gap is above 1 %; None: it is not, or there is no such schedule."""
    if outcome.gap is None or outcome.gap <= LARGE_GAP:
        return None
    beside = Polish((SingleInstant(mixed=0), MultiInstant())).solve(problem, clock=Clock(now=time.process_time))
    largest = max((bound.value for bound in (*outcome.class_bounds, *beside.class_bounds)), default=IMPOSSIBLE)
    return None if largest == IMPOSSIBLE else largest / problem.graph.time


def time_of(solver: Solver, problem: Problem) -> float | str | None:
    """Time of another solver's plan over the time without recomputation; None: no plan; words: it refuses the graph."""
    refusal = solver.refuses(problem.graph)
    if refusal is not None:
        return "refuses"
    outcome = solver.solve(problem, clock=Clock(now=time.process_time, seconds=BESIDE_SECONDS))
    return None if outcome.cost is None else outcome.cost.time / problem.graph.time


def lowest(graph: Graph, peak: int) -> Row:
    """The lowest budget found and the largest proved impossible, in parts of the peak."""
    start, clock = time.process_time(), Clock(now=time.process_time)
    point = lowest_budget(graph, clock=clock)
    total, bound = time.process_time() - start, clock.spent.get("bound", 0.0)
    limit = max(point.floor - 1, point.impossible)
    return {
        "status": "lowest",
        "lowest": point.point.budget / peak,
        "impossible": limit / peak,
        "time": point.point.outcome.upper / graph.time,
        "plan_cpu": total - bound,
        "bound_cpu": bound,
    }


def main(path: str, share: str, out: str) -> int:
    """Write a row."""
    graph = load(Path(path))
    peak = store_all_peak(graph)
    warm_up()
    row = lowest(graph, peak) if share == "lowest" else planned(graph, float(share), peak)
    Path(out).write_text(json.dumps(row | {"nodes": len(graph), "share": share}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
