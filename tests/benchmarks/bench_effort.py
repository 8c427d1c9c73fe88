"""Quality against effort (`make bench-effort`): what each second of planning brings, and what `wrap` takes and gives.

    python -m tests.benchmarks.bench_effort [--only NAMES] [--out build/bench/effort.json]

All kernels are compiled before. Three tables:

* *Through `wrap`*: seconds of plan and bound together (a report's `seconds["plan"]`), the gap of the report, and the bars: GPT-2
  of 12 layers at 28 and 40 % in 3 s within .5 %, a GRU cell unrolled 12 times and six blocks with stochastic depth in 5 s.
* *Tied vocabularies*: GPTs of 12, 24 and 48 layers (width 1024, 50,257 words, 4 times 512 tokens, captured without weights) at a
  fifth of their peak, `plan_first`: a plan or a proof that there is none in 5 s of CPU time.
* *Second by second*, `plan_first` and `auto` on captured graphs and on those in build/graphs that --only names: time of the best
  plan over that of the step without recomputation, after 1, 2, 4, 8, 16 s of CPU time of plan and bound and at the end, and by
  how much the last second lowered the plan and raised the bound, in per cent of the step. A bound of inf: proved impossible.

Exits 1 when a bar is missed.
"""

import argparse
import json
import math
import os
import sys
import time
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from remat.algorithms._core.clock import Clock
from remat.algorithms._core.outcome import IMPOSSIBLE
from remat.algorithms._core.problem import Problem
from remat.algorithms._search.auto import auto, plan_first
from remat.algorithms._search.warmup import warm_up
from remat.algorithms._whole.baselines import store_all_peak
from remat.errors import RematError
from remat.exec import report, wrap
from remat.exec.weightless import capture_without_weights
from remat.ir import load, read_joint_graph
from remat.zoo import GPT2
from remat.zoo.large import gpt

CAPTURED, GRAPHS = Path(__file__).parents[1] / "data" / "captured", Path("build/graphs")
OUT = Path("build/bench/effort.json")
SECONDS = (1, 2, 4, 8, 16)
SHARES = (0.5, 0.35, 0.25)


class Recurrent(nn.Module):
    """A GRU cell unrolled 12 times, with the loss of a forecast."""

    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.GRUCell(32, 64), nn.Linear(64, 32)

    def forward(self, steps):
        state = steps.new_zeros(steps.shape[1], 64)
        losses = []
        for now, following in pairwise(steps.unbind()):
            state = self.cell(now, state)
            losses.append(functional.mse_loss(self.head(state), following))
        return torch.stack(losses).sum()


class StochasticDepth(nn.Module):
    """Six residual blocks of convolutions, each left out for a fifth of the rows (Huang et al., 2016)."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 32, 3, padding=1), nn.Linear(32, 10)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(32, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
                nn.Conv2d(32, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32),
            )
            for _ in range(6)
        )  # fmt: skip

    def forward(self, images, labels):
        x = self.stem(images)
        for block in self.blocks:
            kept = torch.empty(len(x), 1, 1, 1, dtype=x.dtype, device=x.device).bernoulli_(0.8) / 0.8
            x = functional.relu(x + kept * block(x))
        return functional.cross_entropy(self.head(x.mean((2, 3))), labels)


def gpt2():
    tokens = torch.randint(256, (8, 128))
    return GPT2(layers=12, width=256, heads=8, context=128), (tokens, tokens)


WRAPPED = {
    "gpt2-12": (gpt2, ("28%", "40%"), 3.0, 0.005),
    "gru-12": (lambda: (Recurrent(), (torch.randn(13, 16, 32),)), ("50%",), 5.0, None),
    "stochastic-depth-6": (
        lambda: (StochasticDepth(), (torch.randn(16, 3, 32, 32), torch.randint(10, (16,)))), ("50%",), 5.0, None,
    ),
}  # fmt: skip
"""By name: how it is made, budgets, the bar of seconds and the one of the gap."""


def through_wrap(name):
    """A row for each budget."""
    make, budgets, seconds, gap = WRAPPED[name]
    for budget in budgets:
        torch.manual_seed(0)
        model, sample = make()
        result = report(wrap(model, sample, budget))
        took, is_near = result.seconds["plan"], gap is None or (result.gap is not None and result.gap <= gap)
        met = took <= seconds and is_near
        bars = f"{seconds:g} s" + ("" if gap is None else f", {gap:.1%}")
        shown = "-" if result.gap is None else f"{result.gap:.2%}"
        print(f"{name:20} {budget:>5} {took:7.2f} {shown:>8}  {bars}: {'met' if met else 'MISSED'}", flush=True)
        yield {"model": name, "budget": budget, "seconds": took, "gap": result.gap, "met": met}


def tied(layers):
    """A row: a plan, or the proof that there is none."""
    graph = capture_without_weights(partial(gpt, layers)).graph("v100")
    clock = Clock(now=time.process_time)
    outcome = plan_first.solve(Problem(graph=graph, budget=int(store_all_peak(graph) * 0.2)), clock=clock)
    plan = None if outcome.cost is None else outcome.cost.time / graph.time
    bound = None if outcome.lower == IMPOSSIBLE else outcome.lower / graph.time
    met = clock.elapsed <= 5.0 and (plan is not None or bound is None)
    shown = "proved impossible" if bound is None else "no plan" if plan is None else f"{plan:.4f}, at least {bound:.4f}"
    print(
        f"{f'gpt-{layers}, tied':20}   20% {clock.elapsed:7.2f} {shown}; 5 s: {'met' if met else 'MISSED'}", flush=True
    )
    return {"layers": layers, "seconds": clock.elapsed, "time": plan, "bound": bound, "met": met}


def curve(graph, share, solver):
    """(seconds, time of the best plan or None, bound) whenever one of the two got better, over the step's time."""
    points = []

    def heard(progress):
        best = None if progress.best is None else progress.best / graph.time
        bound = math.inf if progress.bound == IMPOSSIBLE else progress.bound / graph.time
        if not points or (best, bound) != points[-1][1:]:
            points.append((progress.elapsed, best, bound))

    clock = Clock(now=time.process_time, listener=heard)
    outcome = solver.solve(Problem(graph=graph, budget=int(store_all_peak(graph) * share)), clock=clock)
    lower = math.inf if outcome.lower == IMPOSSIBLE else outcome.lower / graph.time
    points.append((clock.elapsed, None if outcome.cost is None else outcome.cost.time / graph.time, lower))
    return points


def at(points, seconds):
    """(best plan, bound) after so many seconds."""
    best, bound = None, 1.0
    for elapsed, plan, lower in points:
        if elapsed <= seconds:
            best = plan if best is None or (plan is not None and plan < best) else best
            bound = max(bound, lower)
    return best, bound


def second_by_second(name, graph):
    """A row for each budget and planner."""
    for share in SHARES:
        for planner, solver in (("plan_first", plan_first), ("auto", auto)):
            points = curve(graph, share, solver)
            end = points[-1][0]
            (best, bound), (before, lower) = at(points, end), at(points, end - 1)
            series = [at(points, seconds)[0] if seconds < end else None for seconds in SECONDS]
            gains = [None, None] if end <= 1 else [before and best and before - best, bound - lower]
            numbers = " ".join(f"{'' if value is None else format(value, '.4f'):>7}" for value in (*series, best))
            gained = " ".join(f"{'' if value is None else format(100 * value, '.3f'):>7}" for value in gains)
            print(f"{name:22} {share:4.0%} {planner:10} {numbers} {bound:8.4f} {end:6.1f} {gained}", flush=True)
            yield {
                "graph": name,
                "share": share,
                "planner": planner,
                "points": [[*head, None if math.isinf(bound) else bound] for *head, bound in points],
            }


def graph_of(path):
    try:
        return load(path)
    except RematError:
        return read_joint_graph(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help="names of models or graphs, or tied")
    parser.add_argument("--out", type=Path, default=OUT)
    chosen = parser.parse_args()
    paths = {path.name.removesuffix(".json.gz"): path for path in sorted(CAPTURED.glob("*.json.gz"))}
    if chosen.only is not None:
        every = paths | {path.name.removesuffix(".json.gz"): path for path in sorted(GRAPHS.glob("*.json.gz"))}
        paths = {name: path for name, path in every.items() if name in chosen.only}
    warm_up()
    print(f"{'through wrap':20} {'':>5} {'seconds':>7} {'gap':>8}  bars")
    models = [name for name in WRAPPED if chosen.only is None or name in chosen.only]
    wrapped = [row for name in models for row in through_wrap(name)]
    rows = [tied(layers) for layers in (12, 24, 48)] if chosen.only is None or "tied" in chosen.only else []
    heads = " ".join(f"{f'{seconds} s':>7}" for seconds in SECONDS)
    print(
        f"\n{'second by second':22} {'':4} {'':10} {heads} {'end':>7} {'bound':>8} {'s':>6} {'last s: plan, bound, %':>15}"
    )
    curves = [row for name, path in paths.items() for row in second_by_second(name, graph_of(path))]
    print(f"\nCPU seconds; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end")
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps({"wrap": wrapped, "tied": rows, "curves": curves}, indent=1))
    return 0 if all(row["met"] for row in (*wrapped, *rows)) else 1


if __name__ == "__main__":
    sys.exit(main())
