"""Back ends in processes of their own: answers, what is told on the way, stops, crashes; CP-SAT, which needs one."""

import os
import signal
import sys
import threading
import time
from importlib.util import find_spec
from types import ModuleType

import numpy as np
import pytest
from attrs import frozen

from remat.algorithms import (
    Answer,
    Backend,
    Clock,
    CpSat,
    Cvxpy,
    Highs,
    HIlp,
    Hints,
    InChild,
    Limits,
    Problem,
    store_all_peak,
)
from remat.algorithms._milp import in_child
from remat.algorithms._milp.milp_model import model_of
from remat.errors import BackendMissing, BadArgument
from remat.testing import Builder, check_backend
from tests.algorithms.staged import enumerated_cp_sat
from tests.algorithms.test_exhaustive import unit_chain

CP_SAT = pytest.mark.skipif(
    find_spec("ortools") is None, reason="OR-Tools is not installed: pip install 'remat[ortools]'"
)


def model_of_chain(budget=4):
    model = HIlp(warm_start=False).build(unit_chain(4)).model
    model.set(budget)
    return model


@frozen
class Told(Backend):
    """Tells of a bound, then does what it is named after; each in the process that asks it."""

    then: str = "answers"

    def check(self):
        pass

    def solve(self, model, limits, hints=Hints()):
        print("what a solver prints is no message")
        os.write(1, b"nor what its library prints\n")
        if hints.seen is not None:
            hints.seen(None, 3)
        if self.then == "dies":
            os.write(2, b"out of luck\n")
            os._exit(7)
        if self.then == "sleeps":
            time.sleep(600)
        if self.then == "raises":
            raise BackendMissing("A-BACKEND", "no licence.", fix="buy one.")
        if self.then == "raises what cannot be pickled":
            raise type("Local", (ValueError,), {})("of this process")
        loaded = sorted({"cvxpy", "highspy"} & set(sys.modules))
        return Answer(
            bound=5, note=f"process {os.getpid()}, beside {loaded}, budget {model.budget}, {model.right.sum()}"
        )


def test_it_solves_in_another_process_under_the_same_budget():
    model, before = model_of_chain(), threading.active_count()
    answer = InChild(Told()).solve(model, Limits())
    assert answer.bound == 5
    # neither is loaded there before the back end asks for it: OR-Tools could not be loaded any more
    assert answer.note.endswith(f"beside [], budget 4, {model.right.sum()}") and str(os.getpid()) not in answer.note
    assert threading.active_count() == before


@pytest.mark.parametrize("stop", ["listener", "limit", "nobody listens"])
def test_it_stops_whatever_the_solver_does_and_keeps_what_was_told(stop, monkeypatch):
    monkeypatch.setattr(in_child, "GRACE", 0.2)
    heard = []

    def seen(point, bound):
        heard.append((point, bound))
        return stop == "listener" and len(heard) > 1

    listens = stop != "nobody listens"
    seconds = float("inf") if stop == "listener" else 0.0
    answer = InChild(Told("sleeps")).solve(
        model_of_chain(), Limits(seconds=seconds), Hints(seen=seen) if listens else Hints()
    )
    assert answer.bound == (3 if listens else 0)
    assert not answer.finished and answer.point is None and "stopped" in answer.note
    assert heard[:1] == ([(None, 3)] if listens else [])


def test_an_interruption_ends_the_process_and_is_let_through():
    before = threading.active_count()

    def seen(point, bound):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        InChild(Told("sleeps")).solve(model_of_chain(), Limits(), Hints(seen=seen))
    assert threading.active_count() == before


def test_a_process_that_dies_is_no_end_of_the_plan():
    graph = unit_chain(4)
    with pytest.warns(RuntimeWarning, match="ended with code 7 and no answer .*out of luck"):
        outcome = HIlp(backend=InChild(Told("dies"))).solve(Problem(graph=graph, budget=6), clock=Clock())
    assert outcome.schedule is None and "code 7" in " ".join(outcome.trail)


@pytest.mark.parametrize(
    ("then", "error"), [("raises", BackendMissing), ("raises what cannot be pickled", RuntimeError)]
)
def test_an_error_there_is_raised_here(then, error):
    with pytest.raises(error, match=r"no licence|of this process"):
        InChild(Told(then)).solve(model_of_chain(), Limits())


def test_a_back_end_that_no_other_process_can_import_is_refused_with_the_way_out():
    class Local(Told):
        """Of this function."""

    with pytest.raises(BadArgument, match=r"A-CHILD.*define its class in a module"):
        InChild(Local()).solve(model_of_chain(), Limits())
    with pytest.raises(BadArgument, match="A-LIMIT"):
        InChild(3)


def test_a_module_that_the_other_process_cannot_read_is_refused_too(monkeypatch):
    monkeypatch.setattr(Told, "__module__", "no_such_module")
    monkeypatch.setitem(sys.modules, "no_such_module", sys.modules[__name__])
    with pytest.raises(BadArgument, match=r"A-CHILD.*no_such_module"):
        InChild(Told()).solve(model_of_chain(), Limits())


@pytest.mark.parametrize("backend", [Highs(), Cvxpy(solver="SCIP")], ids=repr)
def test_the_plan_is_the_one_of_this_process(backend):
    problem = Problem(graph=unit_chain(4), budget=4)
    here = HIlp(backend=backend, warm_start=False).solve(problem)
    there = HIlp(backend=InChild(backend), warm_start=False).solve(problem)
    assert (there.upper, there.class_bounds) == (here.upper, here.class_bounds)
    assert there.schedule == here.schedule


def test_a_warm_start_and_a_cut_off_pass_through():
    assert InChild(Highs()).takes_start and not InChild(Cvxpy()).takes_start
    assert InChild(Highs()).with_save() == InChild(Highs(presolve=True))
    model = model_of_chain()
    best = Highs().solve(model, Limits(gap=0.0))
    cost = float(model.linear.cost @ best.point)
    answer = InChild(Highs()).solve(model, Limits(gap=0.0), Hints(start=best.point, cutoff=cost + 1))
    assert model.linear.cost @ answer.point == pytest.approx(cost) and answer.bound <= cost


def test_or_tools_that_is_missing_is_an_error_with_the_line_that_installs_it(monkeypatch):
    monkeypatch.setattr("remat.algorithms._milp.cp_sat.find_spec", lambda name: None)
    for backend in (CpSat(), InChild(CpSat())):
        with pytest.raises(BackendMissing, match=r"CP-SAT is not installed.*pip install 'remat\[ortools\]'"):
            HIlp(backend=backend).solve(Problem(graph=unit_chain(2), budget=3))


def test_cp_sat_has_no_continuous_columns():
    model = HIlp(warm_start=False).build(unit_chain(2)).model
    model.relaxed = True
    with pytest.raises(BadArgument, match=r"A-LIMIT.*continuous"):
        CpSat().solve(model, Limits())


@pytest.fixture
def enumerated(monkeypatch):
    """CP-SAT by enumeration, in this process."""
    for package in ("ortools", "ortools.sat", "ortools.sat.python"):
        monkeypatch.setitem(sys.modules, package, ModuleType(package))
    monkeypatch.setattr(sys.modules["ortools.sat.python"], "cp_model", enumerated_cp_sat, raising=False)
    monkeypatch.setattr("remat.algorithms._milp.cp_sat.find_spec", lambda name: name)


def test_what_cp_sat_is_told_has_the_points_of_the_formulation(enumerated):
    report = check_backend(CpSat(), examples=25, say=lambda text: None)
    assert report.tried["L-INFEASIBLE"] and report.tried["L-CUTOFF"] and report.tried["L-GAP"]


def test_numbers_that_are_too_large_for_cp_sat_are_said_so(enumerated):
    builder = Builder()
    for _ in range(3):
        builder.new(1, cost=1, integral=True)
    builder.row([(column, 1 << 61) for column in range(3)], 1 << 62)
    answer = CpSat().solve(model_of(builder.build()), Limits())
    assert "too large" in answer.note and not answer.finished and answer.bound == 0


def test_ctrl_c_while_cp_sat_works_is_an_interruption_after_it_has_stopped(enumerated):
    def press(point, bound):
        os.kill(os.getpid(), signal.SIGINT)
        return False

    model, before = HIlp(warm_start=False).build(unit_chain(1)).model, signal.getsignal(signal.SIGINT)
    model.set(3)
    with pytest.raises(KeyboardInterrupt):
        CpSat().solve(model, Limits(), Hints(seen=press))
    assert signal.getsignal(signal.SIGINT) is before


def test_or_tools_that_cannot_be_loaded_says_which_process_to_use(monkeypatch):
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    monkeypatch.setattr("remat.algorithms._milp.cp_sat.find_spec", lambda name: name)
    with pytest.raises(BackendMissing, match=r"A-BACKEND.*InChild\(CpSat\(\)\)"):
        CpSat().solve(model_of_chain(), Limits())


@CP_SAT
def test_cp_sat_keeps_every_law_of_a_back_end():
    check_backend(InChild(CpSat()), examples=4, say=lambda text: None)


@CP_SAT
@pytest.mark.parametrize("budget", [3, 4, 6])
def test_cp_sat_plans_in_its_process_while_highs_plans_in_this_one(budget):
    graph = unit_chain(4)
    highs = HIlp(gap=0, warm_start=False).solve(Problem(graph=graph, budget=budget))
    outcome = HIlp(backend=InChild(CpSat()), gap=0).solve(Problem(graph=graph, budget=budget))
    assert outcome.upper == highs.upper
    assert all(bound.value <= outcome.upper for bound in outcome.class_bounds)


@CP_SAT
def test_cp_sat_beside_highspy_plans_or_says_which_process_to_use():
    import highspy  # noqa: F401 - whichever is loaded first excludes the other

    graph = unit_chain(2)
    solver = HIlp(backend=CpSat(), warm_start=False)
    try:
        outcome = solver.solve(Problem(graph=graph, budget=store_all_peak(graph)))
    except BackendMissing as error:
        assert "InChild(CpSat())" in error.fix
    else:
        assert outcome.upper == graph.time and np.isfinite(outcome.upper)
