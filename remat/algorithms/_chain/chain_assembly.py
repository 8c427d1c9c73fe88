"""The chain graph of the stages that `Linearise` cuts: their numbers, their sub-schedules, and the data between them.

Every number comes from running a stage's nodes in the captured order with drops at the last use, nothing else resident.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

from attrs import evolve, frozen

from remat.algorithms._core.clock import Clock
from remat.algorithms._core.options import OptionSource, undominated
from remat.ir import (
    Cluster,
    Compute,
    Drop,
    Graph,
    Layer,
    LayerOption,
    Option,
    Phase,
    Run,
    Step,
    cluster_classes,
    renaming,
    translate,
)
from remat.ir import part as block_of
from remat.ir.cluster import unused
from remat.units import Bytes, Ns


@frozen(kw_only=True)
class Part:
    """A stage in terms of the flat graph: indices of nodes in the order they run, and of data."""

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    input: int | None
    output: int
    saved: tuple[int, ...]


def runs_once(flat: Graph, k: int) -> bool:
    """Whether a node of the forward runs once in every schedule of the chain.

    Its rerun is forbidden, or would contribute again to a sum that stays: a kept one, or one to which the loss or the backward
    contributes later.
    """
    sums = (d for d in flat.writes_by_node[k] if len(flat.writers_by_data[d]) > 1)
    return flat.computes[k].run_once or any(flat.data[d].keep or flat.writers_by_data[d][-1] >= flat.loss for d in sums)


def assembled(flat: Graph, parts: Sequence[Part], stage_of: Mapping[int, int], pinned: Set[int]) -> Graph:
    """The chain of the stages.

    Args:
        flat: the flat graph.
        parts: its stages, first to last.
        stage_of: for every node but the loss, its stage.
        pinned: data of the forward that stay to the end.
    """
    return _Assembly(flat, parts, stage_of, pinned).graph()


def offered(flat: Graph, chain: Graph, parts: Sequence[Part], blocks: OptionSource, clock: Clock, seed: int) -> Graph:
    """The chain with the options that `blocks` offers in addition to its own; equal stages are planned once."""
    clusters = [
        Cluster(
            name=layer.forward,
            forward=tuple(flat.computes[k].name for k in part.forward),
            backward=tuple(flat.computes[k].name for k in part.backward),
        )
        for layer, part in zip(chain.layers, parts, strict=True)
    ]
    offers: dict[int, tuple[Cluster, tuple[LayerOption, ...]]] = {}
    layers = []
    for layer, cluster, kind in zip(chain.layers, clusters, cluster_classes(flat, clusters), strict=True):
        if kind not in offers:
            options = blocks.options(block_of(flat, cluster), clock=clock, seed=seed) if cluster.backward else ()
            offers[kind] = cluster, options
        first, options = offers[kind]
        names = renaming(flat, first, cluster)
        layers.append(_with_options(chain, layer, [translate(option, names) for option in options]))
    return _with_layers(chain, layers)


def _with_options(chain: Graph, layer: Layer, options: Sequence[LayerOption]) -> Layer:
    """A layer with `options` in addition to its own; each option says whether it reads the layer's input."""
    forward, backward = chain.node(layer.forward), chain.node(layer.backward)
    # other reads of the backward are resident anyway: kept, outside, or gradients that later stages pass on
    loose = {name for name in (*forward.reads, *forward.writes) if not chain.datum(name).keep}
    entry = tuple(name for name in forward.reads if name in backward.reads)
    present = [evolve(option, backward_reads=(*option.backward_reads, *entry)) for option in layer.options]
    more = [evolve(option, backward_reads=tuple(n for n in option.backward_reads if n in loose)) for option in options]
    return evolve(layer, options=undominated([*present, *more]))


def _with_layers(chain: Graph, layers: Sequence[Layer]) -> Graph:
    """The chain with other options of its layers; backwards no longer read the layer's input under every option."""
    options_of_node = {layer.forward: layer.forward_options for layer in layers}
    options_of_node.update({layer.backward: layer.backward_options for layer in layers})
    inputs = {layer.backward: chain.node(layer.forward).reads for layer in layers}
    computes = tuple(
        evolve(
            node,
            options=options_of_node.get(node.name, node.options),
            reads=tuple(name for name in node.reads if name not in inputs.get(node.name, ())),
        )
        for node in chain.computes
    )
    return evolve(chain, computes=computes, layers=tuple(layers))


class _Assembly:
    """Builds the chain graph of stages."""

    def __init__(self, flat: Graph, parts: Sequence[Part], stage_of: Mapping[int, int], pinned: Set[int]) -> None:
        self.flat = flat
        self.parts = parts
        self.stage_of = stage_of
        self.pinned = pinned
        self.word = unused("stage", flat.names)

    def graph(self) -> Graph:
        flat, parts = self.flat, self.parts
        layers = [self.layer(i, part) for i, part in enumerate(parts)]
        forward = [self.forward_node(part, layer) for part, layer in zip(parts, layers, strict=True)]
        backward = [
            self.backward_node(i, part, layer) for i, (part, layer) in enumerate(zip(parts, layers, strict=True))
        ]
        nodes = [*forward, self.loss_node(), *reversed(backward)]
        writers: dict[str, list[str]] = {}
        for node in nodes:
            for name in node.writes:
                writers.setdefault(name, []).append(node.name)
        pinned = {flat.data[d].name for d in self.pinned}
        data = tuple(
            evolve(flat.datum(name), writers=tuple(names_of_writers), keep=flat.datum(name).keep or name in pinned)
            for name, names_of_writers in writers.items()
        )
        return Graph(name=f"{flat.name}.chain", computes=tuple(nodes), data=data, layers=tuple(layers))

    def loss_node(self) -> Compute:
        """The loss. A sum that the forward began is resident already: a contribution to it is workspace."""
        flat = self.flat
        loss = flat.computes[flat.loss]
        begun = {flat.data[d].name: flat.data[d].size for d in flat.writes_by_node[flat.loss] if self.begun_before(d)}
        option = evolve(loss.option, workspace=loss.option.workspace + sum(begun.values()))
        writes = tuple(name for name in loss.writes if name not in begun)
        last = flat.data[self.parts[-1].output].name
        return evolve(loss, reads=(last,), writes=writes, options=(option,), after=())

    def forward_node(self, part: Part, layer: Layer) -> Compute:
        return Compute(
            name=layer.forward,
            phase=Phase.FORWARD,
            reads=() if part.input is None else (self.flat.data[part.input].name,),
            writes=self.names((part.output, *self.stays(part))),
            options=layer.forward_options,
            draws=any(self.flat.computes[k].draws for k in part.forward),
        )

    def backward_node(self, i: int, part: Part, layer: Layer) -> Compute:
        # what it completes of others' contributions stays until then without being read (G-INPLACE)
        outgoing = self.outgoing(i, part)
        reads = [d for d in self.incoming(i, part) if d not in outgoing]
        if part.input is not None and self.reads(part, part.input) and self.loose(part.input):
            reads.append(part.input)
        return Compute(
            name=layer.backward,
            phase=Phase.BACKWARD,
            reads=self.names(reads),
            writes=self.names(outgoing),
            options=layer.backward_options,
            draws=any(self.flat.computes[k].draws for k in part.backward),
        )

    def layer(self, i: int, part: Part) -> Layer:
        flat = self.flat
        stays = (part.output, *self.stays(part))
        no_save, no_save_steps = _local(flat, part.forward, (), set(stays))
        time = self.time_of(part.forward)
        return Layer(
            forward=f"{self.word}.{i}",
            backward=f"{self.word}.{i}.backward",
            phantom=f"{self.word}.{i}.saved",
            options=(self.saving_option(i, part, stays),),
            no_save=Option(time=time, workspace=max(0, no_save - self.bytes_of(stays))),
            no_save_steps=no_save_steps,
        )

    def saving_option(self, i: int, part: Part, stays: tuple[int, ...]) -> LayerOption:
        """The option of a stage that keeps all that its backward reads."""
        flat = self.flat
        incoming, outgoing = self.incoming(i, part), self.outgoing(i, part)
        begun = [d for d in outgoing if self.stage_of[flat.writers_by_data[d][0]] != i and d not in incoming]
        later = {d for d in incoming if flat.data[d].keep or self.reads_below(i, d)}
        grown = self.grown(part)
        start = (*part.saved, *incoming, *begun, *grown)
        forward, forward_steps = _local(flat, part.forward, (), {*stays, *part.saved})
        backward, backward_steps = _local(flat, part.backward, start, {*outgoing, *later, *grown})
        reads_output = self.reads(part, part.output) and self.loose(part.output)
        return LayerOption(
            forward=self.time_of(part.forward),
            backward=self.time_of(part.backward),
            phantom=self.bytes_of(part.saved),
            forward_workspace=max(0, forward - self.bytes_of(part.saved) - self.bytes_of(stays)),
            backward_workspace=max(0, backward - self.bytes_of(start) - self.bytes_of(outgoing)),
            backward_reads=(flat.data[part.output].name,) if reads_output else (),
            forward_steps=forward_steps if backward_steps else (),
            backward_steps=backward_steps,
        )

    def grown(self, part: Part) -> tuple[int, ...]:
        """The sums begun before the backward of a stage that it adds to."""
        written = dict.fromkeys(d for k in part.backward for d in self.flat.writes_by_node[k])
        return tuple(d for d in written if self.begun_before(d))

    def time_of(self, nodes: Iterable[int]) -> Ns:
        return sum(self.flat.computes[k].option.time for k in nodes)

    def bytes_of(self, data: Iterable[int]) -> Bytes:
        return sum(self.flat.data[d].size for d in data)

    # -- data of a stage -----------------------------------------------------------------------------------------------

    def names(self, data: Iterable[int]) -> tuple[str, ...]:
        return tuple(self.flat.data[d].name for d in dict.fromkeys(data))

    def stays(self, part: Part) -> tuple[int, ...]:
        """Outputs of the forward that stay to the end: kept and pinned data, except the stage's output."""
        written = dict.fromkeys(d for k in part.forward for d in self.flat.writes_by_node[k])
        return tuple(d for d in written if d != part.output and (self.flat.data[d].keep or d in self.pinned))

    def loose(self, d: int) -> bool:
        """Whether a datum of the forward may go before the end."""
        return not self.flat.data[d].keep and d not in self.pinned

    def reads(self, part: Part, d: int) -> bool:
        return any(d in self.flat.reads_by_node[k] for k in part.backward)

    def reads_below(self, i: int, d: int) -> bool:
        """Whether the backward of a stage before stage i reads or completes a datum."""
        loss, stage_of = self.flat.loss, self.stage_of
        users = (*self.flat.readers_by_data[d], *self.flat.writers_by_data[d])
        return any(k > loss and stage_of[k] < i for k in users)

    def begun_before(self, d: int) -> bool:
        """Whether a datum is a sum that the forward begins and the loss or the backward continues; it is pinned."""
        writers = self.flat.writers_by_data[d]
        return bool(writers) and writers[0] < self.flat.loss <= writers[-1]

    def incoming(self, i: int, part: Part) -> tuple[int, ...]:
        """What this backward reads of the loss and of later stages' backward."""
        loss, stage_of = self.flat.loss, self.stage_of
        data: dict[int, None] = {}
        for k in part.backward:
            for d in self.flat.reads_by_node[k]:
                writers = self.flat.writers_by_data[d]
                if writers and writers[0] >= loss and any(w == loss or stage_of[w] != i for w in writers):
                    data[d] = None
        return tuple(data)

    def outgoing(self, i: int, part: Part) -> tuple[int, ...]:
        """What this backward writes for others: kept data, and what another stage's backward reads or adds to."""
        stage_of = self.stage_of
        data: dict[int, None] = {}
        for k in part.backward:
            for d in self.flat.writes_by_node[k]:
                if self.begun_before(d):
                    continue
                users = (*self.flat.readers_by_data[d], *self.flat.writers_by_data[d])
                if self.flat.data[d].keep or any(stage_of[u] != i for u in users):
                    data[d] = None
        return tuple(data)


def _local(flat: Graph, nodes: Sequence[int], start: Iterable[int], stays: set[int]) -> tuple[Bytes, tuple[Step, ...]]:
    """Most bytes while `nodes` run with `start` resident, and their steps; all but `stays` is dropped at its last use."""

    def size(data: Iterable[int]) -> Bytes:
        return sum(flat.data[d].size for d in data)

    touched = [dict.fromkeys((*flat.reads_by_node[k], *flat.writes_by_node[k])) for k in nodes]
    last = {d: at for at, data in enumerate(touched) for d in data}
    resident = set(start)
    live = peak = size(resident)
    steps: list[Step] = []
    for at, k in enumerate(nodes):
        writes = flat.writes_by_node[k]
        peak = max(peak, live + size(writes) + flat.computes[k].option.workspace)
        live += size(set(writes) - resident)
        resident.update(writes)
        dropped = [d for d in touched[at] if d in resident - stays and last[d] == at]
        resident.difference_update(dropped)
        live -= size(dropped)
        steps += [Run(flat.computes[k].name), *(Drop(flat.data[d].name) for d in dropped)]
    return peak, tuple(steps)
