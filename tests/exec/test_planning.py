"""Planning a step: deadlines, budgets without a plan, stages, interruption, refusals, and what a report shows of it."""

import io
import logging
import sys

import pytest
import torch
from attrs import evolve, field, frozen
from rich.console import Console
from torch import nn

import remat.exec
from remat.algorithms import Outcome, Plan, Problem, Solver, StoreAll, store_all_peak
from remat.algorithms._bounds.floor import node_floor
from remat.algorithms._core import startup
from remat.algorithms._curves.budget_sweep import quick_lowest_budget
from remat.algorithms._search.auto import cheap
from remat.budget import parse_budget
from remat.errors import Infeasible, Uncapturable
from remat.exec._cost import measuring
from remat.exec._plan import planning, solving
from remat.exec._plan.known import KnownPlans
from remat.exec._plan.planned import over_budget
from remat.exec._plan.planning import plan_step
from remat.exec._plan.progress import STAGES, StageProgress, Stages, seconds_by_stage, stages_of
from remat.exec._plan.settings import Settings
from remat.exec._plan.smallest import changed_since, with_changes
from remat.ir import validate
from tests.exec.support import LIGHT, SMALL, Rig

QUICK = {"cost": "estimate"}


@pytest.fixture(scope="module")
def gpt2():
    return Rig(*SMALL["gpt2"].instantiate(torch.float64), cost="estimate").graph


def planned(name="gpt2", budget="60%", stages=None, **settings):
    module, sample = SMALL[name].instantiate(torch.float64)
    asked = Settings(budget=None if budget is None else parse_budget(budget), **QUICK | settings)
    return plan_step(module, sample, {}, asked, stages=stages)


# -- deadlines -------------------------------------------------------------------------------------------------------------


class Now:
    """Planning time that moves on when it is told to."""

    def __init__(self):
        self.seconds = 0.0

    def __call__(self):
        return self.seconds


@pytest.fixture
def now(monkeypatch):
    clock = Now()
    monkeypatch.setattr("remat.algorithms._core.clock.planning_timer", lambda: clock)
    return clock


@frozen
class Slow(Solver):
    """Works until its time is over, and finds nothing."""

    now: Now = field(eq=False)
    asked: list = field(factory=list, eq=False)

    def plan(self, problem, clock, seed):
        self.asked.append((problem.budget, clock.remaining))
        self.now.seconds += clock.remaining
        return Plan()


@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_a_feasible_budget_has_a_plan_however_short_the_time(seconds, now, monkeypatch, gpt2):
    monkeypatch.setattr(Settings, "planner", lambda self: Slow(now))
    plan = planned(budget="90%", seconds=seconds)
    assert plan.outcome.cost.peak <= plan.budget == int(plan.store_all * 0.9)
    assert plan.outcome.schedule == cheap.solve(Problem(graph=plan.graph, budget=plan.budget)).schedule


@pytest.mark.parametrize(("seconds", "most"), [(0.0, 0.3), (1.0, 1.3), (20.0, 22.0)])
def test_the_search_for_the_smallest_budget_keeps_to_the_deadline(seconds, most, now, gpt2):
    solver = Slow(now)
    with pytest.raises(Infeasible) as refused:
        planned(budget="60%", solver=solver, seconds=seconds)
    assert now.seconds == pytest.approx(most)
    assert f"in {seconds:g} s of planning" in str(refused.value) and "more seconds" in refused.value.fix
    assert len(solver.asked) == 2
    assert solver.asked[0][1] == seconds


def test_the_deadline_begins_when_the_graph_is_there(now, monkeypatch):
    def capture(*args, **kwargs):
        now.seconds += 100
        return remat.exec.capture(*args, **kwargs)

    monkeypatch.setattr(planning, "capture", capture)
    solver = Slow(now)
    with pytest.raises(Infeasible):
        planned(solver=solver, seconds=3)
    assert solver.asked[0][1] == 3


def test_a_planner_that_was_named_is_not_stood_in_for(now):
    with pytest.raises(Infeasible):
        planned(budget="90%", solver=Slow(now), seconds=1)


# -- budgets without a plan ------------------------------------------------------------------------------------------------


def test_the_smallest_budget_is_planned_validated_and_above_the_floor(gpt2):
    lowest = quick_lowest_budget(gpt2)
    cost = validate(gpt2, lowest.point.outcome.schedule, lowest.point.budget)
    assert node_floor(gpt2) <= lowest.limit <= cost.peak <= lowest.point.budget < store_all_peak(gpt2) * 0.45


def test_a_search_without_time_still_knows_a_budget_and_a_floor(gpt2):
    lowest = quick_lowest_budget(gpt2, clock=remat.algorithms.Clock(0))
    assert lowest.point.budget == store_all_peak(gpt2) == lowest.point.outcome.cost.peak
    assert node_floor(gpt2) <= lowest.limit < lowest.point.budget


def test_the_smallest_budget_is_no_larger_than_one_that_was_planned_before(now, monkeypatch):
    known = KnownPlans()  # other tests plan the same step
    monkeypatch.setattr(planning, "known_plans", known)
    monkeypatch.setattr(solving, "known_plans", known)
    before = planned("mlp", budget="80%", solver=LIGHT)
    peak = before.outcome.cost.peak
    solver = Slow(now)
    with pytest.raises(Infeasible) as refused:  # a solver that is named is not told of other plans
        planned("mlp", budget="15%", solver=solver, seconds=1)
    assert refused.value.smallest == before.store_all
    monkeypatch.setattr(Settings, "planner", lambda self: solver)
    monkeypatch.setattr(solving, "_cheap", lambda: solver)
    with pytest.raises(Infeasible) as refused:
        planned("mlp", budget="15%", seconds=1)
    assert refused.value.floor <= refused.value.smallest == peak <= before.budget
    again = planned("mlp", budget=str(refused.value.smallest), seconds=1)  # and what is said to work does
    assert again.outcome.schedule == before.outcome.schedule and again.outcome.cost.peak == again.budget == peak
    assert any("made before in this process" in line for line in again.outcome.trail)
    best = planned("mlp", budget="15%", seconds=1, on_infeasible="best")
    assert best.budget == peak and best.outcome.schedule == before.outcome.schedule


def test_known_plans_are_of_their_step_and_the_latest_ones():
    plans, known = [planned(name, budget="100%") for name in ("gpt2", "mlp")], KnownPlans(most=1)
    first, second = ((plan.captured.program, plan.graph, plan.outcome) for plan in plans)
    known.learn(first[0], first[2])
    assert known.replayed(*first[:2]).schedule == first[2].schedule
    assert known.replayed(*second[:2]) is None
    known.learn(first[0], Outcome())
    known.learn(second[0], second[2])
    assert known.replayed(*first[:2]) is None and known.replayed(*second[:2]).cost == second[2].cost
    assert known.replayed(second[0], first[1]) is None  # a schedule of another graph


def test_few_budgets_are_asked_for(gpt2):
    asked = []

    @frozen
    class Counted(Solver):
        def plan(self, problem, clock, seed):
            asked.append(problem.budget)
            return LIGHT.plan(problem, clock, seed)

    lowest = quick_lowest_budget(gpt2, Counted(), below=store_all_peak(gpt2) // 10)
    assert len(asked) <= 7 and min(asked) > store_all_peak(gpt2) // 10
    assert lowest.point.budget in (*asked, store_all_peak(gpt2))


def test_the_best_there_is_can_stand_for_a_budget_without_a_plan():
    plan = planned(budget=1024, on_infeasible="best")
    assert plan.asked == 1024 < plan.budget < plan.store_all
    assert validate(plan.graph, plan.outcome.schedule, plan.budget).peak <= plan.budget
    assert "1.00 KiB (1024 B)" in over_budget(plan) and f"({plan.budget} B)" in over_budget(plan)
    assert plan.lowered.reruns


def test_where_there_is_a_plan_nothing_stands_for_it():
    plan = planned(budget="60%", solver=LIGHT, on_infeasible="best")
    assert plan.asked is None and over_budget(plan) == ""
    assert plan.budget == int(plan.store_all * 0.6)


def test_an_infeasible_call_says_what_changed_since_the_sample():
    error = Infeasible("no plan.", budget=1, smallest=3, floor=2, fix="give more.")
    sample = [("tokens", (4, 32)), ("mask", (4, 32)), ("scale", ())]
    call = [("tokens", (4, 64)), ("scale", ()), ("labels", (4,))]
    told = with_changes(error, sample, call)
    sentence = "Since the sample: tokens is (4, 64), was (4, 32); mask (4, 32) is not given; labels (4,) is new."
    assert changed_since(sample, call) == sentence
    assert str(told) == f"B-INFEASIBLE: no plan. {sentence} Fix: give more."
    assert (told.budget, told.smallest, told.floor) == (1, 3, 2)


def test_where_nothing_changed_nothing_is_said():
    error = Infeasible("no plan.", budget=1, smallest=3, floor=2)
    assert with_changes(error, [("x", (1,))], [("x", (1,))]) is error


# -- stages ----------------------------------------------------------------------------------------------------------------


def test_every_stage_is_told_in_order_with_plans_and_bounds():
    told = []
    with stages_of("GPT2", told.append) as stages:
        plan = planned(stages=stages)
        with stages.stage("rehearsal"):
            pass
    assert tuple(dict.fromkeys(said.stage for said in told)) == STAGES
    assert [said.stage for said in told if said.ended] == list(STAGES)
    assert [said.elapsed for said in told] == sorted(said.elapsed for said in told)
    last = [said for said in told if said.stage == "plan"][-1]
    assert last.best == plan.outcome.cost.time >= last.base == plan.graph.time
    assert last.bound == plan.outcome.lower and last.gap == pytest.approx(plan.outcome.gap)
    assert "best plan" in str(last) and "over keeping everything" in str(last) and "gap" in str(last)


def test_the_seconds_of_each_stage_are_in_the_plan():
    with stages_of("GPT2", False) as stages:
        plan = planned(stages=stages)
        with stages.stage("rehearsal"):
            pass
    assert set(STAGES) <= set(plan.seconds)
    assert 0 < plan.seconds["bound"] <= plan.seconds["plan"] + 1e-3
    line = seconds_by_stage({**plan.seconds, "compile": 26.6, "import": 0.001})
    assert line.startswith("capture ") and line.endswith("compile 26.60 s")
    assert "(bounds " in line and "import" not in line


def test_imports_and_compilation_are_counted_apart_from_their_stage(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(startup.time, "monotonic", lambda: now[0])
    stages = Stages()
    with stages.stage("plan"):
        now[0] += 2
        with startup.importing():
            now[0] += 30
    assert stages.seconds == {"plan": pytest.approx(2), "import": pytest.approx(30)}


def test_a_stage_that_fails_is_timed_and_over():
    told = []
    stages = Stages("GPT2", told.append)
    with pytest.raises(ZeroDivisionError), stages.stage("cost"):
        raise ZeroDivisionError
    assert "cost" in stages.seconds
    assert [said.ended for said in told] == [False, True]


class Stream(io.StringIO):
    def __init__(self, terminal):
        super().__init__()
        self.terminal = terminal

    def isatty(self):
        return self.terminal


def shown(terminal, progress, monkeypatch):
    stream = Stream(terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    with stages_of("GPT2", progress) as stages:
        planned(stages=stages, solver=LIGHT)
    return stream.getvalue()


@pytest.mark.parametrize(("terminal", "progress"), [(False, None), (False, False), (True, False)])
def test_progress_is_quiet_unless_somebody_looks(terminal, progress, monkeypatch):
    assert shown(terminal, progress, monkeypatch) == ""


def test_progress_goes_to_a_terminal_by_default(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    text = shown(True, None, monkeypatch)
    assert "GPT2: cost" in text or "GPT2: plan" in text
    assert "remat: GPT2 is planned (capture " in text


def test_progress_that_was_asked_for_is_a_line_a_stage_in_a_file(monkeypatch):
    lines = shown(False, True, monkeypatch).splitlines()
    assert [line.split(",")[0] for line in lines] == [f"remat: GPT2: {name}" for name in STAGES[:-1]]
    assert "best plan" in lines[2]


def test_a_console_of_ones_own():
    console = Console(file=io.StringIO(), force_terminal=False, width=200)
    with stages_of("GPT2", console=console) as stages, stages.stage("cost"):
        pass
    assert console.file.getvalue().startswith("remat: GPT2: cost, 0.")


def test_the_log_hears_in_any_case(caplog):
    with caplog.at_level(logging.DEBUG, "remat.exec"):
        planned(solver=LIGHT)
    text = [record.getMessage() for record in caplog.records]
    assert [line.split(" took")[0] for line in text if " took " in line] == [f"GPT2: {name}" for name in STAGES[:-1]]
    assert [line.endswith(" B") for line in text if " took " in line] == [False, True, True, False]
    assert {record.name for record in caplog.records if record.name.startswith("remat")} == {
        "remat.exec._plan.progress"
    }
    assert any(record.levelno == logging.DEBUG for record in caplog.records)


def test_words_before_there_is_a_plan_or_a_bound():
    assert str(StageProgress(model="M", stage="plan", elapsed=1.25)) == "M: plan, 1.2 s"
    assert "no bound yet" in str(StageProgress(model="M", stage="plan", best=10, elapsed=0))


# -- interruption ----------------------------------------------------------------------------------------------------------


@frozen
class Interrupted(Solver):
    """Interrupted after it has reported a plan, or before."""

    reports: bool

    def plan(self, problem, clock, seed):
        if self.reports:
            clock.report(self, schedule=LIGHT.solve(problem).schedule)
        raise KeyboardInterrupt


def test_an_interruption_keeps_the_best_plan(caplog):
    plan = planned(solver=Interrupted(True))
    assert plan.outcome.schedule == LIGHT.solve(Problem(graph=plan.graph, budget=plan.budget)).schedule
    assert "interrupted: the best plan so far is kept" in caplog.text


@pytest.mark.parametrize("on_infeasible", ["raise", "best"])
def test_an_interruption_without_a_plan_is_one(on_infeasible):
    with pytest.raises(KeyboardInterrupt):
        planned(solver=Interrupted(False), on_infeasible=on_infeasible)


# -- refusals --------------------------------------------------------------------------------------------------------------


def test_a_refusal_names_the_operation_that_could_not_be_costed(monkeypatch):
    def failing(program, op, patience):
        if "relu" in str(op.target) or "gelu" in str(op.target):
            raise AttributeError("no such thing")
        return measuring.Sample(time=1, calls=1)

    monkeypatch.setattr(measuring, "_sampled", failing)
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1))
    with pytest.raises(Uncapturable) as refused:
        plan_step(model, (torch.randn(2, 3),), {}, Settings(budget=None, cost="measure"))
    assert "aten.relu" in refused.value.what and refused.value.fix


# -- the report ------------------------------------------------------------------------------------------------------------


def test_the_report_shows_the_seconds_of_every_stage():
    module, sample = SMALL["gpt2"].instantiate()
    wrapped = remat.exec.wrap(module, sample, "60%", solver=LIGHT, **QUICK)
    report = remat.exec.report(wrapped)
    rows = dict(report.rows())
    assert rows["seconds"] == seconds_by_stage(report.seconds)
    assert report.planning_seconds == report.seconds["plan"]
    assert report.guards == 0 and report.ran == "plan"


def test_the_report_says_how_the_last_call_ran_and_what_it_checks():
    module, sample = SMALL["gpt2"].instantiate()
    report = remat.exec.report(remat.exec.wrap(module, sample, "60%", solver=LIGHT, rehearse=False, **QUICK))
    assert "guards" not in dict(report.rows()) and dict(report.rows())["last call ran"] == "the plan"
    other = dict(evolve(report, guards=3, ran="bare: no gradient is wanted").rows())
    assert other["guards"] == "3 checks a call"
    assert other["last call ran"] == "bare: no gradient is wanted"


def test_without_a_budget_nothing_is_lowered():
    plan = planned(budget=None)
    assert plan.lowered is None and plan.budget is None and plan.asked is None
    assert isinstance(plan.outcome, Outcome)
    assert plan.outcome.cost.peak == StoreAll().solve(Problem(graph=plan.graph, budget=plan.store_all)).cost.peak
