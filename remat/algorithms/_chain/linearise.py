"""Linearise: a flat training graph as a chain of stages, cut at its 1-separators in the captured order.

A place between two forward nodes is a cut when a single datum crosses it (small data beside it are *pinned*: held to the end).
Backward nodes go to the stage whose saved data they read; where one reads of two stages, the stages become one. What cannot be
cut stays inside a stage, and the note of the transform says how much that is.

Every stage gets one option, which saves all its backward reads, with its sub-schedules. Reference: Rotor (Beaumont et al., 2019);
1-separators: Rockmate, section 3.2. The remainder is what POFO, section 3.2, calls the second limitation.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import cached_property

from attrs import evolve, field, frozen

from remat.algorithms._chain.chain_assembly import Part, assembled, offered, runs_once
from remat.algorithms._chain.quantise import Quantise, UnitCost
from remat.algorithms._core.clock import Clock, lower_clock
from remat.algorithms._core.dead_reruns import without_dead_reruns
from remat.algorithms._core.options import OptionSource
from remat.algorithms._core.problem import Problem
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
from remat.ir.chain import is_chain
from remat.settings import instance, number, optional

__all__ = ["Linearise", "Linearised", "Quantise", "UnitCost", "linearised"]


@frozen
class Linearise(Transform):
    """A flat training graph as a chain of stages; a chain stays as it is.

    Attributes:
        pin: a datum up to this fraction of the one that is handed on may cross a cut beside it; it is then held from its
            first run to the end (position tables, masks). 0: never.
        blocks: offers more options of each stage, e.g. `HIlp().sweep(peaks=20, saves=20)`; equal stages are asked once. None:
            one option, which saves all that the backward reads.
    """

    pin: float = field(default=1 / 64, validator=number(0, 1))
    blocks: OptionSource | None = field(
        default=None, kw_only=True, validator=optional(instance(OptionSource, "quick.sweep(peaks=4, saves=4)"))
    )

    def refuses(self, graph: Graph) -> str | None:
        """Refuses graphs with layers that are no chain, and flat graphs whose loss reads nothing of the forward."""
        if graph.flat:
            return None if _final(graph) else "the loss reads nothing that the forward computes"
        return None if is_chain(graph) else "the graph has layers and is not a chain; expand it first"

    def apply(self, problem: Problem, *, clock: Clock | None = None, seed: int = 0) -> Applied:
        """The chain; schedules are lifted stage by stage, reruns that nobody needs left out."""
        if not problem.graph.flat:
            return Applied(problem=problem, lift=lambda schedule: schedule)
        found = linearised(problem.graph, self.pin, self.blocks, clock=clock, seed=seed)
        return Applied(problem=evolve(problem, graph=found.graph), lift=found.lift, note=found.note)


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
        held = sum(self.flat.data[d].size for d in self.pinned)
        pins = f", {len(self.pinned)} small data pinned ({held} B)" if self.pinned else ""
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
        return saving or layer.bare_steps  # a stage without backward nodes saves nothing

    def _steps(self, schedule: Schedule) -> Iterable[Step]:
        """Step by step, for schedules with copies: drops stay where the chain's schedule and its sub-schedules put them."""
        there: set[str] = set()
        ran: set[str] = set()
        phantoms: dict[str, tuple[str, ...]] = {}
        resident: set[str] = set()
        for at, step in enumerate(schedule.steps):
            kept = self._kept(step, resident, phantoms)
            for own in self._expanded(schedule, at, phantoms):
                if isinstance(step, Run) and isinstance(own, Drop) and own.datum in kept:
                    continue
                if isinstance(own, Run):
                    node = self.flat.node(own.node)
                    if own.node in ran and runs_once(self.flat, self.flat.node_index[own.node]):
                        continue
                    ran.add(own.node)
                    there.update(node.writes)
                elif isinstance(own, Prefetch):
                    there.add(own.datum)
                elif own.datum not in there:
                    continue
                else:
                    there.discard(own.datum)
                yield own
            if isinstance(step, Run):
                resident |= self._saved(step, phantoms)
            elif isinstance(step, Prefetch):
                resident.add(step.datum)
            else:
                resident.discard(step.datum)

    def _kept(self, step: Step, resident: set[str], phantoms: dict[str, tuple[str, ...]]) -> set[str]:
        """What a run must leave where it is: resident phantoms, but one that it replaces or reads.

        A forward that runs again and keeps nothing drops what it makes, and its phantom may be resident still.
        """
        layer = self.graph.layer_by_node.get(step.node) if isinstance(step, Run) else None
        if layer is None or not isinstance(step, Run):
            return set()
        bare = step.node == layer.forward and step.option == len(layer.options)
        return {name for one in resident if one != layer.phantom or bare for name in phantoms.get(one, ())}

    def _expanded(self, schedule: Schedule, at: int, phantoms: dict[str, tuple[str, ...]]) -> Iterable[Step]:
        """The flat steps of one step; `phantoms`: the flat data of the phantoms that are there."""
        step = schedule.steps[at]
        if not isinstance(step, Run):
            return tuple(type(step)(name) for name in phantoms.get(step.datum, (step.datum,)))
        # what the chain's schedule drops right behind the run may go inside it; other data of the chain may not
        soon: set[str] = set()
        for later in schedule.steps[at + 1 :]:
            if isinstance(later, Run):
                break
            if isinstance(later, Drop):
                soon.add(later.datum)
        border = self.graph.data_index
        return (
            own
            for own in self._of_run(step)
            if not isinstance(own, Drop) or own.datum in soon or own.datum not in border
        )

    def _saved(self, run: Run, phantoms: dict[str, tuple[str, ...]]) -> set[str]:
        """Note what the forward of a stage has left as its phantom; the phantom's name, if it has left one."""
        layer = self.graph.layer_by_node.get(run.node)
        if layer is None or run.node != layer.forward or run.option == len(layer.options):
            return set()
        held: dict[str, None] = {}
        for own in self._of_run(run):
            if isinstance(own, Run):
                held.update(dict.fromkeys(self.flat.node(own.node).writes))
            elif isinstance(own, Drop):
                held.pop(own.datum, None)
        phantoms[layer.phantom] = tuple(name for name in held if name not in self.graph.data_index)
        return {layer.phantom}


def linearised(
    graph: Graph, pin: float = 1 / 64, blocks: OptionSource | None = None, *, clock: Clock | None = None, seed: int = 0
) -> Linearised:
    """The chain of a flat graph; arguments as the settings of `Linearise`.

    Raises:
        RefusedTransform: when backward nodes that draw random numbers would have to change their order.
    """
    cuts = _cuts(graph, pin)
    while True:
        split = _Split(graph, cuts)
        clash = split.clash()
        if clash is None:
            break
        low, high = clash
        # stages low .. high become one: the cuts between them go
        del cuts[low:high]
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


def _cuts(graph: Graph, pin: float) -> list[tuple[int, int]]:
    """(index of the first node behind the cut, the one datum that crosses it); the last cut is before the loss."""
    loss = graph.loss
    spans: list[tuple[int, int, int]] = []
    for d, (writers, readers) in enumerate(zip(graph.writers_by_data, graph.readers_by_data, strict=True)):
        late = [i for i in readers if i <= loss]
        if writers and writers[-1] < loss and late and graph.data[d].kind is not Kind.RNG_STATE:
            spans.append((writers[0] + 1, late[-1], d))
    starts: dict[int, list[int]] = {}
    ends: dict[int, list[int]] = {}
    for first, last, d in spans:
        starts.setdefault(first, []).append(d)
        ends.setdefault(last + 1, []).append(d)
    crossing: set[int] = set()
    cuts: list[tuple[int, int]] = []
    for at in range(1, loss):
        crossing.update(starts.get(at, ()))
        crossing.difference_update(ends.get(at, ()))
        one = _handed_on(graph, crossing, pin)
        # the datum handed on must be made in the stage before the cut
        if one is not None:
            writers, begin = graph.writers_by_data[one], cuts[-1][0] if cuts else 0
            if begin <= writers[0] and writers[-1] < at:
                cuts.append((at, one))
    final = _final(graph)[0]
    while cuts and graph.writers_by_data[final][0] < cuts[-1][0]:
        cuts.pop()
    return [*cuts, (loss, final)]


def _handed_on(graph: Graph, crossing: set[int], pin: float) -> int | None:
    """The one datum that is handed on where `crossing` cross, those small beside it and kept ones being held."""
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
        self.stage_of[graph.loss] = self.count  # the loss stands behind the last stage
        self.pinned = self._pinned()
        self.saved: list[list[int]] = [[] for _ in range(self.count)]
        self._clash = self._forward_clash() or self._place_backward()

    def clash(self) -> tuple[int, int] | None:
        """Two stages that cannot be apart, or None."""
        return self._clash

    def _pinned(self) -> set[int]:
        """Data of the forward that later stages read and that are not handed on, what runs only once, and sums that go on."""
        graph, pinned = self.graph, set()
        for d, writers in enumerate(graph.writers_by_data):
            if not writers or writers[0] >= graph.loss or graph.data[d].keep:
                continue
            stages = {self.stage_of[k] for k in writers if k < graph.loss}
            if d in self.outputs:
                stages.add(max(stages) + 1)
            read_by = {self.stage_of.get(k, self.count) for k in graph.readers_by_data[d] if k <= graph.loss}
            once = writers[-1] >= graph.loss or any(runs_once(graph, k) for k in writers)
            if once or graph.data[d].kind is Kind.RNG_STATE or read_by - stages:
                pinned.add(d)
        return pinned

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
        own = self.stage_of[writers[0]]
        return own, min(own + 1, self.count - 1) if d in self.outputs else own

    def _place_backward(self) -> tuple[int, int] | None:
        """Give every backward node its stage: what it reads must be saved there, and what it needs computed before."""
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
        graph = self.graph
        parts = []
        for i in range(self.count):
            nodes = [k for k in range(len(graph)) if k != graph.loss and self.stage_of[k] == i]
            backward = [k for k in nodes if k > graph.loss]
            read = {d for k in backward for d in graph.reads_by_node[k]}
            saved = sorted(
                d
                for d in read
                if graph.writers_by_data[d]
                and graph.writers_by_data[d][0] < graph.loss
                and not graph.data[d].keep
                and d not in self.pinned
                and d not in self.outputs
            )
            parts.append(
                Part(
                    forward=tuple(k for k in nodes if k < graph.loss),
                    backward=tuple(backward),
                    input=self.outputs[i - 1] if i else None,
                    output=self.outputs[i],
                    saved=tuple(saved),
                )
            )
        return tuple(parts)
