"""When copies start and where the compute lane waits: a schedule with copies as the actions of generated code.

The replay knows when each copy starts and ends if the link is as fast as stated. Generated code must be right whatever
the link does, so
nothing here depends on time for safety: memory of a copy out is freed behind its event, just before the bytes are
needed, and what is copied back is waited for before it is read. Time decides only how early a copy back is issued:
where the replay starts it, or behind the run during which the replay starts it if its bytes would otherwise have to
wait. Hence at every point no more bytes are taken than the replay's peak, however slow the link is.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from attrs import define, field, frozen

from remat.errors import RematError
from remat.exec._copy.host_pool import rounded
from remat.ir import Cost, Drop, Graph, Offload, Prefetch, Run, Schedule
from remat.units import Bytes, Ns


@frozen
class CopyOut:
    """Start to copy a datum to the host; its memory is taken until `Free`."""

    datum: str


@frozen
class Free:
    """Wait for the end of the oldest copy out, which is that of a datum, and free its memory."""

    datum: str


@frozen
class CopyBack:
    """Allocate a datum and start to copy it back."""

    datum: str


@frozen
class Arrive:
    """Wait until a datum has arrived."""

    datum: str


@frozen
class Forget:
    """Give the host memory of a datum back, after the copies that use it."""

    datum: str


Action: TypeAlias = Run | Drop | CopyOut | Free | CopyBack | Arrive | Forget


def actions_of(graph: Graph, schedule: Schedule, cost: Cost) -> tuple[Action, ...]:
    """The actions of a schedule.

    Args:
        graph: without layers.
        schedule: valid, with or without copies.
        cost: of its replay with a link; the actions hold at most its peak.

    Raises:
        RematError: X-COPY, when the graph has layers.
    """
    if graph.layers:
        raise RematError("X-COPY", "copies of phantoms of layers cannot be run.", fix="expand the schedule first.")
    placing = _Placing(graph, cost)
    for at, step in enumerate(schedule.steps):
        placing.take(at, step)
    return tuple(_with_forgetting(graph, placing.actions))


@frozen
class _Queued:
    """A copy back that was not issued yet: datum, bytes, and when the replay starts it."""

    datum: str
    size: Bytes
    start: Ns


@define(eq=False)
class _Placing:
    """The actions so far, and the bytes they hold.

    Attributes:
        graph: of the schedule.
        cost: its replay.
        actions: so far.
        live: bytes taken, those of copies out that were not freed included [bytes].
        now: when the last run ended in the replay [ns].
        leaving: (datum, bytes, end in the replay) of copies out that were not freed, in the order of the lane.
        queued: copies back that were not issued.
        arriving: copies back that were not waited for.
        resident: data on the device.
        valid: data whose copy on the host is valid.
    """

    graph: Graph
    cost: Cost
    actions: list[Action] = field(factory=list)
    live: Bytes = 0
    now: Ns = 0
    leaving: deque[tuple[str, Bytes, Ns]] = field(factory=deque)
    queued: deque[_Queued] = field(factory=deque)
    arriving: set[str] = field(factory=set)
    resident: set[str] = field(factory=set)
    valid: set[str] = field(factory=set)
    _times: dict[int, tuple[Ns, Ns]] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._times = {interval.step: (interval.start, interval.end) for interval in self.cost.intervals}

    def take(self, at: int, step: object) -> None:
        """The actions of one step."""
        if isinstance(step, Run):
            self.run(at, step)
        elif isinstance(step, Drop):
            self.drop(step.datum)
        elif isinstance(step, Offload):
            self.offload(at, step.datum)
        elif isinstance(step, Prefetch):
            self.queued.append(_Queued(step.datum, self.size(step.datum), self._times[at][0]))
            self.issue(before=self.now)

    def run(self, at: int, step: Run) -> None:
        start, end = self._times[at]
        node = self.graph.node(step.node)
        extra = node.options[step.option].workspace + sum(map(self.size, node.writes))
        self.issue(before=start)
        while self.queued and self.queued[0].start < end and self.fits_unwaited(start, extra):
            self.copy_back()
        for name in (*node.reads, *node.writes):
            self.arrive(name)
        self.make_room(extra)
        self.actions.append(step)
        for name in node.writes:
            if name not in self.resident:
                self.resident.add(name)
                self.live += self.size(name)
            self.valid.discard(name)
        self.now = end

    def drop(self, name: str) -> None:
        """Drop a datum; one that was not issued yet is not copied at all."""
        if self.is_queued(name):
            self.queued = deque(copy for copy in self.queued if copy.datum != name)
            return
        self.arrive(name)
        self.actions.append(Drop(name))
        self.resident.discard(name)
        self.live -= self.size(name)

    def offload(self, at: int, name: str) -> None:
        """Copy a datum out; one whose copy is valid is only dropped."""
        if name in self.valid:
            self.drop(name)
            return
        self.actions.append(CopyOut(name))
        self.leaving.append((name, self.size(name), self._times[at][1]))
        self.resident.discard(name)
        self.valid.add(name)

    def issue(self, before: Ns) -> None:
        """Issue the copies back that the replay has started by a time."""
        while self.queued and self.queued[0].start <= before:
            self.copy_back()

    def copy_back(self) -> None:
        """Issue the first copy back of the queue."""
        copy = self.queued.popleft()
        self.make_room(copy.size)
        self.actions.append(CopyBack(copy.datum))
        self.live += copy.size
        self.resident.add(copy.datum)
        self.arriving.add(copy.datum)

    def fits_unwaited(self, now: Ns, extra: Bytes) -> bool:
        """Whether the first copy back of the queue and a run fit with the copies out that have ended by now in the replay."""
        ended = sum(size for _, size, end in self.leaving if end <= now)
        return self.live - ended + self.queued[0].size + extra <= self.cost.peak

    def arrive(self, name: str) -> None:
        if name in self.arriving:
            self.arriving.discard(name)
            self.actions.append(Arrive(name))

    def make_room(self, extra: Bytes) -> None:
        """Free copies out, the oldest first, until some more bytes fit."""
        while self.live + extra > self.cost.peak:
            name, size, _ = self.leaving.popleft()
            self.actions.append(Free(name))
            self.live -= size

    def is_queued(self, name: str) -> bool:
        return any(copy.datum == name for copy in self.queued)

    def size(self, name: str) -> Bytes:
        datum = self.graph.datum(name)
        return 0 if datum.outside else datum.size


def host_need(graph: Graph, actions: Iterable[Action]) -> Bytes:
    """Bytes of all host buffers that a step takes from an empty pool [bytes]; buffers serve copies of their size again."""
    total: Bytes = 0
    unused: Counter[Bytes] = Counter()
    for action in actions:
        if not isinstance(action, (CopyOut, Forget)):
            continue
        size = rounded(graph.datum(action.datum).size)
        if isinstance(action, Forget):
            unused[size] += 1
        elif unused[size]:
            unused[size] -= 1
        else:
            total += size
    return total


def _with_forgetting(graph: Graph, actions: list[Action]) -> Iterator[Action]:
    """Host memory goes back with the last copy that uses it."""
    last: set[int] = set()
    later: set[str] = set()
    for at in range(len(actions) - 1, -1, -1):
        action = actions[at]
        if isinstance(action, (CopyOut, CopyBack)) and action.datum not in later:
            last.add(at)
        if isinstance(action, CopyBack):
            later.add(action.datum)
        elif isinstance(action, CopyOut):
            later.discard(action.datum)
        elif isinstance(action, Run):
            later.difference_update(graph.node(action.node).writes)
    for at, action in enumerate(actions):
        yield action
        if at in last:
            assert isinstance(action, (CopyOut, CopyBack))
            yield Forget(action.datum)


__all__ = ["Action", "Arrive", "CopyBack", "CopyOut", "Forget", "Free", "actions_of", "host_need"]
