"""The only user of private torch names, so that one file changes when torch does (works with 2.11 and later).

What is used, and why nothing public would do: the joint export (the only trace of forward and backward in one graph), the node
annotations of the tracer (module paths on nodes), an overload's unchecked entry (saves 0.3 us a call), and the fake tensor class.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.fx.traceback as fx_traceback
from attrs import frozen
from torch import nn
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode as DispatchMode
from torch.utils._python_dispatch import _disable_current_modes as no_modes
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from remat.exec.places import Running, described

__all__ = [
    "DispatchMode",
    "FakeTensor",
    "HigherOrderOperator",
    "Joint",
    "OpOverload",
    "ShapesOnly",
    "TreeSpec",
    "aliases_an_input",
    "allocator_events",
    "constant_of",
    "entry",
    "export_joint",
    "flatten",
    "is_backward",
    "memory_profile",
    "no_modes",
    "profiling",
    "reader_of_real",
    "scope_of",
    "scopes",
    "sequence_of",
    "shapes_depend_on_values",
    "spans",
    "storage_key",
    "unflatten",
]

_SCOPE = "remat_scope"


@frozen
class Joint:
    """A joint graph with what its placeholders and outputs mean.

    Attributes:
        module: the traced graph module; its placeholders are parameters, buffers, inputs, tangents.
        inputs: one per placeholder: ("param", name), ("buffer", name), ("input", position) or ("tangent", position of output).
        outputs: one per output of the graph: ("update", input), ("output", position), ("grad", input) or None.
        aliased: positions of module outputs that share storage with an input or with another output.
    """

    module: torch.fx.GraphModule
    inputs: tuple[tuple[str, Any], ...]
    outputs: tuple[tuple[str, Any] | None, ...]
    aliased: frozenset[int]


def export_joint(module: nn.Module, args: tuple[torch.Tensor, ...]) -> Joint:
    """Trace forward and backward of `module` under fake tensors into one functional graph of ATen operations."""
    with ExitStack() as stack, fx_traceback.preserve_node_meta(), _eager_kernels(), _lists_of_items():
        joint = aot_export_joint_with_descriptors(stack, module, args)
    graph = joint.graph_module.graph
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    (output,) = (node for node in graph.nodes if node.op == "output")
    inputs = tuple(_role(node.meta["desc"]) for node in placeholders)
    outputs = tuple(None if one is None else _role(one) for one in output.meta["desc"])
    infos = joint._aot_state.fw_metadata.output_info
    plain = {"non_alias", "unsafe_view_alias", "custom_function_view"}
    aliased = frozenset(i for i, info in enumerate(infos) if info.output_type.name not in plain)
    return Joint(joint.graph_module, inputs, outputs, aliased)


_DECOMPOSED = (
    "upsample_", "_upsample_", "lstm", "gru", "rnn_", "hardshrink", "softshrink", "multi_margin_loss",
    "multilabel_margin_loss",
)  # fmt: skip
"""Operations that the tracer takes apart in Python where eager runs one kernel: other roundings, and more memory."""


@contextmanager
def _eager_kernels() -> Iterator[None]:
    """Trace these operations as the kernels that eager runs."""
    keys = (torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd)
    packets = [getattr(torch.ops.aten, name) for name in dir(torch.ops.aten) if name.startswith(_DECOMPOSED)]
    overloads = [getattr(packet, name) for packet in packets for name in packet.overloads()]
    taken = [(one, key, one.py_kernels.pop(key)) for one in overloads for key in keys if key in one.py_kernels]
    for one, _, _ in taken:
        one._dispatch_cache.clear()
    try:
        yield
    finally:
        for one, key, kernel in taken:
            one.py_kernels[key] = kernel
            one._dispatch_cache.clear()


@contextmanager
def _lists_of_items() -> Iterator[None]:
    """`tolist` of a traced tensor asks for its items one by one, where the tracer's own looks below whoever answers for them."""
    before = FunctionalTensor.tolist

    def tolist(tensor: torch.Tensor) -> Any:
        return tensor.item() if tensor.dim() == 0 else [tolist(item) for item in tensor.unbind(0)]

    FunctionalTensor.tolist = tolist  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        FunctionalTensor.tolist = before  # type: ignore[method-assign]


def _role(desc: Any) -> tuple[str, Any]:
    """What a descriptor of the joint graph says, in plain words."""
    kind = type(desc).__name__
    if kind == "ParamAOTInput":
        return "param", desc.target
    if kind == "BufferAOTInput":
        return "buffer", desc.target
    if kind == "PlainAOTInput":
        return "input", desc.idx
    if kind == "TangentAOTInput":
        return "tangent", _role(desc.output)
    if kind == "PlainAOTOutput":
        return "output", desc.idx
    if kind == "InputMutationAOTOutput":
        return "update", _role(desc.mutated_input)
    if kind == "GradAOTOutput":
        return "grad", _role(desc.grad_of)
    return "other", kind


@contextmanager
def scopes(paths: dict[nn.Module, str], running: Running) -> Iterator[None]:
    """Write the path of the running module on every node traced inside; modules without a path keep the enclosing one."""
    notes: list[Any] = []

    def enter(module: nn.Module, _args: Any) -> None:
        if module in paths:
            note = fx_traceback.annotate({_SCOPE: paths[module]})
            note.__enter__()
            notes.append(note)
            running.names.append(described(paths[module], module))

    def leave(module: nn.Module, _args: Any, _out: Any) -> None:
        if module in paths and notes:
            notes.pop().__exit__(None, None, None)
            running.names.pop()

    first = register_module_forward_pre_hook(enter)
    last = register_module_forward_hook(leave, always_call=True)
    try:
        yield
    finally:
        first.remove()
        last.remove()


def scope_of(node: torch.fx.Node) -> str:
    """The module path written on a node, or an empty text."""
    return (node.meta.get("custom") or {}).get(_SCOPE, "")


def sequence_of(node: torch.fx.Node) -> int | None:
    """The number that autograd gave a forward operation and the backward operations it leads to, or None."""
    return node.meta.get("seq_nr")


def is_backward(node: torch.fx.Node) -> bool:
    """Whether the tracer made this node while running the backward."""
    return node.meta.get("partitioner_tag") == "is_backward"


def entry(overload: OpOverload) -> Callable[..., Any]:
    """What an overload's call goes through after its own checks."""
    return overload._op


def storage_key(value: torch.Tensor) -> int:
    """A number that two tensors share if and only if they share their storage."""
    return value.untyped_storage()._cdata


def reader_of_real(error: Exception) -> str | None:
    """The operation that stopped a trace because it met a tensor that is not fake, or None if something else did."""
    found = re.search(r"convert all Tensors to FakeTensors.*Found in ([\w.]+)\(", str(error), flags=re.DOTALL)
    return found.group(1) if found else None


def shapes_depend_on_values(overload: OpOverload, args: Any) -> bool:
    """Whether the shapes of the results depend on values: by the operation's tag, or because a mask selects."""
    if overload.name() == "aten::index.Tensor":
        return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    return torch.Tag.dynamic_output_shape in overload.tags or torch.Tag.data_dependent_output in overload.tags


def aliases_an_input(overload: OpOverload) -> bool:
    """Whether the schema says that an output is a view of an input."""
    return any(one.alias_info is not None and not one.alias_info.is_write for one in overload._schema.returns)


def constant_of(value: Any) -> torch.Tensor | None:
    """The real tensor behind a constant that the tracer stored, or None where there is none."""
    if isinstance(value, FakeTensor):
        return value.constant
    return value if isinstance(value, torch.Tensor) else None


class ShapesOnly(FakeTensorMode):
    """Inside, tensors are made without memory. One mode for all of them, also for copies: modules copy their layers deeply."""

    def __deepcopy__(self, memo: dict[int, Any]) -> ShapesOnly:
        return self


def flatten(tree: Any) -> tuple[list[Any], TreeSpec]:
    """Leaves of nested containers, registered classes among them, and what rebuilds them."""
    return tree_flatten(tree, is_leaf=_is_size)


def _is_size(value: Any) -> bool:
    """`torch.Size` would come back as a tuple."""
    return type(value) is torch.Size


def unflatten(leaves: list[Any], spec: TreeSpec) -> Any:
    """The inverse of `flatten`."""
    return tree_unflatten(leaves, spec)


def memory_profile() -> profile:
    """A profile of the CPU allocator's events; use it as a context, or with `start` and `stop`."""
    # The profiler's library writes two lines to the error stream per profile unless it is told not to before its first.
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    return profile(activities=[ProfilerActivity.CPU], profile_memory=True)


def profiling() -> bool:
    """Whether somebody is profiling already; profiles do not nest."""
    return torch.autograd._profiler_enabled()  # type: ignore[attr-defined]


def allocator_events(profiler: Any) -> list[tuple[int, int]]:
    """The CPU allocator's events of a finished profile: (time [ns], signed bytes), in order of time."""
    events = profiler.profiler.kineto_results.events()
    found = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]" and e.device_type().name == "CPU"]
    return sorted(found, key=lambda one: one[0])


def spans(profiler: Any, names: Collection[str]) -> dict[str, tuple[int, int]]:
    """Start and end [ns] of the marks with these names in a finished profile."""
    events = profiler.profiler.kineto_results.events()
    return {e.name(): (e.start_ns(), e.end_ns()) for e in events if e.name() in names}
