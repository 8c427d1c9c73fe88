"""Legal graphs on which a bound, an `optimal`, an `infeasible` or a plan was wrong: each is treated right by every solver."""

import json
from pathlib import Path

import pytest

from remat.algorithms import (
    Floor,
    HIlp,
    Linearise,
    Problem,
    RkRotor,
    SavedSetKnapsack,
    Status,
    TightenedKnapsack,
    auto,
    named,
)
from remat.ir import GraphBuilder, Kind, parse_text, validate
from remat.ir.schedule import Schedule
from remat.testing.oracle import frontier, optimum
from tests.soundness.judging import changes, fault
from tests.soundness.solvers import every

FOLDER = Path(__file__).parents[1] / "data" / "counterexamples"
CASES = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}


def case(name):
    """The graph and the budget of a counterexample."""
    return parse_text(CASES[name]["text"]), CASES[name]["budget"]


@pytest.mark.parametrize("name", CASES)
def test_every_solver_treats_the_counterexample_right(name):
    graph, budget = case(name)
    points = frontier(graph)
    budgets = dict.fromkeys((budget, *changes(points)))
    for label, solver in every().items():
        for bytes_ in budgets:
            problem = Problem(graph=graph, budget=bytes_)
            assert fault(solver, problem, optimum(points, bytes_)) is None, (label, bytes_)


def test_a_random_state_that_nobody_draws_for_is_not_required():
    graph, budget = case("rng_state_false_optimal")
    outcome = auto.solve(Problem(graph=graph, budget=budget))
    assert (outcome.status, outcome.upper) == (Status.OPTIMAL, 2)


def test_a_random_state_without_a_draw_may_be_written_after_later_draws():
    graph, budget = case("rng_state_false_infeasible")
    assert Floor().solve(Problem(graph=graph, budget=budget)).lower < 4
    assert auto.solve(Problem(graph=graph, budget=budget)).upper == 3


def test_two_random_states_of_the_forward_may_be_written_in_either_order():
    b = GraphBuilder("states")
    b.data("x", 0, Kind.INPUT)
    b.data("r0", 0, Kind.RNG_STATE)
    b.data("k", 9, keep=True)
    b.data("r1", 9, Kind.RNG_STATE)
    b.data("a", 1)
    b.data("t", 1, Kind.TANGENT)
    b.forward("S0", reads=["x"], writes=["r0", "k"], time=1)
    b.forward("S1", reads=["x"], writes=["r1"], time=1, workspace=5)
    b.forward("F", reads=["r1"], writes=["a"], time=1)
    b.loss("L", reads=["a"], writes=["t"], time=1)
    graph = b.build()
    validate(graph, Schedule.from_runs(graph, ["S1", "F", "S0", "L"]), 14)
    assert auto.solve(Problem(graph=graph, budget=14)).upper == 4


@pytest.mark.parametrize("knapsack", [SavedSetKnapsack(), TightenedKnapsack()], ids=repr)
def test_a_loss_with_options_needs_no_more_than_its_leanest(knapsack):
    graph, budget = case("knapsack_false_infeasible")
    assert knapsack.solve(Problem(graph=graph, budget=budget)).lower <= 1
    assert knapsack.solve(Problem(graph=graph, budget=0)).status is Status.INFEASIBLE


@pytest.mark.parametrize("name", ["linearise_keyerror", "linearise_keyerror_stages"])
def test_sums_that_the_loss_shares_stand_in_chains(name):
    graph, budget = case(name)
    outcome = (Linearise() >> RkRotor()).solve(Problem(graph=graph, budget=budget))
    assert outcome.upper == graph.time


def test_a_sum_from_the_forward_to_the_backward_is_held_in_chains():
    graph = parse_text(
        "remat graph 1\ngraph shared\ndata a 4\ndata b 4\ndata s 3 gradient keep\ndata t 1 tangent\ndata g 1 gradient\n"
        "forward F0 : -> a s ; time 1\nforward F1 : a -> b ; time 1\nloss L : b -> t s ; time 1\n"
        "backward B1 : a t -> g s ; time 1\nbackward B0 : g -> s ; time 1\n"
    )
    points = frontier(graph)
    for budget in changes(points):
        outcome = named.rk_rotor.solve(Problem(graph=graph, budget=budget))
        best = optimum(points, budget)
        assert outcome.cost is None or (best is not None and outcome.upper >= best.time)
    assert named.rk_rotor.solve(Problem(graph=graph, budget=points[0].peak + 3)).upper == points[0].time


def test_the_published_form_reruns_no_contribution_to_a_complete_kept_sum():
    graph, budget = case("published_form_invalid_schedule")
    assert HIlp(form="published").solve(Problem(graph=graph, budget=budget)).upper == graph.time
