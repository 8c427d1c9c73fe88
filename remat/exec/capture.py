"""Capture: one training step of a module, traced under fake tensors into a `Program`.

The trace is one joint graph of forward and backward (see `torch_private.export_joint`). Here its nodes become operations over
storages: views join the storage they look at, tuples are unpacked, `detach` disappears, and what the trace leaves implicit is
written out by `finish` (in `complete.py`): writes of buffers, generator states, copies of gradients, the loss.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from attrs import evolve, field, frozen
from torch import nn

from remat.errors import Uncapturable
from remat.exec import torch_private
from remat.exec.complete import Draft, finish
from remat.exec.program import Op, Program, Ref, Role, Spec, Storage, Value
from remat.exec.torch_private import FakeTensor, HigherOrderOperator, Joint, OpOverload, TreeSpec
from remat.ir import Phase

PLAIN = (type(None), bool, int, float, complex, str, torch.dtype, torch.device, torch.Size, slice, type(...))
"""Types of inputs and outputs that may stand beside tensors: their value is part of what was captured."""

_IDENTITIES = {"aten.detach.default", "aten.alias.default", "aten.lift.default", "aten.lift_fresh.default"}


@frozen(kw_only=True, eq=False)
class Captured:
    """A captured step and how to call it.

    Attributes:
        program: the operations.
        out_spec, out_leaves: how the flat outputs become what the module returns; tensors stand as None in `out_leaves`.
        places: which of `out_leaves` are tensors.
        requires_grad: for each tensor output, whether the bare module's output requires a gradient.
        differentiable: positions (among the tensor outputs) through which gradients may come back.
        widened: why outputs were cloned: positions of outputs that alias an input or another output.
    """

    program: Program
    out_spec: TreeSpec
    out_leaves: tuple[Any, ...]
    places: tuple[int, ...]
    requires_grad: tuple[bool, ...]
    differentiable: tuple[int, ...]
    widened: frozenset[int] = frozenset()

    @cached_property
    def tensor_leaves(self) -> frozenset[int]:
        """Places of the tensors among the flat outputs."""
        return frozenset(self.places)


class _Step(nn.Module):
    """What is traced: the step as a function of flat tensors, with the module inside so that its parameters are lifted."""

    def __init__(self, call: _Call, cloned: frozenset[int]) -> None:
        super().__init__()
        self.inner = call.module
        self.__dict__["call"] = call
        self.__dict__["cloned"] = cloned
        self.__dict__["seen"] = None

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        call: _Call = self.__dict__["call"]
        held = _buffers(self.inner)
        before = {inner: dict(inner.__dict__) for inner in self.inner.modules()}
        out = call.run(tensors)
        _check_attributes(before)
        _keep_buffers(held)
        leaves, spec = torch_private.flatten(out)
        for leaf in leaves:
            if not isinstance(leaf, (torch.Tensor, *PLAIN)):
                raise Uncapturable("X-OUTPUT", f"the module returns a {type(leaf).__name__}.", fix=_FIX)
        found = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        wanted = tuple(t.requires_grad for t in found)
        through = call.through(found)
        if self.__dict__["seen"] is None:
            plain = tuple(None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves)
            places = tuple(i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor))
            self.__dict__["seen"] = (spec, plain, places, wanted, through)
        cloned = self.__dict__["cloned"]
        found = [t if i in through else t.detach() for i, t in enumerate(found)]
        return tuple(t.clone() if i in cloned else t for i, t in enumerate(found))


_FIX = "return tensors and plain values, or leave this module bare."


@frozen(kw_only=True, eq=False)
class _Call:
    """One call of a module: flat tensors in, whatever it returns out.

    Attributes:
        module: the module whose parameters and buffers are lifted.
        step: what is called, with the module first.
        leaves, spec: the arguments, flat; tensors stand as None.
        differentiable: "auto", "loss" or "all" (see `capture`).
    """

    module: nn.Module
    step: Callable[..., Any]
    leaves: tuple[Any, ...]
    spec: TreeSpec
    differentiable: str = field(default="auto")

    def run(self, tensors: tuple[torch.Tensor, ...]) -> Any:
        """Call the step."""
        rest = iter(tensors)
        leaves = [next(rest) if leaf is None else leaf.value for leaf in self.leaves]
        args, kwargs = torch_private.unflatten(leaves, self.spec)
        return self.step(self.module, *args, **kwargs)

    def through(self, outputs: list[torch.Tensor]) -> tuple[int, ...]:
        """Positions of the outputs that gradients may come back through."""
        able = tuple(i for i, t in enumerate(outputs) if t.requires_grad)
        scalars = tuple(i for i in able if outputs[i].dim() == 0)
        if self.differentiable == "all" or (self.differentiable == "auto" and len(scalars) != 1):
            return able
        if len(scalars) != 1:
            what = f"the module returns {len(scalars)} scalars that require a gradient, so which one is the loss is not clear."
            raise Uncapturable("X-LOSS", what, fix='give differentiable="all", or return one loss.')
        return scalars


@frozen
class Plain:
    """A plain value among flat inputs (tensors stand as None there)."""

    value: Any


def capture(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    *,
    step: Callable[..., Any] | None = None,
    differentiable: str = "auto",
) -> Captured:
    """Trace one training step of `module` on arguments like these; nothing of the module or the arguments changes.

    Args:
        module: the module; its parameters and buffers are read for shapes, never for values.
        args: positional arguments of a call, with tensors of the shapes, types and devices to plan for.
        kwargs: keyword arguments of that call.
        step: what is called, as `step(module, *args, **kwargs)`; by default the module's forward.
        differentiable: "loss": gradients come back through the one 0-dim output alone; "all": through every output;
            "auto": through the loss if there is exactly one 0-dim output that requires a gradient, else through all.

    Raises:
        Uncapturable: the step cannot be one graph; the message names the operation or the reason.
    """
    leaves, spec = torch_private.flatten((args, kwargs or {}))
    tensors = tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
    for leaf in leaves:
        if not isinstance(leaf, (torch.Tensor, *PLAIN)):
            fix = "pass tensors and plain values, or leave this module bare."
            raise Uncapturable("X-INPUT", f"an input is a {type(leaf).__name__}.", fix=fix)
    flat = tuple(None if isinstance(leaf, torch.Tensor) else Plain(leaf) for leaf in leaves)
    call = _Call(
        module=module, step=step or type(module).forward, leaves=flat, spec=spec, differentiable=differentiable
    )
    _check_plain(module, tensors)
    joint, seen = _trace(call, tensors, frozenset())
    aliased = joint.aliased
    if aliased:
        # An output that looks at an input or at another output gets no tangent of its own: give it its own storage.
        joint, seen = _trace(call, tensors, aliased)
    out_spec, plain, places, wanted, through = seen
    program = finish(_draft(joint, module), name=type(module).__name__)
    return Captured(
        program=program,
        out_spec=out_spec,
        out_leaves=plain,
        places=places,
        requires_grad=wanted,
        differentiable=through,
        widened=aliased,
    )


def _check_plain(module: nn.Module, tensors: tuple[torch.Tensor, ...]) -> None:
    plain = (torch.Tensor, nn.Parameter, nn.Buffer, FakeTensor)
    state = [*module.parameters(), *module.buffers()]
    for tensor in (*state, *tensors):
        if type(tensor) not in plain or tensor.layout is not torch.strided:
            fix = "leave this module bare."
            raise Uncapturable("X-TENSOR", f"a tensor is a {type(tensor).__name__}, {tensor.layout}.", fix=fix)
    devices = {tensor.device for tensor in state if tensor.numel()}
    if len(devices) > 1:
        names = ", ".join(sorted(map(str, devices)))
        raise Uncapturable("X-DEVICE", f"parameters lie on {names}.", fix="put the module on one device.")


def _trace(call: _Call, tensors: tuple[torch.Tensor, ...], cloned: frozenset[int]) -> tuple[Joint, Any]:
    """Trace once; the module's attributes and the generators are as before when this returns."""
    step = _Step(call, cloned)
    paths = {module: name for name, module in call.module.named_modules()}
    with _untouched(call.module), torch.enable_grad():
        try:
            with torch_private.scopes(paths):
                joint = torch_private.export_joint(step, tensors)
        except Uncapturable:
            raise
        except Exception as error:
            fix = "keep values of tensors out of Python (`.item()`, `if tensor:`), or leave this module bare."
            raise Uncapturable("X-TRACE", _reason(error), fix=fix) from error
    return joint, step.__dict__["seen"]


def _reason(error: Exception) -> str:
    operation = getattr(error, "func", None)
    first = (str(error).strip().splitlines() or [""])[0]
    if operation is not None:
        return f"{operation} depends on the values of tensors ({type(error).__name__})."
    return f"the trace stopped with {type(error).__name__}: {first:.300}"


@contextmanager
def _untouched(module: nn.Module) -> Iterator[None]:
    """Put everything back that the trace has changed.

    Parameters are put back too: the tracer does not restore those of a module that is registered in two places.
    """
    before = {inner: dict(inner.__dict__) for inner in module.modules()}
    tables = [(table, dict(table)) for inner in before for table in (inner._parameters, inner._buffers, inner._modules)]
    generators = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(generators)
        for inner, held in before.items():
            inner.__dict__.clear()
            inner.__dict__.update(held)
        for table, entries in tables:
            table.clear()
            table.update(entries)


def _check_attributes(before: dict[nn.Module, dict[str, Any]]) -> None:
    """Refuse a forward that sets plain attributes: a captured step would not set them again."""
    for inner, held in before.items():
        names = [name for name in _changes(held, inner.__dict__) if not _derived(inner, name)]
        if names:
            what = f"the forward of {type(inner).__name__} sets the attribute {names[0]!r}, which a captured step would not."
            raise Uncapturable("X-STATE", what, fix="register it as a buffer and change that in place.")


def _derived(module: nn.Module, name: str) -> bool:
    """Whether an attribute is made anew from parameters before each use: by recurrent layers, by norms of weights."""
    own = {*module._parameters, *module._buffers}
    return name in ("_flat_weights", "_flat_weight_refs") or bool(own & {f"{name}_v", f"{name}_orig"})


def _changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    missing = object()
    return [name for name in {**before, **after} if before.get(name, missing) is not after.get(name, missing)]


def _buffers(module: nn.Module) -> list[tuple[dict[str, Any], str, torch.Tensor]]:
    return [
        (inner._buffers, name, buffer)
        for inner in module.modules()
        for name, buffer in inner._buffers.items()
        if buffer is not None
    ]


def _keep_buffers(held: list[tuple[dict[str, Any], str, torch.Tensor]]) -> None:
    """A buffer that the forward replaced by a new tensor is written in place instead: same values, same object."""
    for owner, name, buffer in held:
        new = owner.get(name)
        if new is buffer:
            continue
        if new is None or new.shape != buffer.shape or new.dtype != buffer.dtype:
            what = f"the forward replaces the buffer {name!r} by one of another shape or type."
            raise Uncapturable("X-STATE", what, fix="keep its shape and type.")
        buffer.copy_(new.detach())
        owner[name] = buffer


class _Reader:
    """Walks the nodes of a joint graph and collects operations, values and storages."""

    def __init__(self, joint: Joint, module: nn.Module) -> None:
        self.joint = joint
        self.ops: list[Op] = []
        self.values: dict[str, Value] = {}
        self.storages: dict[str, Storage] = {}
        self.named: dict[torch.fx.Node, Any] = {}
        self.by_key: dict[int, str] = {}
        self.late: set[str] = set()
        self.roles: dict[tuple[str, Any], str] = {}
        self.constants: dict[str, torch.Tensor] = {}
        self.shared: set[str] = set()
        self.device = next((one.device for one in (*module.parameters(), *module.buffers())), torch.device("cpu"))

    def add(
        self, name: str, tensor: torch.Tensor, storage: str, *, view: int | None = None, outside: bool = False
    ) -> Ref:
        """Declare a value; a new storage where `view` is None."""
        self.values[name] = Value(name=name, spec=Spec.of(tensor), storage=storage, view=view)
        if view is None:
            self.by_key[torch_private.storage_key(tensor)] = storage
            size = charged(tensor.untyped_storage().nbytes(), tensor.device)
            roots = (*(self.storages[storage].roots if storage in self.storages else ()), name)
            self.storages[storage] = Storage(name=storage, size=size, roots=roots, outside=outside)
        return Ref(name)

    def placeholder(self, node: torch.fx.Node, role: tuple[str, Any]) -> None:
        kind, about = role
        if "Token" in str(about):
            raise Uncapturable("X-OP", "an operation has side effects (an error check of torch.linalg, say).", fix=_FIX)
        if kind not in ("param", "buffer", "input", "tangent"):
            raise Uncapturable("X-INPUT", f"the trace has an input of kind {about}.", fix=_FIX)
        if kind == "tangent":
            about = about[1]
        elif kind != "input":
            about = about.removeprefix("inner.")
        tensor = node.meta["val"]
        twin = self.by_key.get(torch_private.storage_key(tensor)) if kind != "tangent" else None
        if twin is not None and kind == "param" and self.values[self.storages[twin].roots[0]].spec == Spec.of(tensor):
            # A tied parameter stands once per use in the trace and once in the step.
            self.roles[kind, about] = self.storages[twin].roots[0]
            self.named[node] = Ref(self.storages[twin].roots[0])
            return
        if twin is not None:
            # Two looks at one memory (tokens and targets cut from one batch): harmless as long as nobody writes them.
            self.shared.update((twin, f"{kind}:{about}"))
        ref = self.add(node.name, tensor, f"{kind}:{about}", outside=kind != "tangent")
        self.roles[kind, about] = node.name
        self.named[node] = ref
        if kind == "tangent":
            self.late.add(node.name)

    def constant(self, node: torch.fx.Node) -> None:
        tensor = torch_private.constant_of(getattr(self.joint.module, str(node.target)))
        if tensor is None:
            raise Uncapturable("X-CONST", f"the constant {node.target} has no value.", fix=_FIX)
        self.constants[node.name] = tensor.detach()
        self.named[node] = self.add(node.name, tensor, f"const:{node.name}", outside=True)

    def call(self, node: torch.fx.Node) -> None:
        target = node.target
        if target is operator.getitem:
            source, index = node.args
            held = self.named[source]  # type: ignore[index]
            self.named[node] = held[index]
            return
        if isinstance(target, HigherOrderOperator) or not isinstance(target, OpOverload):
            raise Uncapturable("X-OP", f"{target} is not an ATen operation.", fix=_FIX)
        if str(target) in _IDENTITIES:
            self.named[node] = self.named[node.args[0]]  # type: ignore[index]
            return
        args = torch.fx.map_arg(node.args, lambda one: self.named[one])
        kwargs = torch.fx.map_arg(dict(node.kwargs), lambda one: self.named[one])
        result = node.meta["val"]
        unpack = isinstance(result, (tuple, list))
        results = list(result) if unpack else [result]
        if any(isinstance(one, (torch.SymInt, torch.SymFloat, torch.SymBool)) for one in results):
            raise Uncapturable("X-OP", f"{target} gives a shape or number that depends on values.", fix=_FIX)
        names = [
            (f"{node.name}_{i}" if unpack else node.name) if isinstance(one, torch.Tensor) else None
            for i, one in enumerate(results)
        ]
        while any(name in self.values for name in names if name):
            names = [name and f"{name}_" for name in names]
        view = self.alias(target, args, results)
        for name, one in zip(names, results, strict=True):
            if name is not None:
                own = f"{node.name}.{names.index(name)}" if unpack else f"{node.name}.out"
                self.add(name, one, view or own, view=None if view is None else len(self.ops))
        backward = torch_private.is_backward(node)
        op = Op(
            name=node.name,
            role=Role.CALL if view is None else Role.VIEW,
            target=target,
            args=_tuples(args),
            kwargs=dict(kwargs),
            outputs=tuple(names),
            unpack=unpack,
            scope=torch_private.scope_of(node),
            draws=draws(target, node.args, dict(node.kwargs)),
            sequence=torch_private.sequence_of(node),
        )
        if backward or any(name in self.late for name in op.reads):
            op = evolve(op, phase=Phase.BACKWARD)
            self.late.update(name for name in names if name)
        self.ops.append(op)
        self.named[node] = [name and Ref(name) for name in names] if unpack else Ref(names[0])

    def alias(self, target: OpOverload, args: Any, results: list[Any]) -> str | None:
        """The storage that the results look at, or None where the operation makes its own."""
        tensors = [one for one in results if isinstance(one, torch.Tensor)]
        known = {self.by_key.get(torch_private.storage_key(one)) for one in tensors}
        if len(known) == 1 and None not in known:
            return known.pop()
        if not known <= {None}:
            raise Uncapturable("X-ALIAS", f"{target} returns both views and new tensors.", fix=_FIX)
        if torch_private.aliases_an_input(target) and tensors:
            raise Uncapturable("X-ALIAS", f"{target} is a view whose storage the trace does not show.", fix=_FIX)
        return None


def _tuples(tree: Any) -> Any:
    if isinstance(tree, (list, tuple)):
        items = [_tuples(one) for one in tree]
        return items if isinstance(tree, list) else tuple(items)
    return tree


def charged(size: int, device: torch.device) -> int:
    """What the allocator of a device takes for a tensor of `size` bytes: CUDA hands out blocks of 512."""
    return -(-size // 512) * 512 if device.type == "cuda" else size


def draws(target: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call advances the generator: the operation says so, and it is not an attention with dropout at zero."""
    if torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    for i, argument in enumerate(target._schema.arguments):
        if argument.name == "dropout_p":
            return (args[i] if i < len(args) else kwargs.get("dropout_p", argument.default_value)) != 0
        if argument.name == "train" and i < len(args):
            return args[i] is not False
    return True


def _draft(joint: Joint, module: nn.Module) -> Draft:
    reader = _Reader(joint, module)
    roles = iter(joint.inputs)
    for node in joint.module.graph.nodes:
        if node.op == "placeholder":
            reader.placeholder(node, next(roles))
        elif node.op == "get_attr":
            reader.constant(node)
        elif node.op == "call_function":
            reader.call(node)
        elif node.op != "output":
            raise Uncapturable("X-OP", f"the trace has a node {node.op}.", fix=_FIX)
    (last,) = (node for node in joint.module.graph.nodes if node.op == "output")
    ends: dict[tuple[str, Any], str] = {}
    for node, role in zip(last.args[0], joint.outputs, strict=True):  # type: ignore[arg-type]
        if role is None or node is None:
            continue
        kind, about = role
        if kind in ("grad", "update"):
            about = (about[0], about[1].removeprefix("inner.") if isinstance(about[1], str) else about[1])
        elif kind != "output":
            raise Uncapturable("X-OUTPUT", f"the trace has an output of kind {about}.", fix=_FIX)
        ends[kind, about] = reader.named[node].name
    for kind, about in ends:
        if kind == "update":
            _check_write(
                about, shared=f"{about[0]}:{about[1]}" in reader.shared, differentiable=("grad", about) in ends
            )
    if torch.is_autocast_enabled(reader.device.type):
        _check_casts(
            reader.ops, {ends_of: value for ends_of, value in reader.roles.items() if ("grad", ends_of) in ends}
        )
    return Draft(
        ops=reader.ops,
        values=reader.values,
        storages=reader.storages,
        inputs=reader.roles,
        ends=ends,
        constants=reader.constants,
        device=reader.device,
    )


def _check_casts(ops: list[Op], trained: dict[tuple[str, Any], str]) -> None:
    """Refuse a weight that autocast casts several times: eager casts it once and adds its gradients in the lower precision."""
    cast: set[Any] = set()
    names = {value: about for (_, about), value in trained.items()}
    for op in ops:
        if str(op.target) != "aten._to_copy.default" or op.phase is Phase.BACKWARD or op.reads[0] not in names:
            continue
        key = (op.reads[0], op.kwargs.get("dtype"))
        if key in cast:
            what = f"autocast casts {names[op.reads[0]]} for each of its uses, where eager casts it once."
            raise Uncapturable("X-AUTOCAST", what, fix="cast the weight yourself, or leave this module bare.")
        cast.add(key)


def _check_write(about: tuple[str, Any], *, shared: bool, differentiable: bool) -> None:
    """Refuse in-place writes that a captured step could not repeat."""
    kind, which = about
    if kind == "param" or differentiable:
        what = f"the forward writes the {kind} {which} in place, which requires a gradient."
        raise Uncapturable("X-WRITE", what, fix="write a copy of it.")
    if shared:
        what = f"the forward writes the {kind} {which} in place, which shares its storage with another."
        raise Uncapturable("X-ALIAS", what, fix="clone one of them.")


__all__ = ["Captured", "FakeTensor", "Plain", "capture", "charged"]
