"""The optimum over all schedules with copies of a small graph."""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

from remat.algorithms._core.clock import Clock
from remat.algorithms._core.outcome import IMPOSSIBLE, Plan
from remat.algorithms._core.problem import Problem
from remat.algorithms._whole.timed_estimate import LEAST
from remat.algorithms._whole.timed_schedule import fastest_schedule
from remat.algorithms._whole.timed_search import (
    EMPTY,
    FULL,
    GOAL,
    GOES_ON,
    TOO_WIDE,
    Queue,
    empty_queue,
    explore,
    larger,
)
from remat.algorithms._whole.timed_tables import no_tables, tables_of
from remat.ir import Schedule
from remat.units import Ns

_ROOM = 1 << 17  # states at first
_STEPS = 10_000  # between looks at the clock


def plan_with_copies(problem: Problem, max_states: int, clock: Clock, without: Callable[[], Plan]) -> Plan:
    """The fastest schedule over a link with its proof; if the search stops early, a bound.

    First copies may start at any time, which bounds all schedules. If the validator says that no schedule takes so little with
    the copies issued by steps, a second search lets them start only where steps issue them. Where no copies are planned on such
    graphs, or the host has no room for those of the fastest schedules, the plan is the fastest one `without` copies.
    """
    reason = no_tables(problem)
    if reason is not None:
        bare = without()
        return Plan(
            schedule=bare.schedule,
            trail=(f"Exhaustive: schedules with copies are not searched, {reason}", *bare.trail),
        )
    bound = _searched(problem, max_states, clock, issued=False)
    lower = IMPOSSIBLE if bound.how == EMPTY else bound.time
    trail, best = [bound.words], bound.schedule(problem)
    clock.report("Exhaustive", schedule=best and best[0], best=best and best[1], bound=lower)
    if bound.how == GOAL and (best is None or best[1] > lower):
        steps = _searched(problem, max_states, clock, issued=True)
        trail.append(f"{steps.words} with copies issued by steps")
        plans = [plan for plan in (best, steps.schedule(problem)) if plan is not None]
        best = min(plans, key=lambda plan: plan[1], default=None)
        if best is None and steps.how in (GOAL, EMPTY):
            bare = without()
            trail += ["Exhaustive: the host has no room for the copies of the fastest schedules", *bare.trail]
            return Plan(schedule=bare.schedule, lower=lower, trail=tuple(trail))
    return Plan(schedule=None if best is None else best[0], lower=lower, trail=tuple(trail))


_WORDS = {
    GOAL: "searched",
    EMPTY: "impossible",
    FULL: "stopped",
    GOES_ON: "stopped",
    TOO_WIDE: "stopped, too many ways to drop data",
}


@frozen
class _Search:
    """A search that has ended.

    Attributes:
        how: it ended. time: its bound [ns]. queue: all states. at: the last of the fastest schedule, -1: none.
    """

    how: int
    time: Ns
    queue: Queue
    at: int

    @property
    def words(self) -> str:
        """For the trail."""
        return f"Exhaustive: {_WORDS[self.how]}, {self.queue.counts[2]} states"

    def schedule(self, problem: Problem) -> tuple[Schedule, Ns] | None:
        """The fastest schedule and its time, if the search came to its end and steps can say it [ns]."""
        return fastest_schedule(problem, self.queue, self.at) if self.how == GOAL else None


def _searched(problem: Problem, max_states: int, clock: Clock, *, issued: bool) -> _Search:
    """Search until the fastest schedule is there, or none, or the limit on states, or the deadline."""
    tables = tables_of(problem, issued=issued)
    queue = empty_queue(tables, _ROOM)
    how, at = GOES_ON, -1
    while how in (GOES_ON, FULL) and queue.counts[2] < max_states and not clock.expired:
        how, at = explore(tables, queue, min(_STEPS, max_states - int(queue.counts[2])))
        if how == FULL:
            queue = larger(queue)
    bound = queue.keys[0, 0] if at < 0 else queue.states[at, LEAST]
    return _Search(how, int(bound), queue, at)
