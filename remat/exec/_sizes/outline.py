"""Outlines: the calls of a step, forward and backward, and the forms of what they return, run without computing anything.

The module runs on tensors that have only a form (`Outlined`), below autograd and in the tracer's setting, without
functionalization. A `Recorder` asks the shape functions what a call returns and writes all down. A `Checker` knows what to expect:
it answers with that, and stops at the first call that differs in operation, arguments or number; Python or a composite
operation has then taken another path than in the trace.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from attrs import frozen
from torch._dispatch.python import enable_python_dispatcher
from torch.nn.utils import stateless

from remat.exec._capture.capturing import Captured
from remat.exec._torch import rng, torch_private
from remat.exec._torch.joint import DECOMPOSED, Correction, corrections, eager_kernels, unseen_refused
from remat.exec._torch.parametrized import own_parametrizations
from remat.exec._torch.torch_private import DispatchMode, FakeTensorMode, OpOverload
from remat.exec._trace import structure
from remat.exec._trace.containers import TABLES
from remat.exec._trace.effects import buffers_of, check_tables, write_in_place
from remat.exec._trace.passes import generator_state
from remat.exec._trace.python_state import Snapshot
from remat.exec._trace.reads import Reads
from remat.exec._trace.tape import Scalar
from remat.exec._trace.tracing import Same, Step, untouched

READERS = ("aten._local_scalar_dense.default", "aten.equal.default", "aten.is_nonzero.default")
_UNSEEN = ("prim", "profiler")
MOST_LITERAL = 4096
"""Most bytes of a tensor that the code itself makes from numbers; it is compared by value."""


class NoOutline(Exception):
    """A step that outlines do not stand for; the message says why."""


class Differs(Exception):
    """A step does not make the calls that were expected; the message says where."""


@frozen
class Form:
    """Shape, strides, offset [elements], type and device of a tensor."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Form:
        """Of any tensor."""
        return cls(tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.device)


@frozen
class Call:
    """One call below autograd.

    Attributes:
        target: the operation.
        given: its arguments: integers as they are, tensors by name, all else as type and text.
        named: likewise, by keyword.
        results: for each result: its form; the name of the argument that it is; or None, where there is none.
        unpack: it returns several.
    """

    target: OpOverload
    given: tuple[Any, ...]
    named: tuple[Any, ...]
    results: tuple[Form | str | None, ...]
    unpack: bool


@frozen
class Outline:
    """What one run showed.

    Attributes:
        calls: in order.
        returned: forms of the tensors that the module returned.
        answers: what Python read of tensors, in order.
    """

    calls: tuple[Call, ...]
    returned: tuple[Form, ...]
    answers: tuple[Scalar, ...]


class Outlined(torch.Tensor):
    """A tensor without memory."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, form: Form, requires_grad: bool = False) -> Outlined:
        return torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined, no-any-return]
            cls, form.shape, strides=form.stride, storage_offset=form.offset, dtype=form.dtype, device=form.device,
            requires_grad=requires_grad,
        )  # fmt: skip

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Nothing runs on it outside of an outline."""
        raise NoOutline(f"{func} runs outside of the step")


class _Mode(DispatchMode):
    """Names tensors in the order in which they appear."""

    def __init__(self, answers: Sequence[Scalar]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.answers = iter(answers)
        self.names: dict[int, str] = {}
        self.kept: list[torch.Tensor] = []
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

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """One call."""
        if not isinstance(func, OpOverload) or func.namespace in _UNSEEN:
            return func(*args, **(kwargs or {}))
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


class Recorder(_Mode):
    """Writes the calls down.

    Args:
        answers: what Python reads of tensors.
    """

    def __init__(self, answers: Sequence[Scalar]) -> None:
        super().__init__(answers)
        self.calls: list[Call] = []
        self.fake = FakeTensorMode()
        self._fakes: dict[int, torch.Tensor] = {}

    def run(self, func: OpOverload, keys: tuple[Any, Any], args: Any, kwargs: Any) -> Any:
        """Ask the shape function, and note the call."""
        _refuse(func, args)
        if str(func) in READERS:
            self.calls.append(Call(func, *keys, (None,), False))
            return _READ
        leaves, spec = torch_private.flatten((args, kwargs))
        fakes = [self._fake(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        own = {id(fake): leaf for fake, leaf in zip(fakes, leaves, strict=True) if isinstance(leaf, Outlined)}
        fake_args, fake_kwargs = torch_private.unflatten(fakes, spec)
        with self.fake:
            result = func(*fake_args, **fake_kwargs)
        unpack = isinstance(result, (tuple, list))
        forms: list[Form | str | None] = []
        tensors: list[Any] = []
        for part in result if unpack else [result]:
            if part is not None and not isinstance(part, torch.Tensor):
                raise NoOutline(f"{func} returns a {type(part).__name__}")
            tensors.append(None if part is None else own.get(id(part)))
            forms.append(None if part is None else self.names[id(tensors[-1])] if id(part) in own else Form.of(part))
            if part is not None and tensors[-1] is None:
                tensors[-1] = Outlined(forms[-1])
                self.know(tensors[-1])
                self._fakes[id(tensors[-1])] = part
        self.calls.append(Call(func, *keys, tuple(forms), unpack))
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


class Checker(_Mode):
    """Compares the calls with those that are expected, and answers as expected.

    Args:
        calls: that are expected.
        answers: what Python reads of tensors.
    """

    def __init__(self, calls: Sequence[Call], answers: Sequence[Scalar]) -> None:
        super().__init__(answers)
        self.calls = calls
        self.at = 0

    def run(self, func: OpOverload, keys: tuple[Any, Any], args: Any, kwargs: Any) -> Any:
        """Compare and answer."""
        if self.at >= len(self.calls):
            raise Differs(f"{func} runs besides what was expected")
        call = self.calls[self.at]
        if func is not call.target or keys != (call.given, call.named):
            raise Differs(f"{func}{keys[0]} runs where {call.target}{call.given} was expected")
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


# -- one run ----------------------------------------------------------------------------------------------------------


@frozen(kw_only=True, eq=False)
class Around:
    """What a run needs besides the call.

    Attributes:
        before: the state of Python, which the run must leave as it is.
        captured: a capture whose outputs, tangents and lifted tensors have the forms of this call.
        correction: what kernels return other than their shape functions say; for recording.
    """

    before: Snapshot
    captured: Captured
    correction: Correction | None = None


def outlined(step: Step, mode: _Mode, around: Around) -> tuple[tuple[Form, ...], Reads]:
    """Run a step, forward and backward; gives the forms of what it returned, and which attributes it read.

    Args:
        step: the call.
        mode: records or checks.
        around: see there.

    Raises:
        Differs, NoOutline: the run is not as expected, or cannot be judged.
    """
    module, before = step.module, around.before
    states = rng.others()
    with untouched(module, before), torch.enable_grad(), _setting(around.correction if _records(mode) else None):
        inputs, state = _tensors(step, mode, around)
        tables = [(inner, name, tuple(inner.__dict__[name])) for inner in module.modules() for name in TABLES]
        with mode, stateless._reparametrize_module(module, state):
            origins = {id(tensor) for tensor in (*inputs, *state.values())}
            buffers, seed, reads = buffers_of(module), generator_state(), Reads(before.paths)
            with reads, own_parametrizations():
                out = step.run(inputs[: len(step.tensors)])
            if seed != generator_state():
                raise NoOutline("the forward sets torch's generator")
            write_in_place(buffers)
            check_tables(tables)
            returned = _returned(out, origins, around)
            _backward(returned, [*state.values(), *inputs], around.captured)
        for slot in before.slots():
            if slot.path in around.captured.lifted:
                slot.put(slot.tensor)
        changed = next((container.path for container in before.changed()), None)
    if changed is not None or rng.others() != states:
        raise NoOutline(f"the forward changes {changed or 'a generator of random numbers'}")
    if isinstance(mode, Checker) and mode.at < len(mode.calls):
        raise Differs(f"{mode.calls[mode.at].target} did not run")
    return tuple(map(Form.of, returned)), reads


def _records(mode: _Mode) -> bool:
    return isinstance(mode, Recorder)


def _tensors(step: Step, mode: _Mode, around: Around) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
    """Tensors without memory in place of arguments and lifted tensors, and of parameters and buffers, each known to the mode."""
    made: dict[int, torch.Tensor] = {}

    def of(tensor: torch.Tensor, *, twin: bool = True) -> torch.Tensor:
        if id(tensor) not in made or not twin:
            made[id(tensor)] = Outlined(Form.of(tensor), tensor.requires_grad)
            mode.know(made[id(tensor)])
        return made[id(tensor)]

    module = step.module
    named = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    state = {name: of(tensor) for name, tensor in named}
    inputs = [of(tensor, twin=False) for tensor in step.tensors]
    slots = {slot.path: slot for slot in around.before.slots()} if around.captured.lifted else {}
    for path in around.captured.lifted:
        inputs.append(of(slots[path].tensor, twin=False))
        slots[path].put(inputs[-1])
    return tuple(inputs), state


def _returned(out: Any, origins: set[int], around: Around) -> list[torch.Tensor]:
    """The tensors that a module returned, where all else that it returned is as in the capture."""
    captured = around.captured
    leaves, layout = structure.flatten(out, opaque=lambda value: id(value) in around.before.paths)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and id(leaf) not in origins]
    plain = [leaf for leaf in leaves if not isinstance(leaf, torch.Tensor)]
    expected = [leaf for at, leaf in enumerate(captured.out_leaves) if at not in captured.tensor_leaves]
    expected = [leaf for leaf in expected if not isinstance(leaf, Same)]
    if repr(layout) != repr(captured.layout) or list(map(repr, plain)) != list(map(repr, expected)):
        raise Differs("the module returns other plain values")
    if tuple(tensor.requires_grad for tensor in tensors) != captured.requires_grad:
        raise Differs("other outputs require a gradient")
    return tensors


def _backward(returned: list[torch.Tensor], leaves: list[torch.Tensor], captured: Captured) -> None:
    """Derive the outputs that gradients come back through."""
    trained = list({id(leaf): leaf for leaf in leaves if leaf.requires_grad}.values())
    roots = [returned[position] for _, position in captured.program.tangents]
    if not trained or not roots:
        return
    specs = [captured.program.values[value].spec for value, _ in captured.program.tangents]
    if any(tuple(root.shape) != spec.shape for root, spec in zip(roots, specs, strict=True)):
        raise Differs("the module returns tensors of other shapes")
    mode = torch.utils._python_dispatch._get_current_dispatch_mode()
    tangents = [Outlined(Form(spec.shape, spec.stride, 0, spec.dtype, spec.device)) for spec in specs]
    for tangent in tangents:
        mode.know(tangent)  # type: ignore[union-attr]
    with torch.autograd.set_multithreading_enabled(False):
        torch.autograd.grad(roots, trained, tangents, allow_unused=True)


@functools.cache
def _decomposed() -> tuple[str, ...]:
    return (*DECOMPOSED, "dropout")


@contextmanager
def _setting(correction: Correction | None) -> Iterator[None]:
    """What the tracer runs in."""
    with enable_python_dispatcher(), eager_kernels(_decomposed()), unseen_refused(), corrections(correction):
        yield
