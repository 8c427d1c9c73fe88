"""Recomputation by lower sets: dynamic programming over the parts of the forward that a checkpoint may follow.

A *lower set* contains with a node all nodes that it depends on. An increasing sequence of lower sets cuts the forward into
segments; data that a later segment reads are kept, the other data of a segment are dropped and recomputed in its backward.

Source: Kusumoto, Inoue, Watanabe, Akiba, Koyama, *A Graph Theoretic Framework of Recomputation Algorithms for
Memory-Efficient Backpropagation*, NeurIPS 2019: the canonical strategy, its memory (equation 2), and the approximate dynamic
programming over the lower sets that single nodes generate.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from remat.algorithms._arrays.jit import kernel
from remat.algorithms._core.clock import Clock
from remat.algorithms._core.outcome import Plan
from remat.algorithms._core.problem import Problem
from remat.algorithms._core.solver import Solver, refuse_unless_flat
from remat.algorithms._whole.baselines import checkpointed
from remat.ir import Graph, Phase, Schedule, validate
from remat.ir.arguments import A_GRAPH
from remat.settings import takes, whole

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

_LOWEST = 64.0
"""The smallest memory limit is the memory of a single segment divided by this."""


class Steps(NamedTuple):
    """The cost of a segment from one lower set to a larger one, both by their index in the family: arrays (sets, sets).

    Attributes:
        larger: whether the second contains the first.
        levels: time of the replay, in units of the table.
        kept: bytes kept after the segment in addition to those kept before.
        transient: bytes that the backward of the segment needs in addition to those kept before.
    """

    larger: Flags
    levels: Ints
    kept: Floats
    transient: Floats


@frozen
class LowerSets(Solver):
    """The fastest sequence of segments by the paper's dynamic programming whose replay fits the budget. Proves nothing.

    The recursion counts memory as the paper does, values and gradients of a segment at the same time, except that it counts only
    values that the backward reads. The replay counts resident bytes, so the recursion is solved under several limits, and the
    fastest of the sequences that fit is the plan.

    Attributes:
        family: largest number of lower sets; if there are more, the one with the fewest bytes at the boundary is taken from each
            class of similar size.
        levels: number of units in which the time of the replay is discretized.
        limits: number of memory limits under which the recursion is solved.
    """

    family: int = field(default=400, validator=whole(1))
    levels: int = field(default=200, validator=whole(1))
    limits: int = field(default=24, validator=whole(1))

    @takes(graph=A_GRAPH)
    def refuses(self, graph: Graph) -> str | None:
        """Refuses graphs with options, and graphs without a forward."""
        if any(node.phase is Phase.FORWARD for node in graph.computes):
            return refuse_unless_flat(graph)
        return "there is no forward to cut"

    def plan(self, problem: Problem, clock: Clock, seed: int) -> Plan:
        """The fastest sequence that fits."""
        graph = problem.graph
        forward = Forward.of(graph)
        sets = forward.family(self.family)
        steps = forward.steps(sets, self.levels)
        plans: dict[tuple[int, ...], Schedule] = {}
        largest = float(steps.transient[0, -1])
        for share in np.geomspace(1.0, 1.0 / _LOWEST, self.limits):
            if plans and clock.expired:
                break
            chosen = tuple(shortest_sequence(steps, self.levels, largest * share).tolist())
            if chosen and chosen not in plans:
                group = forward.segments(sets, chosen)
                plans[chosen] = Schedule.from_runs(graph, checkpointed(graph, group, frozenset([len(chosen) - 1])))
        return _fastest(problem, plans, len(sets) - 1)


def _fastest(problem: Problem, plans: dict[tuple[int, ...], Schedule], sets: int) -> Plan:
    """The fastest schedule that fits; `plans` has schedules by their lower sets."""
    costs = {chosen: validate(problem.graph, schedule) for chosen, schedule in plans.items()}
    fitting = [chosen for chosen, cost in costs.items() if cost.peak <= problem.budget]
    if not fitting:
        smallest = min(cost.peak for cost in costs.values())
        return Plan(trail=(f"LowerSets: of {len(costs)} sequences the smallest peak is {smallest} B",))
    best = min(fitting, key=lambda chosen: (costs[chosen].time, costs[chosen].peak))
    return Plan(schedule=plans[best], trail=(f"LowerSets: {len(best)} segments of {sets} lower sets",))


@frozen(eq=False)
class Forward:
    """The forward of a graph as matrices.

    Attributes:
        nodes: indices of its nodes in the graph.
        time: of each node [ns].
        size: of each datum that its nodes write [bytes].
        saved: the same, 0 if no backward node reads it: such data are dropped before the backward.
        writes, reads: whether a node writes, reads a datum; shape (nodes, data), 0 or 1.
    """

    nodes: list[int]
    time: Floats
    size: Floats
    saved: Floats
    writes: Floats
    reads: Floats

    @classmethod
    def of(cls, graph: Graph) -> Forward:
        """Read a graph without options."""
        nodes = [i for i, node in enumerate(graph.computes) if node.phase is Phase.FORWARD]
        data = sorted({d for i in nodes for d in graph.writes_by_node[i]})
        writes, reads = np.zeros((2, len(nodes), len(data)))
        for k, i in enumerate(nodes):
            writes[k] = np.isin(data, list(graph.writes_by_node[i]))
            reads[k] = np.isin(data, list(graph.reads_by_node[i]))
        return cls(
            nodes=nodes,
            time=np.array([graph.computes[i].options[0].time for i in nodes], np.float64),
            size=np.array([graph.data[d].size for d in data], np.float64),
            saved=np.array([graph.data[d].size if _is_saved(graph, d) else 0 for d in data], np.float64),
            writes=writes,
            reads=reads,
        )

    def boundary(self, sets: Flags) -> Flags:
        """The data of each lower set that nodes outside of it read; shape (sets, data)."""
        return (sets @ self.writes > 0) & (~sets @ self.reads > 0)

    def family(self, most: int) -> Flags:
        """The empty set, the lower sets that single nodes generate, and the whole forward, by size; shape (sets, nodes)."""
        count = len(self.nodes)
        sets = np.eye(count, dtype=np.bool_)
        needs = self.reads @ self.writes.T > 0
        for k in range(count):
            earlier = np.flatnonzero(needs[k, :k])
            sets[k] |= sets[earlier].any(axis=0)
        sets = np.unique(sets, axis=0)
        if len(sets) > most:
            boundary = self.boundary(sets) @ self.size
            by_size = np.array_split(np.argsort(sets.sum(axis=1), kind="stable"), most)
            sets = sets[[similar[np.argmin(boundary[similar])] for similar in by_size]]
        ends = np.array([[False] * count, [True] * count])
        sets = np.unique(np.concatenate([sets, ends]), axis=0)
        return sets[np.argsort(sets.sum(axis=1), kind="stable")]

    def steps(self, sets: Flags, levels: int) -> Steps:
        """Time and memory of every segment."""
        boundary = self.boundary(sets)
        written = sets @ self.writes > 0
        replayed = sets & ((written & ~boundary) @ self.writes.T > 0)  # data that are not kept must be recomputed
        following = ~sets & (written @ self.reads.T > 0)
        read_then = ~written & (following @ (self.writes + self.reads) > 0)
        levels_of = np.rint((~sets * self.time) @ replayed.T * (levels / max(1.0, self.time.sum()))).astype(np.int64)
        levels_of[:, -1] = 0  # the last segment's data are still resident when its backward begins
        values = written @ self.saved
        count = sets.sum(axis=1)
        return Steps(
            larger=(sets.astype(float) @ ~sets.T == 0) & (count[:, None] < count[None, :]),
            levels=levels_of,
            kept=(~written * self.size) @ boundary.T,
            transient=2 * (values[None, :] - values[:, None]) + (read_then @ self.size)[None, :],
        )

    def segments(self, sets: Flags, chosen: tuple[int, ...]) -> dict[int, int]:
        """The segment of each node."""
        first = np.argmax(sets[list(chosen)], axis=0)
        return {i: int(segment) for i, segment in zip(self.nodes, first, strict=True)}


def _is_saved(graph: Graph, d: int) -> bool:
    return any(graph.computes[r].phase is Phase.BACKWARD for r in graph.readers_by_data[d])


@kernel
def shortest_sequence(steps: Steps, levels: int, limit: float) -> Ints:
    """The lower sets after the empty one, in order, whose replays take the fewest levels within `limit`; empty if none fit.

    `least[a, t]` is the fewest bytes kept when set `a` is reached and `t` levels have been spent, as in the paper's table.
    """
    count = steps.larger.shape[0]
    least = np.full((count, levels + 1), np.inf)
    previous = np.full((count, levels + 1, 2), -1, np.int64)
    least[0, 0] = 0.0
    for a in range(count):
        for b in range(a + 1, count):
            if not steps.larger[a, b]:
                continue
            for t in range(levels + 1 - steps.levels[a, b]):
                if least[a, t] + steps.transient[a, b] > limit:
                    continue
                after, kept = t + steps.levels[a, b], least[a, t] + steps.kept[a, b]
                if kept < least[b, after]:
                    least[b, after] = kept
                    previous[b, after, 0], previous[b, after, 1] = a, t
    spent = 0
    while spent <= levels and not least[count - 1, spent] < np.inf:
        spent += 1
    length, at, t = 0, count - 1, spent
    chosen = np.empty(count, np.int64)
    while spent <= levels and at > 0:
        chosen[length] = at
        length += 1
        at, t = previous[at, t, 0], previous[at, t, 1]
    return chosen[:length][::-1].copy()
