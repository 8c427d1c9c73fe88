"""`FoldRunOnce`: small nodes that run once, taken out of the planning: saves of random states, and updates of buffers.

A captured graph saves the state of the generator before each node whose random numbers a rerun draws again, and it updates the
statistics of BatchNorm. Such a node runs once, at a time that is known: a save right before the first run of its reader, an
update right after the first run of what it reads. Left in, a save keeps the draws on its two sides out of one cluster, and
updates are most of the nodes of a top level. The graphs of Rockmate and HiRemate have neither.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import ClassVar

from attrs import evolve, field, frozen

from remat.algorithms._core.clock import Clock
from remat.algorithms._core.problem import Problem
from remat.algorithms._core.transforms import Applied, Transform
from remat.ir import Compute, Graph, Kind, Phase, Run, Schedule
from remat.settings import number
from remat.units import Bytes


@frozen
class FoldRunOnce(Transform):
    """The graph without its saves of random states and its updates of buffers, and the budget without their bytes.

    Folded are saves whose state has one reader, the next node that draws; and forward nodes that run once and draw nothing,
    whose results are kept or read by such nodes alone. A schedule is lifted with their runs put in: its time is that of the
    folded graph and of the nodes, its peak at most that of the folded graph and the bytes taken off. A link is left out.

    Attributes:
        share: most of the budget that may be taken off for them; where more is needed, nothing is folded.
    """

    carries_starts: ClassVar[bool] = True

    share: float = field(default=0.05, validator=number(0, 1))

    def apply(self, problem: Problem, *, clock: Clock | None = None, seed: int = 0) -> Applied:
        """The graph without the nodes; their runs are put in where a schedule is lifted."""
        graph = problem.graph
        folded = _Folded(graph)
        reserve = folded.reserve
        if not folded.names or reserve > self.share * problem.budget:
            return Applied(problem=problem, lift=lambda schedule: schedule, carry=lambda schedule: schedule)
        rest = folded.rest()
        return Applied(
            problem=evolve(problem, graph=rest, budget=problem.budget - reserve, link=None),
            lift=lambda schedule: Schedule.from_runs(graph, folded.with_runs(schedule.runs)),
            note=f"{len(folded.names)} nodes that run once folded ({reserve} B)",
            carry=lambda schedule: Schedule.from_runs(rest, [r for r in schedule.runs if r.node not in folded.names]),
        )


class _Folded:
    """The nodes of a graph that are folded.

    Attributes:
        save_of: the save before each reader of a random state, by name. updates: by index, in the graph's order.
        names: of all of them.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.save_of = _saves(graph) if graph.flat else {}
        self.updates = _updates(graph) if graph.flat else []
        self.names = {*self.save_of.values(), *(graph.computes[i].name for i in self.updates)}

    @property
    def reserve(self) -> Bytes:
        """Bytes of all they read of the step and write, and the largest workspace."""
        nodes = [self.graph.node(name) for name in self.names]
        touched = {name for node in nodes for name in (*node.reads, *node.writes)}
        data = [datum for name in touched if not (datum := self.graph.datum(name)).outside]
        return sum(datum.size for datum in data) + max((node.option.workspace for node in nodes), default=0)

    def rest(self) -> Graph:
        """The graph without them and what they write; hints that name them are left out."""
        outputs = {name for folded in self.names for name in self.graph.node(folded).writes}

        def apart(node: Compute) -> Compute:
            reads = tuple(name for name in node.reads if name not in outputs)
            after = tuple(name for name in node.after if name not in self.names)
            return evolve(node, reads=reads, after=after, twin="" if node.twin in self.names else node.twin)

        computes = tuple(apart(node) for node in self.graph.computes if node.name not in self.names)
        touched = {name for node in computes for name in (*node.reads, *node.writes)}
        data = tuple(datum for datum in self.graph.data if datum.name not in outputs and datum.name in touched)
        return Graph(name=self.graph.name, computes=computes, data=data, layers=self.graph.layers)

    def with_runs(self, runs: Iterable[Run]) -> list[Run]:
        """A run sequence with theirs: each save before the first run of its reader, each update once it can run."""
        graph, saves = self.graph, dict(self.save_of)
        missing = {i: {w for d in graph.reads_by_node[i] for w in graph.writers_by_data[d]} for i in self.updates}
        lifted: list[Run] = []

        def update() -> None:
            for i in self.updates:  # in the graph's order: what an update reads of another one comes first
                if i in missing and not missing[i]:
                    lifted.append(Run(graph.computes[i].name))
                    ran(i)
                    del missing[i]

        def ran(index: int) -> None:
            for left in missing.values():
                left.discard(index)

        update()
        seen: set[str] = set()
        for run in runs:
            if run.node in saves:
                lifted.append(Run(saves.pop(run.node)))
            lifted.append(run)
            if run.node not in seen:
                seen.add(run.node)
                ran(graph.node_index[run.node])
                update()
        return lifted


def _saves(graph: Graph) -> dict[str, str]:
    """For each reader of a random state, the node that saves it, where it is the reader's alone and right before it."""
    draws = [i for i, node in enumerate(graph.computes) if node.draws]
    saves = {}
    for i, following in pairwise(draws):
        save, reader = graph.computes[i], graph.computes[following]
        only = graph.readers_by_data[graph.writes_by_node[i][0]] == (following,) if _saves_a_state(graph, i) else False
        if only and save.phase is reader.phase:
            saves[reader.name] = save.name
    return saves


def _saves_a_state(graph: Graph, i: int) -> bool:
    """Whether a node does nothing but save a random state, once."""
    node, writes = graph.computes[i], graph.writes_by_node[i]
    if not node.run_once or len(writes) != 1 or any(graph.writers_by_data[d] for d in graph.reads_by_node[i]):
        return False
    state = graph.data[writes[0]]
    return state.kind is Kind.RNG_STATE and not state.keep and len(state.writers) == 1


def _updates(graph: Graph) -> list[int]:
    """Forward nodes that run once, draw nothing, and make what is kept or read by such nodes alone."""
    folded: set[int] = set()
    for i in reversed(range(graph.loss)):
        node, writes = graph.computes[i], graph.writes_by_node[i]
        if node.phase is not Phase.FORWARD or not node.run_once or node.draws:
            continue
        alone = all(len(graph.writers_by_data[d]) == 1 and folded.issuperset(graph.readers_by_data[d]) for d in writes)
        kept = all(graph.data[d].keep or graph.readers_by_data[d] for d in writes)
        if alone and kept:
            folded.add(i)
    return sorted(folded)
