"""The only user of private torch names, so that one file changes when torch does (tested with 2.13).

What is used, and why nothing public would do: the joint export (the only trace of forward and backward in one graph), the node
annotations of the tracer (module paths on nodes), an overload's unchecked entry (saves 0.3 us a call), the fake tensor class, and
the profiler that lives in one thread (a plan made while somebody profiles must leave that profile alone).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.fx.traceback as fx_traceback
from attrs import frozen
from torch import nn
from torch._C._autograd import _disable_profiler_legacy, _enable_profiler_legacy
from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig
from torch._functorch import config as functorch_config
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.profiler import record_function
from torch.utils._python_dispatch import TorchDispatchMode as DispatchMode
from torch.utils._python_dispatch import _disable_current_modes as no_modes
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from remat.exec.places import Running, described

__all__ = [
    "DispatchMode",
    "Event",
    "FakeTensor",
    "HigherOrderOperator",
    "Joint",
    "OpOverload",
    "Recording",
    "ShapesOnly",
    "TreeSpec",
    "aliases_an_input",
    "before_profiles",
    "constant_of",
    "entry",
    "export_joint",
    "flatten",
    "in_backward",
    "is_backward",
    "mark",
    "no_modes",
    "profiling",
    "reader_of_real",
    "recorded",
    "scope_of",
    "scopes",
    "sequence_of",
    "shapes_depend_on_values",
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


Correction = Callable[[Any, Any, Any], tuple[Any, ...] | None]
"""Of a call (operation, arguments, keyword arguments): what its outputs are (with shape, stride, dtype and device), or None
where the shape function is right."""


def export_joint(module: nn.Module, args: tuple[torch.Tensor, ...], correction: Correction | None = None) -> Joint:
    """Trace forward and backward of `module` under fake tensors into one functional graph of ATen operations.

    Args:
        module: what is traced.
        args: its arguments.
        correction: what kernels return other than their shape functions say; None: the tensors stand for those of an accelerator
            that is not here, whose dropout is one kernel.
    """
    # The tracer brings the whole of torch's compiler with it, a second of imports: whoever captures nothing does not pay it.
    from torch._functorch.aot_autograd import aot_export_joint_with_descriptors

    taken = _DECOMPOSED if correction is None else (*_DECOMPOSED, "dropout")
    # A backward runs outside autocast, whatever its forward ran in.
    outside = functorch_config.patch(backward_pass_autocast="off")
    with (
        ExitStack() as stack,
        fx_traceback.preserve_node_meta(),
        _eager_kernels(taken),
        _lists_of_items(),
        _corrected(correction),
        outside,
    ):
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
def _eager_kernels(prefixes: tuple[str, ...]) -> Iterator[None]:
    """Trace the operations whose names begin so as the kernels that eager runs."""
    keys = (torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd)
    packets = [getattr(torch.ops.aten, name) for name in dir(torch.ops.aten) if name.startswith(prefixes)]
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


def _empty_as(spec: Any) -> torch.Tensor:
    shape, stride = spec.shape, spec.stride() if callable(spec.stride) else spec.stride
    return torch.empty_strided(shape, stride, dtype=spec.dtype, device=spec.device)


@contextmanager
def _corrected(correction: Correction | None) -> Iterator[None]:
    """Have fake tensors made as the kernels make them, where the shape functions say otherwise."""
    if correction is None:
        yield
        return
    dispatch = FakeTensorMode.dispatch
    empty: dict[int, torch.Tensor] = {}

    def corrected(mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result: Any = dispatch(mode, func, types, args, kwargs)
        real = correction(func, args, kwargs or {})
        if func is torch.ops.aten.empty_like.default:
            empty[id(result)] = result
        elif func is torch.ops.aten.bernoulli.p and id(args[0]) in empty:
            real = (args[0],)  # eager fills what is empty in place, where the functional draw makes a contiguous tensor
        if real is None:
            return result
        with mode:
            parts = [
                old if spec is None else _empty_as(spec)
                for spec, old in zip(real, result if isinstance(result, (tuple, list)) else [result], strict=True)
            ]
        return type(result)(parts) if isinstance(result, (tuple, list)) else parts[0]

    fake_tensors: Any = FakeTensorMode  # torch has no way in but its method
    fake_tensors.dispatch = corrected
    try:
        yield
    finally:
        fake_tensors.dispatch = dispatch


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
    scope: str = (node.meta.get("custom") or {}).get(_SCOPE, "")
    return scope


def sequence_of(node: torch.fx.Node) -> int | None:
    """The number that autograd gave a forward operation and the backward operations it leads to, or None."""
    return node.meta.get("seq_nr")


def is_backward(node: torch.fx.Node) -> bool:
    """Whether the tracer made this node while running the backward."""
    return node.meta.get("partitioner_tag") == "is_backward"


def entry(overload: OpOverload) -> Callable[..., Any]:
    """What an overload's call goes through after its own checks."""
    call = overload._op
    if str(overload) not in _ASK_WHETHER_GRADIENTS:
        return call

    def as_in_training(*args: Any, **kwargs: Any) -> Any:
        with torch.enable_grad(), torch._C._AutoDispatchBelowAutograd():
            return call(*args, **kwargs)

    return as_in_training


_ASK_WHETHER_GRADIENTS = {"aten.mkldnn_rnn_layer.default"}
"""Kernels that make what their backward needs only where gradients are on, whatever their arguments say."""


def storage_key(value: torch.Tensor) -> int:
    """A number that two tensors share if and only if they share their storage."""
    key: int = value.untyped_storage()._cdata
    return key


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


@frozen
class Event:
    """Something that a `Recording` saw.

    Attributes:
        name: of an operation or mark that began; empty for memory.
        at: time since the start of the recording [ns].
        size: what the CPU allocator gave, or (below zero) took back [bytes].
    """

    name: str
    at: int
    size: int


class Recording:
    """What one thread runs and what the CPU's allocator gives it, from `start` to `stop`.

    This is torch's older profiler. It lives in the thread alone, so that a profile somebody takes elsewhere goes on, and leaves
    nothing in the process. A thread has room for one recording or profile at a time (see `profiling`).
    """

    def start(self) -> None:
        """Begin; only where `profiling()` is false."""
        config = ProfilerConfig(ProfilerState.CPU, False, True, False, False, False, _ExperimentalConfig())
        _enable_profiler_legacy(config)

    def stop(self) -> list[Event]:
        """End, on the thread that began and outside a backward (see `in_backward`); what was seen, in order of time."""
        lists = _disable_profiler_legacy()
        first = next(record for records in lists for record in records if record.name() == "__start_profile")
        events = [
            Event(record.name(), round(first.cpu_elapsed_us(record) * 1000), record.cpu_memory_usage())
            for records in lists
            for record in records
            if str(record.kind()) in ("push", "memory_alloc")  # a text, whatever torch's types say
        ]
        return events if len(lists) == 1 else sorted(events, key=lambda event: event.at)


@contextmanager
def recorded(events: list[Event]) -> Iterator[None]:
    """Record what runs inside into `events`, which is filled at the end."""
    recording = Recording()
    recording.start()
    try:
        yield
    finally:
        events += recording.stop()


def mark(name: str) -> None:
    """Leave a mark in a recording of this thread, if there is one."""
    with record_function(name):
        pass


def profiling() -> bool:
    """Whether a profile or recording of this thread is on; they do not nest."""
    return torch.autograd._profiler_enabled()  # type: ignore[attr-defined]


def in_backward() -> bool:
    """Whether this thread is inside autograd's engine, which puts back the thread's state when it is done."""
    return torch._C._current_graph_task_id() != -1


def before_profiles(call: Callable[[], None]) -> Callable[[], None]:
    """Have `call` called whenever somebody is about to profile; returns what takes that back.

    Torch has no place to ask for this, so its two entries are replaced for as long.
    """
    entries = {name: getattr(torch.autograd.profiler, name) for name in ("_prepare_profiler", "_enable_profiler")}

    def first(name: str) -> Callable[..., Any]:
        def enter(*args: Any, **kwargs: Any) -> Any:
            call()
            return entries[name](*args, **kwargs)

        return enter

    replaced = {name: first(name) for name in entries}

    def take_back() -> None:
        for name, entry in entries.items():
            if getattr(torch.autograd.profiler, name) is replaced[name]:
                setattr(torch.autograd.profiler, name, entry)

    for name, enter in replaced.items():
        setattr(torch.autograd.profiler, name, enter)
    return take_back
