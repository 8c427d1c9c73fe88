"""`make bench-growth`: how the default planner's time grows with the graph, on GPTs of 12 to 400 layers (to 22 000 nodes).

    python -m tests.benchmarks.bench_growth [--layers 12,24,48,96,200,400] [--share 0.5]

Captured without weights (needs torch; the deepest takes minutes). Prints nodes, process CPU seconds of capture, plan and bound,
the gap, and the exponent of the growth between neighbours; writes build/bench/growth.json. Nothing is asked: it is stated.
"""

from __future__ import annotations

import argparse
import math
import sys
import time

from remat.algorithms._core.problem import Problem
from remat.algorithms._search.auto import auto
from remat.algorithms._whole.baselines import store_all_peak
from remat.exec.weightless import capture_without_weights
from remat.zoo.large import gpt
from tests.benchmarks.bench_plan import cpu_clock, write


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
    row(2, args.share)  # load the compiled kernels
    rows: list[dict[str, float]] = []
    print("layers | nodes | capture s | plan s | exponent | bound s | time | gap %")
    for layers in args.layers or [12, 24, 48, 96, 200, 400]:
        one = row(layers, args.share)
        before = rows[-1] if rows else None
        rows.append(one)
        growth = "-" if before is None else f"{exponent(before, one):.2f}"
        print(
            f"{layers} | {one['nodes']} | {one['capture_cpu']:.1f} | {one['plan_cpu']:.2f} | {growth} |"
            f" {one['bound_cpu']:.2f} | {one['time']:.4f} | {one['gap']:.3f}",
            flush=True,
        )
    write("growth", {"share": args.share, "rows": rows})
    return 0


def exponent(before: dict[str, float], after: dict[str, float]) -> float:
    """Of plan time over nodes."""
    return math.log(after["plan_cpu"] / before["plan_cpu"]) / math.log(after["nodes"] / before["nodes"])


if __name__ == "__main__":
    sys.exit(main())
