"""Transforms of chains: `Quantise` rounds sizes up to a few slots, `UnitCost` makes all stages equal.

Both keep the names of nodes, data and phantoms, so that a schedule of the coarse chain is one of the true chain; neither keeps
proofs, because the coarse chain needs more memory (or pays other times) than the true one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from attrs import evolve, field, frozen

from remat.algorithms._core.clock import Clock
from remat.algorithms._core.problem import Problem
from remat.algorithms._core.transforms import Applied, Transform
from remat.ir import Compute, Data, Graph, Kind, Layer, LayerOption, Option, Phase, Run, Schedule
from remat.ir.arguments import A_TEXT
from remat.ir.chain import Chain, Stage, why_no_chain
from remat.ir.cluster import unused
from remat.settings import FLAG, MANY, each_of, instance, optional, takes, whole
from remat.units import Bytes

A_STAGE = instance(Stage, "Chain(graph).stages[0]")


def _refusal(graph: Graph) -> str | None:
    reason = why_no_chain(graph)
    return None if reason is None else f"not a chain ({reason}); write Linearise() >> …"


def _same(schedule: Schedule) -> Schedule:
    return schedule


@frozen
class Quantise(Transform):
    """Round the sizes of a chain up to multiples of one slot, the budget down; times stay.

    What is kept to the end of the step is rounded as a sum, so that many small gradients do not take a slot each. A workspace
    is reduced by what the rounding of its node's inputs and outputs added: every step of a schedule takes at least its true
    bytes, and few more.

    Attributes:
        slots: slots of the budget; None: max(500, 10 per stage).
        carry: round outputs and phantoms to the nearest slot instead, each with the error of those before it, so that the sum
            that a segment of stages saves is off by less than a slot; a schedule may then need more than the budget, and the
            caller has to replay it and to plan again for less.
    """

    carries_starts: ClassVar[bool] = True

    slots: int | None = field(default=None, validator=optional(whole(1, "slots")))
    carry: bool = field(default=False, validator=FLAG, kw_only=True)

    def refuses(self, graph: Graph) -> str | None:
        """Why a graph is refused: it is not a chain."""
        return _refusal(graph)

    def apply(self, problem: Problem, *, clock: Clock | None = None, seed: int = 0) -> Applied:
        """The rounded chain; schedules are lifted as they are."""
        graph = problem.graph
        slots = self.slots if self.slots is not None else max(500, 10 * len(graph.layers))
        unit = max(1, -(-min(problem.budget, _most(graph)) // slots))
        rounded = graph if unit == 1 else _rounded(graph, unit, self.carry)
        budget = min(problem.budget, _up(_most(rounded), unit))
        coarse = evolve(problem, graph=rounded, budget=budget // unit * unit)
        return Applied(problem=coarse, lift=_same, carry=_same)


def _most(graph: Graph) -> Bytes:
    """Bytes that no schedule exceeds: a larger budget is no other."""
    phantoms = sum(max(option.phantom for option in layer.options) for layer in graph.layers)
    workspace = max(option.workspace for node in graph.computes for option in node.options)
    return sum(datum.size for datum in graph.data) + phantoms + workspace


def _up(size: Bytes, unit: Bytes) -> Bytes:
    return -(-size // unit) * unit


class _Nearest:
    """Rounds to the nearest multiple, each time with the error so far."""

    def __init__(self, unit: Bytes) -> None:
        self.unit = unit
        self.error = 0

    def __call__(self, size: Bytes) -> Bytes:
        near = max(0, (size + self.error + self.unit // 2) // self.unit * self.unit)
        self.error += size - near
        return near


def _rounded(graph: Graph, unit: Bytes, carry: bool) -> Graph:
    rounding = _Rounding(graph, unit)
    if carry:
        rounding.carry_errors()
    layers = [rounding.layer(layer) for layer in graph.layers]
    options_of_node = {layer.forward: layer.forward_options for layer in layers}
    options_of_node.update({layer.backward: layer.backward_options for layer in layers})
    loss = graph.computes[graph.loss]
    options_of_node[loss.name] = tuple(
        Option(time=option.time, workspace=rounding.workspace(loss, option.workspace)) for option in loss.options
    )
    return Graph(
        name=graph.name,
        computes=tuple(evolve(node, options=options_of_node[node.name]) for node in graph.computes),
        data=tuple(evolve(datum, size=rounding.sizes[datum.name]) for datum in graph.data),
        layers=tuple(layers),
    )


class _Rounding:
    """The sizes of a chain of layers in whole units.

    Attributes:
        sizes: of the data, by name. saved: of each phantom, per option. Both up, unless errors are carried on.
    """

    def __init__(self, graph: Graph, unit: Bytes) -> None:
        self.graph, self.unit = graph, unit
        self.true = {datum.name: 0 if datum.outside else datum.size for datum in graph.data}
        self.kept_names = {datum.name for datum in graph.data if datum.keep}
        self.sizes = {name: _up(size, unit) for name, size in self.true.items()} | _kept_sizes(graph, unit)
        self.saved = {
            layer.phantom: tuple(_up(option.phantom, unit) for option in layer.options) for layer in graph.layers
        }

    def carry_errors(self) -> None:
        """Round outputs and phantoms so that the sum that a segment of stages saves is off by less than a unit."""
        output, phantom = _Nearest(self.unit), _Nearest(self.unit)
        for stage in Chain(self.graph).stages:
            if stage.output_size:
                self.sizes[stage.output] = output(stage.output_size)
            first, *more = (option.phantom for option in stage.options)
            error = phantom.error + self.unit // 2
            others = [max(0, (size + error) // self.unit * self.unit) for size in more]
            self.saved[stage.phantom] = (phantom(first), *others)

    def workspace(
        self, node: Compute, workspace: Bytes, reads: Iterable[str] = (), phantom: Bytes = 0, saved_size: Bytes = 0
    ) -> Bytes:
        """The workspace with which the node's own bytes, taken together, are rounded up once.

        Args:
            node: runs.
            workspace: of the option.
            reads: data that it reads under this option alone.
            phantom: bytes of the option's phantom.
            saved_size: the phantom in whole units [bytes].
        """
        names = [*node.writes, *(name for name in (*node.reads, *reads) if name not in self.kept_names)]
        exact = sum(self.true[name] for name in names) + phantom + workspace
        return max(0, _up(exact, self.unit) - sum(self.sizes[name] for name in names) - saved_size)

    def layer(self, layer: Layer) -> Layer:
        """A layer in whole units."""
        forward, backward = self.graph.node(layer.forward), self.graph.node(layer.backward)
        options = []
        for option, saved_size in zip(layer.options, self.saved[layer.phantom], strict=True):
            reads, phantom = option.backward_reads, option.phantom
            options.append(
                LayerOption(
                    forward=option.forward,
                    backward=option.backward,
                    phantom=saved_size,
                    forward_workspace=self.workspace(forward, option.forward_workspace, (), phantom, saved_size),
                    backward_workspace=self.workspace(backward, option.backward_workspace, reads, phantom, saved_size),
                    backward_reads=reads,
                )
            )
        no_save = Option(time=layer.no_save.time, workspace=self.workspace(forward, layer.no_save.workspace))
        return Layer(
            forward=layer.forward,
            backward=layer.backward,
            phantom=layer.phantom,
            options=tuple(options),
            no_save=no_save,
        )


def _kept_sizes(graph: Graph, unit: Bytes) -> dict[str, Bytes]:
    """Sizes of what is kept, such that those of the first k to be written are together the true sum, rounded up."""
    written = [(graph.node_index[datum.writers[0]], datum) for datum in graph.data if datum.keep]
    written.sort(key=lambda pair: pair[0])
    sizes: dict[str, Bytes] = {}
    for after_loss in (False, True):
        total = 0
        for datum in (datum for at, datum in written if (at >= graph.loss) is after_loss):
            sizes[datum.name] = _up(total + datum.size, unit) - _up(total, unit)
            total += datum.size
    return sizes


def work(chain: Chain) -> Bytes:
    """The most that any step needs on top of the held inputs of stages [bytes]."""
    largest = chain.loss_needs + chain.kept_before[-1]
    latest = 0
    for s in reversed(range(len(chain))):
        stage = chain.stages[s]
        latest = max(latest, chain.after[s])
        options = range(len(stage.options) + 1)
        forward = max(stage.forward_needs(o) for o in options) + max(latest, chain.kept_before[s])
        backward = max(stage.backward_needs(o) for o in options[:-1]) + chain.after[s]
        largest = max(largest, forward, backward)
    return largest


def checkpoints(chain: Chain, budget: Bytes) -> int | None:
    """How many inputs of stages a budget holds at once, the first one not counted; None when not even the work fits.

    One place is for the current input: Revolve with c checkpoints, the chain's own input included, holds c inputs besides.
    """
    left = budget - work(chain)
    if left < 0:
        return None
    largest = max(stage.output_size for stage in chain.stages)
    return len(chain) if largest == 0 else min(left // largest, len(chain))


@frozen
class UnitCost(Transform):
    """Make all stages of a chain equal, for `Revolve`: times of one, outputs of one slot, a tape larger than all slots.

    The slot convention: the budget holds as many slots as the true budget holds largest outputs on top of the most
    memory-demanding step (`checkpoints`); a stage's phantom (its tape) takes L + 1 slots and the budget has room for one of
    them, so that a stage saves for its backward only right before it. Then Rotor and Revolve agree (docs/explanation/chains.md).
    """

    def refuses(self, graph: Graph) -> str | None:
        """Why a graph is refused: it is not a chain."""
        return _refusal(graph)

    def apply(self, problem: Problem, *, clock: Clock | None = None, seed: int = 0) -> Applied:
        """The unit chain; runs are lifted by name, a stage's saving run to its fastest option."""
        chain = Chain(problem.graph)
        count = checkpoints(chain, problem.budget)
        unit = unit_chain(chain.stages, chain.loss)
        budget = 0 if count is None else unit_budget(len(chain), count)

        def lift(schedule: Schedule) -> Schedule:
            return lifted(chain, schedule)

        return Applied(problem=Problem(graph=unit, budget=budget, deadline=problem.deadline), lift=lift)


@takes(length=whole(0), count=whole(0))
def unit_budget(length: int, count: int) -> Bytes:
    """The budget of a unit chain that holds `count` inputs on top of the work of one step: an output and a tape."""
    return count + 1 + length + 1


@takes(stages=MANY, loss=A_TEXT)
def unit_chain(stages: Sequence[Stage], loss: str) -> Graph:
    """The unit chain with the names of the given stages."""
    stages = each_of(stages, A_STAGE, "unit_chain: stages")
    length = len(stages)
    option = LayerOption(forward=1, backward=1, phantom=length + 1)
    layers = tuple(
        Layer(forward=s.forward, backward=s.backward, phantom=s.phantom, options=(option,), no_save=Option(time=1))
        for s in stages
    )
    word = unused("unit", [loss, *(n for s in stages for n in (s.forward, s.backward, s.phantom, s.output))])
    inputs = [f"{word}.input", *(stage.output for stage in stages)]
    data = [Data(name=f"{word}.input", size=0, kind=Kind.INPUT)]
    data += [Data(name=stage.output, size=1, writers=(stage.forward,)) for stage in stages]
    data += [Data(name=f"{word}.tangent", size=0, kind=Kind.TANGENT, writers=(loss,))]
    data += [Data(name=f"{word}.loss", size=0, kind=Kind.GRADIENT, writers=(loss,))]
    nodes = [
        Compute(name=s.forward, phase=Phase.FORWARD, reads=(a,), writes=(s.output,), options=layer.forward_options)
        for s, a, layer in zip(stages, inputs, layers, strict=False)
    ]
    from_loss = (f"{word}.tangent", f"{word}.loss")
    nodes.append(Compute(name=loss, phase=Phase.LOSS, reads=(inputs[-1],), writes=from_loss, options=(Option(time=1),)))
    gradient = f"{word}.loss"
    for i in reversed(range(length)):
        stage = stages[i]
        from_backward = (f"{word}.g{i}", f"{word}.w{i}")
        data.append(Data(name=from_backward[0], size=0, kind=Kind.GRADIENT, writers=(stage.backward,)))
        data.append(Data(name=from_backward[1], size=0, kind=Kind.PARAM_GRAD, writers=(stage.backward,)))
        nodes.append(
            Compute(
                name=stage.backward,
                phase=Phase.BACKWARD,
                reads=(gradient, inputs[i]),
                writes=from_backward,
                options=layers[i].backward_options,
            )
        )
        gradient = from_backward[0]
    return Graph(name="unit", computes=tuple(nodes), data=tuple(data), layers=layers)


def lifted(chain: Chain, schedule: Schedule) -> Schedule:
    """A schedule of the unit chain on the true one: the same runs, drops placed again."""
    fastest: dict[str, tuple[int, ...]] = {}
    for stage in chain.stages:
        order = [(option.forward + option.backward, option.phantom, i) for i, option in enumerate(stage.options)]
        fastest[stage.forward] = (min(order)[2], len(stage.options))
        fastest[stage.backward] = (min(order)[2],)
    fastest[chain.loss] = (chain.loss_option,)
    runs = [Run(run.node, fastest[run.node][run.option]) for run in schedule.runs]
    return Schedule.from_runs(chain.graph, runs)
