"""The joint export: the only trace of forward and backward in one graph, made to see what eager runs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.fx.traceback as fx_traceback
from attrs import frozen
from torch import nn
from torch._functorch import config as functorch_config
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor

from remat.errors import Uncapturable
from remat.exec._torch import cudnn_norm, cudnn_rnn
from remat.exec._torch.backward_writes import refuse_written
from remat.exec._torch.late_numbers import compared_late
from remat.exec._torch.log import Dispatch
from remat.exec._torch.masked_writes import written_to_places
from remat.exec._torch.saved import Saved
from remat.exec._torch.shape_functions import results_of
from remat.exec._torch.torch_private import flatten


@frozen
class Joint:
    """A joint graph with what its placeholders and outputs mean.

    Attributes:
        graph: its placeholders are parameters, buffers, inputs, tangents.
        constants: tensors that the code itself makes, by the targets of the nodes that stand for them.
        inputs: one per placeholder: ("param", name), ("buffer", name), ("input", position) or ("tangent", position of output).
        outputs: one per output of the graph: ("update", input), ("output", position), ("grad", input) or None.
        aliased: positions of module outputs that share storage with an input or with another output.
        saved: what autograd holds for its backward; empty where that was not written down.
    """

    graph: torch.fx.Graph
    constants: Mapping[str, torch.Tensor]
    inputs: tuple[tuple[str, Any], ...]
    outputs: tuple[tuple[str, Any] | None, ...]
    aliased: frozenset[int]
    saved: Saved = ()


PLAIN_OUTPUTS = ("non_alias", "unsafe_view_alias", "custom_function_view")
"""What torch's analysis of a forward says of outputs that look at no input and at no other output."""

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

    # A backward runs outside autocast, whatever its forward ran in.
    outside = functorch_config.patch(backward_pass_autocast="off")
    with (
        ExitStack() as stack,
        fx_traceback.preserve_node_meta(),
        eager_kernels(fused_dropout=correction is None),
        lists_of_items(),
        written_to_places(),
        compared_late(),
        unseen_refused(),
        corrections(correction),
        outside,
        warnings.catch_warnings(),
    ):
        # the tracer's own detection of anomalies speaks of a forward that nobody has called
        warnings.filterwarnings("ignore", message="Error detected in", category=UserWarning)
        joint = aot_export_joint_with_descriptors(stack, module, args)
    graph = joint.graph_module.graph
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    (output,) = (node for node in graph.nodes if node.op == "output")
    inputs = tuple(_role(node.meta["desc"]) for node in placeholders)
    outputs = tuple(None if descriptor is None else _role(descriptor) for descriptor in output.meta["desc"])
    # what the forward writes is an output
    written = {node.args[0] for node in graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)}
    refuse_written(
        role for role, node in zip(inputs, placeholders, strict=True) if node in written and role[0] != "tangent"
    )
    infos = joint._aot_state.fw_metadata.output_info
    aliased = frozenset(i for i, info in enumerate(infos) if info.output_type.name not in PLAIN_OUTPUTS)
    constants = {
        str(node.target): getattr(joint.graph_module, str(node.target)) for node in graph.find_nodes(op="get_attr")
    }
    return Joint(graph, constants, inputs, outputs, aliased)


IN_PYTHON = frozenset({"native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "one_hot", "tensor_split"})
"""Operations that are traced as torch's Python takes them apart: batch norms, whose schemas hide that they write the running
statistics, and those whose kernels read values (classes, places to split at), which would make guards or cannot be traced.

Torch has such Python for some fifty operations. It is for compilers, which need no bits of eager's: it folds a product another
way, adds in another order, takes more memory or leaves checks of values out. All others, and those that a later torch adds, are
traced as the kernels that eager runs."""


@contextmanager
def eager_kernels(*, fused_dropout: bool) -> Iterator[None]:
    """Trace all operations as the kernels that eager runs, but for `IN_PYTHON`.

    Args:
        fused_dropout: dropout is one kernel, as on accelerators (torch's Python has it so on every device).
    """
    kept = IN_PYTHON | {"dropout"} if fused_dropout else IN_PYTHON
    keys = (torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd)
    # A namespace holds the operations that were asked for so far, and whoever registers Python for one asks for it.
    packets = [packet for name, packet in vars(torch.ops.aten).items() if name not in kept]
    packets = [packet for packet in packets if isinstance(packet, torch._ops.OpOverloadPacket)]
    overloads = [getattr(packet, name) for packet in packets for name in packet.overloads()]
    taken = [
        (overload, key, overload.py_kernels.pop(key))
        for overload in overloads
        for key in keys
        if key in overload.py_kernels
    ]
    for overload, _, _ in taken:
        overload._dispatch_cache.clear()
    try:
        with cudnn_norm.traced_as_it_is(), cudnn_rnn.traced_in_one():
            yield
    finally:
        for overload, key, kernel in taken:
            overload.py_kernels[key] = kernel
            overload._dispatch_cache.clear()


@contextmanager
def lists_of_items() -> Iterator[None]:
    """`tolist` of a traced tensor asks for its items one by one, where the tracer's own looks below whoever answers for them."""
    before = FunctionalTensor.tolist

    def tolist(tensor: torch.Tensor) -> Any:
        return tensor.item() if tensor.dim() == 0 else [tolist(item) for item in tensor.unbind(0)]

    FunctionalTensor.tolist = tolist  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        FunctionalTensor.tolist = before  # type: ignore[method-assign]


@contextmanager
def unseen_refused() -> Iterator[None]:
    """Refuse what no trace sees: tensors given other memory, and what TorchScript derives in its own way."""
    data, call = torch.Tensor.data, torch.jit.ScriptFunction.__call__

    def assigned(_tensor: torch.Tensor, _value: torch.Tensor) -> None:
        what = "the forward assigns `.data` of a tensor, which gives it other memory behind the trace's back."
        raise Uncapturable("X-WRITE", what, fix="write in place, `with torch.no_grad(): tensor.copy_(value)`.")

    def called(function: Any, *args: Any, **kwargs: Any) -> Any:
        with torch.jit.optimized_execution(False):  # type: ignore[attr-defined]  # else its executor would learn from a trace
            result = call(function, *args, **kwargs)
        if any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in flatten(result)[0]):
            what = f"the function {function.name} is scripted, and TorchScript derives it in its own way."
            raise Uncapturable("X-MODULE", what, fix="call the Python function that was scripted.")
        return result

    FunctionalTensor.data = property(data.__get__, assigned)  # type: ignore[assignment, attr-defined]
    torch.jit.ScriptFunction.__call__ = called  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        del FunctionalTensor.data
        torch.jit.ScriptFunction.__call__ = call  # type: ignore[method-assign]


def _empty_as(spec: Any) -> torch.Tensor:
    shape, stride = spec.shape, spec.stride() if callable(spec.stride) else spec.stride
    return torch.empty_strided(shape, stride, dtype=spec.dtype, device=spec.device)


@contextmanager
def corrections(correction: Correction | None, around: Callable[[Dispatch], Dispatch] | None = None) -> Iterator[None]:
    """Have fake tensors made as the kernels make them, where the shape functions say otherwise or refuse what kernels do.

    Args:
        correction: what the kernels return.
        around: puts something around the dispatch of fake tensors.
    """
    dispatch = FakeTensorMode.dispatch
    empty: dict[int, torch.Tensor] = {}

    def corrected(mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with mode:
            result: Any = results_of(func, args, kwargs or {})
        if result is None:
            result = dispatch(mode, func, types, args, kwargs)
        real = None if correction is None else correction(func, args, kwargs or {})
        if func is torch.ops.aten.empty_like.default:
            empty[id(result)] = result
        elif correction is not None and func is torch.ops.aten.bernoulli.p and id(args[0]) in empty:
            real = (args[0],)  # eager fills what is empty in place, where the functional draw makes a contiguous tensor
        if real is None:
            return result
        with mode:
            parts = [
                old if spec is None else _empty_as(spec)
                for spec, old in zip(real, result if isinstance(result, (tuple, list)) else [result], strict=True)
            ]
        if not isinstance(result, (tuple, list)):
            return parts[0]
        return type(result)(*parts) if hasattr(result, "_fields") else type(result)(parts)

    fake_tensors: Any = FakeTensorMode  # torch has no way in but its method
    fake_tensors.dispatch = corrected if around is None else around(corrected)
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
