"""Simulated time: laws about deadlines must not depend on the machine."""

from __future__ import annotations

import time
from typing import Any

from attrs import frozen

from remat.algorithms._core.clock import Clock
from remat.ir import Schedule
from remat.settings import optional, takes, whole


class Ticks:
    """A source of time that advances by `step` seconds each time it is read.

    Attributes:
        step: seconds per reading. looks: number of readings.
        end: the time at which the clock expires. over_since: the process time of the first reading after it.
    """

    def __init__(self, step: float = 1.0, end: float | None = None) -> None:
        self.step = step
        self.looks = 0
        self.end = end
        self.over_since: float | None = None

    def __call__(self) -> float:
        """The time [s]."""
        self.looks += 1
        if self.end is not None and self.over_since is None and self.step * self.looks >= self.end:
            self.over_since = time.process_time()
        return self.step * self.looks


@takes(looks=optional(whole(0)))
def memory_clock(looks: int | None = None) -> Clock:
    """A clock that expires after `looks` readings; None: never."""
    return Clock(None if looks is None else float(looks), now=Ticks())


@frozen(kw_only=True)
class Reported:
    """One report to a clock: the schedule, its time as reported, the bound."""

    schedule: Schedule | None
    best: Any
    bound: Any


class RecordingClock(Clock):
    """A clock with simulated time that records every report made to it.

    Attributes:
        ticks: its source of time. reports: in order.
    """

    def __init__(self, looks: int | None = None) -> None:
        # the clock itself reads the time once, when it starts
        self.ticks = Ticks(end=None if looks is None else float(looks) + 1)
        self.reports: list[Reported] = []
        super().__init__(None if looks is None else float(looks), now=self.ticks)

    def report(self, who: object, **more: Any) -> None:
        """Record the report, and pass it on."""
        schedule = more.get("schedule")
        written = schedule() if callable(schedule) else schedule
        self.reports.append(Reported(schedule=written, best=more.get("best"), bound=more.get("bound", 0)))
        super().report(who, **more)


__all__ = ["RecordingClock", "Reported", "Ticks", "memory_clock"]
