"""From a joint trace to operations over storages: views join their storage, tuples are unpacked, `detach` is removed.

What a captured step could not repeat is refused here by name: side effects, shapes that depend on values, writes of parameters.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from attrs import evolve
from torch import nn

from remat.errors import Uncapturable
from remat.exec._capture.draft import Draft
from remat.exec._program.program import Op, Ref, Role, Spec, Storage, Value, refs
from remat.exec._torch import nodes, rng, torch_private
from remat.exec._torch.cuda_memory import charged
from remat.exec._torch.devices import one_device
from remat.exec._torch.joint import Joint
from remat.exec._torch.torch_private import HigherOrderOperator, OpOverload
from remat.ir import Phase

_FIX = "return tensors and plain values, or leave this module bare."
_IDENTITIES = {"aten.detach.default", "aten.alias.default", "aten.lift.default", "aten.lift_fresh.default"}


class _Reader:
    """Walks the nodes of a joint graph and collects operations, values and storages."""

    def __init__(self, joint: Joint, module: nn.Module) -> None:
        self.joint = joint
        self.ops: list[Op] = []
        self.values: dict[str, Value] = {}
        self.storages: dict[str, Storage] = {}
        self.named: dict[torch.fx.Node, Any] = {}
        self.by_key: dict[int, str] = {}
        self.keys: dict[str, int] = {}
        self.tied = {path: id(tensor) for path, tensor in module.named_parameters(remove_duplicate=False)}
        self.parameters: dict[int, str] = {}
        self.late: set[str] = set()
        self.roles: dict[tuple[str, Any], str] = {}
        self.constants: dict[str, torch.Tensor] = {}
        self.shared: set[str] = set()

    def add(
        self, name: str, tensor: torch.Tensor, storage: str, *, view: int | None = None, outside: bool = False
    ) -> Ref:
        """Declare a value; a new storage where `view` is None."""
        self.values[name] = Value(name=name, spec=Spec.of(tensor), storage=storage, view=view)
        if view is None:
            self.by_key[self.keys.setdefault(storage, torch_private.storage_key(tensor))] = storage
            size = charged(tensor.untyped_storage().nbytes(), tensor.device)
            roots = (*(self.storages[storage].roots if storage in self.storages else ()), name)
            self.storages[storage] = Storage(name=storage, size=size, roots=roots, outside=outside)
        return Ref(name)

    def placeholder(self, node: torch.fx.Node, role: tuple[str, Any]) -> None:
        kind, about = _origin_of(role)
        tensor = node.meta["val"]
        twin = self.by_key.get(torch_private.storage_key(tensor)) if kind != "tangent" else None
        if kind == "param":
            # A tied parameter stands once per name in the trace and once in the step. Others may share its memory: shards do.
            name = self.parameters.setdefault(self.tied[about], node.name)
            if name != node.name:
                self.roles[kind, about] = name
                self.named[node] = Ref(name)
                return
        if twin is not None:
            # Two views of one memory (tokens and targets cut from one batch): harmless as long as neither is written.
            self.shared.update((twin, f"{kind}:{about}"))
        ref = self.add(node.name, tensor, f"{kind}:{about}", outside=kind != "tangent")
        self.roles[kind, about] = node.name
        self.named[node] = ref
        if kind == "tangent":
            self.late.add(node.name)

    def constant(self, node: torch.fx.Node) -> None:
        tensor = torch_private.constant_of(self.joint.constants[str(node.target)])
        if tensor is None:
            raise Uncapturable("X-CONST", f"the constant {node.target} has no value.", fix=_FIX)
        self.constants[node.name] = tensor.detach()
        self.named[node] = self.add(node.name, tensor, f"const:{node.name}", outside=True)

    def call(self, node: torch.fx.Node) -> None:
        if self._passes_on(node):
            return
        target = node.target
        if isinstance(target, HigherOrderOperator) or not isinstance(target, OpOverload):
            raise _refused_operation(node)
        args = torch.fx.map_arg(node.args, lambda source: self.named[source])
        kwargs = torch.fx.map_arg(dict(node.kwargs), lambda source: self.named[source])
        result = self.traced(node)
        unpack = isinstance(result, (tuple, list))
        results = list(result) if unpack else [result]
        _refuse_symbols(target, results)
        names = self._names(node, results, unpack)
        view = self.alias(target, args, results)
        op = Op(
            name=node.name,
            role=Role.CALL if view is None else Role.VIEW,
            target=target,
            args=_tuples(args),
            kwargs=dict(kwargs),
            outputs=tuple(names),
            unpack=unpack,
            scope=nodes.scope_of(node),
            draws=rng.draws(target, node.args, dict(node.kwargs)),
            sequence=nodes.sequence_of(node),
            region=nodes.region_of(node),
        )
        self._append(op, results, view, backward=nodes.is_backward(node))
        refs = [name and Ref(name) for name in names]
        self.named[node] = refs if unpack else refs[0]

    def _append(self, op: Op, results: list[Any], view: str | None, *, backward: bool) -> None:
        """Add an operation with its values; what reads a value of the backward is of the backward."""
        place = None if view is None else len(self.ops)
        for at, (name, result) in enumerate(zip(op.outputs, results, strict=True)):
            if name is not None:
                self.add(name, result, view or f"{op.name}.{at if op.unpack else 'out'}", view=place)
        if backward or any(name in self.late for name in op.reads):
            op = evolve(op, phase=Phase.BACKWARD)
            self.late.update(filter(None, op.outputs))
        self.ops.append(op)

    def read(self) -> None:
        """Take every node but the output."""
        roles = iter(self.joint.inputs)
        for node in self.joint.graph.nodes:
            if node.op == "placeholder":
                self.placeholder(node, next(roles))
            elif node.op == "get_attr":
                self.constant(node)
            elif node.op == "call_function":
                self.call(node)
            elif node.op != "output":
                raise Uncapturable("X-OP", f"the trace has a node {node.op}.", fix=_FIX)

    def ends(self) -> dict[tuple[str, Any], str]:
        """The values that leave the trace, by role: outputs, gradients, updates."""
        (last,) = (node for node in self.joint.graph.nodes if node.op == "output")
        ends: dict[tuple[str, Any], str] = {}
        for node, role in zip(last.args[0], self.joint.outputs, strict=True):
            if role is None or node is None:
                continue
            kind, about = role
            if kind in ("grad", "update"):
                about = (about[0], about[1].removeprefix("inner.") if isinstance(about[1], str) else about[1])
            elif kind != "output":
                raise Uncapturable("X-OUTPUT", f"the trace has an output of kind {about}.", fix=_FIX)
            ends[kind, about] = self.named[node].name
        return ends

    def saved(self) -> tuple[tuple[int, str], ...]:
        """The storages that autograd holds, those of numbers and of dead operations left out, each once for a node."""
        keys = ((number, torch_private.storage_key(tensor)) for number, tensor in self.joint.saved)
        return tuple(dict.fromkeys((number, self.by_key[key]) for number, key in keys if key in self.by_key))

    def _passes_on(self, node: torch.fx.Node) -> bool:
        """Take a node that is no operation of the step: an item of a tuple, an identity, a mark for a profiler."""
        target = node.target
        if target is operator.getitem:
            source, index = node.args
            self.named[node] = self.named[source][index]  # type: ignore[index]
        elif str(target) in _IDENTITIES:
            self.named[node] = self.named[node.args[0]]  # type: ignore[index]
        elif isinstance(target, OpOverload) and target.namespace == "profiler":
            self.named[node] = None
        else:
            return False
        return True

    def _names(self, node: torch.fx.Node, results: list[Any], unpack: bool) -> list[str | None]:
        """A name that is not taken for each result that is a tensor."""
        names = [
            (f"{node.name}_{i}" if unpack else node.name) if isinstance(output, torch.Tensor) else None
            for i, output in enumerate(results)
        ]
        while any(name in self.values for name in names if name):
            names = [name and f"{name}_" for name in names]
        return names

    def traced(self, node: torch.fx.Node) -> Any:
        """What the trace says that a call returns."""
        scope = nodes.scope_of(node)
        where = f" in {scope}" if scope else ""
        if "val" not in node.meta:
            raise Uncapturable("X-OP", f"{node.target}{where} returns nothing that the trace describes.", fix=_FIX)
        result = node.meta["val"]
        for part in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(part, torch.Tensor) and part.layout is not torch.strided:
                fix = "make it dense (`nn.Embedding(…, sparse=False)`), or leave this module bare."
                raise Uncapturable("X-TENSOR", f"{node.target}{where} returns a {part.layout} tensor.", fix=fix)
        return result

    def alias(self, target: OpOverload, args: Any, results: list[Any]) -> str | None:
        """The storage that the results are views of, or None where the operation makes its own."""
        tensors = [tensor for tensor in results if isinstance(tensor, torch.Tensor)]
        storages = {self.by_key.get(torch_private.storage_key(tensor)) for tensor in tensors}
        if len(storages) == 1 and None not in storages:
            return self._viewed(torch_private.storage_key(tensors[0]), args) or storages.pop()
        if not storages <= {None}:
            raise Uncapturable("X-ALIAS", f"{target} returns both views and new tensors.", fix=_FIX)
        # what autograd views of a Python number (`conj` of 1j) has memory that torch makes for it: it is new
        if torch_private.aliases_an_input(target) and tensors and any(refs(args)):
            raise Uncapturable("X-ALIAS", f"{target} is a view whose storage the trace does not show.", fix=_FIX)
        return None

    def _viewed(self, key: int, args: Any) -> str | None:
        """The storage of the argument that lies in this memory: parameters that are shards of one block share it."""
        storages = (self.values[ref.name].storage for ref in refs(args))
        return next((storage for storage in storages if self.keys[storage] == key), None)


def _tuples(tree: Any) -> Any:
    if isinstance(tree, (list, tuple)):
        items = [_tuples(item) for item in tree]
        return items if isinstance(tree, list) else tuple(items)
    return tree


def read_joint(joint: Joint, module: nn.Module) -> Draft:
    """The operations of a joint trace of `module`, not yet complete.

    Raises:
        Uncapturable: the trace holds what a captured step could not repeat.
    """
    reader = _Reader(joint, module)
    reader.read()
    ends = reader.ends()
    trained = {
        ("param", path)
        for path, parameter in module.named_parameters(remove_duplicate=False)
        if parameter.requires_grad
    }
    for about in [about for kind, about in ends if kind == "update"]:
        differentiable = about in trained or ("grad", about) in ends
        _check_write(about, shared=f"{about[0]}:{about[1]}" in reader.shared, differentiable=differentiable)
    return Draft(
        ops=reader.ops,
        values=reader.values,
        storages=reader.storages,
        inputs=reader.roles,
        ends=ends,
        constants=reader.constants,
        device=one_device(value.spec for value in reader.values.values()),
        saved=reader.saved(),
    )


def _check_write(about: tuple[str, Any], *, shared: bool, differentiable: bool) -> None:
    """Refuse in-place writes that a captured step could not repeat."""
    kind, which = about
    if differentiable:
        what = f"the forward writes the {kind} {which} in place, which requires a gradient."
        raise Uncapturable("X-WRITE", what, fix="write a copy of it.")
    if shared:
        what = f"the forward writes the {kind} {which} in place, which shares its storage with another."
        raise Uncapturable("X-ALIAS", what, fix="clone one of them.")


def _refused_operation(node: torch.fx.Node) -> Uncapturable:
    """The refusal of what is no operation of torch, or one that the trace has wrapped since it writes to its arguments."""
    inner = node.args[0] if node.args else None
    if "auto_functionalized" in str(node.target) and isinstance(inner, OpOverload):
        what = (
            f"the operation {inner.name()} writes to its arguments, and a plan knows the writes of torch's own alone."
        )
        return Uncapturable("X-WRITE", what, fix="have it return what it computes, and write that with `copy_`.")
    return Uncapturable("X-OP", f"{node.target} is not an ATen operation.", fix=_FIX)


def _origin_of(role: tuple[str, Any]) -> tuple[str, Any]:
    """What an input of the trace is of the step: its kind, and its name, its place or the output it is the tangent of."""
    kind, about = role
    if "Token" in str(about):
        raise Uncapturable("X-OP", "an operation has side effects (an error check of torch.linalg, say).", fix=_FIX)
    if kind not in ("param", "buffer", "input", "tangent"):
        raise Uncapturable("X-INPUT", f"the trace has an input of kind {about}.", fix=_FIX)
    if kind == "tangent" and not isinstance(about[1], int):
        which, name = about[1]
        name = str(name).removeprefix("inner.")
        if which == "param":
            what = f"the forward writes the parameter {name!r}, which is trained, in place."
            fix = "write it outside of the step (after `optimizer.step()`), or set its requires_grad to False."
            raise Uncapturable("X-WRITE", what, fix=fix)
        what = f"the forward writes the {which} {name} in place from what requires a gradient, which a later call may pass back."
        raise Uncapturable("X-WRITE", what, fix="write what is detached (`tensor.detach()`), or return it.")
    if kind == "tangent":
        return kind, about[1]
    return kind, about if kind == "input" else about.removeprefix("inner.")


def _refuse_symbols(target: OpOverload, results: list[Any]) -> None:
    """Refuse an operation whose result has no size that is known."""
    if any(isinstance(output, (torch.SymInt, torch.SymFloat, torch.SymBool)) for output in results):
        raise Uncapturable("X-OP", f"{target} gives a shape or number that depends on values.", fix=_FIX)
