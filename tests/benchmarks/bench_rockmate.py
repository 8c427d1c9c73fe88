"""`make bench-rockmate`: figures 4 to 6 and the table of appendix E of Rockmate's paper in kind, on graphs captured here.

    python -m tests.benchmarks.bench_rockmate [--only "fig6 gpt24"] [--fresh] [--limit 60]

* figure 4: time over the number of budgets of a block (3 x 3 to 30 x 30), with the options kept and the CPU seconds.
* figure 5: Rotor, Rockmate and Checkmate on GPTs of 2 to 10 layers, at the smallest budget that Rockmate has a plan for.
* figure 6: time over memory of Rotor and Rockmate, and the smallest budget of each.
* appendix E: the paper's budgets, as parts of the peak of the step that keeps everything.

Rows go to docs/benchmarks/rockmate.json one by one: a run that was stopped goes on. `python -m tests.site.evidence` makes the
page. Exits 1 where `rockmate` on 24 layers takes more than 20 CPU seconds, or Rotor beats it within the same memory.
"""

from __future__ import annotations

import sys
import time
from functools import cache

from remat.algorithms import HIlp, Problem, named, store_all_peak
from remat.algorithms._chain.linearise import Linearised, Quantise, linearised
from remat.algorithms._chain.rotor import RkRotor
from remat.ir import validate
from tests.benchmarks.paper_rows import Row, Rows, as_published, cpu_clock, flags, graph_of, solved, told

BUDGETS = (3, 5, 10, 20, 30)
"""Numbers of budgets a side, for the peak and for what is saved."""
PRECISION = ("gpt24", "resnet101")
SHARES = (90, 80, 70, 60, 50, 40, 35, 30, 25, 20, 15, 10)
"""Budgets in per cent of the peak of keeping everything."""
CURVES = ("gpt24", "gpt2-large 2 x 512", "resnet101")
LAYERS = (2, 4, 6, 8, 10)
APPENDIX = {
    "gpt2-large 2 x 512": (6.708, (0.850, 2.800, 7.600)),
    "gpt2-large 4 x 256": (5.158, (0.850, 1.800, 5.600)),
    "gpt2-medium 2 x 1024": (10.782, (1.000, 4.000, 11.600)),
    "gpt24": (7.407, (1.000, 2.000, 7.600)),
}
"""Of each model of appendix E: the peak of PyTorch and the budgets [GiB]; `gpt24` is GPT2-medium with (4, 512)."""
ASKED = 20.0
"""CPU seconds of `rockmate` on GPT-24."""


@cache
def chain(model: str, budgets: int) -> tuple[Linearised, float]:
    """The chain of a model, its blocks with options under so many budgets a side (0: one option), and its CPU seconds."""
    start = time.process_time()
    blocks = HIlp(gap=0.01).sweep(peaks=budgets, saves=budgets).within(10) if budgets else None
    stages = linearised(as_published(model), blocks=blocks, clock=cpu_clock())
    return stages, round(time.process_time() - start, 2)


def plan(model: str, budgets: int, budget: int) -> Row:
    """The plan of rk-Rotor on a chain, replayed on the flat graph."""
    stages, _ = chain(model, budgets)
    start = time.process_time()
    outcome = (Quantise() >> RkRotor()).solve(Problem(graph=stages.graph, budget=budget), clock=cpu_clock())
    seconds = round(time.process_time() - start, 2)
    if outcome.schedule is None:
        return {"time": None, "peak": None, "seconds": seconds}
    graph = stages.flat
    cost = validate(graph, stages.lift(outcome.schedule), budget)
    return {"time": cost.time / graph.time, "peak": cost.peak / store_all_peak(graph), "seconds": seconds}


def at(model: str, share: float) -> int:
    """A budget in per cent of the peak of keeping everything."""
    return int(store_all_peak(as_published(model)) * share / 100)


def lowest(model: str, budgets: int) -> float:
    """The smallest budget with a plan, to half a per cent of the peak."""
    low, high = 0.0, 100.0
    while high - low > 0.5:
        middle = (low + high) / 2
        low, high = (low, middle) if plan(model, budgets, at(model, middle))["time"] else (middle, high)
    return high


def options(model: str, budgets: int) -> int:
    """Options of the most diverse block."""
    return max(len(layer.options) for layer in chain(model, budgets)[0].graph.layers)


def precision(model: str, budgets: int) -> Row:
    """A point of figure 4."""
    times = {str(share): plan(model, budgets, at(model, share))["time"] for share in (70, 50, 35, 25)}
    return {"options": options(model, budgets), "seconds": chain(model, budgets)[1], "times": times}


def depth(layers: int) -> Row:
    """A point of figure 5, without Checkmate."""
    model = f"gpt{layers}"
    share = lowest(model, 20)
    row: Row = {"nodes": len(graph_of(model)), "share": share, "options seconds": chain(model, 20)[1]}
    both = {"rotor": plan(model, 0, at(model, share)), "rockmate": plan(model, 20, at(model, share))}
    return row | both | {"rotor lowest": lowest(model, 0)}


def curve(model: str) -> Row:
    """A panel of figure 6."""
    both = (("rotor", 0), ("rockmate", 20))
    row: Row = {name: {str(share): plan(model, k, at(model, share)) for share in SHARES} for name, k in both}
    return row | {f"{name} lowest": lowest(model, k) for name, k in both}


def appendix(model: str) -> Row:
    """Rows of appendix E."""
    peak, budgets = APPENDIX[model]
    row: Row = {"peak GiB": store_all_peak(as_published(model)) / 2**30}
    for budget in budgets:
        share = min(100.0, 100 * budget / peak)
        both = (("rotor", 0), ("rockmate", 20))
        row[str(budget)] = {"share": share} | {name: plan(model, k, at(model, share)) for name, k in both}
    return row


def missed(rows: dict[str, Row]) -> list[str]:
    """What the rows miss."""
    lines = []
    bar = rows.get("bar gpt24")
    if bar is not None and (bar["time"] is None or bar["seconds"] > ASKED):
        lines.append(f"rockmate on gpt24: {bar}")
    for key, row in rows.items():
        for share, rotor in row.get("rotor", {}).items() if key.startswith("fig6") else ():
            rockmate = row["rockmate"][share]["time"]
            if rotor["time"] and (rockmate is None or rockmate > rotor["time"] * 1.001):
                lines.append(f"{key} at {share} %: Rotor {rotor['time']:.4f}, Rockmate {rockmate}")
    return lines


def main() -> int:
    """Measure what is missing."""
    parser = flags(__doc__)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds of Checkmate, for each graph")
    given = parser.parse_args()
    rows = Rows("rockmate", fresh=given.fresh, only=given.only)
    rows.add("warm", lambda: plan("gpt2", 3, at("gpt2", 50)))  # compiled kernels are loaded once
    rows.add("bar gpt24", lambda: solved(named.rockmate, graph_of("gpt24"), store_all_peak(graph_of("gpt24")) // 2))
    for model in CURVES:
        rows.add(f"fig6 {model}", lambda model=model: curve(model))
    for model in APPENDIX:
        rows.add(f"appE {model}", lambda model=model: appendix(model))
    for layers in LAYERS:
        rows.add(f"fig5 {layers}", lambda layers=layers: depth(layers))
    for model in PRECISION:
        for budgets in BUDGETS:
            rows.add(f"fig4 {model} {budgets}", lambda model=model, budgets=budgets: precision(model, budgets))
    checkmate = named.checkmate.within(given.limit)
    for layers in LAYERS:
        if (point := rows.rows.get(f"fig5 {layers}")) is not None:
            budget = at(f"gpt{layers}", point["share"])
            rows.add(
                f"checkmate {layers}",
                lambda layers=layers, budget=budget: solved(checkmate, as_published(f"gpt{layers}"), budget),
            )
    return told(missed(rows.rows))


if __name__ == "__main__":
    sys.exit(main())
