"""Back ends: what they may be less_tolerance, limits, interruption, and what is not installed."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
from importlib import util
from pathlib import Path

import cvxpy
import numpy as np
import pytest
from attrs import evolve

from remat.algorithms._core.clock import Clock
from remat.algorithms._core.outcome import Status
from remat.algorithms._core.problem import Problem
from remat.algorithms._milp.answer import Answer
from remat.algorithms._milp.backend import Backend, Hints, Limits, missing
from remat.algorithms._milp.backends import Cvxpy, Highs
from remat.algorithms._milp.milp_model import model_of
from remat.algorithms._staged.budget_solver import BudgetSolver, Watch
from remat.algorithms._staged.form_events import events_form
from remat.algorithms._staged.memory_items import StagedGraph
from remat.algorithms._staged.solver import HIlp
from remat.errors import BackendMissing, RematError
from remat.ir import Schedule, load, validate

BLOCKS = Path(__file__).parent.parent.parent / "data" / "blocks"


def block(name):
    graph = load(BLOCKS / f"{name}.json")
    return graph, validate(graph, Schedule.from_runs(graph, range(len(graph)))).peak


@pytest.mark.parametrize("backend", [Cvxpy(solver="GUROBI"), Cvxpy(solver="XPRESS")])
def test_a_missing_back_end_names_the_line_that_installs_it(backend):
    graph, peak = block("gpt2_mlp")
    with pytest.raises(BackendMissing, match="pip install") as caught:
        HIlp(backend=backend).solve(Problem(graph=graph, budget=peak))
    assert caught.value.rule == "A-BACKEND"


@pytest.mark.parametrize("name", ["GUROBY", "NOPE", "highs "])
def test_a_name_that_cvxpy_does_not_have_is_never_a_package_to_install(name):
    with pytest.raises(BackendMissing, match=rf"A-BACKEND.*no solver '{name}'.*GUROBI, HIGHS.*SCIP") as caught:
        Cvxpy(solver=name).check()
    assert "pip" not in str(caught.value)


def test_of_a_solver_whose_package_is_not_listed_the_page_of_cvxpy_is_named():
    assert "pip" not in str(missing("CUOPT")) and "www.cvxpy.org" in str(missing("CUOPT"))


def test_highs_that_is_not_installed_is_an_error_and_never_swapped(monkeypatch):
    graph, peak = block("gpt2_mlp")
    monkeypatch.setattr(
        "remat.algorithms._milp.backends.find_spec", lambda name: None if name == "highspy" else util.find_spec(name)
    )
    with pytest.raises(BackendMissing, match="pip install highspy"):
        HIlp().solve(Problem(graph=graph, budget=peak))


def test_a_user_limit_without_incumbent_is_no_plan():
    # CVXPY reports status `user_limit`, value 0 and zero vectors here, without an exception
    graph, peak = block("gpt2_layer")
    budget_solver = HIlp(backend=Cvxpy(solver="HIGHS")).build(graph)
    budget_solver.model.set(int(peak * 0.72))
    answer = budget_solver.backend.solve(budget_solver.model, Limits(seconds=1e-3))
    assert str(budget_solver.model.problem.status) == "user_limit"
    assert np.all(budget_solver.model.cvxpy.binary.value == 0)
    assert answer.point is None and not answer.infeasible and not answer.finished


@pytest.mark.parametrize("relaxed", [False, True])
@pytest.mark.parametrize("form", ["events", "published"])
def test_highs_takes_the_numbers_that_cvxpy_would_give_it(form, relaxed):
    graph, peak = block("gpt2_attention")
    model = model_of(HIlp(form=form).build(graph).form.linear, relaxed=relaxed)
    for budget in (peak, int(0.9 * peak)):  # the first before CVXPY has the problem, the second after
        model.set(budget)
        data = model.problem.get_problem_data(cvxpy.HIGHS)[0]
        ours, theirs = model.scaled.rows.tocsc(), data["A"].tocsc()
        assert (ours != theirs).nnz == 0 and ours.nnz == theirs.nnz > 0
        assert np.array_equal(model.scaled_right, data["b"]) and np.array_equal(model.scaled.cost, data["c"])
        assert np.array_equal(model.columns(data), model.order)
        assert model.scaled.equations == data["dims"].zero > 0
        assert np.array_equal(np.flatnonzero(model.scaled.integral), data["bool_vars_idx"])


def test_highs_needs_no_cvxpy():
    code = f"""
        import sys
        from remat.algorithms import HIlp, Problem
        from remat.ir import load
        graph = load({str(BLOCKS / "gpt2_mlp.json")!r})
        assert HIlp(warm_start=False).solve(Problem(graph=graph, budget=10**10)).schedule is not None
        assert "highspy" in sys.modules and "cvxpy" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)


def test_seconds_that_pass_before_highs_has_the_problem_count():
    graph, peak = block("gpt2_layer")
    model = HIlp().build(graph).model
    model.set(int(peak * 0.72))
    answer = Highs().solve(model, Limits(seconds=1e-9))
    assert answer.point is None and not answer.infeasible and not answer.finished and "no time was left" in answer.note


@pytest.mark.parametrize("warm_start", [True, False])
@pytest.mark.parametrize("backend", [Highs(), Cvxpy(solver="SCIP"), Cvxpy(solver="HIGHS")], ids=repr)
def test_a_time_limit_proves_nothing(backend, warm_start):
    graph, peak = block("gpt2_layer")
    outcome = HIlp(backend=backend, ladder=False, warm_start=warm_start).solve(
        Problem(graph=graph, budget=int(peak * 0.72), deadline=0.01)
    )
    assert outcome.status is not Status.INFEASIBLE
    assert all(np.isfinite(bound.value) for bound in outcome.class_bounds)
    if outcome.schedule is None:
        assert any("stopped without a plan" in words for words in outcome.trail)


def test_a_node_limit_keeps_the_incumbent_and_the_gap():
    graph, peak = block("gpt2_attention")
    problem = Problem(graph=graph, budget=int(peak * 0.92))
    outcome = HIlp(backend=Highs(nodes=1), gap=0, warm_start=False).solve(problem)
    assert outcome.schedule is not None and outcome.lower == 0
    (bound,) = outcome.class_bounds
    assert 0 < bound.value <= outcome.upper


def test_a_stopped_solve_keeps_the_best_validated_plan():
    graph, peak = block("gpt2_layer")
    heard = []

    def listen(progress):
        heard.append(progress)
        clock.stop()

    clock = Clock(listener=listen)
    outcome = HIlp(gap=0, warm_start=False).solve(Problem(graph=graph, budget=int(peak * 0.75)), clock=clock)
    assert outcome.schedule is not None
    assert outcome.upper <= max(one.best for one in heard)
    assert all("bound of the class" in one.note for one in heard)


def test_a_solve_stopped_after_its_first_plan_keeps_it():
    graph, peak = block("gpt2_layer")
    clock = Clock(listener=lambda progress: clock.stop())
    outcome = HIlp(gap=0).solve(Problem(graph=graph, budget=int(peak * 0.75)), clock=clock)
    assert outcome.schedule is not None and outcome.lower <= outcome.upper
    assert any("stopped before the MILP solve" in words for words in outcome.trail)


@pytest.mark.parametrize("share", [0.95, 0.92, 0.9])
def test_below_a_cut_off_the_solver_finds_what_is_there_and_claims_no_more_than_the_cut_off(share):
    graph, peak = block("gpt2_attention")
    budget = int(peak * share)
    budget_solver = HIlp(gap=0, warm_start=False).build(graph)
    best = budget_solver.solve(budget)
    for above in (1.0, 1.002, 1.2):
        budget_solver.model.set(budget)
        cutoff = best.cost.time * above - (above == 1.0)
        answer = Highs().solve(budget_solver.model, Limits(gap=0), Hints(cutoff=cutoff))
        assert answer.finished and not answer.infeasible
        assert answer.bound <= min(cutoff, best.cost.time) or above > 1
        if above > 1:
            assert not answer.exhausted
            assert abs(budget_solver.form.linear.cost @ answer.point - best.cost.time) <= 1e-5 * best.cost.time
        assert answer.bound <= best.cost.time


@pytest.mark.parametrize("start", [True, False])
def test_a_plan_that_is_optimal_is_proved_so_and_never_lost(start):
    graph, peak = block("gpt2_attention")
    budget = int(peak * 0.92)
    budget_solver = HIlp(gap=0, warm_start=False).build(graph)
    best = budget_solver.solve(budget)
    known = best if start else evolve(best, point=None)
    again = budget_solver.solve(budget, incumbent=known)
    assert again.finished and again.cost.time == best.cost.time
    assert best.cost.time * (1 - 1e-4) <= again.bound <= best.cost.time
    wide = budget_solver.solve(budget, incumbent=known, gap=0.05)
    assert wide.finished and wide.bound <= best.cost.time / 1.05


@pytest.mark.parametrize("warm_start", [True, False])
def test_ctrl_c_keeps_the_best_validated_plan(warm_start):
    graph, peak = block("gpt2_layer")
    fired = threading.Event()

    def listen(progress):
        if not fired.is_set():
            fired.set()
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    solver = HIlp(gap=0, warm_start=warm_start)
    outcome = solver.solve(Problem(graph=graph, budget=int(peak * 0.72)), clock=Clock(listener=listen))
    assert signal.getsignal(signal.SIGINT) is before
    assert outcome.schedule is not None
    assert any("interrupted" in words for words in outcome.trail)


class Interrupted(Highs):
    """Is interrupted at once."""

    def solve(self, *args, **more):
        raise KeyboardInterrupt


def test_ctrl_c_in_the_milp_solve_keeps_the_first_plan():
    graph, peak = block("gpt2_attention")
    outcome = HIlp(gap=0, backend=Interrupted()).solve(Problem(graph=graph, budget=int(peak * 0.95)))
    assert outcome.schedule is not None and 0 < outcome.lower <= outcome.upper
    assert any("interrupted" in words for words in outcome.trail)
    bare = HIlp(gap=0, backend=Interrupted(), warm_start=False).solve(Problem(graph=graph, budget=int(peak * 0.95)))
    assert bare.schedule is None and bare.status is Status.NOT_FOUND


class Wrong(Backend):
    """Says what a back end should not."""

    takes_start = False

    def __init__(self, answers):
        self.answers = list(answers)
        self.asked = []

    def check(self):
        pass

    def solve(self, model, limits, hints):
        self.asked.append((model.right, hints.second))
        return self.answers.pop(0)


def budget_solver_of(answers, name="gpt2_mlp"):
    graph, peak = block(name)
    return BudgetSolver(events_form(StagedGraph(graph)), Wrong(answers), 0.0), peak


def test_infeasible_is_believed_when_said_twice():
    budget_solver, peak = budget_solver_of([Answer(infeasible=True), Answer(infeasible=True)])
    assert budget_solver.solve(peak).bound == np.inf
    assert [second for _, second in budget_solver.backend.asked] == [False, True]


def test_infeasible_said_once_and_taken_back_is_no_proof():
    budget_solver, peak = budget_solver_of([Answer(infeasible=True), Answer()])
    found = budget_solver.solve(peak)
    assert found.bound == 0 and found.schedule is None and not found.finished
    good, _ = budget_solver_of([])
    real = HIlp().build(good.graph).solve(peak).point
    budget_solver, peak = budget_solver_of([Answer(infeasible=True), Answer(point=real)])
    assert budget_solver.solve(peak).schedule is not None


def test_a_point_over_the_budget_is_asked_again_with_less_room_and_never_passed_on():
    budget_solver, peak = budget_solver_of([])
    everything = HIlp().build(budget_solver.graph).solve(peak).point
    tight = int(peak * 0.95)
    good = HIlp().build(budget_solver.graph).solve(tight).point
    budget_solver, _ = budget_solver_of([Answer(point=everything, bound=1), Answer(point=good)])
    found = budget_solver.solve(tight)
    assert found.cost.peak <= tight and found.bound == 1
    assert np.all(budget_solver.backend.asked[1][0] <= budget_solver.backend.asked[0][0])
    assert np.any(budget_solver.backend.asked[1][0] < budget_solver.backend.asked[0][0])
    budget_solver, _ = budget_solver_of([Answer(point=everything)] * 9)
    assert budget_solver.solve(tight).schedule is None


def test_a_watch_without_a_clock_never_stops():
    watch = Watch()
    assert not watch.expired and not watch.listens and not watch.seen(None, 0)


@pytest.mark.parametrize("settings", [{"threads": 0}, {"nodes": 0}, {"nodes": 1.5}])
def test_wrong_limits_are_refused_at_birth(settings):
    with pytest.raises(RematError, match="A-LIMIT"):
        Highs(**settings)
