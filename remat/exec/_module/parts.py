"""Submodules of a module that runs under DTR: how they are called, and how those that have a plan run it.

While the module runs, the `forward` of each submodule that is looked at is replaced in its instance: hooks of the submodule run
as they do, and what calls `forward` itself is seen too.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from attrs import define, field
from torch import nn

from remat.exec._capture.capturing import Captured
from remat.exec._dtr.again import run_again
from remat.exec._dtr.boundary import saves_alone
from remat.exec._dtr.planned import NoRoom, Planned, Running, has_room, run_planned
from remat.exec._dtr.runtime import Runtime
from remat.exec._dtr.wrapper import RematTensor
from remat.exec._module.binding import extra_inputs
from remat.exec._module.calls import Arguments
from remat.exec._module.entries import Ready
from remat.exec._module.state import State
from remat.exec._plan.dividing import BlockOption
from remat.exec._program.kernels import no_autocast
from remat.exec._run.runtime import StepError
from remat.exec._torch.torch_private import hooks_of_all_modules
from remat.exec._torch.wrappers import bits_of, with_bits
from remat.exec._trace import structure
from remat.units import Ns

CHANGED = "state of Python that its plan depends on changed"


@define(eq=False)
class Form:
    """One form of the calls of a submodule.

    Attributes:
        leaves, layout: its flat arguments, tensors as descriptions, and how they become arguments.
        modes: whether each module in it trained.
        steps: in which it was called. calls: most calls in one of them. operations, cost: of a call operation by operation.
        captured: the trace, once there is one. options: its plans. runnable: these as they run,
            by the identity of what was planned.
        ready, planned: the plan that runs. reason: why there is none.
    """

    leaves: list[Any]
    layout: structure.Layout
    modes: tuple[bool, ...]
    steps: set[int] = field(factory=set)
    calls: Counter[int] = field(factory=Counter)
    operations: int = 0
    cost: Ns = 0
    captured: Captured | None = None
    options: tuple[BlockOption, ...] = ()
    runnable: dict[int, tuple[Ready, Planned]] = field(factory=dict)
    ready: Ready | None = None
    planned: Planned | None = None
    reason: str = ""

    @property
    def most_calls(self) -> int:
        """Most calls in a step."""
        return max(self.calls.values(), default=0)


@define(frozen=True)
class Described:
    """What is noted of a tensor among the arguments."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    bits: tuple[bool, bool]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Described:
        """The description of a tensor."""
        form = tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.device, tensor.requires_grad
        return cls(*form, bits_of(tensor))

    def zeros(self) -> torch.Tensor:
        """A tensor of this form."""
        extent = 1 + sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))
        base = torch.zeros(max(1, extent), dtype=self.dtype, device=self.device)
        tensor = with_bits(base.as_strided(self.shape, self.stride), *self.bits)
        return tensor.requires_grad_(self.requires_grad)


@define(eq=False)
class Part:
    """A submodule that is looked at, and may become a part.

    Attributes:
        path: in the module. module: the submodule. state: how it is planned.
        forms: of its calls, by key. chosen: whether it is a part. allowed: most bytes that a plan of a new form may take.
        ran, again, apart: how many calls ran a plan; why others ran again for their backward; and why others ran
            operation by operation.
    """

    path: str
    module: nn.Module
    state: State
    forms: dict[Hashable, Form] = field(factory=dict)
    chosen: bool = False
    allowed: int = 0
    ran: int = 0
    again: Counter[str] = field(factory=Counter)
    apart: Counter[str] = field(factory=Counter)

    def forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The forward of the module as it is."""
        return type(self.module).forward(self.module, *args, **kwargs)

    def key(self, call: Arguments) -> Hashable:
        """What of a call its plan depends on."""
        return call.key, self.modes()

    def modes(self) -> tuple[bool, ...]:
        """Whether each module in it trains."""
        return tuple(inner.training for inner in self.module.modules())

    @contextmanager
    def in_modes(self, modes: tuple[bool, ...]) -> Iterator[None]:
        """Inside, its modules train or not as in `modes`, and nothing is cast automatically."""
        before = self.modes()
        try:
            for inner, training in zip(self.module.modules(), modes, strict=True):
                inner.__dict__["training"] = training
            with no_autocast(torch.device("cpu")), no_autocast(torch.device("cuda")):
                yield
        finally:
            for inner, training in zip(self.module.modules(), before, strict=True):
                inner.__dict__["training"] = training


@define(eq=False)
class Calls:
    """The calls of submodules in one step.

    Attributes:
        runtime: the step runs under. step: its number.
        inside: paths of the submodules that run now, from outside. saved: bytes of each storage that autograd saves, and the
            submodule that runs then.
    """

    runtime: Runtime
    step: int
    inside: list[str] = field(factory=list)
    saved: dict[int, tuple[str, int]] = field(factory=dict)

    def note_saved(self, storage: Any) -> None:
        """Autograd saves a tensor in this storage."""
        self.saved.setdefault(id(storage), (self.inside[-1] if self.inside else "", storage.size))

    def call(self, part: Part, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call of a submodule: by its plan, or operation by operation."""
        if not torch.is_grad_enabled() or _is_autocast(self.runtime.device):
            part.apart["no gradients are recorded" if not torch.is_grad_enabled() else "autocast"] += 1
            return part.forward(args, kwargs)
        call = part.state.arguments(part.module, args, kwargs)
        if not all(isinstance(leaf, (torch.Tensor, *structure.PLAIN)) for leaf in call.leaves):
            part.apart["an argument that is no tensor or plain value"] += 1
            return part.forward(args, kwargs)
        key = part.key(call)
        form = part.forms.get(key)
        if form is None:
            described = [Described.of(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in call.leaves]
            form = part.forms[key] = Form(described, call.layout, part.modes())
        reason = self._why_apart(part, form, call)
        if not reason:
            try:
                return self._planned(part, form, call)
            except NoRoom:
                reason = "no room for the planned forward"
        if part.chosen:
            part.apart[reason] += 1
        return self._observed(part, form, args, kwargs)

    def _why_apart(self, part: Part, form: Form, call: Arguments) -> str:
        """Why a call does not run a plan; empty: it does."""
        if form.ready is None or form.planned is None:
            return form.reason or "its form is new"
        given = [leaf for leaf in call.leaves if isinstance(leaf, torch.Tensor)]
        if call.repeated or len({id(tensor) for tensor in given}) < len(given):
            return "one tensor is given twice"
        if has_hooks(part.module):
            return "hooks inside"
        if not saves_alone(self.runtime):
            return "hooks for saved tensors, or a dispatch mode"
        if extra_inputs(form.ready, call, ()) is None:
            return CHANGED
        shared = [call.tensors["input"][form.planned.inputs[at]] for at in form.planned.shared]
        if not all(isinstance(tensor, RematTensor) for tensor in shared):
            return "an input from outside the step that is read several times"
        if not has_room(self.runtime, form.planned, call.at(form.ready.places, [])):
            return "no room for the planned forward"
        return ""

    def _planned(self, part: Part, form: Form, call: Arguments) -> Any:
        ready, planned = form.ready, form.planned
        assert ready is not None and planned is not None
        watch = ready.watch

        def forward(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            with as_it_is(part.module):
                if not watch.holds(part.module, ()):
                    what = f"{part.path} is to be computed again, and {CHANGED}."
                    raise StepError("X-STATE", what, fix="change it after the backward.")
                return part.forward(args, kwargs)

        def ran_again(reason: str) -> None:
            part.again[reason] += 1
            form.ready = form.planned = None
            form.reason = f"once there was {reason}"

        places = tuple(at for at, leaf in enumerate(call.leaves) if isinstance(leaf, torch.Tensor))
        running = Running(
            runtime=self.runtime, planned=planned, primals=call.at(ready.places, []),
            leaves=[None if isinstance(leaf, torch.Tensor) else leaf for leaf in call.leaves], layout=call.layout,
            tensors=places, given=[call.leaves[at] for at in places], forward=forward,
            modes=[(inner, inner.training) for inner in part.module.modules()], again=run_again, ran_again=ran_again,
        )  # fmt: skip
        outputs = run_planned(running)
        part.ran += 1
        captured = ready.captured
        leaves = list(captured.out_leaves)
        for at, output in zip(captured.places, outputs, strict=True):
            leaves[at] = output
        return structure.unflatten(leaves, captured.layout)

    def _observed(self, part: Part, form: Form, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call operation by operation, which is counted."""
        core = self.runtime.core
        before, cost = core.calls, core.compute
        self.inside.append(part.path)
        try:
            return part.forward(args, kwargs)
        finally:
            self.inside.pop()
            form.steps.add(self.step)
            form.calls[self.step] += 1
            form.operations, form.cost = core.calls - before, core.compute - cost


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def has_hooks(module: nn.Module) -> bool:
    """Whether submodules of a module have hooks, or all modules of the process have; hooks of itself run as they do."""
    if hooks_of_all_modules():
        return True
    return any(inner.__dict__[name] for inner in module.modules() if inner is not module for name in _HOOKS)


def _is_autocast(device: torch.device) -> bool:
    return any(torch.is_autocast_enabled(kind) for kind in {"cpu", device.type})


@define(eq=False)
class _Entry:
    """The `forward` of a submodule during a step: calls go through `calls`, those of other threads do not.

    Attributes:
        thread: that runs the step. over: whether the step has ended, in another thread than that which holds this.
    """

    calls: Calls
    part: Part
    thread: int = field(factory=threading.get_ident)
    over: bool = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != self.thread:
            return self.part.forward(args, kwargs)
        with as_it_is(self.part.module):
            return self.calls.call(self.part, args, kwargs)


@contextmanager
def as_it_is(module: nn.Module) -> Iterator[None]:
    """Inside, a module has no replaced `forward`."""
    replaced = module.__dict__.pop("forward", None)
    try:
        yield
    finally:
        if replaced is not None and not (isinstance(replaced, _Entry) and replaced.over):
            module.__dict__["forward"] = replaced


@contextmanager
def seen(calls: Calls, parts: Sequence[Part]) -> Iterator[None]:
    """Inside, calls of some submodules go through `calls`."""
    entries: list[_Entry] = []
    try:
        for part in parts:
            if "forward" not in part.module.__dict__:
                entries.append(_Entry(calls, part))
                part.module.__dict__["forward"] = entries[-1]
        yield
    finally:
        for entry in entries:
            entry.over = True
            entry.part.module.__dict__.pop("forward", None)


__all__ = ["Calls", "Described", "Form", "Part", "as_it_is", "has_hooks", "seen"]
