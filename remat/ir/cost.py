"""What a replay reports: times, peak, the memory timeline, and on demand the intervals of a Gantt chart."""

from __future__ import annotations

from enum import Enum
from functools import cached_property

from attrs import field, frozen

from remat.ir.graph import Graph
from remat.ir.schedule import Schedule
from remat.ir.step import Run
from remat.units import Bytes, Ns


class Lane(Enum):
    """What an interval occupies: the compute stream, or one direction of the link."""

    COMPUTE = "compute"
    TO_HOST = "to host"
    TO_DEVICE = "to device"


@frozen
class Interval:
    """One run or one copy in time.

    Attributes:
        lane: what it occupies.
        what: the node run (with its option, as `F1#2`), or the datum copied.
        start, end: from the beginning of the step [ns].
        step: index of the step in the schedule.
    """

    lane: Lane
    what: str
    start: Ns
    end: Ns
    step: int


@frozen(kw_only=True)
class Cost:
    """What a valid schedule costs, by replay.

    Attributes:
        time: makespan of the step [ns]: runs, and waiting for copies.
        recomputation: time of all runs of nodes after their first [ns].
        idle: time the compute stream waited for copies [ns].
        peak: most bytes live at any moment, inputs and buffers not counted [bytes].
        peak_step: index of the first step that reaches the peak.
        reruns: number of runs of nodes after their first.
        timeline: device bytes live in each step: the most during a run (and the wait before it), after any other step.
        host_peak: most bytes of host copies at any step [bytes].
    """

    time: Ns
    recomputation: Ns = 0
    idle: Ns = 0
    peak: Bytes
    peak_step: int
    reruns: int = 0
    timeline: tuple[Bytes, ...] = field(repr=False)
    host_peak: Bytes = 0
    _host: tuple[Bytes, ...] = field(default=(), repr=False)
    _intervals: tuple[Interval, ...] | None = field(default=None, repr=False, eq=False)
    _played: tuple[Graph, Schedule] | None = field(default=None, repr=False, eq=False)

    @cached_property
    def host_timeline(self) -> tuple[Bytes, ...]:
        """Host bytes held for offloaded data after each step; as long as `timeline`."""
        return self._host or (0,) * len(self.timeline)

    @cached_property
    def intervals(self) -> tuple[Interval, ...]:
        """The runs and copies in time, by step."""
        if self._intervals is not None:
            return self._intervals
        return () if self._played is None else _runs_in_a_row(*self._played)

    @property
    def computations(self) -> tuple[Interval, ...]:
        """The intervals of the compute stream."""
        return tuple(interval for interval in self.intervals if interval.lane is Lane.COMPUTE)

    @property
    def copies(self) -> tuple[Interval, ...]:
        """The intervals of the two directions of the link."""
        return tuple(interval for interval in self.intervals if interval.lane is not Lane.COMPUTE)


def _runs_in_a_row(graph: Graph, schedule: Schedule) -> tuple[Interval, ...]:
    now = 0
    intervals = []
    for at, step in enumerate(schedule.steps):
        if isinstance(step, Run):
            end = now + graph.node(step.node).options[step.option].time
            intervals.append(Interval(Lane.COMPUTE, step.label, now, end, at))
            now = end
    return tuple(intervals)
