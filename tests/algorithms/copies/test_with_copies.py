"""`WithCopies`, and `auto` with a link: never slower than without copies or than POFO, within the host's budget."""

import random

import pytest

from remat.algorithms import (
    Linearise,
    LinkInstants,
    MultiStart,
    Pofo,
    Polish,
    Problem,
    ReplaceReruns,
    RuinCopies,
    ShaveBoth,
    SingleInstant,
    Solver,
    StoreAll,
    WithCopies,
    auto,
    parse,
    store_all_peak,
    warm,
)
from remat.algorithms._arrays.graph_arrays import flatten
from remat.algorithms._bounds.floor import first_run_floor
from remat.algorithms._copies.with_copies import WITHOUT_COPIES
from remat.algorithms._core.outcome import Plan
from remat.errors import BadArgument
from remat.ir import GraphBuilder, Kind, Link, Offload
from tests.benchmarks.tiny import tiny_graph

SLOW, FAST = Link.symmetric(gb_per_s=0.5), Link.symmetric(gb_per_s=4, latency=1)
plain = Polish((MultiStart(starts=4), SingleInstant(after_loss=2, heaviest=0, mixed=0)))
quick = WithCopies(
    plain,
    (ReplaceReruns(), ShaveBoth(exponents=(1.0,)), LinkInstants(after_loss=(1,), heaviest=0), RuinCopies(work=3e3)),
)


def budget_of(graph, part):
    """A budget between the floor that copies leave and the peak."""
    floor = first_run_floor(flatten(graph))[0]
    return floor + int(part * (store_all_peak(graph) - floor))


def chain(stages):
    """A flat training chain whose activations are of different sizes."""
    b = GraphBuilder(f"chain{stages}")
    b.data("x", 9, Kind.INPUT)
    b.data("t", 1, Kind.TANGENT)
    for i in range(stages):
        b.data(f"a{i}", 4 + 3 * i % 5)
        b.data(f"g{i}", 4 + 3 * i % 5, Kind.GRADIENT)
        b.data(f"w{i}", 1, Kind.PARAM_GRAD)
        b.forward(f"F{i}", reads=[f"a{i - 1}" if i else "x"], writes=[f"a{i}"], time=3 + i % 2)
    b.loss("L", reads=[f"a{stages - 1}"], writes=["t"], time=1)
    for i in reversed(range(stages)):
        later = f"g{i + 1}" if i < stages - 1 else "t"
        writes = [f"g{i}", f"w{i}"]
        b.backward(f"B{i}", reads=[later, f"a{i}", *([f"a{i - 1}"] if i else ["x"])], writes=writes, time=5)
    return b.build()


@pytest.mark.parametrize("link", [SLOW, FAST], ids=["slow", "fast"])
def test_a_plan_with_copies_is_never_slower_than_one_without(link):
    rng, faster = random.Random(1), 0
    for _ in range(6):
        graph = tiny_graph(rng, 6, summed=rng.random() < 0.5)
        budget = budget_of(graph, 0.4)
        without = plain.solve(Problem(graph=graph, budget=budget))
        linked = quick.solve(Problem(graph=graph, budget=budget, link=link))
        assert linked.upper <= without.upper
        assert linked.lower <= linked.upper
        faster += linked.upper < without.upper
    assert faster


@pytest.mark.parametrize(("stages", "share"), [(4, 0.6), (6, 0.4), (8, 0.3)])
def test_a_plan_of_a_chain_is_no_slower_than_the_optimum_of_pofo(stages, share):
    graph = chain(stages)
    problem = Problem(graph=graph, budget=budget_of(graph, share), link=Link.symmetric(gb_per_s=1))
    ours, pofo = quick.solve(problem), (Linearise() >> Pofo()).solve(problem)
    assert ours.cost is not None
    assert ours.upper <= pofo.upper
    assert ours.lower <= ours.upper


def test_without_a_link_it_is_the_solver_without_copies():
    graph = chain(5)
    problem = Problem(graph=graph, budget=budget_of(graph, 0.5))
    assert quick.solve(problem).schedule == plain.solve(problem).schedule
    assert quick.solve(problem).lower == plain.solve(problem).lower


def test_the_bound_without_copies_stands_beside():
    graph = chain(6)
    problem = Problem(graph=graph, budget=budget_of(graph, 0.5), link=FAST)
    outcome, without = quick.solve(problem), plain.solve(Problem(graph=graph, budget=problem.budget))
    (beside,) = outcome.class_bounds
    assert (beside.assumes, beside.value) == (WITHOUT_COPIES, without.lower)
    assert outcome.word == "certified"
    assert outcome.lower <= outcome.upper < without.lower


def test_the_host_has_a_budget_of_its_own():
    graph = chain(8)
    problem = {"graph": graph, "budget": budget_of(graph, 0.4), "link": FAST}
    free = quick.solve(Problem(**problem))
    assert free.cost.host_peak > 8
    tight = quick.solve(Problem(**problem, host_budget=8))
    assert tight.cost.host_peak <= 8
    assert tight.upper >= free.upper
    none = quick.solve(Problem(**problem, host_budget=0))
    assert none.cost.host_peak == 0
    with pytest.raises(BadArgument, match="host_budget"):
        Problem(**problem, host_budget=-1)


def test_a_schedule_over_the_budget_of_the_host_is_not_taken():
    class Given(Solver):
        def plan(self, problem, clock, seed):
            return Plan(schedule=schedule)

    graph = chain(8)
    problem = Problem(graph=graph, budget=budget_of(graph, 0.4), link=FAST)
    free = quick.solve(problem)
    schedule = free.schedule
    assert Given().solve(problem).upper == free.upper
    refused = Given().solve(Problem(graph=graph, budget=problem.budget, link=FAST, host_budget=free.cost.host_peak - 1))
    assert refused.schedule is None
    assert "on the host" in refused.trail[-1]


def test_a_start_with_copies_is_kept_or_bettered():
    graph = chain(8)
    problem = Problem(graph=graph, budget=budget_of(graph, 0.4), link=FAST)
    first = quick.solve(problem)
    assert any(isinstance(step, Offload) for step in first.schedule.steps)
    assert warm(quick, seed=quick).solve(problem).upper <= first.upper


def test_equal_seeds_plan_alike_and_a_deadline_leaves_a_plan():
    graph = tiny_graph(random.Random(5), 8, summed=False)
    problem = Problem(graph=graph, budget=budget_of(graph, 0.5), link=SLOW)
    assert quick.solve(problem, seed=3).schedule == quick.solve(problem, seed=3).schedule
    assert quick.within(1e-4).solve(problem).lower <= quick.solve(problem).upper


def test_auto_plans_copies_where_there_is_a_link():
    assert isinstance(auto, WithCopies)
    graph = chain(6)
    outcome = auto.within(0.3).solve(Problem(graph=graph, budget=budget_of(graph, 0.4), link=FAST))
    assert any(isinstance(step, Offload) for step in outcome.schedule.steps)


def test_its_text_rebuilds_it():
    assert parse(repr(quick)) == quick
    assert repr(WithCopies(StoreAll())) == "WithCopies(StoreAll())"
