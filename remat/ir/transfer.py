"""The replay of schedules with copies (S-LINK): compute and two lanes of a link in time, waiting included.

Time is explicit here. The compute stream runs the steps in order; `now` is where its last run ended. Bytes change while it
runs or waits, at *events* known in advance: an offload that ends frees its bytes, a prefetch that starts takes them.
The rules, in words: `docs/reference/rules.md`, S-LINK.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from typing import TYPE_CHECKING

from attrs import frozen

from remat import errors
from remat.ir.cost import Cost, Interval, Lane
from remat.ir.graph import Graph
from remat.ir.replay import Replay
from remat.ir.schedule import Schedule
from remat.ir.step import Drop, Offload, Prefetch, Run, Step
from remat.units import Bytes, Ns

if TYPE_CHECKING:
    from remat.ir.link import Link


@frozen
class _HostCopy:
    """A copy on the host: contributions (a phantom: the option) it holds, and when it is whole."""

    done: int
    whole: Ns


class LinkReplay(Replay):
    """The state of a replay with a link."""

    def __init__(self, graph: Graph, schedule: Schedule, budget: Bytes | None, link: Link) -> None:
        super().__init__(graph, schedule, budget)
        self.link = link
        self.now: Ns = 0
        self.lane_free = {Lane.TO_HOST: 0, Lane.TO_DEVICE: 0}
        self.events: list[tuple[Ns, Bytes]] = []  # (time, change of live bytes), sorted: frees before takes
        self.arrives: dict[str, Ns] = {}  # when a prefetched cell is readable
        self.host: dict[str, _HostCopy] = {}
        self.host_bytes: dict[str, Bytes] = {}
        self.host_live: Bytes = 0  # their sum
        self.host_frees: list[tuple[Ns, Bytes]] = []  # when the last prefetch of a host copy ends, and its bytes
        self.host_timeline: list[Bytes] = []
        self.idle: Ns = 0
        self.intervals: list[Interval] = []
        self.last_prefetch = _last_prefetches(schedule)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def run(self, step: Run) -> None:
        """Wait until every read has arrived and the run fits the budget together with the copies under way; then run."""
        node, reads, phantom = self.check(step)
        option = node.options[step.option]
        ready = self.now
        for name in (*reads, *node.writes, *self.phantom_of(step)):
            if name in self.arrives:
                ready = max(ready, self.arrives[name])
        extra = option.workspace + (phantom[1] if phantom else 0)
        for name in node.writes:
            extra += self.size[name]
        peak = self.wait_for(ready, option.time, extra, step)
        start = self.now
        self.now += option.time
        self.apply_events(before=self.now)
        for name in (*node.writes, *((phantom[0],) if phantom else ())):
            self.forget_copy(name)
        self.store(node, phantom, step)
        self.apply_frees()
        self.book(node, option.time)
        self.intervals.append(Interval(Lane.COMPUTE, step.label, start, self.now, self.step))
        self.note(peak)

    def drop(self, step: Drop) -> None:
        """Free a cell; one that is still arriving is waited for."""
        if self.arrives.get(step.datum, 0) > self.now:
            peak = self.wait_for(self.arrives[step.datum], 0, 0, step)
        else:
            peak = 0
        super().drop(step)
        self.timeline.pop()
        self.arrives.pop(step.datum, None)
        self.note(max(peak, self.live))

    def copy(self, step: Step) -> None:
        """Make a copy."""
        if isinstance(step, Offload):
            self.offload(step)
        elif isinstance(step, Prefetch):
            self.prefetch(step)
        self.note(self.live)

    def offload(self, step: Offload) -> None:
        """Start a copy to the host; the cell may not be read on the device from here on."""
        name = step.datum
        if name not in self.done:
            self.check_name(name, step)
            fix = "leave the offload out, or produce it first."
            raise self.wrong(errors.NotResident, "S-DROP", f"{name} is not resident.", step, fix)
        if name in self.writers and not self.writers[name]:
            what = f"{name} is an input or buffer; it lives outside the step."
            raise self.wrong(errors.NotResident, "S-DROP", what, step, "leave the offload out.")
        if name in self.writers and self.done[name] != len(self.writers[name]):
            raise self.missing(name, step)
        if name in self.kept:
            raise self.wrong(errors.KeptDropped, "S-KEEP", f"{name} is kept and complete.", step, "leave it resident.")
        size = self.bytes_of(name)
        start = max(self.now, self.lane_free[Lane.TO_HOST], self.arrives.pop(name, 0))
        end = start + self.link.offload_time(size)
        self.forget_copy(name)
        self.host[name] = _HostCopy(self.done.pop(name), end)
        self.host_bytes[name] = size
        self.host_live += size
        self.occupy(Lane.TO_HOST, name, start, end)
        insort(self.events, (end, -size))
        self.apply_frees()

    def prefetch(self, step: Prefetch) -> None:
        """Queue a copy to the device."""
        name = step.datum
        if name in self.done:
            what = f"{name} is resident already."
            raise self.wrong(errors.NotResident, "S-DROP", what, step, "leave the prefetch out.")
        if name not in self.host:
            self.check_name(name, step)
            fix = "offload it first, or recompute it."
            raise self.wrong(errors.NotResident, "S-DROP", f"{name} has no copy on the host.", step, fix)
        copy_on_host = self.host[name]
        self.done[name] = copy_on_host.done
        size = self.bytes_of(name)
        start = self.earliest(max(self.now, self.lane_free[Lane.TO_DEVICE], copy_on_host.whole), size, step)
        end = start + self.link.prefetch_time(size)
        self.arrives[name] = end
        self.occupy(Lane.TO_DEVICE, name, start, end)
        if start <= self.now:
            self.live += size
        else:
            insort(self.events, (start, size))
        if self.step in self.last_prefetch:
            self.host_frees.append((end, self.host_bytes.pop(name)))

    def finish(self) -> Cost:
        """Wait for the copies under way; they are part of the step."""
        end = max(self.now, *self.lane_free.values())
        peak = self.wait_for(end, 0, 0, None)
        if self.timeline:
            self.timeline[-1] = max(self.timeline[-1], peak)
        self.time = self.now
        cost = super().finish()
        return Cost(
            time=cost.time,
            recomputation=cost.recomputation,
            idle=self.idle,
            peak=cost.peak,
            peak_step=cost.peak_step,
            reruns=cost.reruns,
            timeline=cost.timeline,
            host_peak=max(self.host_timeline, default=0),
            host=tuple(self.host_timeline),
            intervals=tuple(self.intervals),
        )

    # -- time ----------------------------------------------------------------------------------------------------------

    def wait_for(self, ready: Ns, time: Ns, extra: Bytes, step: Step | None) -> Bytes:
        """Move `now` to the earliest start from `ready` on at which `extra` bytes fit for `time`; the most bytes live."""
        if not self.events and (self.budget is None or self.live + extra <= self.budget):
            self.idle += ready - self.now
            self.now = ready
            return self.live + extra
        peaks = []
        for start in self.starts(ready):
            peak = self.peak_of(start, time, extra)
            if self.budget is None or peak <= self.budget:
                self.idle += start - self.now
                self.now = start
                self.apply_events(before=start + 1)
                return peak
            peaks.append(peak)
        raise self.over_budget(min(peaks), step)

    def starts(self, ready: Ns) -> Iterator[Ns]:
        """Times at which a wait may end: when all is ready, and when an offload frees bytes after that."""
        yield ready
        for when, change in self.events:
            if when > ready and change < 0:
                yield when

    def peak_of(self, start: Ns, time: Ns, extra: Bytes) -> Bytes:
        """The most bytes live while waiting until `start`, and then with `extra` bytes for `time`."""
        level = waited = self.live
        events = iter(self.events)
        ran = None
        for when, change in events:
            if when > start and ran is None:
                ran = level + extra
            if when >= start + time and when > start:
                break
            level += change
            if ran is None:
                waited = max(waited, level)
            else:
                ran = max(ran, level + extra)
        return max(waited, level + extra if ran is None else ran)

    def earliest(self, ready: Ns, size: Bytes, step: Prefetch) -> Ns:
        """When a prefetch can start: its bytes fit on top of what is live, given the copies under way."""
        level = self.live + sum(change for when, change in self.events if when <= ready)
        levels = [(ready, level)]
        for when, change in self.events:
            if when > ready:
                level += change
                levels.append((when, level))
        for when, level in levels:
            if self.budget is None or level + size <= self.budget:
                return when
        raise self.over_budget(levels[-1][1] + size, step)

    def apply_events(self, *, before: Ns) -> None:
        """Let the events before a time happen."""
        done = 0
        for when, change in self.events:
            if when >= before:
                break
            self.live += change
            done += 1
        del self.events[:done]

    def apply_frees(self) -> None:
        """Free the bytes of offloads that have ended; a prefetch that starts this very moment waits for the next step."""
        while self.events and self.events[0][0] <= self.now and self.events[0][1] <= 0:
            self.live += self.events.pop(0)[1]

    # -- books ---------------------------------------------------------------------------------------------------------

    def phantom_of(self, step: Run) -> tuple[str, ...]:
        """The phantom that a run of a layer's node reads or makes; the no-save forward touches none."""
        layer = self.graph.layer_by_node.get(step.node)
        return () if layer is None or step.option == len(layer.options) else (layer.phantom,)

    def forget_copy(self, name: str) -> None:
        """A cell that is recomputed, or offloaded again, has no older copy on the host."""
        self.arrives.pop(name, None)
        if self.host.pop(name, None) is not None:
            self.host_live -= self.host_bytes.pop(name, 0)  # after the last prefetch: freed when that ends

    def occupy(self, lane: Lane, name: str, start: Ns, end: Ns) -> None:
        """Book a copy."""
        self.lane_free[lane] = end
        self.intervals.append(Interval(lane, name, start, end, self.step))

    def note(self, live: Bytes) -> None:
        """Close the step: its bytes on the device and on the host."""
        if self.host_frees:
            self.host_live -= sum(size for end, size in self.host_frees if end <= self.now)
            self.host_frees = [(end, size) for end, size in self.host_frees if end > self.now]
        self.timeline.append(live)
        self.host_timeline.append(self.host_live)


def _last_prefetches(schedule: Schedule) -> set[int]:
    """The steps that prefetch a host copy for the last time: its bytes on the host are free when they end."""
    last: set[int] = set()
    later: set[str] = set()
    for at in range(len(schedule.steps) - 1, -1, -1):
        step = schedule.steps[at]
        if isinstance(step, Prefetch) and step.datum not in later:
            later.add(step.datum)
            last.add(at)
        elif isinstance(step, Offload):
            later.discard(step.datum)
    return last
