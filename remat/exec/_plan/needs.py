"""What a training step with its optimizer needs on a device: by kind, and by module."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen
from torch import nn

from remat.exec._capture.capturing import Captured
from remat.exec._cost.optimizers import OptimizerMemory
from remat.exec._plan.residents import makers, residents_at_peak, shortened
from remat.exec._torch import torch_private
from remat.ir import Graph, Kind, Schedule
from remat.units import Bytes

_TEMPORARY = (Kind.GRADIENT, Kind.TANGENT, Kind.INPUT_GRAD)
_LEFT = (Kind.PARAM_GRAD, Kind.INPUT_GRAD, Kind.OUTPUT)
"""What is still held when the optimizer runs."""


@frozen(kw_only=True)
class ModuleNeeds:
    """What belongs to one module.

    Attributes:
        name: its path; empty: the model itself.
        parameters, buffers, states, gradients: [bytes].
        at_peak: what its operations made and is held at the peak of a step that keeps everything, without gradients of
            parameters [bytes].
    """

    name: str
    parameters: Bytes = 0
    buffers: Bytes = 0
    gradients: Bytes = 0
    states: Bytes = 0
    at_peak: Bytes = 0

    @property
    def total(self) -> Bytes:
        """All of these [bytes]."""
        return self.parameters + self.buffers + self.gradients + self.states + self.at_peak


@frozen(kw_only=True)
class Needs:
    """What a step needs, all in bytes.

    Attributes:
        parameters, buffers, inputs, states: live before, during and after the step; `states` are the optimizer's.
        step: most that forward and backward hold above these, where everything is kept, as autograd keeps it without a plan.
        activations: part of `step`: what the forward made.
        temporaries: part of `step`: gradients of activations.
        gradients_at_peak: part of `step`: gradients of parameters that are there already.
        workspace: part of `step`: what the operation at the peak takes for itself.
        gradients: of all parameters, when the backward has ended.
        update: most that the optimizer's step holds above what lives before the step: gradients, outputs, its scratch.
        scratch: part of `update`.
        node: the operation at the peak.
        modules: by module, in the order of the model.
    """

    parameters: Bytes
    buffers: Bytes
    inputs: Bytes
    states: Bytes
    step: Bytes
    activations: Bytes
    temporaries: Bytes
    gradients_at_peak: Bytes
    workspace: Bytes
    gradients: Bytes
    update: Bytes
    scratch: Bytes
    node: str
    modules: tuple[ModuleNeeds, ...]

    @property
    def outside(self) -> Bytes:
        """What lives before the step, which no budget of a step counts."""
        return self.parameters + self.buffers + self.inputs + self.states

    @property
    def total(self) -> Bytes:
        """The most that is held at any time when everything is kept."""
        return self.outside + max(self.step, self.update)

    def within(self, budget: Bytes) -> Bytes:
        """The most that is held at any time where forward and backward hold at most `budget`."""
        return self.outside + max(budget, self.update)


def needs_of(
    captured: Captured,
    graph: Graph,
    module: nn.Module,
    optimizer: OptimizerMemory,
    *,
    granule: Bytes = 1,
    depth: int = 1,
) -> Needs:
    """What a captured step needs.

    Args:
        captured: the step.
        graph: the same, with the sizes and workspaces of the device, its data read as long as they are held.
        module: whose step it is.
        optimizer: what its optimizer takes.
        granule: what the device's allocator hands out is a multiple of this [bytes].
        depth: how many parts of their paths tell modules apart.
    """
    peak = residents_at_peak(graph, Schedule.from_runs(graph, range(len(graph))))
    resident = [graph.datum(name) for name in peak.data]
    by_kind = {kind: sum(datum.size for datum in resident if datum.kind is kind) for kind in Kind}
    temporaries = sum(by_kind[kind] for kind in _TEMPORARY)
    left = {kind: sum(datum.size for datum in graph.data if datum.kind is kind) for kind in _LEFT}
    overhead = captured.overhead
    inputs = {captured.program.storage_of(value).name for value, _ in captured.program.inputs}
    return Needs(
        parameters=_bytes(dict(module.named_parameters()), granule),
        buffers=_bytes(dict(module.named_buffers()), granule),
        inputs=sum(_rounded(captured.program.storages[name].size, granule) for name in inputs),
        states=optimizer.states,
        step=peak.peak + overhead,
        activations=sum(by_kind.values()) - temporaries - by_kind[Kind.PARAM_GRAD] + overhead,
        temporaries=temporaries,
        gradients_at_peak=by_kind[Kind.PARAM_GRAD],
        workspace=peak.workspace,
        gradients=left[Kind.PARAM_GRAD],
        update=sum(left.values()) + optimizer.scratch,
        scratch=optimizer.scratch,
        node=peak.node,
        modules=_by_module(graph, module, optimizer, peak.data, depth),
    )


def _by_module(
    graph: Graph, module: nn.Module, optimizer: OptimizerMemory, resident: tuple[str, ...], depth: int
) -> tuple[ModuleNeeds, ...]:
    """The needs of each module, in the order in which parameters and operations come."""
    paths = makers(graph)
    at_peak = {name: graph.datum(name).size for name in resident if graph.datum(name).kind is not Kind.PARAM_GRAD}
    gradients = {datum.name: datum.size for datum in graph.data if datum.kind is Kind.PARAM_GRAD}
    columns: dict[str, list[tuple[str, Bytes]]] = {
        "parameters": [
            (_parent(name), tensor.untyped_storage().nbytes()) for name, tensor in module.named_parameters()
        ],
        "buffers": [(_parent(name), tensor.untyped_storage().nbytes()) for name, tensor in module.named_buffers()],
        "states": [(_parent(name), size) for name, size in optimizer.by_parameter.items()],
        "gradients": [(paths[name], size) for name, size in gradients.items()],
        "at_peak": [(paths[name], size) for name, size in at_peak.items()],
    }
    sums: dict[str, dict[str, Bytes]] = {}
    for column, entries in columns.items():
        for path, size in entries:
            row = sums.setdefault(shortened(path, depth), {})
            row[column] = row.get(column, 0) + size
    return tuple(ModuleNeeds(name=name, **row) for name, row in sums.items())


def _parent(path: str) -> str:
    return path.rpartition(".")[0]


def _bytes(tensors: Mapping[str, object], granule: Bytes) -> Bytes:
    """Bytes of the storages of tensors, each once."""
    leaves, _ = torch_private.flatten(list(tensors.values()))
    sizes = {torch_private.storage_key(leaf): leaf.untyped_storage().nbytes() for leaf in leaves}
    return sum(_rounded(size, granule) for size in sizes.values())


def _rounded(size: Bytes, granule: Bytes) -> Bytes:
    return -(-size // granule) * granule


__all__ = ["ModuleNeeds", "Needs", "needs_of"]
