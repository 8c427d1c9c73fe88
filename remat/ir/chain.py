"""Chains: the typed view of a linearisable graph that the chain solvers read, and the way to build one from numbers.

A chain is a condensed graph whose layers follow one another: stage i reads the output of stage i-1 alone, and its backward
reads what later backward nodes and the loss left, its own phantom, its input and, under some options, its own output.
What the stages are made of does not matter here; schedules of the chain are ordinary schedules of `Chain.graph`.

Reference: Figure 1 and Table 1 of POFO (a-bar is the phantom together with the output); Rockmate, App. C, for options.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

from attrs import evolve, field, frozen

from remat.errors import IllFormed
from remat.ir.arguments import A_GRAPH
from remat.ir.checks import a_tuple, an_object, at_least
from remat.ir.graph import Graph
from remat.ir.node import Compute, Data, Kind, Layer, Phase
from remat.ir.option import LayerOption, Option
from remat.settings import takes
from remat.units import Bytes, Ns


@frozen(kw_only=True)
class Stage:
    """One stage of a chain, in the numbers that a chain solver needs.

    Attributes:
        forward, backward, phantom: names of the two nodes and of the phantom.
        output: name of the datum that the next stage (or the loss) reads.
        output_size: of the output [bytes]; 0 when the output is kept to the end of the step, and counted in `kept_size`.
        forward_writes: all outputs of the forward node, the phantom apart [bytes].
        backward_writes: all outputs of the backward node [bytes].
        kept_size: of outputs of the forward node that stay from its first run to the end of the step [bytes].
        options, no_save: as those of the layer.
        reads_output: for each option, whether the backward reads the stage's own output.
        frees_input: for each option, whether the input is dropped once the saving forward has run: its backward does not read
            it, and neither does the backward of the stage before, whose output it is.
        input_size: `output_size` of the stage before; 0 for the first [bytes].
    """

    forward: str
    backward: str
    phantom: str
    output: str
    output_size: Bytes
    forward_writes: Bytes
    backward_writes: Bytes
    kept_size: Bytes
    options: tuple[LayerOption, ...]
    no_save: Option
    reads_output: tuple[bool, ...]
    frees_input: tuple[bool, ...]
    input_size: Bytes

    def forward_needs(self, option: int) -> Bytes:
        """Bytes a run of the forward needs beyond what is resident, its input included; `len(options)`: the no-save forward."""
        if option == len(self.options):
            return self.forward_writes + self.no_save.workspace
        chosen = self.options[option]
        return self.forward_writes + chosen.phantom + chosen.forward_workspace

    def backward_needs(self, option: int) -> Bytes:
        """What a run of the backward needs, its phantom and its own output included where it reads them [bytes]."""
        chosen = self.options[option]
        output = self.output_size if self.reads_output[option] else 0
        return chosen.phantom + output + self.backward_writes + chosen.backward_workspace

    def saves(self, option: int) -> Bytes:
        """What stays between forward and backward under an option while later stages run: phantom and output [bytes]."""
        return self.options[option].phantom + self.output_size

    def freed(self, option: int) -> Bytes:
        """Bytes of the input that the saving forward frees [bytes]."""
        return self.input_size if self.frees_input[option] else 0


@frozen
class Chain:
    """The chain view of a graph; making one checks that the graph is a chain.

    Attributes:
        graph: the condensed graph; schedules are schedules of it.

    Raises:
        IllFormed: G-CHAIN, with the node at which the graph stops being a chain.
    """

    graph: Graph = field(validator=an_object(Graph, "linearised(graph).graph"))

    def __attrs_post_init__(self) -> None:
        reason = why_no_chain(self.graph)
        if reason is not None:
            raise IllFormed("G-CHAIN", reason, fix="write Linearise() >> … to make a chain of a training graph.")

    def __len__(self) -> int:
        return len(self.graph.layers)

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """The stages, first to last."""
        graph, count = self.graph, len(self)
        layers = {layer.forward: layer for layer in graph.layers}
        stages: list[Stage] = []
        for i in range(count):
            stages.append(
                _stage(graph, layers[graph.computes[i].name], graph.computes[i + 1], stages[-1] if stages else None)
            )
        return tuple(stages)

    @cached_property
    def loss(self) -> str:
        """Name of the loss node."""
        return self.graph.computes[self.graph.loss].name

    @cached_property
    def loss_time(self) -> Ns:
        """Time of the loss by its fastest option [ns]."""
        return min(option.time for option in self.graph.computes[self.graph.loss].options)

    @cached_property
    def loss_option(self) -> int:
        """Index of the loss node's fastest option (ties: the smaller workspace)."""
        options = self.graph.computes[self.graph.loss].options
        return min(range(len(options)), key=lambda i: (options[i].time, options[i].workspace))

    @cached_property
    def loss_needs(self) -> Bytes:
        """What the loss needs beyond what is resident, its input among it [bytes]."""
        node = self.graph.computes[self.graph.loss]
        return sum(self.graph.datum(name).size for name in node.writes) + node.options[self.loss_option].workspace

    @cached_property
    def kept_before(self) -> tuple[Bytes, ...]:
        """Before the first run of stage i's forward (i = length: of the loss), bytes that the forward left for good."""
        sums = [0]
        for stage in self.stages:
            sums.append(sums[-1] + stage.kept_size)
        return tuple(sums)

    @cached_property
    def after(self) -> tuple[Bytes, ...]:
        """Bytes resident for good or for a later backward once the backward of stage t+1 has run and that of t has not.

        Gradients on their way, gradients of parameters, tangents, and all that the forward left for good; index t from 0 to
        length - 1, where length - 1 means: when the loss has run.
        """
        graph, count = self.graph, len(self)
        deltas = [0] * (count + 1)
        for datum, writers, readers in zip(graph.data, graph.writers_by_data, graph.readers_by_data, strict=True):
            if not writers or writers[0] < graph.loss or not datum.size:
                continue
            # position 0 is the loss, position p the backward of stage count - p; `after[t]` is position count - 1 - t
            first = writers[0] - count
            last = count if datum.keep else max((*writers, *readers)) - count - 1
            if first <= last:
                deltas[first] += datum.size
                deltas[last + 1 if last < count else count] -= datum.size
        sums: list[Bytes] = []
        total = self.kept_before[-1]
        for delta in deltas[:count]:
            total += delta
            sums.append(total)
        sums.reverse()
        return tuple(sums)

    @property
    def time(self) -> Ns:
        """Time without recomputation, each stage by its fastest option [ns]."""
        return self.loss_time + sum(
            min(option.forward + option.backward for option in stage.options) for stage in self.stages
        )


def _stage(graph: Graph, layer: Layer, follower: Compute, before: Stage | None) -> Stage:
    forward, backward = graph.node(layer.forward), graph.node(layer.backward)
    written = [*map(graph.datum, forward.writes)]
    output = next(datum for datum in written if datum.name in follower.reads)
    reads = [(*backward.reads, *option.backward_reads) for option in layer.options]
    return Stage(
        forward=layer.forward,
        backward=layer.backward,
        phantom=layer.phantom,
        output=output.name,
        output_size=0 if output.keep else output.size,
        forward_writes=_size(written),
        backward_writes=_size(map(graph.datum, backward.writes)),
        kept_size=_size(datum for datum in written if datum.keep),
        options=layer.options,
        no_save=layer.no_save,
        reads_output=tuple(output.name in names for names in reads),
        frees_input=tuple(_frees_input(names, before) for names in reads),
        input_size=0 if before is None else before.output_size,
    )


def _size(data: Iterable[Data]) -> Bytes:
    return sum(datum.size for datum in data)


def _frees_input(reads: Sequence[str], before: Stage | None) -> bool:
    """Whether no backward reads the input of a stage: that of the stage does not, nor does any option of the stage before."""
    return before is not None and not any(before.reads_output) and before.output not in reads


@takes(graph=A_GRAPH)
def why_no_chain(graph: Graph) -> str | None:
    """Why the graph is not a chain, naming the first node at fault; None when it is one."""
    count = len(graph.layers)
    if count == 0:
        return "the graph has no layers"
    if len(graph) != 2 * count + 1:
        return f"{len(graph)} nodes for {count} layers: every node but the loss must belong to a layer"
    partner = {layer.forward: layer.backward for layer in graph.layers}
    for i in range(count):
        node, mirror = graph.computes[i], graph.computes[2 * count - i]
        if partner.get(node.name) != mirror.name:
            return f"the backward of {node.name!r} does not stand at the mirrored place, where {mirror.name!r} stands"
        if node.run_once:
            return f"{node.name!r} may run only once"
    outputs: list[str] = []
    for i in range(count):
        output = _one_output(graph, i)
        if isinstance(output, _Fault):
            return output.what
        outputs.append(output)
    return _forward_reads(graph, outputs) or _backward_reads(graph, outputs)


@frozen
class _Fault:
    what: str


def _one_output(graph: Graph, i: int) -> str | _Fault:
    """The one datum that stage i passes on, or what is wrong with its outputs."""
    node, follower = graph.computes[i], graph.computes[i + 1]
    passed = [name for name in node.writes if name in follower.reads]
    if len(passed) != 1:
        return _Fault(f"{node.name!r} passes {len(passed)} data to {follower.name!r}, not one")
    for name in node.writes:
        if name != passed[0] and (not graph.datum(name).keep or graph.readers_by_data[graph.data_index[name]]):
            return _Fault(f"{name!r}, which {node.name!r} writes, is neither its output nor merely kept")
        if len(graph.datum(name).writers) != 1:
            return _Fault(f"{name!r}, which {node.name!r} writes, has several writers")
    return passed[0]


def _forward_reads(graph: Graph, outputs: Sequence[str]) -> str | None:
    for i, node in enumerate(graph.computes[: len(outputs) + 1]):
        allowed = {outputs[i - 1]} if i else set()
        for name in node.reads:
            if name not in allowed and not graph.datum(name).outside:
                return f"{node.name!r} reads {name!r}, which is not the output of the stage before it"
    return None


def _backward_reads(graph: Graph, outputs: Sequence[str]) -> str | None:
    count = len(outputs)
    layers = {layer.backward: layer for layer in graph.layers}
    saved = _saved(graph)
    for i in range(count):
        node = graph.computes[2 * count - i]
        allowed = {outputs[i], outputs[i - 1]} if i else {outputs[0]}
        extra = (name for option in layers[node.name].options for name in option.backward_reads)
        for name in (*node.reads, *extra):
            if name in saved and name not in allowed:
                return f"{node.name!r} reads {name!r}, which another stage's forward writes"
    return None


def is_chain(graph: Graph) -> bool:
    """Test: the graph is a chain of layers."""
    return why_no_chain(graph) is None


@frozen(kw_only=True)
class Block:
    """One stage, as `chain_graph` reads it.

    Attributes:
        output: size of what it passes on [bytes]. gradient: size of the gradient of its input [bytes].
        options: the ways to run it. no_save: the run that keeps nothing; left out: see `Layer`.
        param_grad: what its backward leaves for good [bytes]. kept: what its forward leaves for good [bytes].
        reads_input: whether its backward reads its input, under every option.
    """

    output: Bytes = field(validator=at_least(0, "bytes"))
    gradient: Bytes = field(validator=at_least(0, "bytes"))
    options: tuple[LayerOption, ...] = field(validator=a_tuple(LayerOption))
    no_save: Option | None = None
    param_grad: Bytes = field(default=0, validator=at_least(0, "bytes"))
    kept: Bytes = field(default=0, validator=at_least(0, "bytes"))
    reads_input: bool = True


def chain_graph(
    blocks: Iterable[Block], *, loss: Option, loss_gradient: Bytes, tangent: Bytes = 0, name: str = "chain"
) -> Graph:
    """The graph of a chain: nodes F0, F1, …, L, …, B1, B0; outputs a1, a2, …, gradients g0, g1, …, parameters' w0, w1, ….

    Args:
        blocks: the stages, first to last; a backward that reads the stage's output names it (`a1` of stage 0) in
            `backward_reads` of the option.
        loss: time and workspace of the loss node.
        loss_gradient: size of the gradient of the last output [bytes].
        tangent: what the loss leaves for good [bytes].
        name: name of the graph.

    Raises:
        IllFormed: G-CHAIN without blocks, or another rule of graphs.
    """
    blocks = tuple(blocks)
    if not blocks:
        raise IllFormed("G-CHAIN", "a chain of no stages.", fix="give at least one block.")
    count = len(blocks)
    nodes: list[Compute] = []
    layers = []
    data = [Data(name="a0", size=0, kind=Kind.INPUT)]
    for i, block in enumerate(blocks):
        layer = Layer(forward=f"F{i}", backward=f"B{i}", phantom=f"p{i}", options=block.options)
        layers.append(layer if block.no_save is None else evolve(layer, no_save=block.no_save))
        data.append(Data(name=f"a{i + 1}", size=block.output, writers=(f"F{i}",)))
        kept_names = (f"k{i}",) if block.kept else ()
        data.extend(Data(name=k, size=block.kept, kind=Kind.UPDATED_BUFFER, writers=(f"F{i}",)) for k in kept_names)
        writes = (f"a{i + 1}", *kept_names)
        options = layers[i].forward_options
        nodes.append(Compute(name=f"F{i}", phase=Phase.FORWARD, reads=(f"a{i}",), writes=writes, options=options))
    data.append(Data(name="t", size=tangent, kind=Kind.TANGENT, writers=("L",)))
    data.append(Data(name=f"g{count}", size=loss_gradient, kind=Kind.GRADIENT, writers=("L",)))
    nodes.append(Compute(name="L", phase=Phase.LOSS, reads=(f"a{count}",), writes=("t", f"g{count}"), options=(loss,)))
    for i in reversed(range(count)):
        data.append(Data(name=f"g{i}", size=blocks[i].gradient, kind=Kind.GRADIENT, writers=(f"B{i}",)))
        data.append(Data(name=f"w{i}", size=blocks[i].param_grad, kind=Kind.PARAM_GRAD, writers=(f"B{i}",)))
        nodes.append(
            Compute(
                name=f"B{i}",
                phase=Phase.BACKWARD,
                reads=(f"g{i + 1}", f"a{i}") if blocks[i].reads_input else (f"g{i + 1}",),
                writes=(f"g{i}", f"w{i}"),
                options=layers[i].backward_options,
            )
        )
    return Graph(name=name, computes=tuple(nodes), data=tuple(data), layers=tuple(layers))


def _saved(graph: Graph) -> set[str]:
    """Names of the data that cost memory and are not made by the loss or the backward."""
    begun = [min(writers, default=0) for writers in graph.writers_by_data]
    return {datum.name for datum, at in zip(graph.data, begun, strict=True) if at < graph.loss and not datum.outside}
