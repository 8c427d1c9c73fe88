"""Sixty random legal graphs in every run of the suite, and what the generator, the oracle and the judge are trusted for."""

import random
from collections import Counter
from itertools import pairwise

import pytest
from attrs import evolve, frozen
from hypothesis import find, given, settings

from remat.algorithms import IMPOSSIBLE, ClassBound, Exhaustive, HIlp, Plan, Problem, Solver
from remat.algorithms._proving.prover import CAPTURED as ASSUMES
from remat.ir import Kind, Phase, Schedule, print_text, validate
from remat.ir.chain import is_chain
from remat.testing.oracle import frontier, optimum
from remat.testing.strategies import legal_graphs
from tests.soundness.judging import (
    ABOVE,
    BELOW,
    BOUNDS,
    CLASS,
    CRASH,
    FAULTS,
    WIDE,
    Case,
    chain_of,
    changes,
    fault,
    flat_of,
    graph_of,
    judge,
    taken_by,
    told,
)
from tests.soundness.judging import IMPOSSIBLE as FALSELY_INFEASIBLE
from tests.soundness.solvers import every

SEEDS = range(40)
SOLVERS = every()


@pytest.mark.parametrize("first", SEEDS[::10])
def test_no_claim_about_a_random_legal_graph_is_false(first):
    for seed in SEEDS[first : first + 10]:
        verdict = judge(seed, SOLVERS)
        assert not verdict.faults, f"{verdict.faults}\n{told(seed)}"


def test_the_two_oracles_and_the_validator_agree():
    for seed in range(1000, 1120):
        graph = graph_of(seed)
        points = frontier(graph)
        for point in points:
            cost = validate(graph, Schedule(point.steps), point.peak)
            assert (cost.time, cost.peak) == (point.time, point.peak), seed
        for budget in changes(points):
            best = optimum(points, budget)
            outcome = Exhaustive().solve(Problem(graph=graph, budget=budget))
            assert outcome.lower == (IMPOSSIBLE if best is None else best.time), (seed, budget)


def test_the_optima_of_classes_lie_above_and_the_formulation_of_staged_schedules_agrees():
    dearer = 0
    for seed in range(1200, 1260):
        graph = graph_of(seed)
        points, captured, staged = (frontier(graph, among) for among in ("all", "captured", "staged"))
        for budget in changes(points):
            times = [best and best.time for best in (optimum(one, budget) for one in (points, captured, staged))]
            some = [time for time in times if time is not None]
            assert some == sorted(some) and times[: len(some)] == some, (seed, budget)
            dearer += times[0] is not None and times[2] != times[0]
            if graph.time < 10**6 and max((datum.size for datum in graph.data), default=0) < 10**9:
                outcome = HIlp(warm_start=False, gap=0.0).solve(Problem(graph=graph, budget=budget))
                assert outcome.upper == (float("inf") if times[2] is None else times[2]), (seed, budget)
    assert dearer >= 3


@settings(max_examples=50, deadline=None)
@given(legal_graphs())
def test_the_oracle_is_never_worse_than_the_captured_order(graph):
    points = frontier(graph)
    captured = validate(graph, Schedule.from_runs(graph, range(len(graph))))
    assert points[0].time <= captured.time
    assert points[-1].peak <= captured.peak
    for before, point in pairwise(points):
        assert before.time < point.time and before.peak > point.peak


def features(graph):
    """What is odd about a graph, in words."""
    phases = {node.name: node.phase for node in graph.computes}
    data = [datum for datum in graph.data if datum.writers]
    for datum in data:
        yield datum.kind
        kinds = {phases[name] for name in datum.writers}
        if len(datum.writers) > 1:
            yield "a sum " + " and ".join(sorted(phase.value for phase in kinds))
            yield "a kept sum" if datum.keep else "a sum that may be dropped"
        if datum.kind is Kind.RNG_STATE:
            yield "a state with a draw" if graph.node(datum.writers[0]).draws else "a state without a draw"
    if sum(datum.kind is Kind.RNG_STATE for datum in data) > 1:
        yield "several states"
    yield from (datum.kind for datum in graph.data if not datum.writers)
    yield f"{len(graph)} nodes"
    sizes, times = [datum.size for datum in data], [node.options[0].time for node in graph.computes]
    yield from ("no bytes" for size in sizes if not size)
    yield from ("no time" for time in times if not time)
    yield from ("bytes that no float adds" for size in sizes if size >= 2**50)
    yield from ("times that no float adds" for time in times if time >= 2**50)
    in_layers = {name for layer in graph.layers for name in (layer.forward, layer.backward)}
    for node in graph.computes:
        yield from ["options of a flat node"] * (len(node.options) > 1 and node.name not in in_layers)
        yield from ["options of the loss"] * (len(node.options) > 1 and node.phase is Phase.LOSS)
        yield from ["a workspace"] * (node.options[0].workspace > 0)
        yield from ["draws"] * node.draws + ["run_once"] * node.run_once + ["after"] * bool(node.after)
        yield from ["a signature"] * bool(node.signature) + ["a twin"] * bool(node.twin)
    for layer in graph.layers:
        yield "a layer of several options" if len(layer.options) > 1 else "a layer"
        yield from ("reads of one option" for option in layer.options if option.backward_reads)


EXPECTED = {
    *Kind,
    "a sum forward",
    "a sum backward",
    "a sum forward and loss",
    "a sum backward and loss",
    "a sum backward and forward",
    "a sum backward and forward and loss",
    "a kept sum",
    "a sum that may be dropped",
    "a state with a draw",
    "a state without a draw",
    "several states",
    *(f"{count} nodes" for count in range(1, 8)),
    "no bytes",
    "no time",
    "bytes that no float adds",
    "times that no float adds",
    "options of a flat node",
    "options of the loss",
    "a workspace",
    "draws",
    "run_once",
    "after",
    "a signature",
    "a twin",
    "a layer",
    "a layer of several options",
    "reads of one option",
}


def test_graphs_are_drawn_from_the_whole_class_and_reach_the_hard_part():
    drawn, reruns, optima = Counter(), Counter(), 0
    for seed in range(1000):
        graph = graph_of(seed)
        drawn.update(set(features(graph)))
        points = frontier(graph)
        optima += len(points) > 1
        reruns[max(validate(graph, Schedule(point.steps)).reruns for point in points)] += 1
    assert set(drawn) == EXPECTED
    assert min(drawn.values()) >= 3, drawn.most_common()[-5:]
    assert optima >= 150, "budgets that change nothing ask nothing"
    assert sum(count for rerun, count in reruns.items() if rerun >= 2) >= 20, reruns


def test_a_seed_decides_the_graph():
    assert graph_of(5) == graph_of(5)
    assert len({print_text(graph_of(seed)) for seed in range(50)}) >= 45


def test_hypothesis_finds_and_shrinks_legal_graphs():
    graph = find(legal_graphs(), lambda one: any(len(datum.writers) > 1 and datum.keep for datum in one.data))
    assert len(graph) <= 3


@frozen
class Planted(Solver):
    """`Exhaustive` with a fault."""

    what: str

    def plan(self, problem, clock, seed):
        plan = Exhaustive().plan(problem, clock, seed)
        if self.what == CRASH:
            raise KeyError("x")
        if self.what == FALSELY_INFEASIBLE:
            return Plan(lower=IMPOSSIBLE)
        if self.what == CLASS:
            return evolve(plan, class_bounds=(ClassBound(value=plan.lower + 1, assumes=ASSUMES),))
        return evolve(plan, schedule=None, lower=plan.lower + 1)


@pytest.mark.parametrize("word", [ABOVE, FALSELY_INFEASIBLE, CRASH, CLASS])
def test_the_judge_sees_what_is_wrong(word):
    graph = graph_of(random.Random(0).randint(0, 99))
    points = frontier(graph)
    problem = Problem(graph=graph, budget=points[0].peak)
    assert fault(Exhaustive(), problem, points[0]) is None
    assert fault(Planted(word), problem, points[0])[0] == word


def test_the_judge_sees_an_oracle_that_is_too_slow_or_blind():
    graph = graph_of(3)
    points = frontier(graph)
    problem = Problem(graph=graph, budget=points[0].peak)
    slow = evolve(points[0], time=points[0].time + 1)
    assert fault(Exhaustive(), problem, slow)[0] == BELOW
    assert fault(Exhaustive(), problem, None)[0] == BELOW
    assert {ABOVE, FALSELY_INFEASIBLE, CRASH, BELOW, CLASS} == set(FAULTS)


def test_every_bound_is_asked_at_every_budget():
    assert set(BOUNDS) <= set(SOLVERS)
    flat = next(seed for seed in range(100) if graph_of(seed).flat and len(frontier(graph_of(seed))) > 1)
    verdict = judge(flat, SOLVERS)
    assert all(verdict.asked[name] >= 3 for name in BOUNDS)


def test_every_solver_is_asked_about_graphs_that_it_takes():
    for seed in (WIDE, 2 * WIDE):
        cases = [Case.of(graph_of(seed))]
        assert all(taken_by(solver, seed, cases) for solver in SOLVERS.values())
    assert sum(len(frontier(chain_of(seed))) > 1 for seed in range(100)) >= 50
    assert all(is_chain(chain_of(seed)) and flat_of(seed).flat for seed in range(100))
