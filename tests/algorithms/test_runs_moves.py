"""Each move alone: what it does, what it refuses, how it stops."""

import random

import pytest
from attrs import evolve

from remat.algorithms._core.clock import Clock
from remat.algorithms._core.outcome import Status
from remat.algorithms._core.problem import Problem
from remat.algorithms._core.warm_started import warm
from remat.algorithms._search import any_order
from remat.algorithms._search.any_order import AnyOrder
from remat.algorithms._search.checkpoints import Checkpoints
from remat.algorithms._search.enumeration import Enumerate
from remat.algorithms._search.lp_rounding import SavedSet
from remat.algorithms._search.oscillation import Oscillation
from remat.algorithms._search.passes import (
    Continuation,
    Delete,
    MultiStart,
    PeakShaving,
    Relieve,
    RuinAndRecreate,
    ShavingParams,
    Shift,
)
from remat.algorithms._search.pipeline import Polish
from remat.algorithms._search.postpone import Postpone
from remat.algorithms._search.stop import gap, gap_above, no_plan
from remat.algorithms._whole.baselines import store_all_peak
from remat.errors import RematError
from remat.ir import GraphBuilder, Kind, LayerOption
from tests.algorithms.test_runs_liveness import chain
from tests.benchmarks.tiny import tiny_graph

MOVES = [
    PeakShaving(),
    PeakShaving(ShavingParams(0.5, 0.1, 0.2)),
    Delete(),
    Shift(),
    MultiStart(4),
    RuinAndRecreate(work=500.0),
    RuinAndRecreate(work=500.0, disorder=0.5),
    RuinAndRecreate(work=500.0, disorder=1.0, undone=1.0),
    RuinAndRecreate(work=500.0, gathering=1.0),
    RuinAndRecreate(work=500.0, served=8, others=0, patience=0.5),
    Oscillation(seconds=0.01, searches=2, restart=False, over=0.5),
    Relieve(work=500.0, attempts=2),
    Postpone(),
    Checkpoints(((2,), (2,))),
    Enumerate(),
]
MOVES += [Continuation(), SavedSet(), AnyOrder(settling=0.1), Polish((PeakShaving(), Delete()), stop=gap(0.01))]
MOVES += [Continuation().if_(no_plan), MultiStart(4).if_(gap_above(0.01))]


@pytest.mark.parametrize("move", MOVES, ids=repr)
def test_the_repr_rebuilds(move):
    assert eval(repr(move)) == move


@pytest.mark.parametrize(
    "move", [PeakShaving(), MultiStart(4), RuinAndRecreate(work=500.0), Continuation(), SavedSet(), Checkpoints()]
)
def test_a_chain_fits_two_thirds_of_its_memory(move):
    graph = chain(8)
    outcome = move.solve(Problem(graph=graph, budget=21))
    assert outcome.status is Status.FEASIBLE
    assert outcome.cost.peak <= 21
    assert outcome.cost.recomputation > 0


@pytest.mark.parametrize("seed, forward, expected", [(26, 8, 125), (70, 8, 88)])
def test_what_solutions_describe_settles_in_plans_that_shaving_does_not_come_to(seed, forward, expected, monkeypatch):
    """Shaving the solution of every relaxation, in haste, comes to them too."""
    graph = tiny_graph(random.Random(seed), forward, summed=False)
    problem = Problem(graph=graph, budget=int(0.7 * store_all_peak(graph)))
    assert AnyOrder(settling=0.0).solve(problem).upper <= expected
    monkeypatch.setattr(any_order, "_DRAWN", -1)
    outcome = AnyOrder().solve(problem)
    assert outcome.upper <= expected < AnyOrder(settling=0.0).solve(problem).upper
    first_runs = list(dict.fromkeys(run.node for run in outcome.schedule.runs))
    assert first_runs != sorted(first_runs, key=lambda name: graph.node_index[name])


@pytest.mark.parametrize("move", [PeakShaving(), MultiStart(4), Continuation()])
def test_nothing_is_recomputed_where_everything_fits(move):
    assert move.solve(Problem(graph=chain(4), budget=1000)).cost.recomputation == 0


def test_deletion_and_shifting_need_a_start():
    problem = Problem(graph=chain(8), budget=21)
    assert Delete().solve(problem).status is Status.NOT_FOUND
    assert Shift().solve(problem).status is Status.NOT_FOUND


def test_a_move_started_from_a_plan_keeps_it_when_it_finds_nothing_better():
    problem = Problem(graph=chain(8), budget=21)
    start = MultiStart(4).solve(problem)
    for move in (Delete(), Shift(), RuinAndRecreate(work=500.0)):
        assert warm(move, seed=MultiStart(4)).solve(problem).upper <= start.upper


def side_by_side():
    """Two gradients of size 6 that wait for each other, and weights' gradients that may come late: order is all that helps."""
    b = GraphBuilder("beside")
    b.data("t", 1, Kind.TANGENT)
    for name in ("a", "b"):
        b.data(f"f{name}", 1)
        b.data(f"g{name}", 6, Kind.GRADIENT)
        b.data(f"w{name}", 1, Kind.PARAM_GRAD)
        b.forward(f"F{name}", writes=[f"f{name}"], time=1)
    b.loss("L", reads=["fa", "fb"], writes=["t"], time=1)
    b.backward("Ba", reads=["t", "fa"], writes=["ga"], time=9)
    b.backward("Bb", reads=["t", "fb"], writes=["gb"], time=9)
    b.backward("Wa", reads=["ga"], writes=["wa"], time=1)
    b.backward("Wb", reads=["gb"], writes=["wb"], time=1)
    return b.build()


@pytest.mark.parametrize("move", [Relieve(work=500.0), RuinAndRecreate(work=500.0, disorder=0.5)], ids=repr)
def test_another_order_is_found_where_it_saves_all_recomputation(move):
    graph = side_by_side()
    outcome = move.solve(Problem(graph=graph, budget=11))
    assert outcome.cost.peak <= 11
    assert outcome.cost.recomputation == 0


def test_layers_are_refused_with_the_way_out():
    b = GraphBuilder("layered")
    b.data("t", 1, Kind.TANGENT)
    b.data("w", 1, Kind.PARAM_GRAD)
    b.forward("F", time=1)
    b.loss("L", writes=["t"], time=1)
    b.backward("B", reads=["t"], writes=["w"], time=1)
    b.layer("F", "B", [LayerOption(forward=1, backward=1, phantom=1, forward_workspace=0, backward_workspace=0)])
    for move in MOVES:
        assert "flat" in move.refuses(b.build()) or "layers" in move.refuses(b.build())


def test_run_once_and_what_it_makes_are_never_made_again():
    graph = chain(8)
    once = tuple(evolve(one, run_once=True) if one.name in ("F2", "F3") else one for one in graph.computes)
    outcome = MultiStart(4).solve(Problem(graph=evolve(graph, computes=once), budget=25))
    runs = [run.node for run in outcome.schedule.runs]
    assert runs.count("F2") == runs.count("F3") == 1
    assert len(runs) > len(graph)


def test_an_expired_clock_stops_the_search_at_once():
    clock = Clock(0.0)
    outcome = RuinAndRecreate(work=1e12).solve(Problem(graph=chain(8), budget=21), clock=clock)
    assert outcome.status is Status.FEASIBLE  # the shaving it starts from


def test_a_polish_takes_only_moves():
    with pytest.raises(RematError, match="A-SETTING"):
        Polish((1,))
