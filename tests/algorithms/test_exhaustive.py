"""The oracle against published optima and hand-made cases."""

import pytest

from remat.algorithms import IMPOSSIBLE, Exhaustive, Problem, Status, store_all_peak
from remat.ir import GraphBuilder, Kind, LayerOption, Option


def unit_chain(n):
    """The training chain of Checkmate's experiments: 2n + 1 unit nodes, node i read by i + 1 and 2n - i."""
    b = GraphBuilder(f"unit{n}")
    for i in range(2 * n + 1):
        b.data(f"d{i}", 1, Kind.PARAM_GRAD if i == 2 * n else Kind.ACTIVATION)
    for i in range(2 * n + 1):
        reads = {i - 1} if i else set()
        if i > n:
            reads.add(2 * n - i)
        add = b.forward if i < n else b.loss if i == n else b.backward
        add(f"n{i}", reads=[f"d{r}" for r in sorted(reads)], writes=[f"d{i}"], time=1)
    return b.build()


@pytest.mark.parametrize(("budget", "optimum"), [(3, 15), (4, 11), (5, 10), (6, 9)])
def test_unit_chain_has_the_published_optimum(budget, optimum):
    outcome = Exhaustive().solve(Problem(graph=unit_chain(4), budget=budget))
    assert (outcome.upper, outcome.lower, outcome.status) == (optimum, optimum, Status.OPTIMAL)


def test_below_the_floor_is_proved_impossible():
    outcome = Exhaustive().solve(Problem(graph=unit_chain(4), budget=2))
    assert outcome.status is Status.INFEASIBLE
    assert outcome.lower == IMPOSSIBLE


def test_a_stopped_search_states_a_bound_and_claims_nothing_else():
    outcome = Exhaustive(max_states=2).solve(Problem(graph=unit_chain(4), budget=3))
    assert outcome.status is Status.NOT_FOUND
    assert 9 <= outcome.lower <= 15


def contributions():
    """Two contributions to one gradient, of 4 B, with a recomputable forward between."""
    b = GraphBuilder("two")
    b.data("x", 9, Kind.INPUT)
    b.data("a", 4)
    b.data("t", 1, Kind.TANGENT)
    b.data("g", 4, Kind.GRADIENT)
    b.data("p", 2, Kind.PARAM_GRAD)
    b.forward("F", reads=["x"], writes=["a"], time=5)
    b.loss("L", reads=["a"], writes=["t"], time=1)
    b.backward("B1", reads=["t"], writes=["g"], time=1)
    b.backward("B2", reads=["t", "a"], writes=["g"], time=1)
    b.backward("B3", reads=["g"], writes=["p"], time=1)
    return b.build()


def test_contributions_each_charge_their_own_size():
    graph = contributions()
    assert store_all_peak(graph) == 13  # a, t, g and B2's own 4 B
    assert Exhaustive().solve(Problem(graph=graph, budget=13)).upper == 9
    # B2 needs t, a, g and its own 4 B whatever is recomputed
    assert Exhaustive().solve(Problem(graph=graph, budget=12)).status is Status.INFEASIBLE


def test_layers_choose_options_and_the_bare_run():
    b = GraphBuilder("layers")
    b.data("x", 0, Kind.INPUT)
    b.data("a", 1)
    b.data("c", 1)
    b.data("t", 1, Kind.TANGENT)
    b.data("g", 1, Kind.GRADIENT)
    b.data("p", 1, Kind.PARAM_GRAD)
    b.forward("F1", reads=["x"], writes=["a"])
    b.forward("F2", reads=["a"], writes=["c"])
    b.loss("L", reads=["c"], writes=["t"], time=1)
    b.backward("B2", reads=["t"], writes=["g"])
    b.backward("B1", reads=["g"], writes=["p"])
    keep = LayerOption(forward=2, backward=2, phantom=8)
    lean = LayerOption(forward=2, backward=4, phantom=2)
    for k in "12":
        b.layer(f"F{k}", f"B{k}", [keep, lean], no_save=Option(time=2, workspace=0))
    graph = b.build()
    solve = lambda budget: Exhaustive().solve(Problem(graph=graph, budget=budget))  # noqa: E731
    assert solve(100).upper == 9
    assert solve(100).cost.reruns == 0
    # 18 B are held by two fat phantoms, a and c; one byte less, and one layer takes its lean option
    assert solve(18).upper == 9
    assert solve(17).upper == 11
