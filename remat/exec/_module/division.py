"""Dividing a model under DTR: its largest submodules that can be captured run by plans, the rest operation by operation.

The first steps run under DTR as a whole, and note what each submodule is called with and what autograd saves outside of it. Then
submodules are captured from the outside in, and planned so that what they hold, what the rest saved in those steps and its
gradients fit the budget together. Where they do not, there is no division: everything runs under DTR.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from attrs import define, evolve, field
from torch import nn

from remat._collector import old_objects_apart
from remat.algorithms._core.startup import importing
from remat.errors import Infeasible, RematError, Uncapturable
from remat.exec._capture.capturing import capture
from remat.exec._dtr.runtime import Runtime
from remat.exec._dtr.stepping import PartReport
from remat.exec._module.part_plans import (
    bind,
    bound_part,
    gradient_bytes,
    holds_tensors,
    lies_inside,
    looked_past,
    option_of_part,
    sample_of,
    shared_parameters,
    why_unfit,
)
from remat.exec._module.parts import Calls, Form, Part, has_hooks, seen
from remat.exec._module.ranks import Ranks
from remat.exec._module.state import State
from remat.exec._plan.costing import cost_step
from remat.exec._plan.dividing import BlockOption, divide, peak_of, undominated
from remat.exec._plan.planned import Planned as PlannedStep
from remat.exec._plan.planning import plan_captured
from remat.exec._plan.settings import Settings
from remat.exec._program.digest import program_digest
from remat.exec._torch.exchange import EXCHANGE
from remat.units import Bytes, format_bytes

logger = logging.getLogger(__name__)

OBSERVED = 2
"""Steps that run under DTR as a whole before a model is divided; a form of a call is planned once it came in so many."""
LONGEST = 6
"""Steps after which no more are waited for."""
OPERATIONS = 6
"""A submodule whose forward has fewer operations is no part."""
FORMS = 4
"""Most forms of its calls that a part is planned for."""
CAPTURES = 64
"""Most captures that are tried for a division."""
POINTS = 4
"""Budgets that each kind of part is planned for, where keeping everything does not fit."""
REPLACED = "the forward assigns `.data` of its tensors after it has read them"
"""Autograd reads some tensors in the backward as they are then, and others as they were."""
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
    _tried: set[str] = field(factory=set)

    def __attrs_post_init__(self) -> None:
        settings = evolve(
            self.settings, step=None, loss_reserve=0, differentiable="all", offloading=None, progress=False,
            on_infeasible="raise",
        )  # fmt: skip
        self.settings = settings
        for path, inner in self.module.named_modules():
            if path and not looked_past(inner):
                state = State(
                    settings=settings, on_uncapturable="raise", rehearse=False, family=False, ranks=Ranks(None)
                )
                self.parts.append(Part(path, inner, state))

    # -- steps ---------------------------------------------------------------------------------------------------------

    @contextmanager
    def running(self, runtime: Runtime) -> Iterator[None]:
        """Inside, a step of the module runs: submodules run by their plans, or are looked at."""
        self.step += 1
        if runtime.failed and self.decided and self.parts:
            self.dissolve("a step with parts ran out of memory")
        if runtime.doubled and not self.refusal:
            self.dissolve("gradients of gradients were asked for, and a plan has none")
        if self.decided and any(_replaced(part, runtime) for part in self.parts):
            self.dissolve(REPLACED)
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
        candidates: list[Part] = []
        shared = shared_parameters(self.module)
        for part in self.parts:
            if any(part.path.startswith(f"{outer.path}.") for outer in candidates):
                continue
            forms = self._recurring(part)
            if not forms:
                continue
            if part.path in self._tried:
                continue
            if any(len(form.steps) < OBSERVED for form in part.forms.values()):
                self.refused[part.path] = "its calls differ from step to step"
                continue
            self._tried.add(part.path)
            reason = REPLACED if _replaced(part, runtime) else self._why_no_part(part, shared)
            reason = reason or next((why for form in forms if (why := self._captured(part, form))), "")
            if reason:
                self.refused[part.path] = reason
            else:
                candidates.append(part)
                self.refused.pop(part.path, None)
        if not candidates and self.step <= LONGEST:
            return
        self.decided = True
        if not candidates:
            self.dissolve("no submodule of some size is called in the same forms again and again and can be captured")
            return
        self._choose(candidates)

    def _recurring(self, part: Part) -> list[Form]:
        """The forms of a submodule's calls that came in several steps, those with few operations apart."""
        forms = [form for form in part.forms.values() if len(form.steps) >= OBSERVED and form.operations >= OPERATIONS]
        return forms[:FORMS]

    def _why_no_part(self, part: Part, shared: set[int]) -> str:
        """Why a submodule is no part, as far as its modules show; empty: it may be one."""
        if any(
            id(parameter) in shared and not lies_inside(parameter, part, self.module)
            for parameter in part.module.parameters()
        ):
            return "it shares parameters with the rest"
        if has_hooks(part.module):
            return "submodules of it have hooks"
        if any(looked_past(inner) for inner in part.module.modules()):
            return "a module in it is planned, compiled or scripted already, or its forward was replaced"
        if holds_tensors(part.module):
            return "a module in it holds tensors in plain attributes"
        if self._captures >= CAPTURES:
            return f"{CAPTURES} submodules were tried before it"
        return ""

    def _captured(self, part: Part, form: Form) -> str:
        """Capture a form; why it cannot be a part's, or empty."""
        self._captures += 1
        args, kwargs = sample_of(form)
        try:
            with EXCHANGE.alone, torch.enable_grad(), part.in_modes(form.modes):
                captured = capture(part.module, args, kwargs, differentiable="all", tracer=self.settings.tracer)
        except Uncapturable as error:
            return str(error)
        reason = why_unfit(captured)
        if not reason:
            form.captured = captured
        return reason

    # -- choosing plans ------------------------------------------------------------------------------------------------

    def _choose(self, candidates: list[Part]) -> None:
        """Choose plans that fit together with the rest, or run everything under DTR."""
        for part in list(candidates):
            forms = [form for form in part.forms.values() if form.captured is not None]
            if reason := next((why for form in forms if (why := self._plan_options(part, form, (ALL,)))), ""):
                self.refused[part.path] = reason
                candidates.remove(part)
        if not candidates:
            self.dissolve("no submodule that can be captured can be planned")
            return
        room, order = self._room(), self._order(candidates)
        planned = [item for item in order if isinstance(item, Form)]
        chosen = [_block(item)[0] for item in order]
        if peak_of(chosen) > room:
            for part in candidates:
                for form in part.forms.values():
                    if form in planned:
                        self._plan_options(part, form, self._points(form))
            blocks = [_block(item) for item in order]
            divided = divide(blocks, room)
            if divided is None:
                least = peak_of([min(block, key=lambda option: (option.peak, option.saved)) for block in blocks])
                names = ", ".join(part.path for part in candidates)
                self.dissolve(
                    f"with the smallest plans of {names} and what the rest saved a step holds {format_bytes(least)}, and the "
                    f"budget leaves {format_bytes(max(0, room))} beside the gradients"
                )
                return
            chosen = list(divided)
        slack = room - peak_of(chosen)
        for item, option in zip(order, chosen, strict=True):
            if isinstance(item, Form):
                part = next(part for part in candidates if item in part.forms.values())
                part.allowed = max(part.allowed, option.peak + slack)
                bind(item, option)
        self.parts = candidates
        for part in self.parts:
            part.chosen = True
        self._library.clear()
        logger.info("%s runs under DTR: %s", type(self.module).__name__, self.note())

    def _room(self) -> Bytes:
        """Bytes for what a step holds beside its gradients."""
        budget = self.settings.budget
        assert isinstance(budget, int)
        return budget - gradient_bytes(self.module)

    def _order(self, candidates: list[Part]) -> list[Form | BlockOption]:
        """The parts' forms, and what the rest saved between them, in the order of a step; of the larger of the steps seen.

        A part that is called in several places stands behind all of the rest: what is held before it is then at least what it is.
        """
        saved = max(self._rest.values(), key=lambda entries: sum(size for _, size in entries))
        order: list[Form | BlockOption] = []
        rest: Bytes = 0
        for path, size in saved:
            part = next((part for part in candidates if path == part.path or path.startswith(f"{part.path}.")), None)
            if part is None:
                rest += size
                continue
            forms = [form for form in part.forms.values() if form.captured is not None]
            if order[-len(forms) :] == forms and not rest:
                continue
            order = [item for item in order if item not in forms]
            order += [BlockOption(time=0, peak=rest, saved=rest)] if rest else []
            order, rest = [*order, *forms], 0
        missing = [
            form
            for part in candidates
            for form in part.forms.values()
            if form.captured is not None and form not in order
        ]
        order += [BlockOption(time=0, peak=rest, saved=rest)] if rest else []
        return [*order, *missing]

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
                ready, part_planned = bound_part(part, form, planned)
                if part_planned is None:
                    return "what the plan keeps lies in the memory of arguments or results"
                form.runnable[id(planned)] = ready, part_planned
                options.append(option_of_part(part, planned, part_planned))
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
                    bind(form, min(fitting, key=lambda option: option.time))
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


def _replaced(part: Part, runtime: Runtime) -> bool:
    """Whether the program gives tensors of a part other memory after they were read."""
    tensors = (*part.module.parameters(), *part.module.buffers()) if runtime.replaced else ()
    return any(id(tensor) in runtime.replaced for tensor in tensors)


def _block(item: Form | BlockOption) -> tuple[BlockOption, ...]:
    """The options of a form, for all its calls in a step; of what the rest holds there is one."""
    return (
        (item,) if isinstance(item, BlockOption) else tuple(_times(option, item.most_calls) for option in item.options)
    )


def _times(option: BlockOption, calls: int) -> BlockOption:
    """A plan that runs several times in a step."""
    more = max(0, calls - 1)
    saved, peak = option.saved * (more + 1), option.peak + option.saved * more
    return BlockOption(time=option.time * (more + 1), peak=peak, saved=saved, planned=option.planned)


__all__ = ["Division"]
