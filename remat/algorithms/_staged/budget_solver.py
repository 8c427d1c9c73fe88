"""One programme, many budgets: solve, decode, replay, repair, and say what there is evidence for.

A plan leaves this module only after the validator has replayed it within the budget. A solver's tolerance can let a
point through whose exact bytes are over: then the programme is solved again with the budget lowered by what was
missing. "Infeasible" is believed when it was said twice, the second time asked in another way (presolve off, or on).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from attrs import evolve, field, frozen

from remat.algorithms._milp.answer import Answer, Floats
from remat.algorithms._milp.backends import Backend, Limits
from remat.algorithms._milp.cvxpy_model import Model, model_of
from remat.algorithms._staged.decode import point_of, schedule_of
from remat.algorithms._staged.form_events import Form
from remat.errors import InvalidSchedule
from remat.ir import Cost, Schedule, validate
from remat.ir.hierarchy import Condensed, expand

_ROUNDS = 5  # re-solves with a lowered budget
_TELL = 1e-6  # fraction of a time that the solver's tolerance can tell apart
_LEAN = 60  # reruns up to which each is tried out


@frozen(kw_only=True)
class Found:
    """What a solve of one budget has evidence for.

    Attributes:
        schedule, cost: the best replayed plan, or neither.
        bound: of every schedule of the programme's class [ns]; infinite: proved twice that it holds none.
        finished: the gap was reached (or infeasibility proved).
        notes: the story, for the trail.
        point: the plan's point, as a start of the next solve.
    """

    schedule: Schedule | None = None
    cost: Cost | None = None
    bound: int | float = 0
    finished: bool = False
    notes: tuple[str, ...] = ()
    point: Floats | None = field(default=None, eq=False)

    def better(self, other: Found) -> bool:
        """Whether the plan beats that of `other`: less time, or as much and a smaller peak."""
        if self.cost is None:
            return False
        return other.cost is None or (self.cost.time, self.cost.peak) < (other.cost.time, other.cost.peak)


class Programme:
    """A form and its model, built once; `solve` may be called with any number of budgets.

    Args:
        form: the programme.
        backend: who solves it.
        gap: relative gap that is good enough.
        condensed: replay the expanded schedule on the flat graph, for a form with correction terms.
        lower: a thinner programme of the same graph, whose plan is the start where there is none.
    """

    def __init__(
        self,
        form: Form,
        backend: Backend,
        gap: float,
        condensed: Condensed | None = None,
        lower: Programme | None = None,
    ) -> None:
        self.form, self.backend, self.gap, self.condensed, self.lower = form, backend, gap, condensed, lower
        self.graph = form.stage.graph if condensed is None else condensed.flat
        self.model: Model = model_of(form.linear)

    def schedule(self, point: Floats) -> Schedule:
        """The schedule of a point, of the flat graph where there is one."""
        schedule = schedule_of(self.form, point)
        return schedule if self.condensed is None else expand(self.condensed, schedule)

    def replay(self, point: Floats, budget: int) -> Found | int:
        """The plan of a point, or the bytes it is over the budget."""
        schedule = self.schedule(point)
        cost = validate(self.graph, schedule)
        if cost.peak > budget:
            return cost.peak - budget
        return Found(schedule=schedule, cost=cost, point=point)

    def start(self, schedule: Schedule, budget: int) -> Floats | None:
        """The point of a schedule, when the slots can hold it and it fits as they hold it."""
        point = point_of(self.form, schedule)
        if point is None:
            return None
        found = self.replay(point, budget)
        return point if isinstance(found, Found) else None

    def known(self, schedule: Schedule, budget: int) -> Found:
        """A plan from elsewhere, replayed; with its point where the slots hold it as it is.

        Raises:
            InvalidSchedule: it does not keep the rules or the budget.
        """
        cost = validate(self.graph, schedule, budget)
        return Found(schedule=schedule, cost=cost, point=self.start(schedule, budget))

    def solve(
        self,
        budget: int,
        *,
        save: int = 0,
        start: Floats | None = None,
        known: Found | None = None,
        gap: float | None = None,
        watch: Watch | None = None,
    ) -> Found:
        """Solve one budget.

        Args:
            budget: bytes live in any step.
            save: bytes saved during the loss; counts where the form has its row.
            start: a point that fits the budgets.
            known: a plan that fits them, in whatever order: only what is better by more than the gap is looked for. Where there
                is nothing better, it is the outcome, and the bound is that of the search.
            gap: relative gap that is good enough here; None: the programme's.
            watch: where progress goes and when to stop; None: silent, no limit.
        """
        watch = Watch() if watch is None else watch
        gap = self.gap if gap is None else gap
        start, cutoff = self._begin(budget, save, start, known, gap, watch)
        watch.programme, watch.budget = self, budget
        notes: list[str] = []

        def ask(room: int, start: Floats | None = None) -> Answer:
            self.model.set(room, save)
            answer = self._ask(watch, gap, start, cutoff)
            notes.append(answer.note)
            return answer

        answer = ask(budget, start)
        if answer.infeasible and answer.point is None and self._second_opinion(watch, notes):
            return Found(bound=math.inf, finished=True, notes=tuple(notes))
        best = self._repaired(answer, budget, ask, watch, notes)
        if watch.best.better(best):
            best = watch.best
        best = self.lean(best, budget)
        bound = answer.bound if best.cost is None else min(answer.bound, best.cost.time)
        return evolve(best, bound=bound, finished=answer.finished, notes=tuple(notes))

    def _repaired(
        self, answer: Answer, budget: int, ask: Callable[[int], Answer], watch: Watch, notes: list[str]
    ) -> Found:
        """The plan of an answer's point; where its exact bytes are over the budget, that of an answer for a smaller one."""
        room = budget
        for attempt in range(_ROUNDS):
            replayed = Found() if answer.point is None else self.replay(answer.point, budget)
            if isinstance(replayed, Found):
                return replayed
            room -= max(replayed << attempt, (budget >> 24) << attempt, 1)
            notes.append(
                f"the point is {replayed} B over the budget by the solver's tolerance: asked again with {room} B"
            )
            if room < 0 or watch.expired or attempt + 1 == _ROUNDS:
                break
            answer = ask(room)
        return Found()

    def _begin(
        self, budget: int, save: int, start: Floats | None, known: Found | None, gap: float, watch: Watch
    ) -> tuple[Floats | None, float | None]:
        """The point to start from and the cut-off; the watch keeps the plan."""
        if known is not None and known.better(watch.best):
            watch.best = known
        if not self.backend.takes_start:
            return start, None
        if known is not None and known.cost is not None:
            return known.point, _cutoff(known.cost.time, gap)
        if start is None and self.lower is not None:
            start = self._from_below(budget, save, watch)
        return start, None

    def _from_below(self, budget: int, save: int, watch: Watch) -> Floats | None:
        """The plan of the thinner programme, as a start; the watch keeps it."""
        assert self.lower is not None
        found = self.lower.solve(budget, save=save, watch=watch)
        if found.schedule is None or found.point is None:
            return None
        if found.better(watch.best):
            watch.best = found
        slots = self.form.slots
        point = np.zeros(self.form.linear.shape[1])
        own = self.lower.form.slots
        for slot, (stage, node) in enumerate(zip(own.stage.tolist(), own.node.tolist(), strict=True)):
            target = slots.at[stage, node]
            if target >= 0:
                count = len(self.form.stage.graph.computes[node].options)
                point[slots.column[target] :][:count] = found.point[own.column[slot] :][:count]
        return point

    def lean(self, found: Found, budget: int) -> Found:
        """Without reruns that the plan does not need: those a solver's tolerance left in, of next to no time."""
        if found.schedule is None or found.cost is None or found.cost.reruns > _LEAN:
            return found
        if self.form.linear.save.any():
            return found  # without a rerun, more may be held during the loss
        runs = list(found.schedule.runs)
        again = [at for at, run in enumerate(runs) if run.node in {one.node for one in runs[:at]}]
        for at in reversed(again):
            fewer = runs[:at] + runs[at + 1 :]
            schedule = Schedule.from_runs(self.graph, fewer)
            try:
                cost = validate(self.graph, schedule, budget)
            except InvalidSchedule:
                continue
            runs, found = fewer, evolve(found, schedule=schedule, cost=cost)
        return found

    def _ask(self, watch: Watch, gap: float, start: Floats | None, cutoff: float | None) -> Answer:
        limits = Limits(gap=gap, seconds=watch.remaining)
        seen = watch.seen if watch.listens else None
        return self.backend.solve(self.model, limits, start=start, cutoff=cutoff, seen=seen)

    def _second_opinion(self, watch: Watch, notes: list[str]) -> bool:
        """Whether infeasibility is said again."""
        limits = Limits(gap=self.gap, seconds=watch.remaining)
        again = self.backend.solve(self.model, limits, second=True, seen=watch.seen if watch.listens else None)
        notes.append(f"{again.note} (asked again, in another way)")
        if again.point is not None:
            replayed = self.replay(again.point, watch.budget)
            if isinstance(replayed, Found) and replayed.better(watch.best):
                watch.best = replayed
        return again.infeasible and again.point is None


def _cutoff(time: int, gap: float) -> float:
    """What a plan must beat to be worth looking for: the gap, and at least what the solver's tolerance can tell apart."""
    return min(time / (1 + gap), time * (1 - _TELL))


class Watch:
    """Takes incumbents while a solver works, keeps the best replayed plan, and says when to stop.

    Args:
        clock: a `Clock`, or None. who: named in its reports.
        minimum: incumbents that are not at least this fraction better than the last are not replayed.
    """

    def __init__(self, clock: Any = None, who: object = None) -> None:
        self.clock, self.who = clock, who
        self.programme: Programme | None = None
        self.budget = 0
        self.best = Found()

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
        """Whether anybody wants to know."""
        return self.clock is not None

    def seen(self, point: Floats | None, bound: int) -> bool:
        """An incumbent or a bound of a solver at work."""
        if point is not None and self.programme is not None:
            replayed = self.programme.replay(point, self.budget)
            if isinstance(replayed, Found) and replayed.better(self.best):
                self.best = replayed
                self._report(replayed, bound)
        return self.expired

    def _report(self, found: Found, bound: int) -> None:
        time = None if found.cost is None else found.cost.time
        # the bound is one of a class: it is shown, and never taken as proved
        self.clock.report(
            self.who, schedule=found.schedule, best=time, stage="programme", note=f"bound of the class {bound} ns"
        )
