"""One formulation, many budgets: solve, decode, replay, repair, and return what there is evidence for.

A plan leaves this module only after the validator has replayed it within the budget. A solver's tolerance can let a
point through whose exact bytes are over: then the formulation is solved again with the budget lowered by the excess.
"Infeasible" counts when a second solve with other settings (presolve off, or on) confirms it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from attrs import evolve, field, frozen

from remat.algorithms._milp.answer import Answer, Floats
from remat.algorithms._milp.backend import Backend, Hints, Limits
from remat.algorithms._milp.milp_model import MilpModel, model_of
from remat.algorithms._staged.decode import point_of, schedule_of
from remat.algorithms._staged.form_events import Form
from remat.errors import InvalidSchedule
from remat.ir import Cost, Schedule, validate
from remat.ir.hierarchy import Condensed, expand

_ROUNDS = 5  # solves, each with a lower budget
_RESOLUTION = 1e-6  # smallest relative difference of times that the solver's tolerance can see
_MOST_RERUNS = 60  # largest number of reruns of a plan for which each is tried for removal


@frozen(kw_only=True)
class BudgetResult:
    """The evidence from a solve of one budget.

    Attributes:
        schedule, cost: the best replayed plan, or neither.
        bound: of every schedule of the formulation's class [ns]; infinite: the class holds none, confirmed by a second solve.
        finished: the gap was reached (or the solver says infeasible).
        notes: what happened, for the trail.
        point: the plan's point, as a start of the next solve.
    """

    schedule: Schedule | None = None
    cost: Cost | None = None
    bound: int | float = 0
    finished: bool = False
    notes: tuple[str, ...] = ()
    point: Floats | None = field(default=None, eq=False)

    def better(self, other: BudgetResult) -> bool:
        """Whether the plan beats that of `other`: less time, or as much and a smaller peak."""
        if self.cost is None:
            return False
        return other.cost is None or (self.cost.time, self.cost.peak) < (other.cost.time, other.cost.peak)


class BudgetSolver:
    """A form and its model, built once; `solve` may be called with any number of budgets.

    Args:
        form: the formulation.
        backend: solves it.
        gap: relative gap at which to stop.
        condensed: replay the expanded schedule on the flat graph, for a form with correction terms.
        lower: a restricted formulation of the same graph, whose plan is the start if no other start is given.
    """

    def __init__(
        self,
        form: Form,
        backend: Backend,
        gap: float,
        condensed: Condensed | None = None,
        lower: BudgetSolver | None = None,
    ) -> None:
        self.form, self.backend, self.gap, self.condensed, self.lower = form, backend, gap, condensed, lower
        self.graph = form.stage.graph if condensed is None else condensed.flat
        self.model: MilpModel = model_of(form.linear)

    def schedule(self, point: Floats) -> Schedule:
        """The schedule of a point, of the flat graph where there is one."""
        schedule = schedule_of(self.form, point)
        return schedule if self.condensed is None else expand(self.condensed, schedule)

    def replay(self, point: Floats, budget: int) -> BudgetResult | int:
        """The plan of a point, or the bytes it is over the budget."""
        schedule = self.schedule(point)
        cost = validate(self.graph, schedule)
        if cost.peak > budget:
            return cost.peak - budget
        return BudgetResult(schedule=schedule, cost=cost, point=point)

    def start(self, schedule: Schedule, budget: int) -> Floats | None:
        """The point of a schedule, when the slots can represent it and the point's own schedule fits the budget."""
        point = point_of(self.form, schedule)
        if point is None:
            return None
        replayed = self.replay(point, budget)
        return point if isinstance(replayed, BudgetResult) else None

    def incumbent(self, schedule: Schedule, budget: int) -> BudgetResult:
        """A plan from another solver, replayed; with its point where the slots can represent it.

        Args:
            schedule: of the graph of the form: with `condensed`, of its layers.
            budget: that it keeps.

        Raises:
            InvalidSchedule: it does not keep the rules or the budget.
        """
        replayed = schedule if self.condensed is None else expand(self.condensed, schedule)
        cost = validate(self.graph, replayed, budget)
        return BudgetResult(schedule=replayed, cost=cost, point=self.start(schedule, budget))

    def solve(
        self,
        budget: int,
        *,
        save: int = 0,
        start: Floats | None = None,
        incumbent: BudgetResult | None = None,
        gap: float | None = None,
        watch: Watch | None = None,
    ) -> BudgetResult:
        """Solve one budget.

        Args:
            budget: bytes live in any step.
            save: bytes saved during the loss; counts where the form has its row.
            start: a point that fits the budgets.
            incumbent: a plan that fits them, in any order: the search looks for plans that are better by more than the gap.
                Without a better one, the incumbent is the result, and the bound is that of the search.
            gap: relative gap at which to stop this solve; None: that of the instance.
            watch: receives progress and decides when to stop; None: silent, no limit.
        """
        watch = Watch() if watch is None else watch
        gap = self.gap if gap is None else gap
        start, cutoff = self._begin(budget, save, start, incumbent, gap, watch)
        watch.budget_solver, watch.budget = self, budget
        notes: list[str] = []

        def ask(room: int, start: Floats | None = None) -> Answer:
            self.model.set(room, save)
            answer = self._ask(watch, gap, start, cutoff)
            notes.append(answer.note)
            return answer

        answer = ask(budget, start)
        if answer.infeasible and answer.point is None and self._confirmed(watch, notes):
            return BudgetResult(bound=math.inf, finished=True, notes=tuple(notes))
        best = self._repaired(answer, budget, ask, watch, notes)
        if watch.best.better(best):
            best = watch.best
        best = self.lean(best, budget)
        bound = answer.bound if best.cost is None else min(answer.bound, best.cost.time)
        return evolve(best, bound=bound, finished=answer.finished, notes=tuple(notes))

    def _repaired(
        self, answer: Answer, budget: int, ask: Callable[[int], Answer], watch: Watch, notes: list[str]
    ) -> BudgetResult:
        """The plan of an answer's point; if its exact bytes exceed the budget, the plan of a solve with a lower budget."""
        room = budget
        for attempt in range(_ROUNDS):
            replayed = BudgetResult() if answer.point is None else self.replay(answer.point, budget)
            if isinstance(replayed, BudgetResult):
                return replayed
            room -= max(replayed << attempt, (budget >> 24) << attempt, 1)
            notes.append(
                f"the point is {replayed} B over the budget by the solver's tolerance: solved again with {room} B"
            )
            if room < 0 or watch.expired or attempt + 1 == _ROUNDS:
                break
            answer = ask(room)
        return BudgetResult()

    def _begin(
        self, budget: int, save: int, start: Floats | None, incumbent: BudgetResult | None, gap: float, watch: Watch
    ) -> tuple[Floats | None, float | None]:
        """The point to start from and the cut-off; the watch keeps the plan."""
        if incumbent is not None and incumbent.better(watch.best):
            watch.best = incumbent
        if not self.backend.takes_start:
            return start, None
        if incumbent is not None and incumbent.cost is not None:
            return incumbent.point, _cutoff(incumbent.cost.time, gap)
        if start is None and self.lower is not None:
            start = self._from_below(budget, save, watch)
        return start, None

    def _from_below(self, budget: int, save: int, watch: Watch) -> Floats | None:
        """The plan of the restricted formulation, as a start; the watch keeps it."""
        assert self.lower is not None
        result = self.lower.solve(budget, save=save, watch=watch)
        if result.schedule is None or result.point is None:
            return None
        if result.better(watch.best):
            watch.best = result
        slots = self.form.slots
        point = np.zeros(self.form.linear.shape[1])
        slots_below = self.lower.form.slots
        for slot, (stage, node) in enumerate(zip(slots_below.stage.tolist(), slots_below.node.tolist(), strict=True)):
            target = slots.at[stage, node]
            if target >= 0:
                count = len(self.form.stage.graph.computes[node].options)
                point[slots.column[target] :][:count] = result.point[slots_below.column[slot] :][:count]
        return point

    def lean(self, result: BudgetResult, budget: int) -> BudgetResult:
        """Without reruns that the plan does not need: those of almost no time that a solver's tolerance left in."""
        if result.schedule is None or result.cost is None or result.cost.reruns > _MOST_RERUNS:
            return result
        if self.form.linear.save.any():
            return result  # without a rerun, more may be saved during the loss
        runs = list(result.schedule.runs)
        again = [at for at, run in enumerate(runs) if run.node in {earlier.node for earlier in runs[:at]}]
        for at in reversed(again):
            fewer = runs[:at] + runs[at + 1 :]
            schedule = Schedule.from_runs(self.graph, fewer)
            try:
                cost = validate(self.graph, schedule, budget)
            except InvalidSchedule:
                continue
            runs, result = fewer, evolve(result, schedule=schedule, cost=cost)
        return result

    def _ask(self, watch: Watch, gap: float, start: Floats | None, cutoff: float | None) -> Answer:
        limits = Limits(gap=gap, seconds=watch.remaining)
        seen = watch.seen if watch.listens else None
        return self.backend.solve(self.model, limits, Hints(start=start, cutoff=cutoff, seen=seen))

    def _confirmed(self, watch: Watch, notes: list[str]) -> bool:
        """Whether a second solve confirms infeasibility."""
        limits = Limits(gap=self.gap, seconds=watch.remaining)
        hints = Hints(second=True, seen=watch.seen if watch.listens else None)
        again = self.backend.solve(self.model, limits, hints)
        notes.append(f"{again.note} (second solve, with other settings)")
        if again.point is not None:
            replayed = self.replay(again.point, watch.budget)
            if isinstance(replayed, BudgetResult) and replayed.better(watch.best):
                watch.best = replayed
        return again.infeasible and again.point is None


def _cutoff(time: int, gap: float) -> float:
    """The time that a better plan must beat: less by the gap, and by at least what the solver's tolerance can see."""
    return min(time / (1 + gap), time * (1 - _RESOLUTION))


class Watch:
    """Receives incumbents while a solver works, keeps the best replayed plan, and decides when to stop.

    Args:
        clock: a `Clock`, or None. who: named in its reports.
    """

    def __init__(self, clock: Any = None, who: object = None) -> None:
        self.clock, self.who = clock, who
        self.budget_solver: BudgetSolver | None = None
        self.budget = 0
        self.best = BudgetResult()

    @property
    def remaining(self) -> float:
        """Seconds left."""
        return math.inf if self.clock is None else float(self.clock.remaining)

    @property
    def expired(self) -> bool:
        """Whether to stop."""
        return self.clock is not None and bool(self.clock.expired)

    @property
    def listens(self) -> bool:
        """Whether progress is reported."""
        return self.clock is not None

    def seen(self, point: Floats | None, bound: int) -> bool:
        """An incumbent or a bound of a solver at work."""
        if point is not None and self.budget_solver is not None:
            replayed = self.budget_solver.replay(point, self.budget)
            if isinstance(replayed, BudgetResult) and replayed.better(self.best):
                self.best = replayed
                self._report(replayed, bound)
        return self.expired

    def _report(self, result: BudgetResult, bound: int) -> None:
        time = None if result.cost is None else result.cost.time
        # the bound is one of a class: it is shown, and never taken for one of all schedules
        self.clock.report(
            self.who, schedule=result.schedule, best=time, stage="formulation", note=f"bound of the class {bound} ns"
        )
