"""From a captured program and measured costs to the graph that solvers plan on."""

from __future__ import annotations

from collections.abc import Mapping

from remat.exec._cost.cost import COSTS, OpCost
from remat.exec._program.program import A_PROGRAM, Op, Program, Role
from remat.exec._program.signatures import signature
from remat.ir import Graph, GraphBuilder, Kind, Option, Phase
from remat.settings import takes, whole
from remat.units import Bytes

_BY_PREFIX = {"param": Kind.INPUT, "buffer": Kind.BUFFER, "input": Kind.INPUT, "const": Kind.INPUT}
_NOTHING = OpCost()


@takes(rule="X-ARG", program=A_PROGRAM, costs=COSTS, loss_reserve=whole(0, "bytes"), loss_retained=whole(0, "bytes"))
def build_graph(
    program: Program,
    costs: Mapping[str, OpCost],
    *,
    loss_reserve: Bytes = 0,
    loss_retained: Bytes = 0,
) -> Graph:
    """The IR of a step: one node per operation that allocates, one datum per storage.

    Args:
        program: the captured step.
        costs: time and workspace by name of operation; sizes are the program's.
        loss_reserve: workspace of the loss node: what a loss outside the module holds besides its gradients [bytes].
        loss_retained: the part of it that stays to the end of the backward, in the first tangent [bytes].
    """
    builder = GraphBuilder(program.name)
    kinds = _kinds(program)
    for storage in program.storages.values():
        outside = storage.outside
        size = 0 if outside else storage.size
        if program.tangents and storage.name == program.values[program.tangents[0][0]].storage:
            size += loss_retained
        builder.data(storage.name, size, kinds[storage.name])
    twins = twins_of(program)
    for op in program.nodes:
        cost = costs.get(op.name, OpCost())
        builder.compute(
            op.name,
            op.phase,
            reads=program.read(op),
            writes=program.written(op),
            time=cost.time,
            workspace=loss_reserve if op.role is Role.LOSS else cost.workspace,
            scope=op.scope,
            twin=twins.get(op.name, ""),
            signature=signature(program, op),
            draws=op.draws,
            run_once=op.run_once,
        )
    return builder.build()


def recosted(
    graph: Graph,
    program: Program,
    costs: Mapping[str, OpCost],
    signatures: Mapping[str, str],
    *,
    loss_reserve: Bytes = 0,
    loss_retained: Bytes = 0,
) -> Graph:
    """What `build_graph` makes of a program that differs in sizes alone from one whose graph is there; arguments as there."""
    retaining = program.values[program.tangents[0][0]].storage if program.tangents else None
    sizes = [
        (0 if storage.outside else storage.size) + (loss_retained if storage.name == retaining else 0)
        for storage in program.storages.values()
    ]
    options = []
    for op in program.nodes:
        cost = costs.get(op.name, _NOTHING)
        workspace = loss_reserve if op.role is Role.LOSS else cost.workspace
        options.append((Option(time=cost.time, workspace=workspace),))
    return graph.with_costs(sizes, options, [signatures[op.name] for op in program.nodes])


def _first_by_sequence(program: Program) -> dict[int | None, str]:
    """The first forward operation of each number of autograd; "" where that is no node, or there is no number."""
    forward: dict[int | None, str] = {None: ""}
    for op in program.ops:
        if op.phase is Phase.FORWARD:
            forward.setdefault(op.sequence, op.name if op.role is Role.CALL else "")
    return forward


def twins_of(program: Program) -> dict[str, str]:
    """For each backward node that belongs to the backward of one forward node, that forward node.

    Sums of gradients that autograd makes where a value was used more than once belong to no operation, whatever number they
    carry, nor does the backward of a view, which is no node. Of several forward operations with one number the first is
    differentiated.
    """
    forward = _first_by_sequence(program)
    results = {value for op in program.ops if op.phase is Phase.BACKWARD for value in op.outputs}
    twins: dict[str, str] = {}
    for op in program.nodes:
        twin = forward.get(op.sequence, "")
        if twin and op.phase is Phase.BACKWARD and not adds_gradients(op, results):
            twins[op.name] = twin
    return twins


def adds_gradients(op: Op, results: set[str | None]) -> bool:
    """Whether an operation adds two of the values that the backward makes."""
    return str(op.target) == "aten.add.Tensor" and len(op.reads) == 2 and results.issuperset(op.reads)


def _users(program: Program) -> tuple[dict[str, Op], dict[str, list[Phase]]]:
    """By storage, the node that writes it last, and the phases of those that read it."""
    makers: dict[str, Op] = {}
    readers: dict[str, list[Phase]] = {}
    for op in program.nodes:
        for name in program.written(op):
            makers[name] = op
        for name in program.read(op):
            readers.setdefault(name, []).append(op.phase)
    return makers, readers


def _kinds(program: Program) -> dict[str, Kind]:
    """The kind of every storage."""
    makers, readers = _users(program)
    outputs = {program.values[value].storage for value in program.outputs}
    grads = {program.values[value].storage: kind for (kind, _), value in program.grads.items()}
    kinds: dict[str, Kind] = {}
    for storage in program.storages.values():
        name = storage.name
        if storage.outside:
            kinds[name] = _BY_PREFIX[name.partition(":")[0]]
        elif name in grads:
            kinds[name] = Kind.PARAM_GRAD if grads[name] == "param" else Kind.INPUT_GRAD
        elif name in outputs:
            kinds[name] = Kind.OUTPUT
        else:
            kinds[name] = _inner_kind(makers.get(name), readers.get(name, []))
    return kinds


def _inner_kind(maker: Op | None, readers: list[Phase]) -> Kind:
    """The kind of what neither enters nor leaves the step, by the operation that makes it and the phases that read it."""
    if maker is None or maker.role is Role.LOSS:
        return Kind.TANGENT
    if maker.role is Role.UPDATE:
        return Kind.UPDATED_BUFFER
    if maker.role is Role.RNG:
        return Kind.RNG_STATE
    if maker.phase is Phase.BACKWARD:
        return Kind.GRADIENT
    return Kind.PHANTOM if set(readers) == {Phase.BACKWARD} else Kind.ACTIVATION
