"""`FoldRunOnce`: what it folds, that lifted schedules are valid and cost no more, and that it leaves other graphs alone."""

from pathlib import Path

import pytest

from remat.algorithms import FoldRunOnce, HPartition, Problem, parse, quick, store_all_peak
from remat.algorithms._core.outcome import Status
from remat.ir import GraphBuilder, Kind, Run, Schedule, load, validate
from tests.algorithms.test_exhaustive import unit_chain


def training():
    """Two dropouts with saved states between them, and a norm that updates a buffer through a node of its own."""
    b = GraphBuilder("training")
    b.data("x", 0, Kind.INPUT)
    b.data("count", 0, Kind.BUFFER)
    b.data("t", 4, Kind.TANGENT)
    for name in ("a", "n", "d", "e"):
        b.data(name, 40)
    for name in ("a", "n", "d"):
        b.data(f"g.{name}", 40, Kind.GRADIENT)
    b.data("g.x", 0, Kind.INPUT_GRAD)
    b.data("mean", 1)
    b.data("more", 1)
    for name in ("new_mean", "new_count"):
        b.data(name, 0, Kind.UPDATED_BUFFER, keep=True)
    for name in ("s.d", "s.e"):
        b.data(name, 1, Kind.RNG_STATE)
    b.forward("A", reads=["x"], writes=["a"], time=10)
    b.forward("one_more", reads=["count"], writes=["more"], time=1, run_once=True)
    b.forward("put_count", reads=["more"], writes=["new_count"], time=1, run_once=True)
    b.forward("N", reads=["a"], writes=["n", "mean"], time=10)
    b.forward("put_mean", reads=["mean"], writes=["new_mean"], time=1, run_once=True)
    b.forward("save_d", writes=["s.d"], time=1, run_once=True, draws=True)
    b.forward("D", reads=["n", "s.d"], writes=["d"], time=10, draws=True)
    b.forward("save_e", writes=["s.e"], time=1, run_once=True, draws=True)
    b.forward("E", reads=["d", "s.e"], writes=["e"], time=10, draws=True)
    b.loss("L", reads=["e"], writes=["t"], time=1)
    before = {"e": "d", "d": "n", "n": "a", "a": "x"}
    for name, read in before.items():
        gradient = "t" if name == "e" else f"g.{name}"
        b.backward(f"B.{name}", reads=[gradient, name], writes=[f"g.{read}"], time=20, twin=name.upper())
    return b.build()


FOLDED = {"one_more", "put_count", "put_mean", "save_d", "save_e"}


def applied(graph, share=1.0):
    return FoldRunOnce(share=1.0).apply(Problem(graph=graph, budget=int(store_all_peak(graph) * share)))


def test_saves_of_states_and_updates_of_buffers_are_folded_and_their_bytes_taken_off():
    graph = training()
    fold = applied(graph)
    assert {node.name for node in graph.computes} - {node.name for node in fold.problem.graph.computes} == FOLDED
    assert fold.problem.budget == store_all_peak(graph) - 4  # two states, and what the updates read
    assert "mean" in {name for node in fold.problem.graph.computes for name in node.writes}


@pytest.mark.parametrize("share", [1.0, 0.9, 0.8])
def test_a_lifted_plan_is_valid_and_costs_what_the_folded_one_and_the_folded_nodes_cost(share):
    graph = training()
    fold = applied(graph, share)
    outcome = quick.solve(fold.problem)
    assert outcome.status in (Status.OPTIMAL, Status.FEASIBLE)
    cost = validate(graph, fold.lift(outcome.schedule), int(store_all_peak(graph) * share))
    assert cost.time == outcome.cost.time + sum(graph.node(name).option.time for name in FOLDED)
    assert validate(fold.problem.graph, fold.carry(fold.lift(outcome.schedule))).time == outcome.cost.time


def test_a_rerun_of_a_node_that_draws_does_not_save_its_state_again():
    graph = training()
    fold = applied(graph)
    runs = ["A", "N", "D", "E", "L", "B.e", "A", "N", "D", "B.d", "B.n", "B.a"]
    lifted = fold.lift(Schedule.from_runs(fold.problem.graph, [Run(name) for name in runs]))
    names = [run.node for run in lifted.runs]
    assert all(names.count(name) == 1 for name in FOLDED)
    assert names.index("save_d") < names.index("D") < names.index("save_e") < names.index("E")
    assert names.index("N") < names.index("put_mean") and names.index("one_more") < names.index("put_count")
    validate(graph, lifted)


def test_draws_on_both_sides_of_a_save_come_into_one_cluster():
    graph = training()
    partition = HPartition(top=1, lower=9)
    assert all(not {"D", "E"} <= set(group.forward) for group in partition.partition(graph))
    (group,) = partition.partition(applied(graph).problem.graph)
    assert {"D", "E"} <= set(group.forward)


def test_what_takes_too_much_of_the_budget_stays():
    problem = Problem(graph=training(), budget=100)
    assert FoldRunOnce(share=0.03).apply(problem).problem is problem
    assert FoldRunOnce(share=0.04).apply(problem).problem is not problem
    assert parse(repr(FoldRunOnce(share=0.03))) == FoldRunOnce(share=0.03)


def test_a_graph_without_such_nodes_stays_as_it_is():
    problem = Problem(graph=unit_chain(4), budget=4)
    assert FoldRunOnce().apply(problem).problem is problem


def test_a_state_that_two_nodes_read_is_not_folded():
    b = GraphBuilder("shared")
    b.data("x", 0, Kind.INPUT)
    b.data("t", 1, Kind.TANGENT)
    b.data("s", 1, Kind.RNG_STATE)
    for name in ("a", "b"):
        b.data(name, 4)
    b.data("g", 0, Kind.INPUT_GRAD)
    b.forward("save", writes=["s"], time=1, run_once=True, draws=True)
    b.forward("A", reads=["x", "s"], writes=["a"], time=1, draws=True)
    b.forward("B", reads=["a", "s"], writes=["b"], time=1, draws=True)
    b.loss("L", reads=["b"], writes=["t"], time=1)
    b.backward("C", reads=["t", "a", "b"], writes=["g"], time=1)
    problem = Problem(graph=b.build(), budget=100)
    assert FoldRunOnce().apply(problem).problem is problem


def test_a_captured_step_with_batch_norm_is_half_as_many_nodes():
    graph = load(Path(__file__).parents[1] / "data" / "whole" / "unet3.json.gz")
    problem = Problem(graph=graph, budget=store_all_peak(graph))
    folded = FoldRunOnce().apply(problem)
    once = [node for node in graph.computes if node.run_once]
    assert len(folded.problem.graph) == len(graph) - len(once)
    if once:
        validate(graph, folded.lift(Schedule.from_runs(folded.problem.graph, range(len(folded.problem.graph)))))
