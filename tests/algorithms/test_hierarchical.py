"""Hierarchies on captured models: `Condense` over partitioners, levels inside levels, and what it is to be worse than flat."""

from pathlib import Path

import pytest

from remat.algorithms import (
    IMPOSSIBLE,
    Clock,
    Condense,
    Corrected,
    HIlp,
    HPartition,
    Intervals,
    Outcome,
    StoreAll,
    hierarchical,
    parse,
    pool,
    quick,
    store_all_peak,
    undominated,
)
from remat.algorithms._core.options import selected
from remat.algorithms._core.outcome import Status
from remat.algorithms._core.problem import Problem
from remat.algorithms._hierarchy.condense import Given
from remat.algorithms._hierarchy.partition import Segments
from remat.algorithms._staged import option_sweep
from remat.algorithms.named import rk_rotor
from remat.errors import BadArgument, IllFormed, RematError
from remat.ir import Cluster, GraphBuilder, Kind, LayerOption, condense, read_joint_graph, validate
from remat.ir.hierarchy import check_condensable

CAPTURED = Path(__file__).parents[1] / "data" / "captured"


@pytest.fixture(scope="module")
def gpt12():
    return read_joint_graph(CAPTURED / "gpt12.json.gz")


def at(graph, share):
    return Problem(graph=graph, budget=int(store_all_peak(graph) * share))


def deep(stages):
    """A chain of operators, the backward of each reading what its twin read and made; every third is dear."""
    b = GraphBuilder("deep")
    b.data("x", 0, Kind.INPUT)
    b.data("t", 1, Kind.TANGENT)
    for i in range(stages):
        b.data(f"a{i}", 4 + i % 3)
        b.data(f"g{i}", 4, Kind.GRADIENT if i else Kind.INPUT_GRAD)
        b.forward(f"F{i}", reads=[f"a{i - 1}" if i else "x"], writes=[f"a{i}"], time=10 if i % 3 else 30)
    b.loss("L", reads=[f"a{stages - 1}"], writes=["t"], time=1)
    for i in reversed(range(stages)):
        reads = [f"a{i - 1}" if i else "x", f"a{i}", "t" if i == stages - 1 else f"g{i + 1}"]
        b.backward(f"B{i}", reads=reads, writes=[f"g{i}"], time=20, twin=f"F{i}")
    return b.build()


def test_equal_layers_of_a_transformer_are_planned_once(gpt12):
    note = Condense(Intervals(24), lower=quick.sweep(peaks=2, saves=2)).apply(at(gpt12, 0.5)).note
    assert note.startswith("12 clusters of 4 kinds")


def test_a_hierarchy_plans_a_transformer_at_half_its_memory(gpt12):
    problem = at(gpt12, 0.5)
    outcome = hierarchical(Intervals(24), lower=quick.sweep(peaks=4, saves=4), top=HIlp(gap=0.01).within(60)).solve(
        problem
    )
    assert outcome.status is Status.FEASIBLE
    assert outcome.upper < 1.11 * gpt12.time


def test_options_of_a_lower_level_make_the_plan_no_slower():
    graph = deep(9)
    peak = store_all_peak(graph)
    times = []
    for lower in (None, HIlp().sweep(peaks=3, saves=3, workers=1)):
        solver = hierarchical(Intervals(3), lower=lower, top=HIlp())
        times.append([solver.solve(Problem(graph=graph, budget=budget)).upper for budget in range(peak // 3, peak, 12)])
    assert all(more <= plain for plain, more in zip(*times, strict=True))
    assert times[0] != times[1]


def test_clusters_inside_clusters_give_options_of_their_own():
    graph = deep(8)
    partition = HPartition(top=1, lower=2)
    (outer,) = partition.partition(graph)
    assert outer.children
    plain = Condense(partition).apply(at(graph, 0.6)).problem.graph
    nested = Condense(partition, middle=HIlp(), peaks=3, saves=3).apply(at(graph, 0.6)).problem.graph
    assert len(nested.layers[0].options) > len(plain.layers[0].options)


def test_a_pool_in_the_middle_asks_its_solvers_about_layers_and_its_sources_about_the_flat_cluster():
    graph, partition = deep(8), HPartition(top=1, lower=2)

    def options(middle):
        (layer,) = Condense(partition, middle=middle, peaks=3, saves=3).apply(at(graph, 0.6)).problem.graph.layers
        return layer.options

    sweep = quick.sweep(peaks=3, saves=3)
    alone, flat = options(HIlp()), options(pool(sweep))
    assert options(pool(HIlp())) == alone != flat
    both = options(pool(HIlp(), sweep))
    assert both == undominated([*alone, *flat])
    solver = hierarchical(partition, middle=pool(HIlp(), sweep), top=HIlp())
    assert parse(repr(solver)) == solver


def test_correction_terms_plan_where_the_workspaces_of_layers_do_not_fit():
    graph = deep(9)
    levels, peak = Condense(Intervals(3), lower=quick.sweep(peaks=3, saves=3)), store_all_peak(graph)
    corrected, plain = Corrected(levels, HIlp(gap=0)), levels >> HIlp(gap=0)
    problems = [Problem(graph=graph, budget=budget) for budget in range(peak // 3, peak + 1, 8)]
    times = [(corrected.solve(problem).upper, plain.solve(problem).upper) for problem in problems]
    assert all(ours <= theirs for ours, theirs in times)
    assert any(ours < theirs for ours, theirs in times)
    assert parse(repr(corrected)) == corrected


def test_correction_terms_begin_with_the_plan_of_another_solver_of_the_layers():
    graph = deep(8)
    levels = Condense(HPartition(top=1, lower=8), lower=quick.sweep(peaks=3, saves=3))
    problem = at(graph, 0.7)
    plain = Corrected(levels, HIlp(gap=0)).solve(problem)
    started = Corrected(levels, HIlp(gap=0), start=rk_rotor)
    assert started.solve(problem).upper == plain.upper < IMPOSSIBLE
    assert parse(repr(started)) == started
    stopped = started.of_level(levels.level(graph)[0], problem.budget, Clock(0.0))
    assert stopped.trail[0] == "stopped before the correction terms"
    assert validate(graph, stopped.schedule, problem.budget).time >= plain.upper


def test_a_limit_of_options_keeps_those_whose_peaks_are_farthest_apart():
    options = [
        LayerOption(forward=10, backward=30 - i, phantom=i, forward_workspace=peak - i, backward_workspace=0)
        for i, peak in enumerate((50, 52, 10, 30, 95, 100))
    ]

    def peaks(most):
        return [option.phantom + option.forward_workspace for option in selected(options, most)]

    assert [peaks(most) for most in (1, 2, 3, 4)] == [[100], [10, 100], [52, 10, 100], [52, 10, 30, 100]]
    assert selected(options, 6) == tuple(options)


def test_a_limit_is_divided_by_operators_and_leaves_two_of_each():
    graph, sweep = deep(12), quick.sweep(peaks=3, saves=2)
    groups = Given((("long", tuple(f"F{i}" for i in range(9))), ("short", ("F9", "F10"))))

    def counts(**given):
        level, _ = Condense(groups, lower=sweep, **given).level(graph)
        return [len(layer.options) for layer in level.graph.layers]

    assert counts(limit=11) == [min(9, counts()[0]), 2]
    assert counts(limit=1) == [2, 2]
    assert counts(limit=1000) == counts()


def test_two_groups_of_one_name_are_refused():
    with pytest.raises(BadArgument, match="no name twice"):
        Given((("a", ("F0",)), ("a", ("F1",))))
    assert len(Given((("a", ("F0",)), ("b", ("F1",)))).groups) == 2


def test_a_deadline_of_a_source_is_that_of_each_block():
    source = quick.sweep(peaks=2, saves=2).within(0)
    block = deep(4)
    assert source.options(block) == () != quick.sweep(peaks=2, saves=2).within(60).options(block)
    assert parse(repr(source)) == source


@pytest.mark.parametrize("reruns", ["none", "backward-once"])
def test_the_rungs_of_a_layered_graph_are_no_better_than_the_whole(reruns):
    problem = Condense(Intervals(3), lower=quick.sweep(peaks=3, saves=3)).apply(at(deep(9), 0.9)).problem
    thin = HIlp(gap=0, reruns=reruns).solve(problem)
    assert HIlp(gap=0).solve(problem).upper <= thin.upper < IMPOSSIBLE
    if reruns == "none":
        assert thin.cost.reruns == 0


def test_large_groups_come_from_groups_inside_and_are_checked_as_condensing_checks_them():
    graph = deep(60)
    divided = HPartition(top=3, lower=4).partition(graph)
    assert divided[0].children[0].children
    check_condensable(graph, divided)
    condense(graph, divided)
    crossed = [Cluster(name="a", forward=("F0", "F2")), Cluster(name="b", forward=("F1", "F3"))]
    for check in (check_condensable, condense):
        with pytest.raises(IllFormed, match="depend on each other"):
            check(graph, crossed)


def test_correction_terms_of_what_is_not_divided_are_none():
    problem = at(deep(3), 0.8)
    assert Corrected(Condense(Given(())), HIlp()).solve(problem).upper == HIlp().solve(problem).upper


def test_a_graph_without_clusters_stays_flat():
    problem = at(deep(3), 1.0)
    applied = Condense(Given(())).apply(problem)
    assert applied.problem is problem
    assert "undivided" in applied.note


def test_intervals_cut_where_least_crosses(gpt12):
    def crossing(partition):
        parts = partition.partition(gpt12)
        owner = {name: part.name for part in parts for name in part.forward}
        return sum(
            datum.size
            for d, datum in enumerate(gpt12.data)
            if datum.writers
            and {owner.get(gpt12.computes[r].name) for r in gpt12.readers_by_data[d] if r <= gpt12.loss}
            - {owner.get(datum.writers[0])}
        )

    assert crossing(Intervals(24)) < crossing(Segments(24))


@pytest.mark.parametrize("given", [{"partition": 3}, {"lower": 3}, {"middle": "HIlp()"}])
def test_what_is_no_part_of_the_algebra_is_refused_by_name(given):
    with pytest.raises(RematError, match=next(iter(given))):
        Condense(**({"partition": Intervals()} | given))


def test_clusters_without_a_backward_say_that_they_offer_no_options():
    b = GraphBuilder("untwinned")
    b.data("t", 1, Kind.TANGENT)
    for i in range(4):
        b.data(f"a{i}", 4)
        b.forward(f"F{i}", reads=[f"a{i - 1}"] if i else [], writes=[f"a{i}"], time=2)
    b.loss("L", reads=["a3"], writes=["t"], time=1)
    b.data("g", 4, Kind.PARAM_GRAD)
    b.backward("B", reads=["t", *(f"a{i}" for i in range(4))], writes=["g"], time=3)
    problem = Problem(graph=b.build(), budget=100)
    outcome = hierarchical(Intervals(2), lower=StoreAll().sweep(peaks=2, saves=1), top=StoreAll()).solve(problem)
    assert any("offer no options" in words and "twin" in words for words in outcome.trail)


def test_the_seed_reaches_the_first_plans_of_a_sweep_of_integer_programs(monkeypatch):
    seeds = []

    def recorded(problem, gap, clock, seed=0, *, bound=0):
        seeds.append(seed)
        return Outcome()

    monkeypatch.setattr(option_sweep, "starting_plan", recorded)
    options = HIlp().sweep(peaks=1, saves=1, workers=1).options(deep(2), seed=7)
    assert options and set(seeds) == {7}
