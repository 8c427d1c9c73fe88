"""Plans with copies on graphs that are small enough for the optimum: `python -m tests.benchmarks.tiny_copies [--graphs 400]`.

Random graphs of five to six nodes with links that are slow beside them, at a budget between the floor and the peak: the default
planner and `Exhaustive` against a search over the validator's own replay. Chains of 2 to 8 stages: the default planner against
the optimum of `Exhaustive`, POFO, and its own bound. Exits 1 where a plan or a bound contradicts the optimum, where less than
98 % of the plans are optimal, or where POFO is faster.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator

from remat.algorithms import Exhaustive, Linearise, Pofo, Problem, auto, store_all_peak
from remat.algorithms._arrays.graph_arrays import flatten
from remat.algorithms._bounds.floor import first_run_floor
from remat.ir import Graph, GraphBuilder, Kind, Link
from tests.algorithms.copies.oracle import optimum
from tests.benchmarks.tiny import tiny_graph

BAR = 0.98
EXACT = Exhaustive(max_nodes=17, max_states=5_000_000)


def problem_on(graph: Graph, rng: random.Random) -> Problem:
    """With a link on which a copy takes about as long as a node, at a budget between the floor and the peak."""
    floor, peak = first_run_floor(flatten(graph))[0], store_all_peak(graph)
    slowness, latency = rng.choice((1, 2, 4)), rng.choice((0, 1))
    to_host, to_device = rng.choice((1, 2, 4)) * 10**9 // slowness, rng.choice((1, 3)) * 10**9 // slowness
    link = Link(to_host=to_host, to_device=to_device, to_host_latency=latency, to_device_latency=latency)
    return Problem(graph=graph, budget=rng.randint(floor, max(floor, peak - 1)), link=link)


def chain(stages: int, rng: random.Random) -> Graph:
    """A training chain of random sizes and times."""
    b = GraphBuilder(f"chain{stages}")
    b.data("x", 4, Kind.INPUT)
    b.data("t", 1, Kind.TANGENT)
    for i in range(stages):
        size = rng.randint(1, 8)
        b.data(f"a{i}", size)
        b.data(f"g{i}", size, Kind.GRADIENT)
        b.data(f"w{i}", 1, Kind.PARAM_GRAD)
        b.forward(f"F{i}", reads=[f"a{i - 1}" if i else "x"], writes=[f"a{i}"], time=rng.randint(1, 9))
    b.loss("L", reads=[f"a{stages - 1}"], writes=["t"], time=1)
    for i in reversed(range(stages)):
        reads = [f"g{i + 1}" if i < stages - 1 else "t", f"a{i}", f"a{i - 1}" if i else "x"]
        b.backward(f"B{i}", reads=reads, writes=[f"g{i}", f"w{i}"], time=rng.randint(2, 18))
    return b.build()


def on_graphs(count: int) -> Iterator[str]:
    """What is wrong on random graphs; prints how many plans are optimal."""
    rng, optimal, feasible, proved = random.Random(0), 0, 0, 0
    for at in range(count):
        problem = problem_on(tiny_graph(rng, 2, summed=rng.random() < 0.5), rng)
        outcome = auto.solve(problem)
        limit = outcome.upper if outcome.cost is not None else problem.graph.time * 5 // 4
        best, _ = optimum(problem.graph, problem.budget, problem.link, limit)
        exact = EXACT.solve(problem)
        if exact.lower > (best or exact.lower) or exact.upper < (best or limit):
            yield f"graph {at}: by Exhaustive {exact.upper}, bound {exact.lower}; optimum {best}"
        proved += exact.lower == exact.upper == best
        if best is None:
            if outcome.cost is not None:
                yield f"graph {at}: a plan of {outcome.upper}, and there is none"
            continue
        feasible += 1
        optimal += outcome.upper == best
        if outcome.upper < best or outcome.lower > best:
            yield f"graph {at}: plan {outcome.upper}, bound {outcome.lower}, optimum {best}"
        elif outcome.upper > best:
            print(f"graph {at}: plan {outcome.upper}, optimum {best}", flush=True)
    print(
        f"random graphs: {optimal} of {feasible} plans are optimal ({count - feasible} problems have none); "
        f"Exhaustive proves {proved}",
        flush=True,
    )
    if optimal < BAR * feasible:
        yield f"{optimal} of {feasible} plans are optimal"


def on_chains(count: int) -> Iterator[str]:
    """What is wrong on chains; prints how the plans compare with POFO, their bounds, and the optimum."""
    rng, proved, faster, total, solved, optimal = random.Random(1), 0, 0, 0, 0, 0
    pofo = Linearise() >> Pofo()
    for at in range(count):
        stages = 2 + at % 7
        problem = problem_on(chain(stages, rng), rng)
        outcome, theirs = auto.solve(problem), pofo.solve(problem)
        if outcome.cost is None:
            if theirs.cost is not None:
                yield f"chain {at} of {stages}: no plan, POFO {theirs.upper}"
            continue
        total += 1
        proved += outcome.lower >= outcome.upper
        faster += outcome.upper < theirs.upper
        if outcome.upper > theirs.upper:
            yield f"chain {at} of {stages}: plan {outcome.upper}, POFO {theirs.upper}"
        exact = EXACT.solve(problem)
        solved += exact.lower == exact.upper
        optimal += outcome.upper <= exact.lower
        if outcome.upper > exact.lower:
            print(f"chain {at} of {stages}: plan {outcome.upper}, optimum {exact.lower} to {exact.upper}", flush=True)
        if outcome.upper < exact.lower or outcome.lower > exact.upper:
            yield f"chain {at} of {stages}: plan {outcome.upper}, bound {outcome.lower}, optimum {exact.upper}"
    print(
        f"chains of 2 to 8 stages: {total} plans, {faster} faster than POFO's and none slower but those below; {proved} proved "
        f"optimal by their bounds; Exhaustive solves {solved}, {optimal} plans are optimal",
        flush=True,
    )
    if optimal < BAR * total:
        yield f"{optimal} of {total} plans of chains are optimal"


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=int, default=400)
    parser.add_argument("--chains", type=int, default=140)
    args = parser.parse_args()
    wrong = [*on_chains(args.chains), *on_graphs(args.graphs)]
    print(*wrong, sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    raise SystemExit(main())
