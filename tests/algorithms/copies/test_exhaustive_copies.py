"""`Exhaustive` with a link: the optimum over all schedules with copies, against searches that share no code with it."""

import random

import pytest
from attrs import evolve

from remat.algorithms import (
    IMPOSSIBLE,
    Exhaustive,
    Linearise,
    Pofo,
    Problem,
    Status,
    auto,
    store_all_peak,
)
from remat.algorithms._core.clock import Clock
from remat.algorithms._core.outcome import Plan
from remat.algorithms._core.solver import Solver
from remat.algorithms._curves.budget_sweep import sweep
from remat.algorithms._whole import exhaustive_copies
from remat.ir import Drop, Graph, GraphBuilder, Kind, Link, Offload, Option, Prefetch, Run, Schedule, validate
from remat.testing.legal import legal_graph
from remat.testing.oracle import frontier
from tests.algorithms.copies.oracle import TooLarge, optimum
from tests.benchmarks.tiny import tiny_graph
from tests.benchmarks.tiny_copies import chain, problem_on

FAST = Link(to_host=None, to_device=None)
SLOW = Link(to_host=10**9, to_device=10**9, to_host_latency=1000, to_device_latency=1000)
"""On which a copy takes longer than any schedule without one."""


def chains(count):
    """The first chains of the benchmark of small problems."""
    rng = random.Random(1)
    return [problem_on(chain(2 + at % 7, rng), rng) for at in range(count)]


def test_optima_are_those_of_a_search_over_the_replay_of_the_validator():
    rng, copied = random.Random(0), 0
    problems = [problem_on(tiny_graph(rng, 2, summed=at % 2 == 0), rng) for at in range(40)]
    quick = Link.symmetric(gb_per_s=4.0)
    problems += [evolve(problem_on(chain(3, rng), rng), link=quick) for _ in range(8)]
    for problem in problems:
        outcome = Exhaustive().solve(problem)
        limit = problem.graph.time * 5 // 4 if outcome.cost is None else outcome.upper
        try:
            best, _ = optimum(problem.graph, problem.budget, problem.link, limit, most=8000)
        except TooLarge:
            continue
        if best is None:
            assert outcome.lower > limit
        else:
            assert (outcome.upper, outcome.lower) == (best, best)
            copied += any(isinstance(step, Prefetch) for step in outcome.schedule.steps)
    assert copied > 1


def test_bounds_of_legal_graphs_are_never_above_a_schedule():
    compared = 0
    for seed in range(40):
        rng = random.Random(seed)
        graph = legal_graph(rng.randint, layers=False, options=False, max_nodes=5)
        budget = rng.randint(0, store_all_peak(graph))
        link = Link(
            to_host=10**9 * rng.choice((1, 3)), to_device=10**9 * rng.choice((1, 3)), to_host_latency=rng.choice((0, 1))
        )
        outcome = Exhaustive().solve(Problem(graph=graph, budget=budget, link=link))
        limit = graph.time * 2 if outcome.cost is None else outcome.upper
        if "not searched" in outcome.trail[0]:
            continue
        try:
            best, _ = optimum(graph, budget, link, limit, most=1500)
        except TooLarge:
            continue
        compared += 1
        assert outcome.lower <= (IMPOSSIBLE if best is None else best) <= outcome.upper or best is None
        assert (outcome.cost is None) == (best is None)
    assert compared > 10


@pytest.mark.parametrize("seed", range(25))
def test_over_a_slow_link_the_optimum_is_that_without_copies(seed):
    graph = legal_graph(random.Random(seed).randint, layers=False, options=False)
    if graph.time > 900 or max(datum.size for datum in graph.data) > 10**6:
        pytest.skip("large numbers: a copy is not slow there, or the graph is not searched")
    points = frontier(graph)
    for budget in sorted({b for point in points for b in (point.peak, point.peak - 1) if b >= 0}):
        best = min((point.time for point in points if point.peak <= budget), default=IMPOSSIBLE)
        outcome = Exhaustive().solve(Problem(graph=graph, budget=budget, link=SLOW))
        assert best == outcome.upper == outcome.lower or (best == IMPOSSIBLE and outcome.lower > graph.time)


def test_over_a_link_without_cost_nothing_is_recomputed_where_data_can_leave():
    for problem in chains(7):
        free = Problem(graph=problem.graph, budget=problem.budget, link=FAST)
        outcome = Exhaustive(max_nodes=17).solve(free)
        assert outcome.status is Status.OPTIMAL
        assert outcome.upper == problem.graph.time


OPTIMA = """
38 40 74 94 90 - - 22 32 74 80 94 122 - 24 65 59 72 62 92 121 41 41 62 68 98 84 143
35 43 73 74 104 105 120 27 32 55 76 91 103 128 35 47 69 60 95 130 - 35 41 57 94 91 145 -
27 37 64 73 118 90 106 39 59 83 83 80 107 142 30 38 66 58 89 106 142 34 38 74 65 95 85 121
43 60 58 90 82 - - 18 37 31 84 - 111 - 26 37 57 83 87 93 118 38 51 75 93 - 119 124
47 38 61 91 - 84 115 40 29 59 58 110 - - 40 37 76 90 111 - - 16 49 49 77 -
"""
"""Of chains of 2 to 8 stages: plans of `auto`, but for the 21st, that no search is faster than [ns]; -: not asked."""


def test_chains_of_up_to_eight_stages_are_solved():
    optima = OPTIMA.split()
    for problem, best in zip(chains(len(optima)), optima, strict=True):
        if best != "-":
            outcome = Exhaustive(max_nodes=17).solve(problem)
            assert (outcome.upper, outcome.lower) == (int(best), int(best))


def test_the_default_planner_and_pofo_are_between_the_optimum_and_a_hundredth_more():
    for problem in chains(21)[:21:4]:
        best = Exhaustive(max_nodes=17).solve(problem)
        planned, pofo = auto.solve(problem), (Linearise() >> Pofo()).solve(problem)
        assert planned.lower <= best.upper <= min(planned.upper, pofo.upper)
        assert planned.upper <= best.upper * 1.01


def test_a_stopped_search_states_a_bound_and_claims_nothing_else():
    problem = chains(21)[20]
    stopped = Exhaustive(max_nodes=17, max_states=100).solve(problem)
    assert stopped.status is Status.NOT_FOUND
    assert problem.graph.time <= stopped.lower < Exhaustive(max_nodes=17).solve(problem).upper


def test_below_what_a_node_needs_is_proved_impossible():
    graph = chains(1)[0].graph
    needs = max(
        sum(graph.data[d].size for d in {*graph.reads_by_node[v], *graph.writes_by_node[v]}) for v in range(len(graph))
    )
    inputs = sum(datum.size for datum in graph.data if datum.outside)
    outcome = Exhaustive().solve(Problem(graph=graph, budget=needs - inputs - 1, link=FAST))
    assert outcome.lower == IMPOSSIBLE


def two_nodes(size, time, *, layer=False):
    b = GraphBuilder("two")
    b.data("a", size)
    b.data("t", 1, Kind.TANGENT)
    b.data("w", 1, Kind.PARAM_GRAD)
    options = {"options": (Option(time=1), Option(time=2))} if layer else {"time": time}
    b.forward("F", reads=[], writes=["a"], **options)
    b.loss("L", reads=["a"], writes=["t"], time=1)
    b.backward("B", reads=["a", "t"], writes=["w"], time=1)
    return b.build()


@pytest.mark.parametrize(
    ("graph", "why"),
    [
        (two_nodes(1, 1, layer=True), "layers or options"),
        (two_nodes(2**51, 1), "add up"),
        (two_nodes(1, 2**51), "add up"),
    ],
)
def test_what_is_not_searched_is_said_and_nothing_is_claimed(graph, why):
    outcome = Exhaustive().solve(Problem(graph=graph, budget=2**52, link=FAST))
    assert why in " ".join(outcome.trail)
    assert (outcome.cost.time, outcome.lower) == (graph.time, 0)


def test_a_host_budget_is_kept_by_what_is_proposed():
    exact, copied = Exhaustive(max_nodes=17), 0
    for problem in (problem for at, problem in enumerate(chains(14)) if at not in (5, 6)):
        free = exact.plan(problem, Clock(), 0)
        held = validate(problem.graph, free.schedule, problem.budget, problem.link).host_peak
        copied += held > 0
        assert exact.plan(evolve(problem, host_budget=held), Clock(), 0).schedule == free.schedule
        less = exact.plan(evolve(problem, host_budget=max(0, held - 1)), Clock(), 0).schedule
        assert less is None or validate(problem.graph, less, problem.budget, problem.link).host_peak <= max(0, held - 1)
    assert copied > 3


def test_a_start_with_many_ways_to_drop_data_ends_the_search_with_a_bound():
    b = GraphBuilder("wide")
    for i in range(16):
        b.data(f"a{i}", 1)
        b.data(f"w{i}", 0, Kind.PARAM_GRAD)
        b.forward(f"F{i}", reads=[f"a{i - 1}"] if i else [], writes=[f"a{i}"], time=1)
    b.data("t", 8, Kind.TANGENT)
    b.loss("L", reads=["a15"], writes=["t"], time=1)
    for i in range(16):
        b.backward(f"B{i}", reads=["t", f"a{i}"], writes=[f"w{i}"], time=1)
    graph = b.build()
    outcome = Exhaustive(max_nodes=33).solve(Problem(graph=graph, budget=16, link=SLOW))
    assert "too many ways" in outcome.trail[0]
    assert outcome.cost is None
    assert graph.time <= outcome.lower <= auto.solve(Problem(graph=graph, budget=16)).upper


def scaled(problem, factor):
    """The problem in units that are smaller by a factor: a byte takes as long as before."""
    graph = problem.graph

    def larger(option):
        return evolve(option, time=option.time * factor, workspace=option.workspace * factor)

    computes = tuple(evolve(node, options=tuple(map(larger, node.options))) for node in graph.computes)
    data = tuple(evolve(datum, size=datum.size * factor) for datum in graph.data)
    return evolve(problem, graph=Graph(name=graph.name, computes=computes, data=data), budget=problem.budget * factor)


def test_optima_are_the_same_in_units_a_billion_times_smaller():
    link = Link(to_host=10**9, to_device=5 * 10**8)
    for problem in chains(14):
        if len(problem.graph) < 10:
            small = evolve(problem, link=link)
            least, most = Exhaustive().solve(small), Exhaustive().solve(scaled(small, 3 * 10**9 + 7))
            assert (most.lower, most.upper) == (least.lower * (3 * 10**9 + 7), least.upper * (3 * 10**9 + 7))


def test_a_copy_that_is_hidden_to_the_nanosecond_costs_nothing():
    size = 370
    time = -(-size * 10**9 // 3)  # of a copy
    b = GraphBuilder("hidden")
    for name, kind, bytes_ in (("a", Kind.ACTIVATION, size), ("b", Kind.ACTIVATION, 1), ("t", Kind.TANGENT, 0)):
        b.data(name, bytes_, kind)
    b.data("x", 1, Kind.INPUT)
    b.data("w1", 0, Kind.PARAM_GRAD)
    b.data("w0", 0, Kind.PARAM_GRAD)
    b.forward("F0", reads=["x"], writes=["a"], time=10 * time)
    b.forward("F1", reads=["x"], writes=["b"], time=time)
    b.loss("L", reads=["b"], writes=["t"], time=1, workspace=size)
    b.backward("B1", reads=["b", "t"], writes=["w1"], time=time)
    b.backward("B0", reads=["a", "t"], writes=["w0"], time=1)
    graph = b.build()
    outcome = Exhaustive().solve(Problem(graph=graph, budget=size + 1, link=Link(to_host=3, to_device=3)))
    assert outcome.status is Status.OPTIMAL and outcome.upper == graph.time


def test_an_interruption_of_the_second_search_keeps_what_the_first_has_proved(monkeypatch):
    rng = random.Random(7)
    real = exhaustive_copies.explore
    while True:
        problem = problem_on(tiny_graph(rng, 3, summed=rng.random() < 0.5), rng)
        whole = Exhaustive(max_states=20_000).solve(problem)
        if whole.schedule is not None and any("issued" in line for line in whole.trail):
            break

    def explored(tables, queue, steps):
        if tables.issued:
            raise KeyboardInterrupt
        return real(tables, queue, steps)

    monkeypatch.setattr(exhaustive_copies, "explore", explored)
    assert Exhaustive(max_states=20_000).solve(problem).lower == whole.lower > 0


def test_what_no_copies_are_searched_for_has_the_plan_without_them():
    tried = 0
    for problem in chains(14):
        if len(problem.graph) < 10:
            bare = Exhaustive().solve(evolve(problem, link=None))
            kept = Exhaustive().solve(evolve(problem, host_budget=0))
            assert (bare.schedule is None) == (kept.schedule is None)
            tried += kept.schedule is not None
    assert tried > 2
    layered = legal_graph(random.Random(5).randint)
    problem = Problem(graph=layered, budget=store_all_peak(layered), link=SLOW)
    assert Exhaustive(max_nodes=40).solve(problem).schedule is not None


class Proposing(Solver):
    """Proposes one schedule."""

    models_link = True

    def __init__(self, schedule):
        self.schedule = schedule

    def plan(self, problem, clock, seed):
        return Plan(schedule=self.schedule)


def test_a_curve_over_a_link_replays_a_plan_at_the_larger_budget():
    b = GraphBuilder("begins-sooner")
    b.data("x", 1, Kind.INPUT)
    for name, size, kind in (("a", 6, Kind.ACTIVATION), ("b", 2, Kind.ACTIVATION), ("c", 0, Kind.ACTIVATION)):
        b.data(name, size, kind)
    b.data("t", 0, Kind.TANGENT)
    b.data("w1", 0, Kind.PARAM_GRAD)
    b.data("w0", 0, Kind.PARAM_GRAD)
    b.forward("F0", reads=["x"], writes=["a"], time=1)
    b.forward("F1", reads=["x"], writes=["b"], time=1)
    b.forward("F2", reads=["x"], writes=["c"], time=1, workspace=5)
    b.loss("L", reads=["c"], writes=["t"], time=1)
    b.backward("B1", reads=["b", "t"], writes=["w1"], time=1)
    b.backward("B0", reads=["a", "t"], writes=["w0"], time=1)
    graph, link = b.build(), Link(to_host=10**9, to_device=10**9)
    steps = (
        Run("F0"), Offload("a"), Run("F1"), Offload("b"), Prefetch("a"), Run("F2"), Run("L"), Drop("c"), Run("B0"), Drop("a"),
        Prefetch("b"), Run("B1"), Drop("b"),
    )  # fmt: skip
    curve = sweep(graph, [7, 8, 11], Proposing(Schedule(steps)), link=link)
    assert [point.outcome.schedule is not None for point in curve.points] == [True, False, True]
    for point in curve.points:
        if point.outcome.schedule is not None:
            assert validate(graph, point.outcome.schedule, point.budget, link) == point.outcome.cost
