"""The laws of a solver, and `check_solver`, which tries all of them on small problems and keeps the smallest example.

Laws live beside the interface they govern: those of `Solver` are here, those of transforms and partitioners next door.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from remat.algorithms._core.outcome import IMPOSSIBLE, Outcome, Plan
from remat.algorithms._core.problem import Problem
from remat.algorithms._core.solver import Solver
from remat.algorithms._whole.exhaustive import Exhaustive
from remat.errors import BadArgument, BudgetExceeded, InvalidSchedule
from remat.ir import Schedule, print_text, validate
from remat.testing.case import Case
from remat.testing.clock import memory_clock
from remat.testing.report import LawBroken, Report, Say, Tally
from remat.testing.trial import Trial, check_repr, settings_for

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from remat.ir import Graph

SOLVER_LAWS = {
    "L-REFUSE": "`refuses` answers None or a line of text, always the same; nothing is planned for a refused graph",
    "L-REPLAY": "a proposed schedule breaks no replay rule",
    "L-BUDGET": "a proposed schedule fits the budget",
    "L-BOUND": "`lower` is at most the time of every schedule of the problem; IMPOSSIBLE only where there is none",
    "L-INT": "`plan` answers a Plan: `lower` is an int, or IMPOSSIBLE; the trail is a tuple of text",
    "L-REPEAT": "the same problem and seed give the same plan",
    "L-PURE": "the problem is left as it was",
    "L-STOP": "when the time is over the plan is still valid and the bound still proved",
    "L-REPORT": "what is handed to the clock on the way is valid, fits, and is proved",
    "L-LINK": "with a link, schedules stay valid and bounds hold for schedules with copies too",
    "L-REPR": "`repr` rebuilds the solver",
    "L-PICKLE": "it survives pickling, as worker pools need",
}


def check_solver(
    solver: Solver,
    *,
    graphs: SearchStrategy[Graph] | None = None,
    exclude: Mapping[str, str] | None = None,
    examples: int = 60,
    shrink: bool = True,
    say: Say | None = None,
) -> Report:
    """Try every law of a solver on small random problems, whose optimum an exhaustive search knows.

    Args:
        solver: the solver under check.
        graphs: a hypothesis strategy of graphs it accepts; None: flat graphs, chains, and graphs of layers, all tiny.
        exclude: laws to leave out, each with a reason; the report prints them.
        examples: number of problems.
        shrink: look for the smallest example of a broken law; False: report the first.
        say: takes the report as text; None: the standard output.

    Raises:
        LawBroken: with the law and the smallest example; `L-NONE` when the solver refused everything.
    """
    from hypothesis import given

    from remat.testing.examples import cases

    tally = Tally(solver, SOLVER_LAWS, exclude)
    check_repr(solver, tally)
    if tally.tries("L-PICKLE"):
        _check_pickle(solver)

    @settings_for(examples, shrink)
    @given(cases(graphs))
    def all_laws(case: Case) -> None:
        _Trial(solver, case, tally).run()

    all_laws()
    return tally.report(say)


def _check_pickle(solver: Solver) -> None:
    try:
        again = pickle.loads(pickle.dumps(solver))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise LawBroken("L-PICKLE", f"{solver!r} cannot be pickled: {error}") from error
    if again != solver:
        raise LawBroken("L-PICKLE", f"{solver!r} comes back as {again!r}.")


class _Trial(Trial):
    """One example tried under all laws."""

    def __init__(self, solver: Solver, case: Case, tally: Tally) -> None:
        super().__init__(solver, case.problem.graph, case.text, SOLVER_LAWS, tally)
        self.solver = solver
        self.case = case
        self.problem = case.problem
        self.exact: Outcome | None = None

    def run(self) -> None:
        if self.refused():
            return
        before = print_text(self.problem.graph)
        plan = self.first_plan()
        self.law("L-PURE", lambda: self.hold(print_text(self.problem.graph) == before, "the graph has changed."))
        self.law("L-INT", lambda: self.well_typed(plan))
        self.law("L-REPLAY", lambda: self.replays(plan, self.problem))
        self.law("L-BUDGET", lambda: self.fits(plan))
        self.law("L-BOUND", lambda: self.proved(plan.lower, self.best()))
        self.law("L-REPEAT", lambda: self.repeats(plan))
        self.law("L-STOP", self.stops)
        self.law("L-REPORT", self.reports)
        self.law("L-LINK", self.links)

    def law(self, law: str, check: Callable[[], None]) -> None:
        if not self.tally.tries(law):
            return
        try:
            check()
        except _Fails as failure:
            raise self.broken(law, failure.what) from failure

    def hold(self, holds: bool, what: str) -> None:
        if not holds:
            raise _Fails(what)

    # -- laws ----------------------------------------------------------------------------------------------------------

    def refused(self) -> bool:
        refused = super().refused()
        if refused and "L-REFUSE" not in self.tally.excluded:
            outcome = self.solver.solve(self.problem, clock=memory_clock(), seed=self.case.seed)
            silent = outcome.schedule is None and outcome.lower == 0
            self.expect("L-REFUSE", silent, "it refuses and plans all the same.")
        return refused

    def well_typed(self, plan: Plan) -> None:
        self.hold(type(plan.lower) is int or plan.lower == IMPOSSIBLE, f"lower is {plan.lower!r}.")
        self.hold(type(plan.lower) is not int or plan.lower >= 0, f"lower is {plan.lower!r}.")
        words = isinstance(plan.trail, tuple) and all(isinstance(one, str) for one in plan.trail)
        self.hold(words, f"the trail is {plan.trail!r}.")

    def first_plan(self) -> Plan:
        """The plan that the laws look at; L-INT where it is none, or cannot be made of what the solver says."""
        try:
            plan = self.planned(self.problem, None)
        except BadArgument as error:
            raise self.broken("L-INT", str(error)) from error
        if not isinstance(plan, Plan):
            raise self.broken("L-INT", f"`plan` answers {plan!r:.80}, not a Plan.")
        return plan

    def replays(self, plan: Plan, problem: Problem) -> None:
        if plan.schedule is None:
            return
        try:
            validate(problem.graph, plan.schedule, None, problem.link)
        except InvalidSchedule as error:
            raise _Fails(f"{error}\n{_lines(plan.schedule)}") from error

    def fits(self, plan: Plan) -> None:
        if plan.schedule is None:
            return
        try:
            validate(self.problem.graph, plan.schedule, self.problem.budget, self.problem.link)
        except BudgetExceeded as error:
            raise _Fails(f"{error}\n{_lines(plan.schedule)}") from error
        except InvalidSchedule:
            return  # another rule is broken: L-REPLAY says so

    def proved(self, lower: float, best: tuple[float, Schedule | None], who: str = "lower") -> None:
        time, witness = best
        if lower > time:
            raise _Fails(f"{who} is {lower}, and this schedule takes {time} ns:\n{_lines(witness)}")

    def repeats(self, plan: Plan) -> None:
        again = self.planned(self.problem, None)
        same = (again.schedule, again.lower) == (plan.schedule, plan.lower)
        self.hold(same, f"asked again it answers another plan, or bound ({plan.lower}, then {again.lower}).")

    def stops(self) -> None:
        plan = self.planned(self.problem, self.case.looks)
        self.replays(plan, self.problem)
        self.proved(plan.lower, self.best(), f"after {self.case.looks} looks at the clock lower")

    def reports(self) -> None:
        clock = memory_clock()
        self.solver.plan(self.problem, clock, self.case.seed)
        self.proved(clock.lower, self.best(), "a bound on the way")
        if clock.best is not None:
            try:
                validate(self.problem.graph, clock.best, self.problem.budget)
            except InvalidSchedule as error:
                raise _Fails(f"a schedule on the way: {error}") from error

    def links(self) -> None:
        problem = self.case.linked
        if self.solver.refuses(problem.graph) is not None:
            return
        plan = self.planned(problem, None)
        self.replays(plan, problem)
        lower = plan.lower if self.solver.models_link else 0
        self.proved(lower, _fastest(problem, self.case.linked_witnesses))

    # -- help ----------------------------------------------------------------------------------------------------------

    def planned(self, problem: Problem, looks: int | None) -> Plan:
        return self.solver.plan(problem, memory_clock(looks), self.case.seed)

    def best(self) -> tuple[float, Schedule | None]:
        """The fastest schedule known: of the oracle, or of the witnesses."""
        found = _fastest(self.problem, self.case.witnesses)
        if self.exact is None:
            self.exact = Exhaustive(max_states=1000).solve(self.problem)
        return (self.exact.upper, self.exact.schedule) if self.exact.upper < found[0] else found


class _Fails(Exception):
    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(what)


def _fastest(problem: Problem, witnesses: tuple[Schedule, ...]) -> tuple[float, Schedule | None]:
    best: tuple[float, Schedule | None] = (IMPOSSIBLE, None)
    for one in witnesses:
        try:
            time = validate(problem.graph, one, problem.budget, problem.link).time
        except BudgetExceeded:
            continue
        if time < best[0]:
            best = (time, one)
    return best


def _lines(schedule: Schedule | None) -> str:
    return "(the exhaustive search found it)" if schedule is None else "; ".join(map(str, schedule.steps))


__all__ = ["SOLVER_LAWS", "Case", "check_solver"]
