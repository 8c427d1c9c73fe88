"""The partitions that PyTorch's own partitioners make of a captured step, replayed by the validator.

`torch.compile` divides a joint graph by a min-cut, and below `activation_memory_budget = 1` by a knapsack over activations
(`torch/_functorch/partitioners.py`). Here they see the operations of the captured step, one by one, with the times of the graph
in place of counted flops; what their forward and backward modules run becomes a run sequence, which the validator replays.
"""

from __future__ import annotations

import contextlib
import io
import operator
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from attrs import frozen
from torch import fx
from torch._functorch import config
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.custom_graph_pass import CustomRuntimeEstimator
from torch._subclasses.fake_tensor import FakeTensorMode

from remat.exec._program.program import Op, Program, Ref, Role, Value
from remat.ir import Graph, Phase, Schedule, validate

BUDGETS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0)
"""Values of `activation_memory_budget`: from all that the min-cut keeps (1) to the inputs alone (0)."""
SOLVERS = ("dp", "greedy", "ilp")
"""Their knapsack solvers."""


@frozen
class Partition:
    """A partition as the validator sees it.

    Attributes:
        solver: of the knapsack.
        budget: of `activation_memory_budget`.
        peak: of its replay [bytes].
        time: of its replay.
    """

    solver: str
    budget: float
    peak: int
    time: int


def partitions(program: Program, graph: Graph) -> Iterator[Partition]:
    """What the partitioners make of a step: each solver at each budget.

    Args:
        program: the step as it was captured, no sum of gradients folded into what makes it.
        graph: of the same step, on which runs are replayed; sums may be folded.
    """
    for budget in BUDGETS:
        for solver in SOLVERS if 0 < budget < 1 else SOLVERS[:1]:
            cost = validate(graph, partitioned(program, graph, budget, solver))
            yield Partition(solver, budget, cost.peak, cost.time)


def partitioned(program: Program, graph: Graph, budget: float, solver: str) -> Schedule:
    """The schedule of one partition."""
    joint, outputs = joint_module(program)
    # Merged nodes (CSE) would have no runs of their own.
    settings: dict[str, Any] = {"cse": False, "activation_memory_budget": budget}
    settings |= {"activation_memory_budget_solver": solver}
    settings |= {"activation_memory_budget_runtime_estimator": GraphTimes(graph)}
    with config.patch(settings), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        forward, backward = min_cut_rematerialization_partition(joint, (), num_fwd_outputs=outputs)
    return Schedule.from_runs(graph, runs_of(graph, names_of(forward), names_of(backward)))


class GraphTimes(CustomRuntimeEstimator):
    """Times of the nodes of a graph; a view takes none, and their knapsack wants more than nothing."""

    def __init__(self, graph: Graph) -> None:
        self.times = {node.name: node.options[0].time for node in graph.computes}

    def __call__(self, node: fx.Node) -> float:
        return float(max(self.times.get(node.meta["operation"], 0), 1))

    def uuid(self) -> Any:
        return None


def names_of(module: fx.GraphModule) -> list[str]:
    """Names of the operations that a module runs, in its order."""
    calls = (node for node in module.graph.nodes if node.op == "call_function" and node.target is not operator.getitem)
    return [node.meta["operation"] for node in calls]


def runs_of(graph: Graph, forward: list[str], backward: list[str]) -> list[str]:
    """The runs of both modules, on a graph in which sums are folded into what makes the last of their terms.

    Every forward node runs before the loss and no backward one does (S-PHASE): what the partition puts off to the backward runs
    there again, and operations of the backward that its forward module runs, as they wait for no gradient, run right after the
    loss. What may run once does not run again: its outputs are kept, whatever the partition says.
    """
    computes = {node.name: node for node in graph.computes}
    asked = set(forward)
    early = [name for name, node in computes.items() if node.phase is Phase.BACKWARD and name in asked]
    runs = [*(name for name, node in computes.items() if node.phase is not Phase.BACKWARD), *early]
    ran = set(runs)
    later = [name for name in backward if name in computes and not (computes[name].run_once and name in ran)]
    return runs + after_their_terms(graph, runs, later)


def after_their_terms(graph: Graph, ran: list[str], runs: list[str]) -> list[str]:
    """Runs in their order, but one that reads a datum waits until all that write it have run once."""
    waiting: list[str] = []
    ordered: list[str] = []
    done = {graph.node_index[name] for name in ran}

    def run_if_ready(name: str) -> bool:
        at = graph.node_index[name]
        if not all(done.issuperset(graph.writers_by_data[datum]) for datum in graph.reads_by_node[at]):
            return False
        ordered.append(name)
        done.add(at)
        return True

    for name in runs:
        if not run_if_ready(name):
            waiting.append(name)
            continue
        while still := [other for other in waiting if not run_if_ready(other)]:
            if len(still) == len(waiting):
                break
            waiting = still
        else:
            waiting = []
    return ordered + waiting


# -- the joint graph -------------------------------------------------------------------------------------------------------


def joint_module(program: Program) -> tuple[fx.GraphModule, int]:
    """The step as the joint graph that a partitioner takes, and how many of its outputs are of the forward."""
    writer = _Writer(program)
    for value in (*(value for value, _ in (*program.params, *program.buffers, *program.inputs)), *program.constants):
        writer.placeholder(value, "primals")
    for value, _ in program.tangents:
        writer.placeholder(value, "tangents")
    for op in program.ops:
        if op.role not in (Role.RNG, Role.LOSS):
            writer.call(op)
    ahead = [*program.outputs, *program.updates.values()]
    grads = list(dict.fromkeys(program.grads.values()))
    writer.graph.output([writer.nodes[value] for value in (*ahead, *grads)])
    return fx.GraphModule(torch.nn.Module(), writer.graph), len(ahead)


class _Writer:
    """Writes operations as nodes of an fx graph; each says in its meta which one it is."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.graph = fx.Graph()
        self.nodes: dict[str, fx.Node] = {}
        self.fake = FakeTensorMode()

    def placeholder(self, value: str, kind: str) -> None:
        if value not in self.nodes:
            self.nodes[value] = self.graph.placeholder(f"{kind}_{len(self.nodes)}")
            self.nodes[value].meta["val"] = self._empty(self.program.values[value])

    def call(self, op: Op) -> None:
        """An operation, and one node for each tensor of a tuple that it returns."""
        target: Callable[..., Any] = op.target  # type: ignore[assignment]
        args = op.args
        if op.role in (Role.LAYOUT, Role.UPDATE):  # a copy, of the first argument and of the second
            target, args = torch.ops.aten.clone.default, op.args[:1] if op.role is Role.LAYOUT else op.args[1:2]
        args, kwargs = _with_nodes(args, self.nodes), _with_nodes(op.kwargs, self.nodes)
        node = self.graph.call_function(target, args, kwargs)
        node.meta["operation"] = op.name
        made = self._looked_at(node) if op.role is Role.VIEW else [self._made(value) for value in op.outputs]
        node.meta["val"] = made if op.unpack else made[0]
        for at, value in enumerate(op.outputs):
            if value is None:
                continue
            part = node
            if op.unpack:
                part = self.graph.call_function(operator.getitem, (node, at))
                part.meta.update(val=made[at], operation=op.name)
            self.nodes[value] = part

    def _looked_at(self, node: fx.Node) -> list[Any]:
        """Views of fake tensors, which share their storage."""
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda source: source.meta["val"])
        with self.fake:
            made = node.target(*args, **kwargs)  # type: ignore[operator]
        return list(made) if isinstance(made, (tuple, list)) else [made]

    def _made(self, value: str | None) -> torch.Tensor | None:
        return None if value is None else self._empty(self.program.values[value])

    def _empty(self, value: Value) -> torch.Tensor:
        spec = value.spec
        with self.fake:
            return torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device=spec.device)


def _with_nodes(tree: Any, nodes: dict[str, fx.Node]) -> Any:
    """Arguments with nodes in place of names of values."""
    if isinstance(tree, Ref):
        return nodes[tree.name]
    if isinstance(tree, (tuple, list)):
        return type(tree)(_with_nodes(item, nodes) for item in tree)
    return {key: _with_nodes(item, nodes) for key, item in tree.items()} if isinstance(tree, dict) else tree
