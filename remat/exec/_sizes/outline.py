"""Outlines: the calls of a step, forward and backward, and the forms of what they return, run without computing anything.

The module runs on tensors that have only a form (`Outlined`), below autograd and in the tracer's setting, without
functionalization. A `Recorder` asks the shape functions what a call returns and writes all down. A `Checker` knows what to
expect: it answers with that, and stops at the first call that differs in operation, arguments or number; Python or a composite
operation has then taken another path than in the trace. Of calls that are equal in all that decides what they return, it asks
the shape function about the first.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from attrs import define, evolve, frozen
from torch._dispatch.python import enable_python_dispatcher
from torch.nn.utils import stateless

from remat.exec._capture.agree import corrected_targets
from remat.exec._capture.capturing import Captured
from remat.exec._torch import rng, torch_private
from remat.exec._torch.joint import DECOMPOSED, Correction, corrections, eager_kernels, unseen_refused
from remat.exec._torch.logged import no_cast_kept, outside_autocast
from remat.exec._torch.parametrized import own_parametrizations
from remat.exec._torch.torch_private import DispatchMode, OpOverload, ShapesOnly
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
        return cls(tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()), tensor.dtype, tensor.device)


@frozen
class Call:
    """One call below autograd.

    Attributes:
        target: the operation.
        given: its arguments: integers as they are, tensors by name, all else as type and text.
        named: likewise, by keyword.
        results: for each result: its form; the name of the argument that it is; or None, where there is none.
        made: the name of each result that is a new tensor.
        unpack: it returns several.
    """

    target: OpOverload
    given: tuple[Any, ...]
    named: tuple[Any, ...]
    results: tuple[Form | str | None, ...]
    made: tuple[str | None, ...]
    unpack: bool


@frozen
class Outline:
    """What one run showed.

    Attributes:
        calls: in order.
        returned: forms of the tensors that the module returned.
        answers: what Python read of tensors, in order.
        outside: forms of the tensors that no call has made, by name.
    """

    calls: tuple[Call, ...]
    returned: tuple[Form, ...]
    answers: tuple[Scalar, ...]
    outside: dict[str, Form]


class Outlined(torch.Tensor):
    """A tensor without memory."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, form: Form, requires_grad: bool = False) -> Outlined:
        return torch.Tensor._make_wrapper_subclass(
            cls, form.shape, strides=form.stride, storage_offset=form.offset, dtype=form.dtype, device=form.device,
            requires_grad=requires_grad,
        )  # fmt: skip

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Nothing runs on it outside of an outline."""
        raise NoOutline(f"{func} runs outside of the step")


class _Mode(DispatchMode):
    """Names tensors in the order in which they appear."""

    def __init__(self, answers: Sequence[Scalar]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.answers = iter(answers)
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
        own = {id(fake): leaf for fake, leaf in zip(fakes, leaves, strict=True) if isinstance(leaf, Outlined)}
        fake_args, fake_kwargs = torch_private.unflatten(fakes, spec)
        with self.fake:
            result = func(*fake_args, **fake_kwargs)
        unpack = isinstance(result, (tuple, list))
        forms: list[Form | str | None] = []
        tensors: list[Any] = []
        made: list[str | None] = []
        for part in result if unpack else [result]:
            name = None
            if part is None:
                forms.append(None)
                tensors.append(None)
            elif not isinstance(part, torch.Tensor):
                raise NoOutline(f"{func} returns a {type(part).__name__}")
            elif id(part) in own:
                tensors.append(own[id(part)])
                forms.append(self.names[id(own[id(part)])])
            else:
                form = Form.of(part)
                tensor = Outlined(form)
                name = self.know(tensor)
                self._fakes[id(tensor)] = part
                tensors.append(tensor)
                forms.append(form)
            made.append(name)
        self.calls.append(Call(func, *keys, tuple(forms), tuple(made), unpack))
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
        if self.shapes.distinct[self.at]:
            self.shapes.check(call, args, kwargs)
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


@define(eq=False)
class Shapes:
    """The shape functions of the calls of some outlines.

    Attributes:
        distinct: for each call, whether no earlier one is equal to it in all that decides what it returns.
        fake: operations whose results depend on the device, or are corrected: only fake tensors tell them.
        calibrates: whether it is being found out which these are.
    """

    distinct: tuple[bool, ...]
    fake: set[OpOverload]
    calibrates: bool = False

    @classmethod
    def of(cls, outlines: Sequence[Outline]) -> Shapes:
        """Those of equal outlines of several sizes."""
        seen: set[Any] = set()
        distinct = []
        forms = [dict(outline.outside) for outline in outlines]
        for calls in zip(*(outline.calls for outline in outlines), strict=True):
            pairs = zip(calls, forms, strict=True)
            key = (calls[0].target, *(_resolved((call.given, call.named), named) for call, named in pairs))
            distinct.append(calls[0].target.namespace != "aten" or key not in seen)
            seen.add(key)
            for call, named in zip(calls, forms, strict=True):
                made = zip(call.made, call.results, strict=True)
                named.update((name, form) for name, form in made if name is not None and isinstance(form, Form))
        return cls(tuple(distinct), set(corrected_targets()))

    def check(self, call: Call, args: Any, kwargs: Any) -> None:
        """Ask what a call returns.

        Raises:
            Differs: not what is expected.
        """
        if str(call.target) in READERS:
            return
        if call.target not in self.fake and "device" not in kwargs:
            try:
                if _told(call, args, kwargs, _meta) == call.results:
                    return
            except (RuntimeError, NotImplementedError, TypeError):
                if not self.calibrates:
                    raise
            if self.calibrates:
                self.fake.add(call.target)
        told = _told(call, args, kwargs, _Fakes())
        if told != call.results:
            raise Differs(f"{call.target} returns {told} where {call.results} was expected")


def _resolved(tree: Any, forms: dict[str, Form]) -> Any:
    """Arguments with forms in place of names."""
    if isinstance(tree, tuple):
        return tuple(_resolved(item, forms) for item in tree)
    return forms.get(tree, tree) if type(tree) is str else tree


class _Fakes:
    """Makes fake tensors of a mode of their own."""

    def __init__(self) -> None:
        self.mode = ShapesOnly()

    def __call__(self, form: Form) -> torch.Tensor:
        with self.mode:
            return _blank(form, form.device)

    def __enter__(self) -> None:
        self.mode.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.mode.__exit__(*error)


class _Metas(nullcontext[None]):
    """Makes tensors on the meta device."""

    def __call__(self, form: Form) -> torch.Tensor:
        return _blank(form, _META)


_META = torch.device("meta")
_meta = _Metas()


def _blank(form: Form, device: torch.device) -> torch.Tensor:
    """A tensor of that form; in a larger memory, where it does not begin at its beginning."""
    if not form.offset:
        return torch.empty_strided(form.shape, form.stride, dtype=form.dtype, device=device)
    reach = form.offset + 1 + sum((n - 1) * step for n, step in zip(form.shape, form.stride, strict=True) if n)
    return torch.empty(reach, dtype=form.dtype, device=device).as_strided(form.shape, form.stride, form.offset)


def _told(call: Call, args: Any, kwargs: Any, made: Any) -> tuple[Form | str | None, ...]:
    """The results of a call as shape functions tell them, on the devices that are expected."""
    tensors: dict[int, str] = {}

    def blank(value: Any, key: Any) -> Any:
        """An argument with such tensors in it."""
        if isinstance(value, torch.Tensor):
            tensor = made(Form.of(value))
            tensors[id(tensor)] = key
            return tensor
        if type(value) in (list, tuple):
            return type(value)([blank(*pair) for pair in zip(value, key, strict=True)])
        return value

    blank_args = [blank(*pair) for pair in zip(args, call.given, strict=True)]
    blank_kwargs = {name: blank(value, key) for (name, value), (_, key) in zip(kwargs.items(), call.named, strict=True)}
    with made:
        result = call.target(*blank_args, **blank_kwargs)
    told: list[Form | str | None] = []
    results = result if isinstance(result, (tuple, list)) else [result]
    if len(results) != len(call.results):
        return (None,) * len(results)
    for part, expected in zip(results, call.results, strict=True):
        if not isinstance(part, torch.Tensor):
            told.append(None)
        elif id(part) in tensors:
            told.append(tensors[id(part)])
        else:
            form = Form.of(part)
            told.append(evolve(form, device=expected.device) if made is _meta and isinstance(expected, Form) else form)
    return tuple(told)


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
        correction: what kernels return other than their shape functions say.
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
    with untouched(module, before), torch.enable_grad(), _setting(around.correction):
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
            _backward(mode, returned, [*state.values(), *inputs], around.captured)
        for slot in before.slots():
            if slot.path in around.captured.lifted:
                slot.put(slot.tensor)
        changed = next((container.path for container in before.changed()), None)
    if changed is not None or rng.others() != states:
        raise NoOutline(f"the forward changes {changed or 'a generator of random numbers'}")
    if isinstance(mode, Checker) and mode.at < len(mode.calls):
        raise Differs(f"{mode.calls[mode.at].target} did not run")
    return tuple(map(Form.of, returned)), reads


def _tensors(step: Step, mode: _Mode, around: Around) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
    """Tensors without memory in place of arguments and lifted tensors, and of parameters and buffers, each known to the mode."""
    made: dict[int, torch.Tensor] = {}

    def of(tensor: torch.Tensor, *, twin: bool = True) -> torch.Tensor:
        if id(tensor) not in made or not twin:
            form = Form.of(tensor)
            made[id(tensor)] = Outlined(form, tensor.requires_grad)
            mode.know_outside(made[id(tensor)], form)
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


def _backward(mode: _Mode, returned: list[torch.Tensor], leaves: list[torch.Tensor], captured: Captured) -> None:
    """Derive the outputs that gradients come back through."""
    trained = list({id(leaf): leaf for leaf in leaves if leaf.requires_grad}.values())
    roots = [returned[position] for _, position in captured.program.tangents]
    if not trained or not roots:
        return
    specs = [captured.program.values[value].spec for value, _ in captured.program.tangents]
    if any(tuple(root.shape) != spec.shape for root, spec in zip(roots, specs, strict=True)):
        raise Differs("the module returns tensors of other shapes")
    forms = [Form(spec.shape, spec.stride, 0, spec.dtype, spec.device) for spec in specs]
    tangents = list(map(Outlined, forms))
    for tangent, form in zip(tangents, forms, strict=True):
        mode.know_outside(tangent, form)
    with torch.autograd.set_multithreading_enabled(False), outside_autocast():
        torch.autograd.grad(roots, trained, tangents, allow_unused=True)


@functools.cache
def _decomposed() -> tuple[str, ...]:
    return (*DECOMPOSED, "dropout")


@contextmanager
def _setting(correction: Correction | None) -> Iterator[None]:
    """What the tracer runs in."""
    with no_cast_kept(), enable_python_dispatcher(), eager_kernels(_decomposed()), unseen_refused(), corrections(correction):
        yield
