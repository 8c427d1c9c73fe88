"""The shapes of POFO's Figures 2 and 3 on chains built from layer shapes, and what its two claims come to here.

    python -m tests.benchmarks.pofo_figures [--fast] [--picture FILE]

Prints Markdown tables of time over sequential time (`-`: no schedule); writes build/bench/pofo.json; no bar, exit 0.
Figure 2: a link of 12 GB/s, memory (1 - alpha) low + alpha high, where `high` saves everything and `low` recomputes from the
beginning before every backward. Figure 3: alpha = 0.2, 12 to 36 GB/s. Every time is a replay, with whole transfers.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from remat.algorithms._chain.linearise import Quantise, linearised
from remat.algorithms._chain.offload import Autocapper, OffloadOnly, Opportunist, all_saved
from remat.algorithms._chain.pofo import Pofo
from remat.algorithms._chain.rotor import Rotor
from remat.algorithms._chain.transfers import trace
from remat.algorithms._core.problem import Problem
from remat.algorithms._core.solver import Solver
from remat.ir import Link, Run
from remat.ir.chain import Chain
from tests.benchmarks.convnets import BUSY_V100, NETWORKS, V100, Device

OUT = Path("build/bench/pofo.json")
ALPHAS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
SPEEDS = (12, 18, 24, 30, 36)
SOLVERS: dict[str, Solver] = {
    "rotor": Quantise(500) >> Rotor(),
    "offload only": OffloadOnly(),
    "autocapper": Autocapper(),
    "opportunist": Opportunist(),
    "pofo": Pofo(),
}
CLAIM = 1.2


def extremes(chain: Chain) -> tuple[int, int]:
    """(low, high): peaks of recomputing from the beginning before every backward, and of saving everything [bytes]."""
    stages = chain.stages
    bare = [Run(stage.forward, len(stage.options)) for stage in stages]
    runs = [*bare, Run(chain.loss, chain.loss_option)]
    for i in reversed(range(len(chain))):
        runs += [*bare[:i], Run(stages[i].forward), Run(stages[i].backward)]
    return max(trace(chain.graph, runs).charges), max(trace(chain.graph, all_saved(chain)).charges)


def ratio(chain: Chain, solver: Solver, budget: int, speed: float) -> float | None:
    """Replayed time over sequential time, or None."""
    link = Link.symmetric(gb_per_s=speed)
    found = solver.solve(Problem(graph=chain.graph, budget=budget, link=link))
    return None if found.cost is None else found.cost.time / chain.time


def fraction_removed(row: dict[str, float | None]) -> float | None:
    """The share of Rotor's overhead that POFO removes, where Rotor has at least 1 %."""
    rotor, pofo = row["rotor"], row["pofo"]
    if rotor is None or pofo is None or rotor < 1.01:
        return None
    return (rotor - pofo) / (rotor - 1)


def least_budget(chain: Chain, solver: Solver, low: int, high: int, steps: int) -> tuple[int, float] | None:
    """The smallest budget on a grid with at most 20 % overhead at 12 GB/s, and its ratio."""
    best = None
    for k in range(steps, -1, -1):
        budget = low + (high - low) * k // steps
        found = ratio(chain, solver, budget, 12)
        if found is None or found > CLAIM:
            break
        best = budget, found
    return best


def table(title: str, head: str, rows: list[tuple[str, dict[str, float | None]]]) -> None:
    """Print one Markdown table."""
    print(f"\n{title}\n\n| {head} | " + " | ".join(SOLVERS) + " | overhead removed |")
    print("|---" * (len(SOLVERS) + 2) + "|")
    for label, row in rows:
        cells = ["-" if row[name] is None else f"{row[name]:.3f}" for name in SOLVERS]
        removed = fraction_removed(row)
        print(f"| {label} | " + " | ".join(cells) + (" | - |" if removed is None else f" | {removed:.0%} |"))


def study(
    name: str, device: Device, alphas: tuple[float, ...], speeds: tuple[int, ...], steps: int
) -> dict[str, object]:
    """Both figures and both claims for one network on one device."""
    graph = NETWORKS[name](device=device)
    found = linearised(graph)
    chain = Chain(found.graph)
    low, high = extremes(chain)
    print(f"\n### {name}, {device.name}\n\n{found.note}; sequential time {chain.time / 1e6:.0f} ms; ", end="")
    print(f"low {low / 2**30:.2f} GiB, high {high / 2**30:.2f} GiB")

    def row(alpha: float, speed: float) -> dict[str, float | None]:
        budget = low + round((high - low) * alpha)
        return {each: ratio(chain, solver, budget, speed) for each, solver in SOLVERS.items()}

    memory = [(f"{alpha:.1f}", row(alpha, 12)) for alpha in alphas]
    table("Memory ratio, 12 GB/s (Figure 2)", "alpha", memory)
    speed = [(f"{each} GB/s", row(0.2, each)) for each in speeds]
    table("Bandwidth, alpha = 0.2 (Figure 3)", "link", speed)
    least = {each: least_budget(chain, SOLVERS[each], low, high, steps) for each in ("rotor", "pofo")}
    for each, best in least.items():
        if best is None:
            print(f"\n{each}: above 20 % overhead everywhere")
        else:
            print(f"\n{each}: {high / best[0]:.1f} times less memory at {best[1] - 1:.1%} overhead")
    removed = [fraction_removed(one) for _, one in memory]
    known = [one for one in removed if one is not None]
    print(f"\noverhead removed, mean over alpha: {sum(known) / len(known):.0%}" if known else "\nno overhead to remove")
    return {
        "network": name,
        "device": device.name,
        "low": low,
        "high": high,
        "sequential": chain.time,
        "memory": memory,
        "bandwidth": speed,
        "least": {each: best and {"budget": best[0], "ratio": best[1]} for each, best in least.items()},
        "removed": removed,
    }


def picture(studies: list[dict[str, object]], path: str) -> None:
    """Figure 2 above Figure 3, one column per network."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4 * len(studies), 6.4), layout="constrained")
    axes = figure.subplots(2, len(studies), squeeze=False, sharey="row")
    for column, one in enumerate(studies):
        for line, key in enumerate(("memory", "bandwidth")):
            rows: list[tuple[str, dict[str, float | None]]] = one[key]  # type: ignore[assignment]
            at = axes[line][column]
            for solver in SOLVERS:
                points = [(float(label.split()[0]), row[solver]) for label, row in rows if row[solver] is not None]
                if points:
                    at.plot(*zip(*points, strict=True), marker=".", label=solver)
            at.set_ylim(0.98, 2.2)
            at.grid(alpha=0.3)
            at.set_xlabel("memory ratio alpha (12 GB/s)" if line == 0 else "bandwidth [GB/s] (alpha = 0.2)")
        axes[0][column].set_title(f"{one['network']}")
    for line in (0, 1):
        axes[line][0].set_ylabel("time, sequential = 1")
    axes[0][0].legend(frameon=False)
    figure.savefig(path, dpi=90)


def main() -> None:
    """Run all studies."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fast", action="store_true", help="three memory ratios, two bandwidths, one network")
    parser.add_argument("--picture", help="draw both figures of the first device into this file")
    args = parser.parse_args()
    start = time.monotonic()
    if args.fast:
        studies = [study("inception3", V100, (0.2, 0.5, 0.8), (12, 36), 10)]
    else:
        studies = [study(name, device, ALPHAS, SPEEDS, 50) for device in (V100, BUSY_V100) for name in NETWORKS]
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(studies, indent=1))
    if args.picture:
        picture([one for one in studies if one["device"] == V100.name], args.picture)
    print(f"\n{time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
