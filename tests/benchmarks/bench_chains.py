"""`make bench-chains`: the chain solvers against their bars, and how they grow.

    python -m tests.benchmarks.bench_chains            the table, build/bench/chains.json, exit 1 when a bar is missed
    … --one L M B      one rk-Rotor table in this process (the bars' measurements run like this, in fresh processes)
    … --pofo L N       one POFO plan in this process

Times are process CPU seconds of one thread, compilation apart; `first call` is the same in a fresh process whose compilation
cache is warm, table and compiled code loaded included.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import resource
import subprocess
import sys
import time
from pathlib import Path

from remat.algorithms._chain.pofo import Pofo
from remat.algorithms._chain.rotor import rotor_values
from remat.algorithms._core.problem import Problem
from remat.ir import LayerOption, Link, Option
from remat.ir.chain import Block, Chain, chain_graph

OUT = Path("build/bench/chains.json")

BARS = {(200, 1000, 30): 3.0, (100, 500, 20): 0.15}
POFO_BARS = {(150, 50): 30.0}
MEBIBYTES = 500.0
FIRST_CALL = 1.0


def rk_chain(stages: int, slots: int, options: int, seed: int = 0) -> tuple[Chain, int]:
    """A chain whose budget is half of what it saves: options save evenly more, and the backward gets faster by it."""
    draw = random.Random(seed)
    blocks = []
    for _ in range(stages):
        full = draw.randint(slots // stages + 1, 3 * slots // stages + 2)
        time = draw.randint(900, 1100)
        own = tuple(
            LayerOption(
                forward=time,
                backward=2 * time + time * (options - 1 - o) // options,
                phantom=full * (o + 1) // options,
                backward_workspace=draw.randint(0, 2),
            )
            for o in range(options)
        )
        blocks.append(Block(output=1, gradient=1, options=own, no_save=Option(time=time)))
    chain = Chain(chain_graph(blocks, loss=Option(time=100), loss_gradient=1))
    return chain, slots


def pofo_chain(stages: int, seed: int = 0) -> tuple[Chain, int, Link]:
    """A chain of a convolutional network's sizes and times; the budget is 30 % of what it saves; 12 GB/s."""
    draw, mebi, milli = random.Random(seed), 1 << 20, 10**6
    blocks = []
    for _ in range(stages):
        size = draw.randint(10, 50) * mebi
        option = LayerOption(
            forward=draw.randint(1, 3) * milli,
            backward=draw.randint(2, 6) * milli,
            phantom=draw.randint(20, 150) * mebi,
        )
        blocks.append(Block(output=size, gradient=size, options=(option,), no_save=Option(time=option.forward)))
    chain = Chain(chain_graph(blocks, loss=Option(time=100), loss_gradient=mebi))
    return chain, sum(stage.saves(0) for stage in chain.stages) * 3 // 10, Link.symmetric(gb_per_s=12)


def rk_rotor(stages: int, slots: int, options: int) -> dict[str, float]:
    """CPU seconds of one table and plan, and this process' peak."""
    chain, budget = rk_chain(stages, slots, options)
    wall, start = time.monotonic(), time.process_time()
    table = rotor_values(chain, budget)
    runs = table.runs(budget)
    assert runs is not None and table.arrays.slots == slots
    return {"cpu": time.process_time() - start, "wall": time.monotonic() - wall, "mebibytes": _mebibytes()}


def pofo(stages: int, slots: int) -> dict[str, float]:
    """CPU seconds of one whole plan with its replays, and this process' peak."""
    chain, budget, link = pofo_chain(stages)
    wall, start = time.monotonic(), time.process_time()
    found = Pofo(slots=slots).solve(Problem(graph=chain.graph, budget=budget, link=link))
    assert found.cost is not None
    return {"cpu": time.process_time() - start, "wall": time.monotonic() - wall, "mebibytes": _mebibytes()}


def _mebibytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def fresh(*args: object) -> dict[str, float]:
    """The measurement of a fresh process: its first call."""
    command = [sys.executable, "-m", "tests.benchmarks.bench_chains", *map(str, args)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def growth(name: str, expected: str, points: list[tuple[int, float]]) -> dict[str, object]:
    """The exponent between the ends of a series."""
    (small, fast), (large, slow) = points[0], points[-1]
    exponent = math.log(slow / fast) / math.log(large / small)
    series = ", ".join(f"{size}: {cpu:.3f} s" for size, cpu in points)
    print(f"  {name:<34} {exponent:4.1f}  (expected {expected}; {series})")
    return {"what": name, "exponent": exponent, "expected": expected, "series": points}


def warm(measure: object, *args: int) -> float:
    """The least of three measurements in this process."""
    return min(measure(*args)["cpu"] for _ in range(3))  # type: ignore[operator]


def main() -> int:
    """Print the table, write the JSON, return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one", nargs=3, type=int, metavar=("L", "M", "B"))
    parser.add_argument("--pofo", nargs=2, type=int, metavar=("L", "N"))
    args = parser.parse_args()
    if args.one or args.pofo:
        print(json.dumps(rk_rotor(*args.one) if args.one else pofo(*args.pofo)))
        return 0
    rk_rotor(6, 60, 2)  # fills the compilation cache
    pofo(10, 20)
    rows, missed = [], []

    def row(what: str, measured: dict[str, float], cpu: float, bar: float | None, memory: float | None) -> None:
        first = measured["cpu"] - cpu
        late = bar is not None and (cpu > bar or first > FIRST_CALL)
        large = memory is not None and measured["mebibytes"] > memory
        verdict = "-" if bar is None else "MISSED" if late or large else "ok"
        if verdict == "MISSED":
            missed.append(what)
        asked = "" if bar is None else f"{bar:g} s" + (f", {memory:g} MiB" if memory else "")
        rows.append({"what": what, "cpu": cpu, "first_call_extra": first, **measured, "bar": bar, "verdict": verdict})
        print(
            f"{what:<34}{cpu:8.3f} s  +{max(first, 0):5.2f} s first  {measured['mebibytes']:6.0f} MiB  {asked:<16}{verdict}"
        )

    for shape, bar in BARS.items():
        row("rk-Rotor L={} M={} B={}".format(*shape), fresh("--one", *shape), warm(rk_rotor, *shape), bar, MEBIBYTES)
    for shape, bar in POFO_BARS.items():
        row("POFO L={} N={}".format(*shape), fresh("--pofo", *shape), pofo(*shape)["cpu"], bar, None)
    print("growth")
    rates = [
        growth("rk-Rotor in stages, M=500 B=20", "2 to 3", [(n, warm(rk_rotor, n, 500, 20)) for n in (50, 100, 200)]),
        growth("rk-Rotor in slots, L=100 B=20", "1", [(m, warm(rk_rotor, 100, m, 20)) for m in (500, 1000, 2000)]),
        growth("rk-Rotor in options, L=100 M=500", "0 to 1", [(b, warm(rk_rotor, 100, 500, b)) for b in (10, 20, 40)]),
        growth("POFO in stages, N=50", "2 to 3", [(n, pofo(n, 50)["cpu"]) for n in (30, 60, 120)]),
        growth("POFO in slots, L=30", "2 to 3", [(n, pofo(30, n)["cpu"]) for n in (25, 50, 100)]),
    ]
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps({"rows": rows, "growth": rates, "missed": missed}, indent=1))
    print(f"missed: {', '.join(missed)}" if missed else "all bars held")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
