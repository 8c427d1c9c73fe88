"""What reaches fake tensors, written down as a graph: operations that write nothing in place, in the order in which they ran."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.fx.traceback as fx_traceback
from attrs import frozen
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor

from remat.exec._torch import nodes

Dispatch = Callable[..., Any]
"""`FakeTensorMode.dispatch`, or what stands in its place: (mode, operation, types, arguments, keyword arguments)."""


_UNSEEN = ("prim", "profiler")
"""Namespaces of operations that compute nothing: questions for a device, marks for a profiler."""
_VALUES = (
    type(None), bool, int, str, complex, torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size,
)  # fmt: skip
"""Types of arguments that are the same where they are equal."""


class NotLogged(Exception):
    """A step that a log does not stand for; the message says why."""


@frozen(eq=False)
class _Call:
    """A call of the first pass; its tensors live as long as it, so that no other gets the identity of one."""

    target: Any
    args: Any
    kwargs: Any
    result: Any


class Log:
    """The log of two passes over one step: the first is remembered, the second becomes the graph.

    As long as the second pass makes the calls of the first on the same tensors, it gets the results of the first, and nothing is
    computed again.
    """

    def __init__(self) -> None:
        self.graph = torch.fx.Graph()
        self.constants: dict[str, torch.Tensor] = {}
        self.replayed: torch.Tensor | None = None
        self.on = False
        self.in_backward = False
        self.running: list[int] = []
        """The numbers of the nodes of autograd whose backward runs; what runs in none adds gradients, or is a hook's."""
        self._first: list[_Call] = []
        self._remembers = True
        self._at: int | None = 0
        self._inside = False
        self._by_tensor: dict[int, torch.fx.Node] = {}
        self._kept: list[Any] = []
        self._customs: dict[int, dict[str, Any]] = {}

    def second(self) -> None:
        """The second pass begins."""
        self._remembers = False

    def around(self, dispatch: Dispatch) -> Dispatch:
        """The dispatch of fake tensors, logged; what runs inside an operation is part of it."""

        def logged(mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if not self.on or self._inside or func.namespace in _UNSEEN:
                return dispatch(mode, func, types, args, kwargs)
            if func.namespace != "aten" and isinstance(func, OpOverload) and func._schema.is_mutable:
                # torch 2.11 has run what it wrapped the operation in, and the write is none of the graph's
                raise NotLogged(f"the operation {func.name()} writes to its arguments")
            result = self._again(func, args, kwargs or {})
            if result is None:
                self._inside = True
                try:
                    result = dispatch(mode, func, types, args, kwargs)
                finally:
                    self._inside = False
            self._note(func, args, kwargs or {}, result)
            return result

        return logged

    def placeholder(self, name: str, tensor: torch.Tensor) -> None:
        """A tensor from outside; one that is given twice is known by the first of its placeholders."""
        node = self.graph.placeholder(name)
        node.meta["val"] = tensor
        self._by_tensor.setdefault(id(tensor), node)
        self._kept.append(tensor)

    def node(self, tensor: torch.Tensor) -> torch.fx.Node:
        """What stands for a tensor in the graph."""
        return self._by_tensor.get(id(tensor)) or self._constant(tensor)

    # -- the first pass and the second ---------------------------------------------------------------------------------

    def _again(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What the first pass has made by the same call at this place; None: it has made another."""
        if self._remembers or self._at is None:
            return None
        if self._at < len(self._first):
            call = self._first[self._at]
            literal = func is torch.ops.aten.lift_fresh.default and _form(args[0]) == _form(call.args[0])
            if func is call.target and (literal or _same(args, call.args)) and _same(kwargs, call.kwargs):
                self._at += 1
                return call.result
        self._at = None
        return None

    def _note(self, func: OpOverload, args: Any, kwargs: Any, result: Any) -> None:
        if self._remembers:
            self._first.append(_Call(func, args, kwargs, result))
            return
        if func is torch.ops.aten.lift_fresh.default:
            func = torch.ops.aten.lift_fresh_copy.default  # the constant stays what it is, whatever is written later
        target = self.graph._target_to_str(func.overloadpacket.__name__)
        arguments, named = self._argument(tuple(args)), {name: self._argument(value) for name, value in kwargs.items()}
        node = self.graph.create_node("call_function", func, arguments, named, name=target)
        self._describe(node, result)
        self._kept.append(result)
        if isinstance(result, torch.Tensor):
            self._by_tensor[id(result)] = node
        elif isinstance(result, (tuple, list)):
            for at, item in enumerate(result):
                if isinstance(item, torch.Tensor):
                    part = self.graph.create_node("call_function", operator.getitem, (node, at), {})
                    part.meta = {**node.meta, "val": item}
                    self._by_tensor[id(item)] = part

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def _describe(self, node: torch.fx.Node, result: Any) -> None:
        """Write on a node what the joint export writes: what it gives, its number of autograd, where it was called."""
        number = torch.autograd._get_sequence_nr() - 1  # type: ignore[attr-defined]  # an operation's own node is made before it runs
        custom = dict(fx_traceback.get_current_meta().get("custom") or {})
        if not self.in_backward:
            self._customs.setdefault(number, custom)
        else:
            nodes.mark_backward(node)
            if self.running:
                number = self.running[-1]
                custom = {**custom, **self._customs.get(number, {})}
        origin = None if self.replayed is None else self._by_tensor.get(id(self.replayed))
        if origin is not None:
            number, custom = origin.meta.get("seq_nr", number), origin.meta.get("custom", custom)
        node.meta.update(val=result, seq_nr=number, custom=custom)

    def _argument(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self.node(value)
        if isinstance(value, (tuple, list)):
            return type(value)([self._argument(item) for item in value])
        return value

    def _constant(self, tensor: torch.Tensor) -> torch.fx.Node:
        """A node for a real tensor that the code itself makes."""
        if isinstance(tensor, FakeTensor):
            raise NotLogged("a tensor comes from something that is no operation of ATen")
        name = f"_tensor_constant{len(self.constants)}"
        node = self.graph.create_node("get_attr", name)
        node.meta["val"] = self.constants[name] = tensor
        self._by_tensor[id(tensor)] = node
        self._kept.append(tensor)
        return node


def _form(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def _same(ours: Any, theirs: Any) -> bool:
    """Whether two arguments are the same: tensors by identity, all else by type and value."""
    kind = type(ours)
    if ours is theirs:
        return True
    if kind is not type(theirs) or issubclass(kind, torch.Tensor):
        return False
    if kind in (list, tuple):
        return len(ours) == len(theirs) and all(map(_same, ours, theirs))
    if kind is dict:
        return ours.keys() == theirs.keys() and all(_same(value, theirs[name]) for name, value in ours.items())
    if kind is float:
        return repr(ours) == repr(theirs)  # tells the signs of zeros apart
    return kind in _VALUES and bool(ours == theirs)
