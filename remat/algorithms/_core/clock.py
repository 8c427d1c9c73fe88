"""The clock of a solver: how long it may run, whether it was stopped, and where it reports progress.

Deadlines are cooperative: a solver asks `clock.expired` between pieces of work and hands its best plan to `clock.report`, so
that an interruption loses nothing. Tests supply their own time source (`now=`), so that laws do not depend on the machine.
Seconds spent compiling kernels are not counted: on a fresh machine they would use up a deadline before planning begins.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from attrs import evolve, frozen

from remat.algorithms._core.startup import planning_timer
from remat.ir import Schedule
from remat.settings import SECONDS, function, instance, optional
from remat.units import Ns

_LIMIT = optional(SECONDS)

Written = Callable[[], Schedule | None]
"""Writes the best plan out as a schedule when it is asked for."""


@frozen(kw_only=True)
class Progress:
    """The progress of a solver.

    Attributes:
        who: the solver. elapsed: seconds since the clock started.
        stage: what it is doing: the pass of a search, the part of a combinator, `sweep` of a curve.
        done, total: completed pieces of work, and how many there are; a total of 0: not known.
        best: time of the best plan so far by the solver's own account, or None [ns].
        bound: best bound so far, certified or claimed [ns].
        note: a short text for the user, or empty.
    """

    who: str
    elapsed: float
    stage: str = ""
    done: int = 0
    total: int = 0
    best: Ns | None = None
    bound: Ns | float = 0
    note: str = ""

    @property
    def gap(self) -> float | None:
        """Gap between plan and bound as a fraction of the bound, where both exist."""
        return None if self.best is None or self.bound <= 0 or math.isinf(self.bound) else self.best / self.bound - 1


class Clock:
    """Time left, a stop flag, the best plan reported so far, the listener, and the time spent by purpose.

    `spent` holds seconds by purpose (`plan`, `bound`), without imports and compilation; `effort` counts what kernels and linear
    programs have done, as the seconds that it usually takes, the same on every machine. Both include those of nested clocks.

    Args:
        seconds: how long the work may take; None: no limit.
        now: the source of time, in seconds; None: `planning_timer()`.
        listener: called with each `Progress`; None: nobody listens.
    """

    def __init__(
        self,
        seconds: float | None = None,
        *,
        now: Callable[[], float] | None = None,
        listener: Callable[[Progress], None] | None = None,
        parent: Clock | None = None,
    ) -> None:
        _LIMIT.check(seconds, "Clock: seconds")
        optional(function("time.perf_counter")).check(now, "Clock: now")
        optional(function("print")).check(listener, "Clock: listener")
        A_CLOCK.check(parent, "Clock: parent")
        self._now = planning_timer() if now is None else now
        self._start = self._now()
        self._end = math.inf if seconds is None else self._start + seconds
        self._listener = listener
        self._parent = parent
        self._stopped = False
        self._best: Schedule | Written | None = None
        self.lower: Ns | float = 0
        self.spent: dict[str, float] = {}
        self.effort = 0.0

    @property
    def best(self) -> Schedule | None:
        """The last plan reported; None: none was."""
        if callable(self._best):
            self._best = self._best()
        return self._best

    @property
    def elapsed(self) -> float:
        """Seconds since this clock was created, compilation excluded."""
        return self._now() - self._start

    @property
    def remaining(self) -> float:
        """Seconds left, infinite without a limit, 0 when stopped; the earliest of nested limits counts."""
        if self._stopped:
            return 0.0
        left = max(0.0, self._end - self._now())
        return left if self._parent is None else min(left, self._parent.remaining)

    @property
    def expired(self) -> bool:
        """Whether the time is over or the work was stopped."""
        return self.remaining <= 0

    @property
    def stopped(self) -> bool:
        """Whether the work was stopped, by the user or by the owner of this clock."""
        return self._stopped or (self._parent is not None and self._parent.stopped)

    def charge(self, purpose: str, seconds: float) -> None:
        """Add seconds to the time spent on a purpose, here and in the enclosing clocks."""
        self.spent[purpose] = self.spent.get(purpose, 0.0) + seconds
        if self._parent is not None:
            self._parent.charge(purpose, seconds)

    def count(self, effort: float) -> None:
        """Add to the effort, here and in the enclosing clocks [s]."""
        self.effort += effort
        if self._parent is not None:
            self._parent.count(effort)

    def stop(self) -> None:
        """Stop the work of this clock and of every enclosing clock."""
        self._stopped = True
        if self._parent is not None:
            self._parent.stop()

    def nested(self, seconds: float | None = None) -> Clock:
        """A clock for a part of the work: at most the time left here; when the user stops it, this clock stops too."""
        return Clock(seconds, now=self._now, listener=self._listener, parent=self)

    def aside(self, seconds: float | None = None) -> Clock:
        """A nested clock for work on another problem: its plans and bounds are not recorded here; listeners receive the rest."""
        listener = self._listener
        heard = None if listener is None else lambda progress: listener(evolve(progress, best=None, bound=0))
        return Clock(seconds, now=self._now, listener=heard, parent=self)

    def report(
        self,
        who: object,
        *,
        schedule: Schedule | Written | None = None,
        best: Ns | None = None,
        bound: Ns | float = 0,
        stage: str = "",
        done: int = 0,
        total: int = 0,
        note: str = "",
    ) -> None:
        """Report progress; `schedule`, or what it returns then, is the plan that is kept when the work is interrupted.

        A solver reports only improvements of its own plan. `best` is the time that the solver computed for it (displayed, never
        used as a result); the other arguments are those of `Progress`.
        """
        if schedule is not None:
            self._best = schedule
        self.lower = max(self.lower, bound)
        if self._listener is not None:
            progress = Progress(
                who=repr(who),
                elapsed=self.elapsed,
                stage=stage,
                done=done,
                total=total,
                best=best,
                bound=self.lower,
                note=note,
            )
            self._listener(progress)


A_CLOCK = optional(instance(Clock, "Clock(5.0)"))


def lower_clock(clock: Clock | None) -> Clock:
    """For the levels below the one that has this clock: at most half of the time left, so that this level is planned too."""
    if clock is None:
        return Clock()
    return clock.aside(clock.remaining / 2 if math.isfinite(clock.remaining) else None)
