"""One problem tested under all laws of a solver."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from random import Random
from typing import Final, TypeVar

from attrs import evolve

from remat.algorithms._core.clock import Clock
from remat.algorithms._core.outcome import IMPOSSIBLE, Plan
from remat.algorithms._core.problem import Problem
from remat.algorithms._core.solver import Solver
from remat.algorithms._proving.prover import CAPTURED
from remat.errors import BadArgument, BudgetExceeded, InvalidSchedule, ProofRefused
from remat.ir import Schedule, validate
from remat.testing import guard
from remat.testing.case import Case
from remat.testing.clock import RecordingClock, memory_clock
from remat.testing.guard import Overrun, patient
from remat.testing.guarded import GuardedTrial
from remat.testing.oracle import Among, frontier, optimum
from remat.testing.random_schedules import random_schedule
from remat.testing.renaming import other_names, renamed, with_names
from remat.testing.report import Tally
from remat.testing.trial import described

T = TypeVar("T")

CLASSES: Final[Mapping[str, Among]] = {
    CAPTURED: "captured",
    "staged schedules, first runs in the graph's order": "staged",
}
"""Classes of schedules that the kit knows, by the text of a class bound."""

_UNHEARD: Final = 3.0
"""Seconds of work, over all problems of a check, after which a solver must have read the clock."""
_LONG: Final = 0.05
"""Average seconds per plan above which the same holds."""
_LEAVES: Final = 50
"""Most leaves of the trees of a proof that is asked for."""


class SolverTrial(GuardedTrial):
    """One example tested under all laws.

    Attributes:
        solver: under check. case, problem: the example. planned: whether it was not refused.
    """

    part: Solver

    def __init__(self, solver: Solver, case: Case, laws: Mapping[str, str], tally: Tally) -> None:
        super().__init__(solver, case.problem.graph, case.text, laws, tally)
        self.solver = solver
        self.case = case
        self.problem = case.problem
        self.planned = False

    def run(self) -> None:
        """All laws; the first broken one is reported."""
        pristine = copy.deepcopy(self.problem)
        refused, clock = self.refused(), RecordingClock()
        if refused:
            return
        self.planned = True
        plan = self.plan(self.problem, clock)
        self.law("L-PURE", lambda: self.hold(self.problem == pristine, "the problem has changed."))
        self.law("L-INT", lambda: self.well_typed(plan))
        self.law("L-REPLAY", lambda: self.replays(plan, self.problem))
        self.law("L-BUDGET", lambda: self.fits(plan, self.problem))
        self.law("L-BOUND", lambda: self.unbeaten(plan.lower, self.case.best()))
        self.law("L-CLASS", lambda: self.class_bounds(plan))
        self.law("L-REPORT", lambda: self.reports(clock))
        self.law("L-BETTER", lambda: self.improves(clock, plan))
        self.law("L-REPEAT", lambda: self.repeats(plan))
        self.law("L-NAMES", lambda: self.renames(plan))
        self.law("L-STOP", lambda: self.stops(clock.ticks.looks))
        self.interrupts(clock)
        self.law("L-THREAD", lambda: self.in_a_thread(plan))
        self.law("L-LINK", self.links)
        self.law("L-HOST", self.host)
        self.law("L-START", self.starts)
        self.law("L-EVIDENCE", lambda: self.proofs(plan))

    def law(self, law: str, check: Callable[[], None]) -> None:
        """Test a law, and report what breaks it."""
        if not self.tally.tries(law):
            return
        try:
            check()
        except _Fails as failure:
            raise self.broken(law, failure.what) from failure

    def hold(self, holds: bool, what: str) -> None:
        """Within `law`: report that it is broken unless this holds."""
        if not holds:
            raise _Fails(what)

    # -- calls ---------------------------------------------------------------------------------------------------------

    def refused(self) -> bool:
        """As for every part; in addition, nothing is planned for a refused graph."""
        refused = super().refused()
        if refused and "L-REFUSE" not in self.tally.excluded:
            outcome = self.solver.solve(self.problem, clock=memory_clock(), seed=self.case.seed)
            silent = outcome.schedule is None and outcome.lower == 0
            self.expect("L-REFUSE", silent, "it refuses the graph, but plans it.")
        return refused

    def plan(self, problem: Problem, clock: RecordingClock) -> Plan:
        """The solver's plan; tests L-RAISE, L-INT, L-TIME, L-THREAD and L-GLOBAL."""
        before, working = guard.whole_process(), guard.workers()
        try:
            with patient(lambda: clock.ticks.over_since) as watch:
                plan = self.asked("`plan`", lambda: self._plan(problem, clock))
                seconds = watch.seconds
        except Overrun:
            expired = "" if clock.ticks.over_since is None else ", which had expired"
            raise self.broken(
                "L-TIME", f"`plan` did not end within seconds; it read its clock{expired}, {clock.ticks.looks} times."
            ) from None
        self.heard(seconds, clock.ticks.looks)
        self.left_alone("`plan`", before, working)
        if not isinstance(plan, Plan):
            raise self.broken("L-INT", f"`plan` returns {plan!r:.80}, not a Plan.")
        return plan

    def _plan(self, problem: Problem, clock: Clock) -> Plan:
        try:
            return self.solver.plan(problem, clock, self.case.seed)
        except BadArgument as error:
            raise self.broken("L-INT", str(error)) from error

    def heard(self, seconds: float, looks: int) -> None:
        """L-TIME, over all plans so far: a solver that takes seconds reads the clock."""
        tally = self.tally
        tally.seconds += seconds
        tally.plans += 1
        tally.looks += looks
        if tally.tries("L-TIME"):
            unheard = tally.looks <= tally.plans and tally.seconds > max(_UNHEARD, _LONG * tally.plans)
            what = f"it worked for {tally.seconds:.1f} s on {tally.plans} plans and never read its clock."
            self.expect("L-TIME", not unheard, what)

    # -- laws ----------------------------------------------------------------------------------------------------------

    def well_typed(self, plan: Plan) -> None:
        """L-INT."""
        self.hold(type(plan.lower) is int or plan.lower == IMPOSSIBLE, f"lower is {plan.lower!r}.")
        self.hold(type(plan.lower) is not int or plan.lower >= 0, f"lower is {plan.lower!r}.")
        words = isinstance(plan.trail, tuple) and all(isinstance(line, str) for line in plan.trail)
        self.hold(words, f"the trail is {plan.trail!r}.")

    def replays(self, plan: Plan, problem: Problem) -> None:
        """L-REPLAY."""
        if plan.schedule is None:
            return
        try:
            validate(problem.graph, plan.schedule, None, problem.link)
        except InvalidSchedule as error:
            raise _Fails(f"{error}\n{_lines(plan.schedule)}") from error

    def fits(self, plan: Plan, problem: Problem) -> None:
        """L-BUDGET; L-REPLAY tests the other rules."""
        if plan.schedule is None or "L-BUDGET" in self.tally.excluded:
            return
        try:
            validate(problem.graph, plan.schedule, problem.budget, problem.link)
        except BudgetExceeded as error:
            raise _Fails(f"{error}\n{_lines(plan.schedule)}") from error
        except InvalidSchedule:
            return

    def unbeaten(self, lower: float, best: tuple[float, Schedule | None], who: str = "lower") -> None:
        """L-BOUND."""
        time, witness = best
        if lower > time:
            raise _Fails(f"{who} is {lower}, and this schedule takes {time} ns:\n{_lines(witness)}")

    def class_bounds(self, plan: Plan) -> None:
        """L-CLASS, by an oracle of the class on tiny graphs, by random schedules of the class on others."""
        for bound in plan.class_bounds:
            among = CLASSES.get(bound.assumes)
            if among is not None:
                self.unbeaten(bound.value, self.best_among(among), f"the bound of {bound.assumes!r}")

    def best_among(self, among: Among) -> tuple[float, Schedule | None]:
        """Time of the fastest known schedule of a class that fits, and the schedule."""
        graph, budget = self.graph, self.problem.budget
        points = frontier(graph, among, states=30_000) if len(graph) <= 7 else None
        if points is not None:
            best = optimum(points, budget)
            return (IMPOSSIBLE, None) if best is None else (best.time, Schedule(best.steps))
        random = Random(self.case.number)
        drawn = [random_schedule(graph, random.randint, among) for _ in range(4)]
        drawn.append(Schedule.from_runs(graph, range(len(graph))))
        fitting = [(cost.time, schedule) for schedule in drawn if (cost := validate(graph, schedule)).peak <= budget]
        return min(fitting, key=lambda pair: pair[0], default=(IMPOSSIBLE, None))

    def reports(self, clock: RecordingClock) -> None:
        """L-REPORT."""
        self.unbeaten(clock.lower, self.case.best(), "a reported bound")
        for report in clock.reports:
            fine = type(report.bound) is int or report.bound == IMPOSSIBLE
            self.hold(fine, f"a reported bound is {report.bound!r}.")
            if report.schedule is not None:
                try:
                    validate(self.problem.graph, report.schedule, self.problem.budget)
                except InvalidSchedule as error:
                    raise _Fails(f"a reported schedule: {error}") from error

    def improves(self, clock: RecordingClock, plan: Plan) -> None:
        """L-BETTER, for the reports of `plan`."""
        last: float = IMPOSSIBLE
        graph, budget = self.problem.graph, self.problem.budget
        for report in clock.reports:
            if report.schedule is None:
                continue
            time = validate(graph, report.schedule).time
            self.hold(report.best in (None, time), f"a plan of {time} ns was reported with a time of {report.best!r}.")
            self.hold(time <= last, f"after a plan of {last} ns a plan of {time} ns was reported.")
            last = time
        if last < IMPOSSIBLE:
            fitting = plan.schedule is not None and validate(graph, plan.schedule).peak <= budget
            answer = validate(graph, plan.schedule).time if fitting and plan.schedule is not None else IMPOSSIBLE
            self.hold(answer <= last, f"a plan of {last} ns was reported, but the result takes {answer} ns.")

    def repeats(self, plan: Plan) -> None:
        """L-REPEAT, with other states of the global generators, for a copy of the problem at other addresses."""
        for again in self.reseeded("`plan`", lambda: self._quietly(copy.deepcopy(self.problem))):
            same = (again.schedule, again.lower) == (plan.schedule, plan.lower)
            self.hold(same, f"a second call gives another plan or bound ({plan.lower}, then {again.lower}).")

    def _quietly(self, problem: Problem) -> Plan:
        """A plan; tests only L-RAISE, L-TIME and L-INT."""
        plan = self.quietly("`plan`", lambda: self._plan(problem, memory_clock()))
        if not isinstance(plan, Plan):
            raise self.broken("L-INT", f"`plan` returns {plan!r:.80}, not a Plan.")
        return plan

    def renames(self, plan: Plan) -> None:
        """L-NAMES."""
        names, what = other_names(self.graph, self.case.number)
        other = evolve(self.problem, graph=renamed(self.graph, names))
        if self.solver.refuses(other.graph) is not None:
            raise _Fails(f"{what} the graph is refused.")
        again = self._quietly(other)
        same = again.schedule == with_names(plan.schedule, names) and again.lower == plan.lower
        self.hold(
            same,
            f"{what} it gives another plan or bound ({plan.lower}, then {again.lower}).\n"
            f"{_lines(plan.schedule)}\n{_lines(again.schedule)}",
        )

    def stops(self, looks: int) -> None:
        """L-STOP, with a clock that expires at a random one of the readings that a plan without a limit makes."""
        end = Random(self.case.number).choice((0, 1, looks // 2, max(0, looks - 1), Random(looks).randint(0, looks)))
        plan = self.plan(self.problem, RecordingClock(end))
        self.replays(plan, self.problem)
        self.fits(plan, self.problem)
        self.unbeaten(plan.lower, self.case.best(), f"after {end} readings of the clock lower")

    def in_a_thread(self, plan: Plan) -> None:
        """L-THREAD, on a third of the examples: in another thread the plan is the same."""
        if self._spared(1):
            return
        answers: list[object] = []

        def ask() -> None:
            try:
                answers.append(self.solver.plan(self.problem, memory_clock(), self.case.seed))
            except Exception as error:  # noqa: BLE001 - any exception that it raises only in another thread
                answers.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        again = answers[0]
        if isinstance(again, Exception):
            raise _Fails(f"in another thread it raised {described(again)}")
        same = isinstance(again, Plan) and (again.schedule, again.lower) == (plan.schedule, plan.lower)
        self.hold(same, "in another thread it gives another plan or bound.")

    def interrupts(self, heard: Clock) -> None:
        """L-INTERRUPT; `heard`: the clock of a plan that was not interrupted."""
        if self.tally.tries("L-INTERRUPT"):
            self.expect("L-INTERRUPT", not heard.stopped, "it stops its clock, which stops the caller too.")
        clock = memory_clock()
        self.interrupted(
            "`plan`",
            self.case.number,
            lambda: self.solver.plan(self.problem, clock, self.case.seed),
            lambda: clock.stopped,
        )

    def links(self) -> None:
        """L-LINK."""
        problem = self.case.linked
        plan = self.plan(problem, RecordingClock())
        self.replays(plan, problem)
        self.fits(plan, problem)
        self.unbeaten(plan.lower if self.solver.models_link else 0, self.case.best_linked())

    def host(self) -> None:
        """L-HOST, on a third of the examples: what the host may hold is between nothing and what a known schedule holds."""
        if self._spared(0):
            return
        linked = self.case.linked
        peaks = [cost.host_peak for _, cost in self.case.linked_costs()]
        limit = Random(self.case.number).choice([0, *peaks, *(max(0, peak - 1) for peak in peaks)])
        problem = evolve(linked, host_budget=limit)
        plan = self.plan(problem, RecordingClock())
        self.replays(plan, problem)
        hosted = 0
        with suppress(BudgetExceeded):  # which other laws are about
            if plan.schedule is not None:
                hosted = validate(linked.graph, plan.schedule, linked.budget, linked.link).host_peak
        what = f"its copies hold {hosted} B on the host, which may hold {limit} B.\n{_lines(plan.schedule)}"
        self.hold(hosted <= limit, what)
        self.unbeaten(plan.lower if self.solver.models_link else 0, self.case.best_linked(limit))

    def starts(self) -> None:
        """L-START, on a third of the examples: the start is the slowest known schedule that fits."""
        fitting = [witness for witness in self.case.witnesses if witness.peak <= self.problem.budget]
        if not self.solver.takes_start or not fitting or self._spared(1):
            return
        start, clock = max(fitting, key=lambda witness: witness.time).schedule, memory_clock()
        plan = self.quietly("`plan_from`", lambda: self.solver.plan_from(self.problem, start, clock, self.case.seed))
        if not isinstance(plan, Plan):
            raise _Fails(f"`plan_from` returns {plan!r:.80}, not a Plan.")
        self.replays(plan, self.problem)
        self.fits(plan, self.problem)
        self.unbeaten(plan.lower, self.case.best(), "with a start lower")

    def proofs(self, plan: Plan) -> None:
        """L-EVIDENCE, on a third of the examples, also where `solve` is asked for a proof."""
        if self._spared(2):
            return
        self.proved(plan)
        asked = self._quietly(evolve(self.problem, proof_leaves=_LEAVES))
        self.unbeaten(asked.lower, self.case.best(), "where a proof is asked for lower")
        self.proved(asked)

    def proved(self, plan: Plan) -> None:
        """L-EVIDENCE of a plan; nothing is left of evidence that `solve` does not take over."""
        claims = [(plan.evidence, "", plan.lower), *((b.evidence, b.assumes, b.value) for b in plan.class_bounds)]
        for evidence, assumes, bound in claims:
            if evidence is None:
                continue
            same = evidence.holds_for(self.graph, self.problem.budget, self.problem.link)
            self.hold(same, "the evidence is of another graph or link, or of a smaller budget.")
            try:
                proof = evidence.proof(assumes)
            except ProofRefused as refusal:
                raise _Fails(f"the proof of its bound is refused: {refusal}") from refusal
            proved = IMPOSSIBLE if proof.bound is None else proof.bound
            self.hold(proved <= bound, f"it claims {bound} ns, and its evidence proves {proved} ns.")

    def _spared(self, which: int) -> bool:
        """Whether an example is left out by a law that is tested on a third of them."""
        return self.case.number % 3 != which and self.tally.only is None


class _Fails(Exception):
    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(what)


def _lines(schedule: Schedule | None) -> str:
    return "(no schedule)" if schedule is None else "; ".join(map(str, schedule.steps))
