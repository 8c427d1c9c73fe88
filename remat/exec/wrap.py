"""`wrap`: a module that trains within a memory budget and is otherwise the module it was.

The wrapped module is of a class derived from the module's own, shares its parameters, buffers and submodules, and plans a
step for each new combination of shapes, types, `requires_grad`, training flags and autocast it is called with.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import torch
from attrs import define, evolve, field, frozen
from torch import nn

from remat.algorithms import Solver
from remat.errors import IllFormed, Uncapturable
from remat.exec import outside as outside_loss
from remat.exec import torch_private
from remat.exec.capture import PLAIN
from remat.exec.cost import OpCost
from remat.exec.meter import StepMeter
from remat.exec.planning import COSTS, Outside, Planned, Settings, is_loss_inside, parse_budget, plan_step
from remat.exec.rehearsal import Rehearsal, rehearse
from remat.exec.runtime import Call, run_step
from remat.units import format_bytes, parse_bytes

UNCAPTURABLE = ("warn", "raise")
DIFFERENTIABLE = ("auto", "loss", "all")

_bare: ContextVar[bool] = ContextVar("remat_bare", default=False)
"""Set while a wrapped module must behave as the bare one: during capture, in `loss=` functions, where nothing is planned."""


class RematWarning(UserWarning):
    """Something runs otherwise than asked, and the message says what and why."""


def wrap(
    model: nn.Module,
    sample: Any,
    budget: int | str | None,
    *,
    loss: Callable[..., Any] | None = None,
    loss_reserve: int | str | None = None,
    solver: Solver | None = None,
    seconds: float | None = None,
    cost: str = "measure",
    differentiable: str = "auto",
    on_uncapturable: str = "warn",
    rehearse: bool = True,
    seed: int = 0,
) -> nn.Module:
    """A module that computes what `model` computes, bit for bit, and whose training step holds at most `budget`.

    Args:
        model: any module; the result shares its parameters, buffers and submodules, and it can still be called bare.
        sample: a call to plan for: a tensor, a tuple of arguments, or a mapping of keyword arguments. Values are not looked at.
        budget: most bytes the step may hold above what lived before it (parameters, inputs, buffers, gradients already
            there): an int, `"6GiB"`, `"40%"` of what the sample's step holds if it keeps everything, or None: plan nothing,
            report only.
        loss: computes the loss from the module and the sample, `loss(module, *args, **kwargs)`, where the module does not
            return it; the wrapped module is then called with the same arguments and returns what `loss` returns.
        loss_reserve: bytes that a loss outside the wrapped module may hold besides its gradients; left out, they are taken to
            be twice the outputs, audited at the first step and planned for anew if that was too little.
        solver: plans; by default `remat.algorithms.auto`.
        seconds: deadline of each planning.
        cost: "measure" times and workspaces on this machine, once per kind of operation, or "estimate" them from shapes
            (quick and repeatable; workspaces are then taken as nothing, so the budget may be passed by them).
        differentiable: "loss": gradients come through the one 0-dim output; "all": through all outputs; "auto": through the
            loss where there is exactly one 0-dim output that requires a gradient, else through all.
        on_uncapturable: "warn" and run the bare module, or "raise", where the step cannot be captured.
        rehearse: run each new plan twice on the sample before the first real step, to measure its peak and time for the
            report; buffers, gradients and generators are as before.
        seed: of the solver.

    Raises:
        Infeasible: no plan within the budget was found; it says the smallest that was found and the proved floor.
        Uncapturable: on `on_uncapturable="raise"`, naming the operation or the reason.
        IllFormed: an argument is not one of its values.
    """
    for name, value, choices in (
        ("cost", cost, COSTS),
        ("differentiable", differentiable, DIFFERENTIABLE),
        ("on_uncapturable", on_uncapturable, UNCAPTURABLE),
    ):
        if value not in choices:
            raise IllFormed("X-ARG", f"{name}={value!r} is not known.", fix=f"give one of {', '.join(choices)}.")
    if isinstance(model, _Wrapped):
        raise IllFormed("X-ARG", "the module is wrapped already.", fix="wrap the bare module.")
    if isinstance(model, torch.jit.ScriptModule):
        raise Uncapturable("X-MODULE", "a ScriptModule has no Python forward to trace.", fix="wrap the eager module.")
    if lazy := [name for name, tensor in _state_of(model) if nn.parameter.is_lazy(tensor)]:
        fix = "call the module once on a sample first (`with torch.no_grad(): model(*sample)`)."
        raise Uncapturable("X-LAZY", f"{lazy[0]} has no shape yet: the module is lazy.", fix=fix)
    reserve = None if loss_reserve is None else parse_bytes(loss_reserve)
    settings = Settings(
        budget=parse_budget(budget), step=loss, differentiable=differentiable, loss_reserve=reserve, solver=solver,
        seconds=seconds, cost=cost, seed=seed,
    )  # fmt: skip
    wrapped = _rebuild(type(model))
    wrapped.__dict__.update(model.__dict__)
    state = _State(settings=settings, on_uncapturable=on_uncapturable, rehearse=rehearse)
    wrapped.__dict__["_remat"] = state
    args, kwargs = call_of(sample)
    with in_training(wrapped):
        ready, _ = state.planned_for(wrapped, args, kwargs)
    if isinstance(ready, Ready):
        # A share is of the sample's step, once and for all: other shapes get as many bytes, not a share of their own peak.
        state.settings = evolve(settings, budget=ready.planned.budget)
    return wrapped


def _state_of(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def call_of(sample: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments from a sample."""
    if isinstance(sample, torch.Tensor):
        return (sample,), {}
    if isinstance(sample, Mapping):
        return (), dict(sample)
    if isinstance(sample, (tuple, list)):
        return tuple(sample), {}
    fix = "give a tensor, a tuple of arguments or a mapping of keyword arguments."
    raise IllFormed("X-ARG", f"a sample of type {type(sample).__name__} is not a call.", fix=fix)


@contextlib.contextmanager
def in_training(module: nn.Module) -> Iterator[None]:
    """As in training, whatever mode the module is in; the mode is put back."""
    if module.training:
        yield
        return
    modes = [(one, one.training) for one in module.modules()]
    for one, _ in modes:
        one.training = True
    try:
        yield
    finally:
        for one, mode in modes:
            one.training = mode


# -- the wrapped class -----------------------------------------------------------------------------------------------------


class _Wrapped:
    """What every wrapped class has before the module's own class in its order of resolution."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        state: _State = self.__dict__["_remat"]
        return state.call(self, args, kwargs)  # type: ignore[arg-type]

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _rebuild, (type(self).__mro__[2],), self.__dict__


@functools.cache
def _class_of(base: type[nn.Module]) -> type[nn.Module]:
    """The wrapped class of a module class."""

    @functools.wraps(base.forward)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return _Wrapped.forward(self, *args, **kwargs)  # type: ignore[arg-type]

    # The name stays: libraries write it into checkpoints and look it up there.
    names = {
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
        "forward": forward,
    }
    return type(base.__name__, (_Wrapped, base), names)


def _rebuild(base: type[nn.Module]) -> nn.Module:
    made = _class_of(base)
    return made.__new__(made)


def bare_forward(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """The forward of the module's own class."""
    return super(_Wrapped, module).forward(*args, **kwargs)  # type: ignore[misc]


# -- its state -------------------------------------------------------------------------------------------------------------


@frozen
class Bare:
    """Remembers that a combination of shapes runs bare, and why."""

    reason: str


@frozen(kw_only=True, eq=False)
class Ready:
    """A planned step bound to the places of its tensors.

    Attributes:
        planned: what was planned.
        places: for each primal, ("param" or "buffer" or "input", index in the order of the walk).
        call: what to run.
        meter: times and audit.
        rehearsal: what a try of the plan measured.
    """

    planned: Planned
    places: tuple[tuple[str, int], ...]
    call: Call | None
    meter: StepMeter
    rehearsal: Rehearsal | None = None


@define(eq=False)
class _State:
    """Settings and plans of a wrapped module; a copy of the module keeps the plans, a pickle does not.

    Attributes:
        settings: how to plan.
        on_uncapturable: "warn" or "raise".
        rehearse: whether fresh plans are tried on what they were planned for.
        plans: by key, in the order they were made.
        costs: measured costs by signature.
        last: the plan of the last call.
    """

    settings: Settings
    on_uncapturable: str = "warn"
    rehearse: bool = True
    plans: dict[Any, Ready | Bare] = field(factory=dict)
    costs: dict[str, OpCost] = field(factory=dict)
    last: Ready | Bare | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> _State:
        plans = {key: _fresh(one) for key, one in self.plans.items()}
        return _State(self.settings, self.on_uncapturable, self.rehearse, plans, dict(self.costs))

    def __reduce__(self) -> tuple[Any, ...]:
        return _State, (self.settings, self.on_uncapturable, self.rehearse)

    def bare(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the bare module, or the loss function around it."""
        token = _bare.set(True)
        try:
            step = self.settings.step
            return bare_forward(module, *args, **kwargs) if step is None else step(module, *args, **kwargs)
        finally:
            _bare.reset(token)

    def call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One call of the wrapped module."""
        if _bare.get():
            return bare_forward(module, *args, **kwargs)
        outside_loss.end(seen=True)
        if not module.training or not torch.is_grad_enabled():
            return self.bare(module, args, kwargs)
        ready, tensors = self.planned_for(module, args, kwargs)
        self.last = ready
        if isinstance(ready, Bare) or ready.call is None:
            return self.bare(module, args, kwargs)
        primals = tuple(tensors[kind][at] for kind, at in ready.places)
        outputs = iter(run_step(ready.call, primals))
        captured = ready.planned.captured
        leaves = [next(outputs) if i in captured.tensor_leaves else leaf for i, leaf in enumerate(captured.out_leaves)]
        return torch_private.unflatten(leaves, captured.out_spec)

    def planned_for(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Ready | Bare, dict[str, list[torch.Tensor]]]:
        """The plan for a call, made now if there is none, and the tensors it runs on."""
        walk = Walk()
        walk.visit(module)
        leaves, spec = torch_private.flatten((args, kwargs))
        inputs = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        tensors = {"param": walk.params, "buffer": walk.buffers, "input": inputs}
        key = (spec, tuple(map(_leaf_key, leaves)), walk.key(), _autocast(walk, inputs))
        ready = self.plans.get(key)
        if isinstance(ready, Ready) and (outside := _learnt(ready)) is not None:
            self.plans[key] = ready = self.plan(module, args, kwargs, tensors, outside)
        if ready is None:
            if not any(one.requires_grad for one in (*walk.params, *inputs)):
                ready = Bare("nothing requires a gradient")
            else:
                ready = self.plan(module, args, kwargs, tensors, None)
            self.plans[key] = ready
        return ready, tensors

    def plan(
        self,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: dict[str, list[torch.Tensor]],
        outside: Outside | None,
    ) -> Ready | Bare:
        """Plan for a call that there is no plan for."""
        settings = evolve(self.settings, step=functools.partial(_captured_step, self.settings.step))
        try:
            planned = plan_step(module, args, kwargs, settings, known_costs=self.costs, outside=outside)
        except Uncapturable as error:
            if self.on_uncapturable == "raise":
                raise
            warnings.warn(f"{type(module).__name__} runs bare, without a budget: {error}", RematWarning, stacklevel=6)
            return Bare(str(error))
        _warn_of_hooks(module)
        captured = planned.captured
        program = captured.program
        names = Walk(named=True)
        names.visit(module)
        at = {
            "param": {name: i for i, name in enumerate(names.param_names)},
            "buffer": {name: i for i, name in enumerate(names.buffer_names)},
        }
        places = (
            *(("param", at["param"][path]) for _, path in program.params),
            *(("buffer", at["buffer"][path]) for _, path in program.buffers),
            *(("input", position) for _, position in program.inputs),
        )
        guessed = not is_loss_inside(captured) and not planned.audited and self.settings.loss_reserve is None
        meter = StepMeter(program.device, wanted=guessed)
        call = rehearsal = None
        if planned.lowered is not None:
            call = Call(
                lowered=planned.lowered, requires_grad=captured.requires_grad, differentiable=captured.differentiable,
                meter=meter,
            )  # fmt: skip
            if self.rehearse:
                rehearsal = rehearse(planned.lowered, tuple(tensors[kind][at] for kind, at in places))
        return Ready(planned=planned, places=places, call=call, meter=meter, rehearsal=rehearsal)


def _fresh(ready: Ready | Bare) -> Ready | Bare:
    if isinstance(ready, Bare):
        return ready
    meter = StepMeter(ready.meter.device, wanted=ready.meter.wanted)
    return evolve(ready, meter=meter, call=None if ready.call is None else evolve(ready.call, meter=meter))


def _learnt(ready: Ready) -> Outside | None:
    """What an audit said about a loss outside, where that is more than the plan took it to be."""
    ready.meter.settle()
    planned, audit = ready.planned, ready.meter.audit
    if audit is None or planned.audited or is_loss_inside(planned.captured) or planned.budget is None:
        return None
    tangents = sum(planned.captured.program.storage_of(value).size for value, _ in planned.captured.program.tangents)
    held = max(0, audit.left - tangents)
    reserve = max(0, audit.peak - tangents - held)
    if held <= planned.held and reserve + held <= planned.reserve + planned.held:
        return None
    what = (
        f"the loss outside the module held {format_bytes(reserve + held)} at its height and {format_bytes(held)} during the "
        f"backward, and the plan had {format_bytes(planned.reserve)} for it; the step is planned anew. "
        f"Give loss=, or loss_reserve={reserve + held}, to have the first step within the budget too."
    )
    warnings.warn(what, RematWarning, stacklevel=6)
    return Outside(reserve, held, measured=True)


def _captured_step(step: Callable[..., Any] | None, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """What is traced: the bare forward, or the loss function with the module bare inside it."""
    token = _bare.set(True)
    try:
        return bare_forward(module, *args, **kwargs) if step is None else step(module, *args, **kwargs)
    finally:
        _bare.reset(token)


def _warn_of_hooks(module: nn.Module) -> None:
    tables = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    hooked = [name for name, one in module.named_modules() if name and any(getattr(one, table) for table in tables)]
    if hooked:
        what = (
            f"hooks of submodules ({', '.join(hooked[:3])}{', …' if len(hooked) > 3 else ''}) ran once, while the step was "
            "captured: what they do to tensors is in the plan, what else they do will not happen again."
        )
        warnings.warn(what, RematWarning, stacklevel=7)


# -- keys ------------------------------------------------------------------------------------------------------------------


class Walk:
    """Parameters, buffers and modes of a module, in a fixed order, fetched anew for every call."""

    def __init__(self, *, named: bool = False) -> None:
        self.params: list[torch.Tensor] = []
        self.buffers: list[torch.Tensor] = []
        self.marks: list[Any] = []
        self.named = named
        self.param_names: list[str] = []
        self.buffer_names: list[str] = []

    def visit(self, module: nn.Module, path: str = "") -> None:
        """Collect from a module and everything inside it; what is shared comes once per place."""
        self.marks.append((module.__class__, module.training))
        for name, tensor in module._parameters.items():
            if tensor is not None:
                self.params.append(tensor)
                if self.named:
                    self.param_names.append(path + name)
        for name, tensor in module._buffers.items():
            if tensor is not None:
                self.buffers.append(tensor)
                if self.named:
                    self.buffer_names.append(path + name)
        for name, inner in module._modules.items():
            if inner is not None:
                self.visit(inner, f"{path}{name}." if self.named else "")

    def key(self) -> tuple[Any, ...]:
        """What a plan depends on."""
        params = tuple((t.shape, t.stride(), t.dtype, t.device, t.requires_grad) for t in self.params)
        buffers = tuple((t.shape, t.dtype, t.device) for t in self.buffers)
        return tuple(self.marks), params, buffers


def _leaf_key(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return (leaf.shape, leaf.stride(), leaf.dtype, leaf.device, leaf.requires_grad)
    return (type(leaf), repr(leaf) if isinstance(leaf, slice) else leaf) if isinstance(leaf, PLAIN) else type(leaf)


_ON_CPU = torch.empty(0)


def _autocast(walk: Walk, inputs: list[torch.Tensor]) -> tuple[Any, ...]:
    devices = {tensor.device.type for tensor in (*walk.params[:1], *inputs[:1], _ON_CPU)}
    return tuple((kind, torch.get_autocast_dtype(kind)) for kind in sorted(devices) if torch.is_autocast_enabled(kind))
