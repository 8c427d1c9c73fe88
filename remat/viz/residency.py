"""What is on the device when, and why: every stay of a datum, of a phantom and of a workspace, from a schedule and its replay.

The validator says how many bytes are live; pictures and exports also say whose they are. Times are those of the replay. The sum
over stays is the validator's number: at its height always, and at every step of a schedule without copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from functools import cached_property
from itertools import accumulate
from typing import TypeAlias

from attrs import define, field, frozen

from remat.errors import BadArgument
from remat.ir import Cost, Drop, Graph, Kind, Offload, Prefetch, Run, Schedule
from remat.ir.arguments import A_COST, A_GRAPH, A_SCHEDULE
from remat.settings import RULE, instance, takes
from remat.units import Bytes, Ns

Moment: TypeAlias = tuple[Ns, int, int]
"""A place in the order of changes: time, step (`IN_FLIGHT`: what began earlier ends, or a copy that waited begins), rank."""

IN_FLIGHT = -1


class Group(Enum):
    """What pictures color alike, from the bottom of a stack to its top."""

    RESULT = "outputs, buffers, random state"
    KEPT_GRADIENT = "gradients of parameters and inputs"
    ACTIVATION = "activations"
    PHANTOM = "saved for the backward alone"
    RECOMPUTED = "recomputed"
    GRADIENT = "gradients in passing"
    WORKSPACE = "workspaces and duplicates"


_GROUPS = {
    Kind.ACTIVATION: Group.ACTIVATION,
    Kind.PHANTOM: Group.PHANTOM,
    Kind.GRADIENT: Group.GRADIENT,
    Kind.TANGENT: Group.GRADIENT,
    Kind.PARAM_GRAD: Group.KEPT_GRADIENT,
    Kind.INPUT_GRAD: Group.KEPT_GRADIENT,
}
"""All other kinds are results."""


@frozen(kw_only=True)
class Stay:
    """One stay on the device, from the moment its bytes are charged until they are free.

    Attributes:
        name: of the datum or phantom; of a workspace or a further contribution, of the node that runs.
        size: [bytes], at least 1.
        group: how it is colored.
        kind: of the datum, in words.
        scope: path of the module of the node that makes it; empty: not known.
        step, until: the steps that bring it and end it; `until` is the number of steps where nothing ends it.
        start, end: [ns].
        made_by: the run, or the copy, that brings it.
        again: whether its node ran before: it is recomputed.
        keep: it stays to the end.
        reads: the steps that read it.
    """

    name: str
    size: Bytes
    group: Group
    kind: str
    scope: str
    step: int
    until: int
    start: Ns
    end: Ns
    made_by: str
    again: bool
    keep: bool
    reads: tuple[int, ...]
    entry: Moment = field(repr=False)
    exit: Moment = field(repr=False)


@frozen(kw_only=True, eq=False)
class Residency:
    """A schedule's bytes with their owners.

    Attributes:
        graph, schedule, cost: what was replayed, and the result.
        stays: in the order of their beginnings.
    """

    graph: Graph
    schedule: Schedule
    cost: Cost
    stays: tuple[Stay, ...] = field(repr=False)

    @cached_property
    def changes(self) -> tuple[tuple[Moment, Bytes, Stay], ...]:
        """Every change of the live bytes, in order: when, by how much, and whose."""
        both = [(stay.entry, stay.size, stay) for stay in self.stays]
        both += [(stay.exit, -stay.size, stay) for stay in self.stays]
        return tuple(sorted(both, key=lambda change: change[0]))

    @cached_property
    def levels(self) -> tuple[Bytes, ...]:
        """Live bytes after each change."""
        return tuple(accumulate(change for _, change, _ in self.changes))

    @cached_property
    def peak_time(self) -> Ns:
        """When the live bytes are first at their height [ns]."""
        return self.changes[self._highest][0][0] if self.levels else 0

    @cached_property
    def at_peak(self) -> tuple[Stay, ...]:
        """What is resident then, the largest first."""
        live: dict[int, Stay] = {}
        for _, change, stay in self.changes[: self._highest + 1]:
            if change > 0:
                live[id(stay)] = stay
            else:
                del live[id(stay)]
        return tuple(sorted(live.values(), key=lambda stay: (-stay.size, stay.name)))

    @cached_property
    def _highest(self) -> int:
        return max(range(len(self.levels)), key=self.levels.__getitem__, default=-1)

    @cached_property
    def by_group(self) -> Mapping[Group, Sequence[Bytes]]:
        """Live bytes of each group that occurs, after each change."""
        return {
            group: list(accumulate(change if stay.group is group else 0 for _, change, stay in self.changes))
            for group in Group
            if any(stay.group is group for stay in self.stays)
        }

    @cached_property
    def loss_time(self) -> Ns:
        """When the loss has run: the boundary between forward and backward [ns]."""
        loss = self.graph.computes[self.graph.loss].name
        return next(run.end for run in self.runs if run.node == loss)

    @cached_property
    def runs(self) -> tuple[Execution, ...]:
        """The runs in time, by step."""
        started: set[str] = set()
        runs = []
        for interval in self.cost.computations:
            step = self.schedule.steps[interval.step]
            assert isinstance(step, Run)
            again = step.node in started
            started.add(step.node)
            runs.append(Execution(step.node, step.option, interval.start, interval.end, interval.step, again))
        return tuple(runs)


@frozen
class Execution:
    """One run in time [ns]; `again`: the node ran before."""

    node: str
    option: int
    start: Ns
    end: Ns
    step: int
    again: bool


A_MEMORY = instance(Residency, "residency(graph, schedule, cost)")


@takes(graph=A_GRAPH, schedule=A_SCHEDULE, cost=A_COST)
def residency(graph: Graph, schedule: Schedule, cost: Cost) -> Residency:
    """Whose the bytes of a schedule are.

    Args:
        graph: the step.
        schedule: what was replayed on it.
        cost: what `validate` returned for them, with the link where there are copies.

    Raises:
        BadArgument: A-SETTING, where the cost is that of another schedule or graph.
    """
    if not _belongs(graph, schedule, cost):
        what = f"residency: the cost is not that of a schedule of {len(schedule)} steps on {graph.name!r:.100}."
        raise BadArgument(
            RULE, what, fix="give what `validate(graph, schedule)` returned, with the link if there is one."
        )
    walk = _Walk(graph, schedule, cost)
    walk.play()
    rank = {group: place for place, group in enumerate(Group)}
    stays = tuple(sorted(walk.stays, key=lambda stay: (stay.entry, rank[stay.group])))
    return Residency(graph=graph, schedule=schedule, cost=cost, stays=stays)


def _belongs(graph: Graph, schedule: Schedule, cost: Cost) -> bool:
    """Whether a cost has an interval for each run and copy of a schedule, of runs as long as they are in the graph."""
    times = {interval.step: interval.end - interval.start for interval in cost.intervals}
    if len(cost.timeline) != len(schedule):
        return False
    for at, step in enumerate(schedule.steps):
        if isinstance(step, Run):
            node = graph.node_index.get(step.node)
            options = () if node is None else graph.computes[node].options
            if step.option >= len(options) or times.get(at) != options[step.option].time:
                return False
        elif isinstance(step, (Offload, Prefetch)) and at not in times:
            return False
    return True


@define(kw_only=True)
class _Open:
    """A stay that has not ended."""

    name: str
    size: Bytes
    again: bool
    made_by: str
    scope: str
    step: int
    entry: Moment
    reads: list[int] = field(factory=list)


class _Walk:
    """The steps of a valid schedule in order; nothing is checked, which is the validator's work."""

    def __init__(self, graph: Graph, schedule: Schedule, cost: Cost) -> None:
        self.graph = graph
        self.schedule = schedule
        self.cost = cost
        self.spans = {interval.step: (interval.start, interval.end) for interval in cost.intervals}
        self.stays: list[Stay] = []
        self.open: dict[str, _Open] = {}
        self.offloaded: dict[str, Bytes] = {}
        self.arrives: dict[str, Ns] = {}
        self.started: set[str] = set()
        self.now: Ns = 0
        self.outside = {datum.name for datum in graph.data if datum.outside}

    def play(self) -> None:
        """Walk all steps; what is resident at the end stays to the end of the step."""
        for at, step in enumerate(self.schedule.steps):
            if isinstance(step, Run):
                self.run(at, step)
            elif isinstance(step, Prefetch):
                self.prefetch(at, step.datum)
            else:
                self.leave(at, step)
        end = (self.cost.time, len(self.schedule), 1)
        for name in tuple(self.open):
            self.close(name, len(self.schedule), end)

    def run(self, at: int, step: Run) -> None:
        """Charge outputs, duplicates and the workspace at its start; duplicates and workspace go at its end."""
        node, (start, end) = self.graph.node(step.node), self.spans[at]
        entry = (start, at, 0)
        leaves = (end, IN_FLIGHT if end > start else at, 0 if end > start else 1)
        again = step.node in self.started
        self.started.add(step.node)
        reads, makes = self.graph.touched(step)
        for name in reads:
            if name in self.open:
                self.open[name].reads.append(at)
        for name, size in makes.items():
            self.make(at, name, size, (entry, leaves), again=again, run=step)
        workspace = node.options[step.option].workspace
        if workspace:
            self.passing(at, step, workspace, (entry, leaves), "workspace")
        self.now = end

    def make(self, at: int, name: str, size: Bytes, times: tuple[Moment, Moment], *, again: bool, run: Run) -> None:
        """An output: a new stay, which ends an old one of a single writer, or a further contribution."""
        if name in self.outside:
            return
        entry, leaves = times
        if name in self.open and name in self.graph.data_index and len(self.graph.datum(name).writers) > 1:
            if size:
                self.passing(at, run, size, times, f"further contribution to {name}")
            return
        if name in self.open:
            self.close(name, at, leaves)
        scope = scope_of(self.graph, run.node)
        self.open[name] = _Open(name=name, size=size, again=again, made_by=run.label, scope=scope, step=at, entry=entry)

    def passing(self, at: int, run: Run, size: Bytes, times: tuple[Moment, Moment], kind: str) -> None:
        """Bytes that a run holds while it lasts."""
        entry, leaves = times
        self.stays.append(
            Stay(
                name=run.node, size=size, group=Group.WORKSPACE, kind=kind, scope=scope_of(self.graph, run.node),
                step=at, until=at, start=entry[0], end=leaves[0], made_by=run.label, again=False, keep=False,
                reads=(at,), entry=entry, exit=leaves,
            )
        )  # fmt: skip

    def leave(self, at: int, step: Drop | Offload | Prefetch) -> None:
        """A drop frees at once, when what still arrives is there; a copy to the host frees when it ends."""
        name = step.datum
        if isinstance(step, Offload):
            end = self.spans[at][1]
            self.offloaded[name] = self.open[name].size
            self.arrives.pop(name, None)
            self.close(name, at, (end, IN_FLIGHT, 0) if end > self.now else (end, at, 0))
            return
        self.now = max(self.now, self.arrives.pop(name, 0))
        self.close(name, at, (self.now, at, 0))

    def prefetch(self, at: int, name: str) -> None:
        """A copy back takes its bytes when it starts."""
        start, end = self.spans[at]
        self.arrives[name] = end
        entry = (start, IN_FLIGHT, 1) if start > self.now else (start, at, 0)
        self.open[name] = _Open(
            name=name, size=self.offloaded[name], again=False, made_by="copy from the host",
            scope=_scope(self.graph, name), step=at, entry=entry,
        )  # fmt: skip

    def close(self, name: str, until: int, leaves: Moment) -> None:
        """End a stay; one without bytes is none."""
        opened = self.open.pop(name)
        if not opened.size:
            return
        datum = self.graph.datum(name) if name in self.graph.data_index else None
        kind = Kind.PHANTOM if datum is None else datum.kind
        group = _GROUPS.get(kind, Group.RESULT)
        if opened.again and group in (Group.ACTIVATION, Group.PHANTOM):
            group = Group.RECOMPUTED
        self.stays.append(
            Stay(
                name=name, size=opened.size, group=group, kind=kind.value.replace("_", " "), scope=opened.scope,
                step=opened.step, until=until, start=opened.entry[0], end=leaves[0], made_by=opened.made_by,
                again=opened.again, keep=datum is not None and datum.keep, reads=tuple(opened.reads),
                entry=opened.entry, exit=leaves,
            )
        )  # fmt: skip


def _scope(graph: Graph, name: str) -> str:
    """The module of the first writer of a datum, or of the forward of a phantom's layer."""
    if name in graph.data_index:
        return scope_of(graph, graph.datum(name).writers[0])
    return next(scope_of(graph, layer.forward) for layer in graph.layers if layer.phantom == name)


def scope_of(graph: Graph, name: str) -> str:
    """The module of a node: its own, or that of the forward node to whose backward it belongs."""
    node = graph.node(name)
    return node.scope or (graph.node(node.twin).scope if node.twin else "")


def unit_of_time(time: Ns) -> tuple[str, Ns]:
    """The unit in which a step of this length is drawn: its name and its length [ns]."""
    units = (("s", 10**9), ("ms", 10**6), ("µs", 10**3))
    return next(((name, unit) for name, unit in units if time >= 2 * unit), ("ns", 1))


def names_of(stays: Sequence[Stay], count: int) -> Iterator[Stay]:
    """The first stays of a list that are worth a line, the same name once."""
    seen: set[str] = set()
    for stay in stays:
        if stay.name not in seen and len(seen) < count:
            seen.add(stay.name)
            yield stay


__all__ = ["Execution", "Group", "Residency", "Stay", "names_of", "residency", "scope_of", "unit_of_time"]
