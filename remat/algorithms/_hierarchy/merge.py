"""`Merge`: small nodes that read from each other as one node, so that a search moves them together.

A group runs as one: its time is that of its nodes, data that only they read is part of its workspace, and a rerun runs all of it.
So every schedule of the smaller graph is one of the graph, and schedules are lost that run a part of a group again: the shorter
groups are, the less they matter. Source of the scheme: multilevel methods, as Hendrickson and Leland,
*A multilevel algorithm for partitioning graphs*, 1995, and Walshaw, *Multilevel refinement for combinatorial optimisation
problems*, 2004; the groups: this project.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import chain

from attrs import evolve, field, frozen

from remat.algorithms._core.clock import Clock
from remat.algorithms._core.problem import Problem
from remat.algorithms._core.solver import refuse_unless_flat
from remat.algorithms._core.transforms import Applied, Transform
from remat.ir import Compute, Graph, Option, Phase, Run, Schedule
from remat.settings import number

_LOOK = 200
"""Groups that are looked at for a path around a group; where there are more, a node is left out of it."""


@frozen
class Merge(Transform):
    """The graph with groups of small nodes merged; a schedule is lifted by running the nodes of each group one after the other.

    A node joins the group of a node that it reads from. Alone stay the loss, nodes that draw random numbers, run once or add to
    a sum, and backward nodes that lead to nothing kept.

    Attributes:
        share: of the time of the step, that a group may take.
        outputs: of the budget, that the outputs of a group may take; those of the node with the largest always may.
    """

    share: float = field(default=0.003, validator=number(0, 1))
    outputs: float = field(default=0.05, validator=number(0, 1))

    def refuses(self, graph: Graph) -> str | None:
        """Flat graphs only."""
        return refuse_unless_flat(graph)

    def apply(self, problem: Problem, *, clock: Clock | None = None, seed: int = 0) -> Applied:
        """The smaller graph, without the link."""
        graph = problem.graph
        written = [sum(graph.data[d].size for d in writes) for writes in graph.writes_by_node]
        room = max(int(self.outputs * problem.budget), *written)
        groups = _Groups(graph, int(self.share * graph.time), room)
        merged = _Merged(graph, groups)

        def lift(schedule: Schedule) -> Schedule:
            runs = [Run(name) for run in schedule.runs for name in merged.names[run.node]]
            return Schedule.from_runs(graph, runs)

        note = f"{len(graph)} nodes as {len(merged.names)}"
        return Applied(problem=evolve(problem, graph=merged.graph, link=None), lift=lift, note=note)


class _Groups:
    """Groups of nodes, by number; a node joins one if no path leads around it from the group to the node.

    Attributes:
        members: nodes of each group, ascending. of: the group of each node.
        before: groups that each group depends on.
    """

    def __init__(self, graph: Graph, longest: int, room: int) -> None:
        self.graph, self.longest, self.room = graph, longest, room
        self.members: list[list[int]] = []
        self.of: list[int] = []
        self.before: list[set[int]] = []
        self._time: list[int] = []
        self._bytes: list[int] = []
        for v in range(len(graph)):
            self._place(v)

    def _place(self, v: int) -> None:
        """Put a node into a group: one that it reads from, the latest first, or one of its own."""
        needed = {self.of[u] for u in self.graph.before_first_run[v]}
        group = next((group for group in self._sources(v) if not self._leads_to(group, needed - {group})), None)
        if group is None:
            group = len(self.members)
            self.members.append([])
            self.before.append(set())
            self._time.append(0)
            self._bytes.append(0)
        self.of.append(group)
        self.members[group].append(v)
        self.before[group] |= needed - {group}
        self._time[group] += self.graph.computes[v].option.time
        self._bytes[group] += self._written(v)

    def _written(self, v: int) -> int:
        """Bytes of the outputs of a node."""
        return sum(self.graph.data[d].size for d in self.graph.writes_by_node[v])

    def _sources(self, v: int) -> Iterator[int]:
        """Groups that a node reads from and that have room for it, the latest first."""
        graph, node, size = self.graph, self.graph.computes[v], self._written(v)
        sources = {self.of[w] for d in graph.reads_by_node[v] for w in graph.writers_by_data[d]}
        for group in sorted(sources, reverse=True) if self._may_join(v) else ():
            first = self.members[group][0]
            fits = self._time[group] + node.option.time <= self.longest and self._bytes[group] + size <= self.room
            if fits and self._may_join(first) and graph.computes[first].phase is node.phase:
                yield group

    def _may_join(self, v: int) -> bool:
        """Whether a node may be in a group with others: all of it may run again, whenever the others do."""
        graph, node = self.graph, self.graph.computes[v]
        free = node.phase is not Phase.LOSS and not node.draws and not node.run_once and v in graph.required
        return free and all(len(graph.writers_by_data[d]) == 1 for d in graph.writes_by_node[v])

    def _leads_to(self, group: int, others: Iterable[int]) -> bool:
        """Whether one of some groups depends on a group, as far as one looks."""
        begin, seen, left = self.members[group][0], set[int](), [*others]
        while left:
            other = left.pop()
            if other == group or len(seen) > _LOOK:
                return True
            if other not in seen and self.members[other][-1] > begin:
                seen.add(other)
                left += self.before[other]
        return False

    @cached_property
    def order(self) -> list[int]:
        """The groups in an order that dependencies allow, as near to that of their first nodes as they do."""
        after: list[list[int]] = [[] for _ in self.members]
        left = [len(groups) for groups in self.before]
        for group, groups in enumerate(self.before):
            for other in groups:
                after[other].append(group)
        ready = [(self.members[group][0], group) for group, count in enumerate(left) if not count]
        order = []
        while ready:
            _, group = heapq.heappop(ready)
            order.append(group)
            for other in after[group]:
                left[other] -= 1
                if not left[other]:
                    heapq.heappush(ready, (self.members[other][0], other))
        return order


class _Merged:
    """The graph of groups.

    Attributes:
        names: of the nodes of each group, by the name of the first, which is that of the group.
    """

    def __init__(self, graph: Graph, groups: _Groups) -> None:
        self._graph, self._inside = graph, _inside(graph, groups)
        names = [[graph.computes[v].name for v in members] for members in groups.members]
        self.names = {group[0]: group for group in names}
        first = {name: group[0] for group in names for name in group}
        data = tuple(
            evolve(datum, writers=tuple(first[name] for name in datum.writers))
            for d, datum in enumerate(graph.data)
            if d not in self._inside
        )
        computes = tuple(self._compute(groups.members[group]) for group in groups.order)
        self.graph = Graph(name=graph.name, computes=computes, data=data)

    def _compute(self, members: list[int]) -> Compute:
        """A group as one node. Hints that name other nodes are left out."""
        graph, node = self._graph, self._graph.computes[members[0]]
        if len(members) == 1:
            return evolve(node, twin="", after=())
        written = list(chain.from_iterable(graph.writes_by_node[v] for v in members))
        read = dict.fromkeys(chain.from_iterable(graph.reads_by_node[v] for v in members))
        outputs = [graph.data[d] for d in written if d not in self._inside]
        option = Option(
            time=sum(graph.computes[v].option.time for v in members),
            workspace=max(0, self._peak(members) - sum(datum.size for datum in outputs)),
        )
        return Compute(
            name=node.name,
            phase=node.phase,
            reads=tuple(graph.data[d].name for d in read if d not in written),
            writes=tuple(datum.name for datum in outputs),
            options=(option,),
        )

    def _peak(self, members: list[int]) -> int:
        """Bytes of what a group has made, and of the workspace, at most during its run."""
        graph, peak, resident = self._graph, 0, 0
        last = {d: v for v in members for d in (*graph.reads_by_node[v], *graph.writes_by_node[v])}
        for v in members:
            resident += sum(graph.data[d].size for d in graph.writes_by_node[v])
            peak = max(peak, resident + graph.computes[v].option.workspace)
            touched = {*graph.reads_by_node[v], *graph.writes_by_node[v]} & self._inside
            resident -= sum(graph.data[d].size for d in touched if last[d] == v)
        return peak


def _inside(graph: Graph, groups: _Groups) -> set[int]:
    """Data that a group of several nodes makes, and that no other node reads."""
    merged = [v for members in groups.members if len(members) > 1 for v in members]
    written = {d: groups.of[v] for v in merged for d in graph.writes_by_node[v] if not graph.data[d].keep}
    return {d for d, group in written.items() if all(groups.of[c] == group for c in graph.readers_by_data[d])}
