"""The plans of a wrapped module: which one a call runs, what is done where there is none, and what a call leaves behind."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from attrs import define, evolve, field, frozen
from torch import nn

from remat._warn import warn
from remat.budget import Share
from remat.errors import Infeasible, Uncapturable
from remat.exec import outside as outside_loss
from remat.exec import rng, structure
from remat.exec.capture import Captured, capture
from remat.exec.cost import OpCost
from remat.exec.digest import program_digest
from remat.exec.live import Tensors, Watch, autocast, form, named
from remat.exec.meter import StepMeter
from remat.exec.places import forward_of
from remat.exec.planning import Outside, Planned, Settings, is_loss_inside, over_budget, plan_captured
from remat.exec.progress import Stages, stages_of
from remat.exec.rehearsal import Rehearsal, rehearse
from remat.exec.runtime import Call, run_step
from remat.exec.smallest import with_changes
from remat.exec.tape import Origin, Scalar
from remat.exec.trace import Effect, Same
from remat.units import format_bytes

INSTANCE_FORWARD = "_remat_forward"
"""Attribute that holds a `forward` that was set on a wrapped module."""
MANY_PLANS = 8
"""From how many plans for one combination of shapes on a warning says what they depend on."""

_bare: ContextVar[bool] = ContextVar("remat_bare", default=False)
"""Set while a wrapped module must behave as the bare one: during capture, in `loss=` functions, where nothing is planned."""
_inside: ContextVar[tuple[int, ...]] = ContextVar("remat_inside", default=())
"""Wrapped modules whose own `forward` (the one that was set on the instance) is running."""


class RematWarning(UserWarning):
    """Something runs otherwise than asked, and the message says what and why."""


class Wrapped:
    """What every wrapped class has before the module's own class in its order of resolution."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "forward":
            # Set on the instance it would be called in place of the planned step: it is what is planned, instead.
            self.__dict__[INSTANCE_FORWARD] = value
        else:
            super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if name == "forward":
            self.__dict__.pop(INSTANCE_FORWARD, None)
        else:
            super().__delattr__(name)


def attributes(module: nn.Module) -> dict[str, Any]:
    """The attributes of a module, past whoever watches what is read."""
    return object.__getattribute__(module, "__dict__")  # type: ignore[no-any-return]


def bare_forward(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
    """The forward of the bare module: the one set on the instance, else that of its class."""
    instance = attributes(module).get(INSTANCE_FORWARD)
    running = _inside.get()
    if instance is None or id(module) in running:
        return super(Wrapped, module).forward(*args, **kwargs)  # type: ignore[misc]
    token = _inside.set((*running, id(module)))
    try:
        return instance(*args, **kwargs)
    finally:
        _inside.reset(token)


@contextmanager
def running_bare() -> Iterator[None]:
    """Inside, wrapped modules behave as the bare ones."""
    token = _bare.set(True)
    try:
        yield
    finally:
        _bare.reset(token)


def is_bare() -> bool:
    """Whether wrapped modules behave as the bare ones now."""
    return _bare.get()


def _captured_step(step: Callable[..., Any] | None, module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
    """What is traced: the bare forward, or the loss function with the module bare inside it."""
    with running_bare():
        return bare_forward(module, *args, **kwargs) if step is None else step(module, *args, **kwargs)


@frozen
class Bare:
    """Remembers that a combination of shapes runs bare, and why."""

    reason: str


@frozen(kw_only=True, eq=False)
class Ready:
    """A planned step bound to the places of its tensors.

    Attributes:
        planned: what was planned.
        watch: the states of Python it was planned for.
        places: for each primal, ("param" or "buffer" or "input", index in the order in which a call has them).
        guard_places, prologue_places: likewise for each tensor that the guards and the prologue look at.
        call: what to run; None: nothing was planned, the bare module runs.
        meter: times and audit.
        rehearsal: what a try of the plan measured.
        same_places: of tensors that are returned as they came: position among the flat outputs, and place.
    """

    planned: Planned
    watch: Watch
    places: tuple[tuple[str, int], ...]
    guard_places: tuple[tuple[str, int], ...]
    prologue_places: tuple[tuple[str, int], ...]
    call: Call | None
    meter: StepMeter
    rehearsal: Rehearsal | None = None
    same_places: tuple[tuple[int, tuple[str, int]], ...] = ()

    @property
    def captured(self) -> Captured:
        """The trace."""
        return self.planned.captured


@define(kw_only=True, eq=False)
class Arguments:
    """One call.

    Attributes:
        module: the wrapped module.
        args, kwargs: of the call.
        layout: how its flat leaves become these.
        leaves: tensors and plain values.
        key: what plans are looked up by.
        tensors: "param", "buffer" and "input".
        extra: inputs besides the arguments, for the plan that fits: lifted tensors, then results of its prologue.
    """

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    layout: structure.Layout
    leaves: list[Any]
    key: Hashable
    tensors: dict[str, list[torch.Tensor]]
    extra: list[torch.Tensor] = field(factory=list)

    def shapes(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Names and shapes of the tensors among the arguments."""
        named = [(f"argument {at}", value) for at, value in enumerate(self.args)] + list(self.kwargs.items())
        return tuple((name, tuple(value.shape)) for name, value in named if isinstance(value, torch.Tensor))

    def at(self, places: tuple[tuple[str, int], ...], extra: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """The tensors at some places; extra ones count as inputs after the arguments."""
        tensors = {**self.tensors, "input": [*self.tensors["input"], *extra]} if extra else self.tensors
        return tuple(tensors[kind][at] for kind, at in places)


@define(eq=False)
class State:
    """Settings and plans of a wrapped module; a copy of the module keeps the plans, a pickle does not.

    Attributes:
        settings: how to plan.
        on_uncapturable: "raise" or "bare".
        rehearse: whether fresh plans are tried on what they were planned for.
        plans: by key, the one used last first.
        costs: measured costs by signature.
        library: what was planned, by digest of the program, so that calls that come to the same program share a plan.
        last: the plan of the last call.
        ran: "plan" if the last call ran its plan, else why not.
        sample: names and shapes of the tensors of the first call planned for.
    """

    settings: Settings
    on_uncapturable: str = "raise"
    rehearse: bool = True
    plans: dict[Hashable, list[Ready | Bare]] = field(factory=dict)
    costs: dict[str, OpCost] = field(factory=dict)
    library: dict[str, Planned] = field(factory=dict)
    last: Ready | Bare | None = None
    ran: str = "plan"
    sample: tuple[tuple[str, tuple[int, ...]], ...] = ()
    _tensors: Tensors | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> State:
        plans = {key: [_fresh(entry) for entry in entries] for key, entries in self.plans.items()}
        settings = (self.settings, self.on_uncapturable, self.rehearse)
        return State(*settings, plans=plans, costs=dict(self.costs), library=dict(self.library), sample=self.sample)

    def __reduce__(self) -> tuple[Any, ...]:
        return State, (self.settings, self.on_uncapturable, self.rehearse)

    @property
    def entries(self) -> list[Ready | Bare]:
        """All plans."""
        return [entry for entries in self.plans.values() for entry in entries]

    # -- calls ---------------------------------------------------------------------------------------------------------

    def call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One call of the wrapped module."""
        if is_bare():
            return bare_forward(module, *args, **kwargs)
        outside_loss.end(seen=True)
        if not torch.is_grad_enabled():
            self.ran = "no gradients are recorded (torch.no_grad)"
            return self.bare(module, args, kwargs)
        call = self.arguments(module, args, kwargs)
        ready = self.planned_for(call)
        self.last = ready
        if isinstance(ready, Bare) or ready.call is None:
            self.ran = ready.reason if isinstance(ready, Bare) else "no budget was given"
            return self.bare(module, args, kwargs)
        self.ran = "plan"
        return self.run(call, ready)

    def step_of(self, module: nn.Module) -> Callable[..., Any] | None:
        """The loss function around the module, where there is one and the module trains."""
        return self.settings.step if module.training else None

    def watched(self, module: nn.Module) -> tuple[Any, ...]:
        """Functions besides the module whose state counts."""
        functions = (self.step_of(module), attributes(module).get(INSTANCE_FORWARD))
        return tuple(function for function in functions if function is not None)

    def bare(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the bare module, or the loss function around it."""
        return _captured_step(self.step_of(module), module, *args, **kwargs)

    def arguments(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """A call, its tensors and its key; keywords in the order of the signature, however the call spells them."""
        if len(kwargs) > 1:
            order = _order_of(self.step_of(module) or type(module).forward)
            kwargs = dict(sorted(kwargs.items(), key=lambda item: order.get(item[0], len(order))))
        if self._tensors is None or not self._tensors.current(module):
            self._tensors = Tensors(module)
        forms = self._tensors.fetch()
        leaves, layout = structure.flatten((args, kwargs), opaque=lambda value: isinstance(value, nn.Module))
        params, inputs = self._tensors.params, [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        key = (layout, tuple(map(_leaf_key, leaves)), forms, autocast(params, inputs), self.step_of(module) is None)
        tensors = {"param": params, "buffer": self._tensors.buffers, "input": inputs}
        return Arguments(
            module=module, args=args, kwargs=kwargs, layout=layout, leaves=leaves, key=key, tensors=tensors
        )

    def planned_for(self, call: Arguments, answers: tuple[Scalar, ...] = ()) -> Ready | Bare:
        """The plan for a call, made now if there is none.

        Args:
            call: the call.
            answers: what the first late reads gave, where a run has shown them already.
        """
        entries = self.plans.setdefault(call.key, [])
        for at, entry in enumerate(entries):
            if isinstance(entry, Ready):
                extra = self.extra_for(entry, call) if _answered(entry, answers) else None
                if extra is None:
                    continue
                call.extra = extra
                if (outside := _learnt(entry)) is not None:
                    entries[at] = entry = self.planned_again(call, entry, outside)
            if at:
                entries.insert(0, entries.pop(at))
            return entry
        tensors = chain_tensors(call)
        if not any(tensor.requires_grad for tensor in tensors):
            entry = Bare("nothing requires a gradient")
        else:
            entry = self.captured_and_planned(call, answers)
        entries.insert(0, entry)
        if len(entries) == MANY_PLANS and isinstance(entry, Ready):
            _warn_of_many(entry)
        return entry

    def extra_for(self, ready: Ready, call: Arguments) -> list[torch.Tensor] | None:
        """The inputs besides the arguments, where a call takes the branches that a plan was traced on; None: it does not."""
        if not ready.watch.holds(call.module, self.watched(call.module)):
            return None
        captured = ready.captured
        device = captured.program.device
        extra = ready.watch.lifted(captured.lifted)
        if captured.prologue is not None:
            results = captured.prologue.results(call.at(ready.prologue_places, extra), device)
            if results is None:
                return None
            extra = [*extra, *results]
        guards = captured.guards
        if guards.reads and not guards.holds(call.at(ready.guard_places, extra), device):
            return None
        return extra

    def run(self, call: Arguments, ready: Ready) -> Any:
        """Run a plan; where a late read shows that the call takes another branch, run the plan of that branch."""
        while True:
            captured = ready.captured
            assert ready.call is not None
            primals = call.at(ready.places, call.extra)
            with _undone_by(ready, primals) as undo:
                outputs = run_step(ready.call, primals)
                answers = _wrong(captured, outputs)
                if answers is not None:
                    del outputs
                    undo()
            if answers is None:
                return self.finished(call, ready, outputs)
            other = self.planned_for(call, answers)
            if isinstance(other, Bare) or other.call is None:
                return self.bare(call.module, call.args, call.kwargs)
            ready = self.last = other

    def finished(self, call: Arguments, ready: Ready, outputs: tuple[torch.Tensor, ...]) -> Any:
        """What the bare module would return, with its effects on Python done."""
        captured = ready.captured
        if captured.effects:
            _do_effects(ready, outputs[len(captured.places) + len(captured.late) :])
        rest = (
            tensor if order is None else tensor.permute(order)
            for tensor, order in zip(outputs, captured.orders, strict=True)
        )
        leaves = [
            next(rest) if leaf is None and i in captured.tensor_leaves else leaf
            for i, leaf in enumerate(captured.out_leaves)
        ]
        if ready.same_places:
            for at, place in ready.same_places:
                (leaves[at],) = call.at((place,), call.extra)
        return structure.unflatten(leaves, captured.layout)

    # -- planning ------------------------------------------------------------------------------------------------------

    def captured_and_planned(self, call: Arguments, answers: tuple[Scalar, ...]) -> Ready | Bare:
        """Capture and plan a call that there is no plan for."""
        module = call.module
        try:
            with stages_of(type(module).__name__, self.settings.progress) as stages:
                with stages.stage("capture"):
                    captured = capture(
                        module, call.args, call.kwargs, step=functools.partial(_captured_step, self.step_of(module)),
                        differentiable=self.settings.differentiable, watched=self.watched(module), answers=answers,
                    )  # fmt: skip
                entry = self.plan(call, captured, None, stages)
        except Uncapturable as error:
            if self.on_uncapturable == "raise":
                raise
            name = type(module).__name__
            warn(f"{name} runs bare, without a budget: {error}", RematWarning)
            return Bare(str(error))
        _warn_of_hooks(module)
        return entry

    def planned_again(self, call: Arguments, ready: Ready, outside: Outside) -> Ready:
        """A new plan for what an audit said of the loss."""
        with stages_of(type(call.module).__name__, self.settings.progress) as stages:
            return self.plan(call, ready.captured, outside, stages)

    def plan(self, call: Arguments, captured: Captured, outside: Outside | None, stages: Stages) -> Ready:
        """Plan a captured call, or take the plan that its program has already."""
        digest = program_digest(captured.program)
        planned = self.library.get(digest) if outside is None else None
        if planned is None:
            shapes = call.shapes()
            try:
                planned = self.within(captured, outside, stages)
            except Infeasible as error:
                raise with_changes(error, self.sample, shapes) if self.sample else error from error
            self.sample = self.sample or shapes
            self.library[digest] = planned
            if isinstance(self.settings.budget, Share):
                # A share is of the first step, once and for all: other shapes get as many bytes, not a share of their own peak.
                self.settings = evolve(self.settings, budget=planned.asked or planned.budget)
            if warning := over_budget(planned):
                warn(warning, RematWarning)
        else:
            planned = evolve(planned, captured=evolve(captured, program=planned.captured.program))
        with stages.stage("rehearsal"):
            ready = self.bound(call, planned)
            if ready.rehearsal is not None:
                stages.bytes["rehearsal"] = ready.rehearsal.peak
            return ready

    def within(self, captured: Captured, outside: Outside | None, stages: Stages) -> Planned:
        """A plan that leaves room for what a call holds besides it."""
        spare = _beside(captured)
        how: dict[str, Any] = {"known_costs": self.costs, "outside": outside, "stages": stages}
        try:
            planned = plan_captured(captured, self.settings, **how)
            cost, budget = planned.outcome.cost, planned.budget
            if not spare or budget is None or cost is None or cost.peak + spare <= budget:
                return planned
            if planned.asked is not None:  # the smallest budget found stands for the one asked for
                return evolve(planned, budget=budget + spare)
            tighter = plan_captured(captured, evolve(self.settings, budget=max(0, budget - spare)), **how)
        except Infeasible as error:
            if not spare or error.found is None:
                raise
            found = error.found + spare
            what = f"{error.what} A call holds {spare} B besides its plan, so that {found} B are needed."
            fix = f"give at least {found} bytes, or a smaller batch."
            raise Infeasible(what, budget=error.budget, found=found, floor=error.floor + spare, fix=fix) from None
        return evolve(tighter, budget=budget)

    def bound(self, call: Arguments, planned: Planned) -> Ready:
        """A plan bound to the places of its tensors, and tried."""
        captured, module = planned.captured, call.module
        program = captured.program
        index = {"param": named(module, "_parameters"), "buffer": named(module, "_buffers")}
        places = (
            *(("param", index["param"][path]) for _, path in program.params),
            *(("buffer", index["buffer"][path]) for _, path in program.buffers),
            *(("input", position) for _, position in program.inputs),
        )

        def place(origin: Origin) -> tuple[str, int]:
            kind, about = origin
            return kind, index[kind][about] if kind in index else about

        guarded = tuple(place(origin) for origin in captured.guards.origins)
        early = () if captured.prologue is None else tuple(place(origin) for origin in captured.prologue.origins)
        same = tuple((i, place(leaf.origin)) for i, leaf in enumerate(captured.out_leaves) if isinstance(leaf, Same))
        watch = Watch(captured.tokens, captured.reads)
        if not watch.holds(module, self.watched(module)):
            what = "the state of Python that the forward reads does not compare equal to itself."
            raise Uncapturable("X-STATE", what, fix="keep objects with an odd `__eq__` out of the module's attributes.")
        guessed = not is_loss_inside(captured) and not planned.audited and self.settings.loss_reserve is None
        meter = StepMeter(program.device, wanted=guessed)
        step = rehearsal = None
        if planned.lowered is not None:
            step = Call(
                lowered=planned.lowered, requires_grad=captured.requires_grad, differentiable=captured.differentiable,
                meter=meter, name=str(forward_of(module)),
            )  # fmt: skip
        ready = Ready(
            planned=planned, watch=watch, places=places, guard_places=guarded, prologue_places=early, call=step,
            meter=meter, same_places=same,
        )  # fmt: skip
        extra = self.extra_for(ready, call)
        if extra is None:
            what = "what the forward asks of the tensors of this call has another answer when it is asked again."
            fix = "keep operations that differ from run to run out of what decides."
            raise Uncapturable("X-READ", what, fix=fix, where=str(forward_of(module)))
        call.extra = extra
        if self.rehearse and planned.lowered is not None:
            rehearsal = rehearse(planned.lowered, call.at(places, extra))
        return evolve(ready, rehearsal=rehearsal)


def _beside(captured: Captured) -> int:
    """Bytes that a call holds besides its plan: results of the prologue, and what undoes a forward on the wrong branch."""
    program = captured.program
    forms = () if captured.prologue is None else captured.prologue.forms
    held: int = sum(shape.numel() * dtype.itemsize for shape, _, dtype in forms)
    if captured.late:
        written = sum(program.storage_of(target).size for target in program.updates)
        held += rng.CPU_STATE + written
    return held


@functools.lru_cache(maxsize=64)
def _order_of(function: Callable[..., Any]) -> dict[str, int]:
    """Place of each parameter of a function."""
    return {name: at for at, name in enumerate(inspect.signature(function).parameters)}


def chain_tensors(call: Arguments) -> list[torch.Tensor]:
    """Parameters and inputs of a call."""
    return [*call.tensors["param"], *call.tensors["input"]]


def _leaf_key(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return form(leaf)
    if isinstance(leaf, structure.PLAIN):
        return type(leaf), repr(leaf) if isinstance(leaf, (slice, float, complex)) else leaf
    return type(leaf)


def _fresh(entry: Ready | Bare) -> Ready | Bare:
    if isinstance(entry, Bare):
        return entry
    meter = StepMeter(entry.meter.device, wanted=entry.meter.wanted)
    call = None if entry.call is None else evolve(entry.call, meter=meter)
    return evolve(entry, meter=meter, call=call, watch=entry.watch.copy())


# -- late reads ------------------------------------------------------------------------------------------------------------


def _answered(ready: Ready, answers: tuple[Scalar, ...]) -> bool:
    """Whether a plan was traced with these values of its first late reads."""
    return tuple(read.value for read in ready.captured.late[: len(answers)]) == answers


def _wrong(captured: Captured, outputs: tuple[torch.Tensor, ...]) -> tuple[Scalar, ...] | None:
    """The late reads up to the first that is not as in the trace; None: all are."""
    values: list[Scalar] = []
    for read, output in zip(captured.late, outputs[len(captured.places) :], strict=False):
        values.append(output.item())
        if values[-1] != read.value:
            return tuple(values)
    return None


@contextmanager
def _undone_by(ready: Ready, primals: tuple[torch.Tensor, ...]) -> Iterator[Callable[[], None]]:
    """Gives what puts back buffers and generators after a run that took the wrong branch."""
    if not ready.captured.late or ready.call is None:
        yield lambda: None
        return
    device = ready.captured.program.device
    states = {place: rng.save(place) for place in {torch.device("cpu"), device}}
    written = [(primals[at], primals[at].detach().clone()) for at in ready.call.lowered.written_primals]

    def undo() -> None:
        with torch.no_grad():
            for tensor, value in written:
                tensor.copy_(value)
        for place, state in states.items():
            rng.restore(place, state)

    yield undo


# -- effects ---------------------------------------------------------------------------------------------------------------


def _do_effects(ready: Ready, tensors: tuple[torch.Tensor, ...]) -> None:
    """Change in Python what the bare forward would have changed."""
    rest = iter(tensors)
    changed = False
    for effect in ready.captured.effects:
        leaves = [next(rest) if leaf is None else leaf.value for leaf in effect.leaves]
        changed = _do(ready.watch, effect, structure.unflatten(leaves, effect.layout)) or changed
    if changed:
        ready.watch.renew()


def _do(watch: Watch, effect: Effect, values: list[Any]) -> bool:
    container = watch.container(effect.path)
    if container is None:
        raise Uncapturable(
            "X-STATE", f"{effect.path}, which the forward changes, is gone.", fix="wrap the module anew."
        )
    keys, old = container.read()
    if effect.keys is None:
        if len(old) == len(values) and all(map(lambda first, second: first is second, old, values)):
            return False
        container.write((), tuple(values))
        return True
    new = dict(zip(keys, old, strict=True))
    before = dict(new)
    new.update(zip(effect.keys, values, strict=True))
    for key in effect.removed:
        new.pop(key, None)
    if new.keys() == before.keys() and all(new[key] is before[key] for key in new):
        return False
    container.write(tuple(new), tuple(new.values()))
    return True


# -- warnings --------------------------------------------------------------------------------------------------------------


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
    warn(what, RematWarning)
    return Outside(reserve, held, measured=True)


def _warn_of_hooks(module: nn.Module) -> None:
    names = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    hooked = [path for path, inner in module.named_modules() if path and any(attributes(inner)[name] for name in names)]
    if hooked:
        what = (
            f"hooks of submodules ({', '.join(hooked[:3])}{', …' if len(hooked) > 3 else ''}) ran once, while the "
            "step was captured: what they do to tensors is in the plan, what else they do will not happen again."
        )
        warn(what, RematWarning)


def _warn_of_many(ready: Ready) -> None:
    reads = (*ready.captured.guards.reads, *ready.captured.late)
    if reads:
        what = (
            f"{MANY_PLANS} plans were made for calls of one form, because what Python reads of tensors differs from call to "
            f"call: {reads[-1].place}. Keep that value a tensor, or pass it as a plain argument."
        )
        warn(what, RematWarning)
