"""`make bench-growth`: how the default planner's time grows with the graph, on GPTs of 24 to 800 layers (to 42 000 nodes).

    python -m tests.benchmarks.bench_growth [--layers 24,48,100,200,400,800] [--share 0.5]

Captured without weights (needs torch; the deepest takes a minute). Prints nodes, process CPU seconds of capture, plan and bound,
the gap, and the exponent of the growth between neighbours; writes build/bench/growth.json. Exit 1 where the exponent of plan
and bound over all depths (least squares of the logarithms) is above 1.2, or 400 layers take over 15 s.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from statistics import linear_regression

from remat.algorithms._core.problem import Problem
from remat.algorithms._search.auto import auto
from remat.algorithms._search.warmup import warm_up
from remat.algorithms._whole.baselines import store_all_peak
from remat.exec.weightless import capture_without_weights
from remat.zoo.large import gpt
from tests.benchmarks.bench_plan import cpu_clock, write

LAYERS = (24, 48, 100, 200, 400, 800)
EXPONENT, SECONDS = 1.2, 15.0
"""What is asked of the growth, and of 400 layers [CPU s]."""


def row(layers: int, share: float) -> dict[str, float]:
    """One depth."""
    start = time.process_time()
    graph = capture_without_weights(lambda: gpt(layers)).graph()
    captured = time.process_time()
    clock = cpu_clock()
    outcome = auto.solve(Problem(graph=graph, budget=int(store_all_peak(graph) * share)), clock=clock)
    solved = time.process_time()
    bound = clock.spent.get("bound", 0.0)
    return {
        "layers": layers,
        "nodes": len(graph),
        "capture_cpu": captured - start,
        "plan_cpu": solved - captured - bound,
        "bound_cpu": bound,
        "time": outcome.upper / graph.time,
        "gap": math.inf if outcome.gap is None else 100 * outcome.gap,
    }


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=lambda text: [int(one) for one in text.split(",")])
    parser.add_argument("--share", type=float, default=0.5)
    args = parser.parse_args()
    warm_up()  # a small row would not call all kernels
    rows: list[dict[str, float]] = []
    print("layers | nodes | capture s | plan s | exponent | bound s | time | gap %")
    for layers in args.layers or LAYERS:
        one = row(layers, args.share)
        before = rows[-1] if rows else None
        rows.append(one)
        growth = "-" if before is None else f"{exponent(before, one):.2f}"
        print(
            f"{layers} | {one['nodes']} | {one['capture_cpu']:.1f} | {one['plan_cpu']:.2f} | {growth} |"
            f" {one['bound_cpu']:.2f} | {one['time']:.4f} | {one['gap']:.3f}",
            flush=True,
        )
    over_all = exponent(*rows) if len(rows) > 1 else math.nan
    print(f"exponent of plan and bound over all: {over_all:.2f}")
    write("growth", {"share": args.share, "rows": rows, "exponent": over_all})
    slow = any(one["layers"] == 400 and seconds_of(one) > SECONDS for one in rows)
    return slow or over_all > EXPONENT


def seconds_of(one: dict[str, float]) -> float:
    """Plan and bound [CPU s]."""
    return one["plan_cpu"] + one["bound_cpu"]


def exponent(*rows: dict[str, float]) -> float:
    """Of plan and bound over nodes, the slope of their logarithms."""
    return linear_regression(
        [math.log(one["nodes"]) for one in rows], [math.log(seconds_of(one)) for one in rows]
    ).slope


if __name__ == "__main__":
    sys.exit(main())
