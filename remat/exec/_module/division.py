"""Dividing a model that runs under DTR: its largest submodules that can be captured run by plans, the rest operation by operation.

The first steps run under DTR as a whole, and note what each submodule is called with and what autograd saves outside of it. Then
submodules are captured from the outside in, and planned so that what they hold, what the rest saved in those steps and its
gradients fit the budget together. Where they do not, there is no division: everything runs under DTR.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from attrs import define, evolve, field
from torch import nn

from remat._collector import old_objects_apart
from remat.algorithms._core.startup import importing
from remat.errors import Infeasible, RematError, Uncapturable
from remat.exec._capture.capturing import Captured, capture
from remat.exec._dtr.part_needs import needs_of_part
from remat.exec._dtr.planned import Planned
from remat.exec._dtr.runtime import Runtime
from remat.exec._dtr.stepping import PartReport
from remat.exec._module.binding import bound
from remat.exec._module.calls import Wrapped
from remat.exec._module.parts import Calls, Described, Form, Part, has_hooks, seen
from remat.exec._module.ranks import Ranks
from remat.exec._module.state import State
from remat.exec._plan.dividing import BlockOption, divide, peak_of, undominated
from remat.exec._plan.planning import Planned as PlannedStep
from remat.exec._plan.planning import Settings, cost_step, plan_captured
from remat.exec._program.digest import program_digest
from remat.exec._program.program import Program, Role, refs
from remat.exec._trace import structure
from remat.exec._trace.tracing import Same
from remat.ir import Phase
from remat.units import Bytes, format_bytes

OBSERVED = 2
"""Steps that run under DTR as a whole before a model is divided; a form of a call is planned once it came in so many."""
OPERATIONS = 4
"""A submodule whose forward has fewer operations is no part."""
FORMS = 4
"""Most forms of its calls that a part is planned for."""
CAPTURES = 64
"""Most captures that are tried for a division."""
POINTS = 4
"""Budgets that each kind of part is planned for, where keeping everything does not fit."""
ALL: Bytes = 2**60
"""A budget within which everything is kept."""


@define(eq=False)
class Division:
    """How the submodules of a module under DTR are divided.

    Attributes:
        module: that runs under DTR. settings: of its planning, with a budget in bytes.
        parts: all submodules that are looked at; before the division all there are, afterwards those that were chosen.
        step: number of the present one. decided: whether the model was divided, or not.
        refusal: why there are no parts. refused: why submodules are none, by path.
    """

    module: nn.Module
    settings: Settings
    parts: list[Part] = field(factory=list)
    step: int = 0
    decided: bool = False
    refusal: str = ""
    refused: dict[str, str] = field(factory=dict)
    _rest: dict[int, list[tuple[str, int]]] = field(factory=dict)
    _costs: dict[str, Any] = field(factory=dict)
    _library: dict[tuple[str, Bytes], PlannedStep] = field(factory=dict)
    _captures: int = 0

    def __attrs_post_init__(self) -> None:
        settings = evolve(
            self.settings, step=None, loss_reserve=0, differentiable="all", offloading=None, progress=False,
            on_infeasible="raise",
        )  # fmt: skip
        self.settings = settings
        for path, inner in self.module.named_modules():
            if path and not _looked_past(inner):
                state = State(settings=settings, on_uncapturable="raise", rehearse=False, family=False, ranks=Ranks(None))
                self.parts.append(Part(path, inner, state))

    # -- steps ---------------------------------------------------------------------------------------------------------

    @contextmanager
    def running(self, runtime: Runtime) -> Iterator[None]:
        """Inside, a step of the module runs: submodules run by their plans, or are looked at."""
        self.step += 1
        if runtime.failed and self.decided and self.parts:
            self.dissolve("a step with parts ran out of memory")
        if not self.decided and self.step > OBSERVED:
            with old_objects_apart():
                self._divide(runtime)
        elif self.decided:
            self._plan_new_forms(runtime)
            self._let_go()
        if not self.parts:
            yield
            return
        calls = Calls(runtime, self.step)
        before = runtime.on_saved
        runtime.on_saved = None if self.decided else calls.note_saved
        try:
            with seen(calls, self.parts):
                yield
        finally:
            runtime.on_saved = before
        if not self.decided:
            self._rest[self.step] = list(calls.saved.values())

    def dissolve(self, reason: str) -> None:
        """From now on everything runs under DTR."""
        self.decided, self.refusal, self.parts = True, reason, []

    # -- finding parts -------------------------------------------------------------------------------------------------

    def _divide(self, runtime: Runtime) -> None:
        """Find the parts and choose their plans."""
        found: list[Part] = []
        shared = _shared_parameters(self.module)
        for part in self.parts:
            if any(part.path.startswith(f"{outer.path}.") for outer in found):
                continue
            forms = self._recurring(part)
            if not forms:
                continue
            if any(len(form.steps) < OBSERVED for form in part.forms.values()):
                self.refused[part.path] = "its calls differ from step to step"
                continue
            reason = self._why_no_part(part, shared)
            reason = reason or next((why for form in forms if (why := self._captured(part, form))), "")
            if reason:
                self.refused[part.path] = reason
            else:
                found.append(part)
        self.decided = True
        if not found:
            self.dissolve("no submodule of some size is called in the same form twice and can be captured")
            return
        self._choose(runtime, found)

    def _recurring(self, part: Part) -> list[Form]:
        """The forms of a submodule's calls that came in several steps, those with few operations apart."""
        forms = [form for form in part.forms.values() if len(form.steps) >= OBSERVED and form.operations >= OPERATIONS]
        return forms[:FORMS]

    def _why_no_part(self, part: Part, shared: set[int]) -> str:
        """Why a submodule is no part, as far as its modules show; empty: it may be one."""
        if any(id(parameter) in shared and not _inside(parameter, part, self.module) for parameter in part.module.parameters()):
            return "it shares parameters with the rest"
        if has_hooks(part.module):
            return "submodules of it have hooks"
        if any(_looked_past(inner) for inner in part.module.modules()):
            return "a module in it is planned, compiled or scripted already, or its forward was replaced"
        if _holds_tensors(part.module):
            return "a module in it holds tensors in plain attributes"
        if self._captures >= CAPTURES:
            return f"{CAPTURES} submodules were tried before it"
        return ""

    def _captured(self, part: Part, form: Form) -> str:
        """Capture a form; why it cannot be a part's, or empty."""
        self._captures += 1
        args, kwargs = _sample(form)
        try:
            with torch.enable_grad():
                captured = capture(part.module, args, kwargs, differentiable="all", tracer=self.settings.tracer)
        except Uncapturable as error:
            return str(error)
        reason = _why_unfit(captured)
        if not reason:
            form.captured = captured
        return reason

    # -- choosing plans ------------------------------------------------------------------------------------------------

    def _choose(self, runtime: Runtime, found: list[Part]) -> None:
        """Choose plans that fit together with the rest, or run everything under DTR."""
        room = self._room(found)
        planned = [(part, form) for part in found for form in part.forms.values() if form.captured is not None]
        for part, form in list(planned):
            reason = self._plan_options(part, form, (ALL,))
            if reason:
                self.refused[part.path] = reason
                found = [other for other in found if other is not part]
        planned = [(part, form) for part, form in planned if part in found]
        chosen = _repeated(planned, [form.options[0] for _, form in planned])
        if peak_of(chosen) > room:
            for part, form in planned:
                self._plan_options(part, form, self._points(form))
            blocks = [[_times(option, form.most_calls) for option in form.options] for _, form in planned]
            divided = divide(blocks, room)
            if divided is None:
                least = peak_of([min(block, key=lambda option: option.peak) for block in blocks])
                self.dissolve(
                    f"the smallest plans of {', '.join(part.path for part in found)} hold {format_bytes(least)}, and "
                    f"{format_bytes(max(0, room))} are left beside what the rest saves"
                )
                return
            chosen = list(divided)
        if not found:
            self.dissolve("no submodule that can be captured can be planned")
            return
        for (part, form), option in zip(planned, chosen, strict=True):
            _bind(form, option)
            part.allowed = max(part.allowed, option.peak + room - peak_of(chosen))
        self.parts = [part for part in found if any(form.planned is not None for form in part.forms.values())]
        for part in self.parts:
            part.chosen = True
        self._library.clear()
        if not self.parts:
            self.dissolve("no plan of a submodule could be run apart")

    def _room(self, found: list[Part]) -> Bytes:
        """Bytes for the parts: the budget less what the rest saved at most, its gradients, and what a loss outside may hold."""
        inside = {id(parameter) for part in found for parameter in part.module.parameters()}
        gradients = sum(
            parameter.numel() * parameter.element_size()
            for parameter in self.module.parameters()
            if parameter.requires_grad and id(parameter) not in inside
        )
        paths = tuple(part.path for part in found)
        rest = max(
            sum(size for path, size in saved if not any(path == p or path.startswith(f"{p}.") for p in paths))
            for saved in self._rest.values()
        )
        budget = self.settings.budget
        assert isinstance(budget, int)
        return budget - rest - gradients

    def _points(self, form: Form) -> tuple[Bytes, ...]:
        """Budgets from the lowest to one that keeps everything."""
        with importing():
            from remat.algorithms._curves.budget_sweep import quick_lowest_budget  # imports compiled kernels
        assert form.captured is not None
        costed = cost_step(form.captured, self.settings, self._costs)
        low = quick_lowest_budget(costed.graph, self.settings.solver, seed=self.settings.seed).point.budget
        return tuple(low + (costed.peak - low) * point // (POINTS - 1) for point in range(POINTS))

    def _plan_options(self, part: Part, form: Form, budgets: Iterable[Bytes]) -> str:
        """Plan a form for some budgets; why that cannot be, or empty."""
        captured = form.captured
        assert captured is not None
        digest = program_digest(captured.program)
        options: list[BlockOption] = []
        try:
            for budget in budgets:
                planned = self._library.get((digest, budget))
                if planned is None:
                    with suppress(Infeasible):
                        settings = evolve(self.settings, budget=budget)
                        planned = plan_captured(captured, settings, known_costs=self._costs)
                        self._library[digest, budget] = planned
                if planned is None:
                    continue
                ready, part_planned = _bound(part, form, planned)
                if part_planned is None:
                    return "what the plan keeps lies in the memory of arguments or results"
                form.made[id(planned)] = ready, part_planned
                options.append(_option(planned, part_planned))
        except RematError as error:
            return str(error)
        if not options:
            return "no plan was found"
        form.options = undominated([*options, *form.options])
        return ""

    def _plan_new_forms(self, runtime: Runtime) -> None:
        """Plan forms of parts that have come several times since; those that cannot be stay under DTR."""
        if runtime.core.memory != runtime.outside:
            return
        for part in self.parts:
            if sum(form.planned is not None for form in part.forms.values()) >= FORMS:
                continue
            for form in part.forms.values():
                if form.ready is not None or form.reason or len(form.steps) < OBSERVED:
                    continue
                if form.operations < OPERATIONS:
                    form.reason = "few operations"
                    continue
                form.reason = self._captured(part, form)
                if not form.reason:
                    form.reason = self._plan_options(part, form, (ALL,))
                if not form.reason and form.options[0].peak * form.most_calls > part.allowed:
                    form.reason = self._plan_options(part, form, (part.allowed // max(1, form.most_calls),))
                fitting = [option for option in form.options if option.peak * form.most_calls <= part.allowed]
                if not form.reason and not fitting:
                    form.reason = "no plan of this form fits beside the rest"
                if not form.reason:
                    _bind(form, min(fitting, key=lambda option: option.time))
                self._library.clear()

    def _let_go(self) -> None:
        """Parts of which no form has a plan any more are none."""
        for part in list(self.parts):
            if len(part.forms) >= FORMS and all(form.reason for form in part.forms.values()):
                self.parts.remove(part)
                self.refused[part.path] = next(iter(part.again), next(iter(part.forms.values())).reason)
        if not self.parts and not self.refusal:
            self.dissolve("no plan of a submodule could be kept")

    # -- the report ----------------------------------------------------------------------------------------------------

    def reports(self) -> tuple[PartReport, ...]:
        """The parts, and how their calls ran."""
        if not self.decided:
            return ()
        return tuple(
            PartReport(
                path=part.path,
                saved=max((form.planned.saved for form in part.forms.values() if form.planned is not None), default=0),
                forms=sum(form.planned is not None for form in part.forms.values()),
                planned=part.ran,
                again=tuple(part.again.items()),
                apart=tuple(part.apart.items()),
            )
            for part in self.parts
        )

    def note(self) -> str:
        """What of the module runs under DTR, and why."""
        if not self.decided:
            return f"all of it, until {OBSERVED} steps have shown how its submodules are called"
        if not self.parts:
            return f"all of it: {self.refusal}"
        return f"all but {', '.join(part.path for part in self.parts)}"


# -- captured submodules ---------------------------------------------------------------------------------------------------


def _looked_past(module: nn.Module) -> bool:
    """Whether a submodule runs in a way of its own."""
    return (
        isinstance(module, (Wrapped, torch.jit.ScriptModule))
        or "forward" in module.__dict__
        or module._compiled_call_impl is not None
    )


def _shared_parameters(module: nn.Module) -> set[int]:
    """Parameters that are registered in several places."""
    places: dict[int, set[int]] = {}
    for inner in module.modules():
        for parameter in inner._parameters.values():
            if parameter is not None:
                places.setdefault(id(parameter), set()).add(id(inner))
    return {key for key, owners in places.items() if len(owners) > 1}


def _inside(parameter: nn.Parameter, part: Part, root: nn.Module) -> bool:
    """Whether all modules that have a parameter lie in a part."""
    inside = {id(inner) for inner in part.module.modules()}
    return all(
        id(inner) in inside
        for inner in root.modules()
        if any(other is parameter for other in inner._parameters.values())
    )


def _holds_tensors(module: nn.Module) -> bool:
    """Whether attributes of modules, besides parameters and buffers, are tensors or hold some."""
    return any(
        isinstance(leaf, torch.Tensor)
        for inner in module.modules()
        for name, value in inner.__dict__.items()
        if name not in ("_parameters", "_buffers", "_modules") and isinstance(value, (torch.Tensor, list, tuple, dict))
        for leaf in structure.flatten(value, opaque=lambda item: not isinstance(item, torch.Tensor))[0]
    )


def _why_unfit(captured: Captured) -> str:
    """Why a captured submodule cannot be one operation of the runtime; empty: it can."""
    program = captured.program
    buffers = {value for value, _ in program.buffers}
    reasons = {
        "the plan depends on values of tensors": bool(captured.late or captured.guards.reads or captured.prologue),
        "it changes attributes": bool(captured.effects),
        "it reads tensors from plain attributes": bool(captured.lifted),
        "it returns an argument, or one tensor twice": bool(captured.widened)
        or any(isinstance(leaf, Same) for leaf in captured.out_leaves),
        "it returns tensors in another order of dimensions": any(order is not None for order in captured.orders),
        "it writes to an argument": any(target not in buffers for target in program.updates),
        "its backward draws random numbers": any(op.draws and op.phase is Phase.BACKWARD for op in program.ops),
        "it uses a parameter several times": any(
            _reads(program, value) > 1 for value, path in program.params if ("param", path) in program.grads
        ),
        "it has no gradients": not program.grads or not captured.differentiable,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _reads(program: Program, value: str) -> int:
    """How often operations of the forward read the memory of a value; at least as often as autograd does."""
    storage = program.values[value].storage
    return sum(
        program.values[ref.name].storage == storage
        for op in program.ops
        if op.phase is Phase.FORWARD and op.role is not Role.VIEW
        for ref in refs((op.args, op.kwargs))
    )


def _sample(form: Form) -> tuple[Any, Any]:
    leaves = [leaf.zeros() if isinstance(leaf, Described) else leaf for leaf in form.leaves]
    args, kwargs = structure.unflatten(leaves, form.layout)
    return args, kwargs


def _option(step: PlannedStep, planned: Planned) -> BlockOption:
    """A plan with the bytes that it takes, as measured."""
    cost = step.outcome.cost
    assert cost is not None
    forward = planned.results + planned.saved + planned.forward_work
    backward = 2 * planned.results + planned.saved + planned.gradients + planned.backward_work
    saved = planned.saved + planned.results
    return BlockOption(time=cost.time, peak=max(forward, backward), saved=saved, planned=step)


def _bound(part: Part, form: Form, step: PlannedStep) -> tuple[Any, Planned | None]:
    """A plan bound to the places of a call's tensors, and as an operation of the runtime; None: it cannot be one."""
    args, kwargs = _sample(form)
    with torch.enable_grad():
        call = part.state.arguments(part.module, args, kwargs)
    if form.captured is not None:
        step = evolve(step, captured=evolve(form.captured, program=step.captured.program))
    ready = bound(part.state, call, step, program_digest(step.captured.program))
    lowered = step.lowered
    assert lowered is not None and ready.call is not None
    needs = needs_of_part(lowered, call.at(ready.places, []))
    if not needs.apart or lowered.loose_primals or lowered.copier is not None or ready.same_places:
        return ready, None
    inputs = {at: number for at, (kind, number) in enumerate(ready.places) if kind == "input"}
    program = step.captured.program
    values = [value for value, _ in (*program.params, *program.buffers, *program.inputs)]
    shared = frozenset(at for at in inputs if at in lowered.grad_inputs and _reads(program, values[at]) > 1)
    planned = Planned(
        name=part.path, lowered=lowered, requires_grad=ready.call.requires_grad, differentiable=ready.call.differentiable,
        inputs=inputs, shared=shared, draws=any(op.draws for op in program.ops), cost=form.cost, results=needs.results,
        saved=needs.saved, forward_work=needs.forward_work, backward_work=needs.backward_work, gradients=needs.gradients,
    )  # fmt: skip
    return ready, planned


def _bind(form: Form, option: BlockOption) -> None:
    """Have calls of this form run a plan."""
    assert option.planned is not None
    form.ready, form.planned = form.made[id(option.planned)]
    form.options, form.captured, form.reason = (), None, ""
    form.made.clear()


def _times(option: BlockOption, calls: int) -> BlockOption:
    """A plan that runs several times in a step."""
    more = max(0, calls - 1)
    saved, peak = option.saved * (more + 1), option.peak + option.saved * more
    return BlockOption(time=option.time * (more + 1), peak=peak, saved=saved, planned=option.planned)


def _repeated(planned: list[tuple[Part, Form]], options: list[BlockOption]) -> list[BlockOption]:
    return [_times(option, form.most_calls) for (_, form), option in zip(planned, options, strict=True)]


__all__ = ["Division"]
