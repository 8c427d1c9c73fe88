"""Linearise: a flat training graph as a chain of stages, cut at its 1-separators in the captured order.

A place between two forward nodes is a cut when a single datum crosses it (much smaller data are *pinned*: kept to the end).
Backward nodes go to the stage whose saved data they read; where one reads of two stages, the stages become one. What cannot be
cut stays inside a stage, and the note of the transform says how much that is.

Every stage gets one option, which saves all its backward reads, with its sub-schedules. Reference: Rotor (Beaumont et al., 2019);
1-separators: Rockmate, section 3.2. The remainder is what POFO, section 3.2, calls the second limitation.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

from attrs import evolve, field, frozen

from remat.algorithms._chain.chain_assembly import Part, assembled, offered, runs_once
from remat.algorithms._chain.quantise import Quantise, UnitCost
from remat.algorithms._core.clock import A_CLOCK, Clock, lower_clock
from remat.algorithms._core.dead_reruns import without_dead_reruns
from remat.algorithms._core.option_pool import A_SOURCE
from remat.algorithms._core.options import OptionSource
from remat.algorithms._core.problem import Problem
from remat.algorithms._core.solver import refuse_unless_flat
from remat.algorithms._core.transforms import Applied, RefusedTransform, Transform
from remat.ir import (
    Drop,
    Graph,
    Kind,
    Offload,
    Prefetch,
    Run,
    Schedule,
    Step,
)
from remat.ir.arguments import A_GRAPH
from remat.ir.chain import is_chain
from remat.settings import number, optional, takes

__all__ = ["Linearise", "Linearised", "Quantise", "UnitCost", "linearised"]


@frozen
class Linearise(Transform):
    """A flat training graph as a chain of stages; a chain stays as it is.

    Attributes:
        pin: a datum up to this fraction of the one that is passed on may cross a cut too; it is then kept from its first run
            to the end (position tables, masks). 0: never.
        blocks: offers more options of each stage, e.g. `HIlp().sweep(peaks=20, saves=20)`; equal stages are planned once. None:
            one option, which saves all that the backward reads.
    """

    pin: float = field(default=1 / 64, validator=number(0, 1))
    blocks: OptionSource | None = field(default=None, kw_only=True, validator=optional(A_SOURCE))

    @takes(graph=A_GRAPH)
    def refuses(self, graph: Graph) -> str | None:
        """Why a graph is refused: it has layers and is no chain, or its loss reads nothing of the forward."""
        if graph.flat:
            return None if _final(graph) else "the loss reads nothing that the forward computes"
        return None if is_chain(graph) else "the graph has layers and is not a chain; expand it first"

    def apply(self, problem: Problem, *, clock: Clock | None = None, seed: int = 0) -> Applied:
        """The chain; schedules are lifted stage by stage, without reruns whose results are not used."""
        if not problem.graph.flat:
            return Applied(problem=problem, lift=lambda schedule: schedule)
        chain = linearised(problem.graph, self.pin, self.blocks, clock=clock, seed=seed)
        return Applied(problem=evolve(problem, graph=chain.graph), lift=chain.lift, note=chain.note)


@frozen(kw_only=True, eq=False)
class Linearised:
    """A chain made of a flat graph, and the way back.

    Attributes:
        flat: the flat graph. parts: its stages. pinned: data held from their first run to the end, in every schedule.
        graph: the chain.
    """

    flat: Graph
    parts: tuple[Part, ...]
    pinned: frozenset[int]
    graph: Graph

    @property
    def note(self) -> str:
        """What was linearised and what was not."""
        sizes = [len(part.forward) + len(part.backward) for part in self.parts]
        pinned_bytes = sum(self.flat.data[d].size for d in self.pinned)
        pins = f", {len(self.pinned)} small data pinned ({pinned_bytes} B)" if self.pinned else ""
        count = sum(len(layer.options) for layer in self.graph.layers)
        options = f", {count} options" if count > len(sizes) else ""
        return f"{len(sizes)} stages, the largest has {max(sizes)} of {len(self.flat)} nodes{options}{pins}"

    def lift(self, schedule: Schedule) -> Schedule:
        """The schedule of the flat graph: no slower, its peak no larger."""
        if any(isinstance(step, (Offload, Prefetch)) for step in schedule.steps):
            return Schedule(tuple(self._steps(schedule)))
        names: list[str] = []
        ran: set[str] = set()
        for run in schedule.runs:
            for name in self._nodes(run):
                if name not in ran or not runs_once(self.flat, self.flat.node_index[name]):
                    names.append(name)
                    ran.add(name)
        return Schedule.from_runs(self.flat, without_dead_reruns(self.flat, [Run(name) for name in names]))

    def _nodes(self, run: Run) -> Iterable[str]:
        steps = self._of_run(run)
        return (step.node for step in steps if isinstance(step, Run))

    def _of_run(self, run: Run) -> tuple[Step, ...]:
        """The sub-schedule of a run of the chain."""
        layer = self.graph.layer_by_node.get(run.node)
        if layer is None:
            return (run,)
        if run.node == layer.backward:
            return layer.options[run.option].backward_steps
        saving = () if run.option == len(layer.options) else layer.options[run.option].forward_steps
        return saving or layer.no_save_steps  # a stage without backward nodes saves nothing

    def _steps(self, schedule: Schedule) -> Iterable[Step]:
        """Step by step, for schedules with copies: drops stay where the chain's schedule and its sub-schedules put them."""
        resident: set[str] = set()
        ran: set[str] = set()
        phantoms: dict[str, tuple[str, ...]] = {}
        chain_resident: set[str] = set()  # what the chain's schedule holds, above all phantoms
        for at, step in enumerate(schedule.steps):
            left = self._kept(step, chain_resident, phantoms)
            for flat_step in self._expanded(schedule, at, phantoms):
                if isinstance(step, Run) and isinstance(flat_step, Drop) and flat_step.datum in left:
                    continue
                if isinstance(flat_step, Run):
                    node = self.flat.node(flat_step.node)
                    if flat_step.node in ran and runs_once(self.flat, self.flat.node_index[flat_step.node]):
                        continue
                    ran.add(flat_step.node)
                    resident.update(node.writes)
                elif isinstance(flat_step, Prefetch):
                    resident.add(flat_step.datum)
                elif flat_step.datum not in resident:
                    continue
                else:
                    resident.discard(flat_step.datum)
                yield flat_step
            if isinstance(step, Run):
                chain_resident |= self._saved(step, phantoms)
            elif isinstance(step, Prefetch):
                chain_resident.add(step.datum)
            else:
                chain_resident.discard(step.datum)

    def _kept(self, step: Step, resident: set[str], phantoms: dict[str, tuple[str, ...]]) -> set[str]:
        """What a run must leave where it is: resident phantoms, but one that it replaces or reads.

        A forward that runs again and keeps nothing drops what it makes, and its phantom may be resident still.
        """
        layer = self.graph.layer_by_node.get(step.node) if isinstance(step, Run) else None
        if layer is None or not isinstance(step, Run):
            return set()
        no_save = step.node == layer.forward and step.option == len(layer.options)
        kept = (datum for datum in resident if datum != layer.phantom or no_save)
        return {name for datum in kept for name in phantoms.get(datum, ())}

    def _expanded(self, schedule: Schedule, at: int, phantoms: dict[str, tuple[str, ...]]) -> Iterable[Step]:
        """The flat steps of one step; `phantoms`: the flat data of the resident phantoms."""
        step = schedule.steps[at]
        if not isinstance(step, Run):
            return tuple(type(step)(name) for name in phantoms.get(step.datum, (step.datum,)))
        # what the chain's schedule drops right after the run may be dropped inside it; other data of the chain may not
        soon: set[str] = set()
        for later in schedule.steps[at + 1 :]:
            if isinstance(later, Run):
                break
            if isinstance(later, Drop):
                soon.add(later.datum)
        border = self.graph.data_index
        return (
            flat_step
            for flat_step in self._of_run(step)
            if not isinstance(flat_step, Drop) or flat_step.datum in soon or flat_step.datum not in border
        )

    def _saved(self, run: Run, phantoms: dict[str, tuple[str, ...]]) -> set[str]:
        """Note what the forward of a stage has left as its phantom; the phantom's name, if it has left one."""
        layer = self.graph.layer_by_node.get(run.node)
        if layer is None or run.node != layer.forward or run.option == len(layer.options):
            return set()
        resident: dict[str, None] = {}
        for flat_step in self._of_run(run):
            if isinstance(flat_step, Run):
                resident.update(dict.fromkeys(self.flat.node(flat_step.node).writes))
            elif isinstance(flat_step, Drop):
                resident.pop(flat_step.datum, None)
        phantoms[layer.phantom] = tuple(name for name in resident if name not in self.graph.data_index)
        return {layer.phantom}


def _refuse(graph: Graph) -> None:
    reason = refuse_unless_flat(graph) or Linearise().refuses(graph)
    if reason is not None:
        raise RefusedTransform(f"linearised refused: {reason}")


@takes(graph=A_GRAPH, pin=number(0, 1), blocks=optional(A_SOURCE), clock=A_CLOCK)
def linearised(
    graph: Graph, pin: float = 1 / 64, blocks: OptionSource | None = None, *, clock: Clock | None = None, seed: int = 0
) -> Linearised:
    """The chain of a flat graph; arguments as the settings of `Linearise`.

    Raises:
        RefusedTransform: of a graph that is not flat or whose loss reads nothing that the forward computes; when backward nodes
            that draw random numbers would have to change their order.
    """
    _refuse(graph)
    cuts = _cuts(graph, pin)
    split = _Split(graph, cuts)
    while (clash := split.clash()) is not None:
        low, high = clash
        del cuts[low:high]  # stages low .. high become one: the cuts between them are removed
        split = _Split(graph, cuts)
    order = [split.graph.computes[i] for part in reversed(split.parts) for i in part.backward]
    draws = [node.name for node in order if node.draws]
    if draws != [node.name for node in graph.computes[graph.loss :] if node.draws]:
        raise RefusedTransform("Linearise refused: backward nodes that draw random numbers would change their order")
    chain = assembled(graph, split.parts, split.stage_of, split.pinned)
    if blocks is not None:
        chain = offered(graph, chain, split.parts, blocks, lower_clock(clock), seed)
    return Linearised(flat=graph, parts=split.parts, pinned=frozenset(split.pinned), graph=chain)


# -- where to cut ------------------------------------------------------------------------------------------------------


def _final(graph: Graph) -> list[int]:
    """The data of the forward that the loss reads, those that are not kept anyway first."""
    loss = graph.loss
    read = [d for d in graph.reads_by_node[loss] if graph.writers_by_data[d] and graph.writers_by_data[d][-1] < loss]
    return sorted(read, key=lambda d: (graph.data[d].keep, -graph.writers_by_data[d][-1]))


def _spans(graph: Graph) -> Iterator[tuple[int, int, int]]:
    """(first and last cut that it crosses, datum) of the data that the forward writes and it or the loss reads."""
    for d, (writers, readers) in enumerate(zip(graph.writers_by_data, graph.readers_by_data, strict=True)):
        late = [i for i in readers if i <= graph.loss]
        if writers and writers[-1] < graph.loss and late and graph.data[d].kind is not Kind.RNG_STATE:
            yield writers[0] + 1, late[-1], d


def _cuts(graph: Graph, pin: float) -> list[tuple[int, int]]:
    """(index of the first node after the cut, the one datum that crosses it); the last cut is before the loss."""
    loss = graph.loss
    starts: dict[int, list[int]] = {}
    ends: dict[int, list[int]] = {}
    for first, last, d in _spans(graph):
        starts.setdefault(first, []).append(d)
        ends.setdefault(last + 1, []).append(d)
    crossing: set[int] = set()
    cuts: list[tuple[int, int]] = []
    for at in range(1, loss):
        crossing.update(starts.get(at, ()))
        crossing.difference_update(ends.get(at, ()))
        passed = _passed_on(graph, crossing, pin)
        # the datum passed on must be made in the stage before the cut
        if passed is not None:
            writers, begin = graph.writers_by_data[passed], cuts[-1][0] if cuts else 0
            if begin <= writers[0] and writers[-1] < at:
                cuts.append((at, passed))
    final = _final(graph)[0]
    while cuts and graph.writers_by_data[final][0] < cuts[-1][0]:
        cuts.pop()
    return [*cuts, (loss, final)]


def _passed_on(graph: Graph, crossing: set[int], pin: float) -> int | None:
    """The one datum that is passed on where `crossing` cross; data much smaller than it are pinned, kept ones stay anyway."""
    loose = sorted((d for d in crossing if not graph.data[d].keep), key=lambda d: -graph.data[d].size)
    if len(loose) == 1 or (loose and graph.data[loose[1]].size <= pin * graph.data[loose[0]].size and pin):
        return loose[0]
    if not loose and crossing:
        return max(crossing, key=lambda d: graph.writers_by_data[d][-1])
    return None


class _Split:
    """The stages that some cuts make; `clash` names two stages that must become one."""

    def __init__(self, graph: Graph, cuts: Sequence[tuple[int, int]]) -> None:
        self.graph = graph
        self.cuts = [at for at, _ in cuts]
        self.count = len(cuts)
        self.outputs = [datum for _, datum in cuts]
        self.stage_of: dict[int, int] = {k: bisect_right(self.cuts, k) for k in range(graph.loss)}
        self.stage_of[graph.loss] = self.count  # the loss comes after the last stage
        self.pinned = self._pinned()
        self.saved: list[list[int]] = [[] for _ in range(self.count)]
        self._clash = self._forward_clash() or self._place_backward()

    def clash(self) -> tuple[int, int] | None:
        """Two stages that cannot be apart, or None."""
        return self._clash

    def _pinned(self) -> set[int]:
        """Data of the forward that later stages read and that are not passed on, outputs of run-once nodes, continued sums."""
        graph, pinned = self.graph, set()
        for d, writers in enumerate(graph.writers_by_data):
            if not writers or writers[0] >= graph.loss or graph.data[d].keep:
                continue
            stages = {self.stage_of[k] for k in writers if k < graph.loss}
            if d in self.outputs:
                stages.add(max(stages) + 1)
            if self._once(d) or not stages.issuperset(self._read_by(d)):
                pinned.add(d)
        return pinned

    def _read_by(self, d: int) -> list[int]:
        """The stages that read a datum up to the loss; the loss counts as one after the last."""
        return [self.stage_of.get(k, self.count) for k in self.graph.readers_by_data[d] if k <= self.graph.loss]

    def _once(self, d: int) -> bool:
        """Whether a datum cannot be recomputed: a random state, an output of a run-once node, a continued sum."""
        writers = self.graph.writers_by_data[d]
        once = writers[-1] >= self.graph.loss or any(runs_once(self.graph, k) for k in writers)
        return once or self.graph.data[d].kind is Kind.RNG_STATE

    def _forward_clash(self) -> tuple[int, int] | None:
        for writers in self.graph.writers_by_data:
            stages = {self.stage_of[k] for k in writers if k < self.graph.loss}
            if len(stages) > 1:
                return min(stages), max(stages)
        return None

    def _span(self, d: int) -> tuple[int, int] | None:
        """The stages whose backward may read a datum of the forward; None: all may, it stays to the end or is outside."""
        writers = self.graph.writers_by_data[d]
        if not writers or writers[0] >= self.graph.loss or self.graph.data[d].keep or d in self.pinned:
            return None
        stage = self.stage_of[writers[0]]
        return stage, min(stage + 1, self.count - 1) if d in self.outputs else stage

    def _place_backward(self) -> tuple[int, int] | None:
        """Give every backward node a stage in which what it reads is saved, and before which what it needs is computed."""
        graph = self.graph
        for k in range(graph.loss + 1, len(graph)):
            low, high = 0, self.count - 1
            for d in (*graph.reads_by_node[k], *graph.writes_by_node[k]):
                earlier = [self.stage_of[w] for w in graph.writers_by_data[d] if graph.loss < w < k]
                high = min([high, *earlier])
            ceiling = high
            for d in graph.reads_by_node[k]:
                span = self._span(d)
                if span is not None:
                    low, high = max(low, span[0]), min(high, span[1])
            if low > high:
                return min(high, ceiling), low
            twin = graph.node_index.get(graph.computes[k].twin, -1)
            liked = self.stage_of.get(twin, high)
            self.stage_of[k] = liked if low <= liked <= high else high
        return None

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The stages."""
        nodes: list[list[int]] = [[] for _ in range(self.count)]
        for k in range(len(self.graph)):
            if k != self.graph.loss:
                nodes[self.stage_of[k]].append(k)
        return tuple(self._part(i, stage) for i, stage in enumerate(nodes))

    def _part(self, i: int, nodes: list[int]) -> Part:
        graph = self.graph
        backward = tuple(k for k in nodes if k > graph.loss)
        read = {d for k in backward for d in graph.reads_by_node[k]}
        return Part(
            forward=tuple(k for k in nodes if k < graph.loss),
            backward=backward,
            input=self.outputs[i - 1] if i else None,
            output=self.outputs[i],
            saved=tuple(sorted(d for d in read if self._interior(d))),
        )

    def _interior(self, d: int) -> bool:
        """Whether a datum of the forward may be dropped and is seen by one stage only."""
        writers = self.graph.writers_by_data[d]
        early = bool(writers) and writers[0] < self.graph.loss
        return early and not self.graph.data[d].keep and d not in self.pinned and d not in self.outputs
