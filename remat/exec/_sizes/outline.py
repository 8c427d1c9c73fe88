"""Outlines: the calls of a step, forward and backward, and the forms of what they return, run without computing anything.

The module runs on tensors that have only a form (`Outlined`), below autograd and in the tracer's setting, without
functionalization. A `Recorder` asks the shape functions what a call returns and writes all down. A `Checker` knows what to
expect: it answers with that, and stops at the first call that differs in operation, arguments or number; Python or a composite
operation has then taken another path than in the trace. Of calls that are equal in all that decides what they return, it asks
the shape function about the first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch

from remat.exec._sizes.calls import READERS, Call, Differs
from remat.exec._sizes.shapes import Shapes
from remat.exec._torch import rng, torch_private
from remat.exec._torch.outlined import Form, NoOutline, Outlined
from remat.exec._torch.seeding import Seeding
from remat.exec._torch.torch_private import DispatchMode, OpOverload, ShapesOnly
from remat.exec._trace.tape import Scalar

_UNSEEN = ("prim", "profiler")
MOST_LITERAL = 4096
"""Most bytes of a tensor that the code itself makes from numbers; it is compared by value."""


class Outlining(DispatchMode):
    """Names tensors in the order in which they appear."""

    def __init__(self, answers: Sequence[Scalar]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.answers = iter(answers)
        self.seeding = Seeding()
        self.names: dict[int, str] = {}
        self.kept: list[torch.Tensor] = []
        self.outside: dict[str, Form] = {}
        self.count = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Dynamo's guard around each call costs more than the call; nothing is compiled here."""
        return False

    def know(self, tensor: torch.Tensor) -> str:
        """A name for a tensor."""
        name = self.names[id(tensor)] = f"t{self.count}"
        self.count += 1
        self.kept.append(tensor)
        return name

    def know_outside(self, tensor: torch.Tensor, form: Form) -> None:
        """A name for a tensor that no call makes."""
        self.outside[self.know(tensor)] = form

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """One call."""
        if not isinstance(func, OpOverload) or func.namespace in _UNSEEN:
            return func(*args, **(kwargs or {}))
        if rng.draws(func, args, kwargs or {}):
            self.seeding.drawn()
        given = tuple(map(self._key, args))
        named = tuple((name, self._key(value)) for name, value in kwargs.items()) if kwargs else ()
        result = self.run(func, (given, named), args, kwargs or {})
        return next(self.answers) if result is _READ else result

    def run(self, func: OpOverload, keys: tuple[Any, Any], args: Any, kwargs: Any) -> Any:
        """The result of a call, or `_READ`."""
        raise NotImplementedError

    def _key(self, value: Any) -> Any:
        """An argument in a form that compares."""
        kind = type(value)
        if kind is int:
            return value
        if isinstance(value, torch.Tensor):
            return self.names.get(id(value)) or self._literal(value)
        if kind is tuple or kind is list or kind is torch.Size:
            return tuple(map(self._key, value))
        if kind is float and value.is_integer() and abs(value) < 2**53 and repr(value) != "-0.0":
            return "float", int(value)
        return _text(value)

    def _literal(self, tensor: torch.Tensor) -> str:
        if isinstance(tensor, Outlined) or tensor.numel() * tensor.itemsize > MOST_LITERAL:
            raise NoOutline("a tensor comes from something that is no operation of ATen")
        with torch_private.no_modes():
            value = f"{Form.of(tensor)} {tensor.tolist()!r}"
        self.kept.append(tensor)
        name = self.names[id(tensor)] = f"literal {hashlib.sha256(value.encode()).hexdigest()}"
        return name


_READ = object()
_SIMPLE = (type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


def _text(value: Any) -> Any:
    if isinstance(value, _SIMPLE):
        return value
    if isinstance(value, (bool, float, complex, str)):
        return type(value).__name__, repr(value)
    raise NoOutline(f"an operation takes a {type(value).__name__}")


class Recorder(Outlining):
    """Writes the calls down.

    Args:
        answers: what Python reads of tensors.
    """

    def __init__(self, answers: Sequence[Scalar]) -> None:
        super().__init__(answers)
        self.calls: list[Call] = []
        self.fake = ShapesOnly()
        self._fakes: dict[int, torch.Tensor] = {}

    def run(self, func: OpOverload, keys: tuple[Any, Any], args: Any, kwargs: Any) -> Any:
        """Ask the shape function, and note the call."""
        _refuse(func, args)
        if str(func) in READERS:
            self.calls.append(Call(func, *keys, (None,), (None,), False))
            return _READ
        leaves, spec = torch_private.flatten((args, kwargs))
        fakes = [self._fake(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        leaf_by_fake = {id(fake): leaf for fake, leaf in zip(fakes, leaves, strict=True) if isinstance(leaf, Outlined)}
        fake_args, fake_kwargs = torch_private.unflatten(fakes, spec)
        with self.fake:
            result = func(*fake_args, **fake_kwargs)
        unpack = isinstance(result, (tuple, list))
        forms: list[Form | str | None] = []
        tensors: list[Any] = []
        names: list[str | None] = []
        for part in result if unpack else [result]:
            name = None
            if part is None:
                forms.append(None)
                tensors.append(None)
            elif not isinstance(part, torch.Tensor):
                raise NoOutline(f"{func} returns a {type(part).__name__}")
            elif id(part) in leaf_by_fake:
                tensors.append(leaf_by_fake[id(part)])
                forms.append(self.names[id(leaf_by_fake[id(part)])])
            else:
                form = Form.of(part)
                tensor = Outlined(form)
                name = self.know(tensor)
                self._fakes[id(tensor)] = part
                tensors.append(tensor)
                forms.append(form)
            names.append(name)
        self.calls.append(Call(func, *keys, tuple(forms), tuple(names), unpack))
        return type(result)(tensors) if unpack else tensors[0]

    def _fake(self, tensor: torch.Tensor) -> torch.Tensor:
        fake = self._fakes.get(id(tensor))
        if fake is None:
            with torch_private.no_modes():
                form = Form.of(tensor)
            with self.fake:
                fake = torch.empty_strided(form.shape, form.stride, dtype=form.dtype, device=form.device)
            if not isinstance(tensor, Outlined):
                fake = self.fake.from_tensor(tensor)
            self._fakes[id(tensor)] = fake
            self.kept.append(tensor)
        return fake


class Checker(Outlining):
    """Compares the calls with those that are expected, and answers as expected.

    Args:
        expected: the calls.
        answers: what Python reads of tensors.
        shapes: asked what calls return, and trusted for those that are equal to an earlier one in all that decides it.
    """

    def __init__(self, expected: Sequence[Call], answers: Sequence[Scalar], shapes: Shapes) -> None:
        super().__init__(answers)
        self.calls = expected
        self.shapes = shapes
        self.at = 0

    def run(self, func: OpOverload, keys: tuple[Any, Any], args: Any, kwargs: Any) -> Any:
        """Compare and answer."""
        if self.at >= len(self.calls):
            raise Differs(f"{func} runs besides what was expected")
        call = self.calls[self.at]
        if func is not call.target or keys != (call.given, call.named):
            raise Differs(f"{func}{keys[0]} runs where {call.target}{call.given} was expected")
        self.shapes.check(self.at, call, args, kwargs)
        self.at += 1
        if not call.unpack:
            return self._result(call.results[0], args, kwargs)
        return [self._result(result, args, kwargs) for result in call.results]

    def _result(self, result: Form | str | None, args: Any, kwargs: Any) -> Any:
        if type(result) is Form:
            tensor = Outlined(result)
            self.know(tensor)
            return tensor
        if result is None:
            return _READ if str(self.calls[self.at - 1].target) in READERS else None
        leaves = (*args, *kwargs.values())
        return next(leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and self.names.get(id(leaf)) == result)


def _refuse(func: OpOverload, args: Any) -> None:
    """What outlines do not stand for."""
    if torch.Tag.inplace_view in func.tags:
        raise NoOutline(f"{func} changes the form of a tensor in place")
    reads = str(func) in READERS
    if not reads and torch_private.shapes_depend_on_values(func, args):
        raise NoOutline(f"{func} gives shapes that depend on values")
    if func.name() in ("aten::_assert_async.msg", "aten::_assert_async", "aten::_linalg_check_errors"):
        raise NoOutline(f"{func} looks at values")
