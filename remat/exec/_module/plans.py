"""The plans of a wrapped module: which one a call runs, and what is done where there is none."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from attrs import define, evolve, field, frozen
from torch import nn

from remat._warn import warn
from remat.algorithms._dtr.online import LIMIT
from remat.algorithms._dtr.scores import h_dtr_eq
from remat.budget import Share
from remat.errors import Infeasible, StalePlan, Uncapturable
from remat.exec._capture.capturing import Captured, capture, is_leaf
from remat.exec._cost.cost import OpCost
from remat.exec._cost.machine import minor_version
from remat.exec._dtr.runtime import Runtime
from remat.exec._dtr.stepping import device_of, run_forward
from remat.exec._module.after import (
    MANY_PLANS,
    RematWarning,
    answered,
    do_effects,
    learnt,
    undone_by,
    warn_of_hooks,
    warn_of_many,
    wrong_answers,
)
from remat.exec._module.calls import (
    INSTANCE_FORWARD,
    Arguments,
    attributes,
    bare_forward,
    captured_step,
    chain_tensors,
    is_bare,
    leaf_key,
    make_opaque,
    order_of,
    traced_step,
)
from remat.exec._module.live import Tensors, Watch, autocast, named
from remat.exec._module.plan_table import PlanTable
from remat.exec._module.ranks import Ranks, Statement
from remat.exec._module.saved import SavedPlans, file_of, plan_to_save
from remat.exec._plan.planning import (
    Outside,
    Planned,
    Settings,
    cost_step,
    is_loss_inside,
    over_budget,
    plan_captured,
)
from remat.exec._plan.progress import Stages, stages_of
from remat.exec._plan.replaying import Replay, fingerprint
from remat.exec._plan.smallest import with_changes
from remat.exec._program.digest import program_digest
from remat.exec._run import outside as outside_loss
from remat.exec._run.meter import StepMeter
from remat.exec._run.rehearsal import Rehearsal, rehearse
from remat.exec._run.runtime import Call, run_step
from remat.exec._torch.compiled import running_eagerly
from remat.exec._torch.places import forward_of
from remat.exec._trace import structure
from remat.exec._trace.diagnosis import refusal
from remat.exec._trace.tape import Origin, Scalar
from remat.exec._trace.tracing import Same

MOST_PLANS = 64
"""How many plans a wrapped module keeps by default."""

MOST_COSTS = 2000
"""How many measured costs it keeps for each of them: a step of a thousand operations has a few hundred signatures."""
NOT_UNDER_DTR = ("X-DEVICE", "X-MODULE", "X-OP", "X-TENSOR")
"""What stops a capture and DTR alike: several devices, scripted code, operations and tensors of other kinds."""

REFUSED = 2
"""So many forms of calls that cannot be captured, and none that can, and no other is tried: all run under DTR."""


@frozen(eq=False)
class Bare:
    """A combination of shapes falls back to the unwrapped module, and why."""

    reason: str


@frozen(eq=False)
class Dynamic(Bare):
    """A combination of shapes runs under DTR, within the budget, and why."""


@frozen(kw_only=True, eq=False)
class Ready:
    """A planned step bound to the places of its tensors.

    Attributes:
        planned: what was planned.
        digest: of its program.
        watch: the states of Python it was planned for.
        places: for each primal, ("param" or "buffer" or "input", index in the order in which a call has them).
        guard_places, prologue_places: likewise for each tensor that the guards and the prologue look at.
        call: what to run; None: nothing was planned, the bare module runs.
        meter: times and audit.
        rehearsal: what a rehearsal of the plan measured.
        same_places: of tensors that are returned unchanged: position among the flat outputs, and place.
    """

    planned: Planned
    digest: str
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


@define(eq=False)
class State:
    """Settings and plans of a wrapped module; a copy of the module keeps the plans, a pickle does not.

    Attributes:
        settings: how to plan.
        on_uncapturable: "raise", "bare" or "dtr".
        rehearse: whether new plans are rehearsed on the call they were made for.
        most_plans: how many plans are kept; the least recently used is forgotten first.
        saved: plans of a file, which are run where they fit.
        ranks: what is agreed with the other processes of a group.
        plans: by key.
        costs: measured costs by signature, the most recently used last; at most `MOST_COSTS` for each plan that may be kept.
        library: plans by digest of the program, of the programs that `plans` has; calls with equal programs share a plan.
        last: the plan of the last call.
        ran: "plan" if the last call ran its plan, else why not.
        sample: names and shapes of the tensors of the first call planned for.
        runtime: of the calls that run under DTR, once there are any.
    """

    settings: Settings
    on_uncapturable: str = "raise"
    rehearse: bool = True
    most_plans: int = MOST_PLANS
    saved: SavedPlans | None = None
    ranks: Ranks = field(factory=Ranks)
    plans: PlanTable[Ready | Bare] = field(init=False)
    costs: dict[str, OpCost] = field(factory=dict)
    library: dict[str, Planned] = field(factory=dict)
    last: Ready | Bare | None = None
    ran: str = "plan"
    sample: tuple[tuple[str, tuple[int, ...]], ...] = ()
    runtime: Runtime | None = None
    _tensors: Tensors | None = None

    def __attrs_post_init__(self) -> None:
        self.plans = PlanTable(self.most_plans)

    def __deepcopy__(self, memo: dict[int, Any]) -> State:
        cls, (*settings, _) = self.__reduce__()
        costs, library = dict(self.costs), dict(self.library)
        state: State = cls(*settings, self.ranks.copied(), costs=costs, library=library, sample=self.sample)
        state.plans = self.plans.copied(_fresh)
        return state

    def __reduce__(self) -> tuple[Any, ...]:
        settings = (self.settings, self.on_uncapturable, self.rehearse, self.most_plans, self.saved)
        return State, (*settings, self.ranks.pickled())

    @property
    def entries(self) -> list[Ready | Bare]:
        """All plans."""
        return list(self.plans)

    # -- calls ---------------------------------------------------------------------------------------------------------

    def call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One call of the wrapped module."""
        if is_bare():
            return bare_forward(module, *args, **kwargs)
        outside_loss.end(seen=True)
        if not torch.is_grad_enabled():
            self.ran = "no gradients are recorded (torch.no_grad)"
            return self.bare(module, args, kwargs)
        self.ranks.check()
        call = self.arguments(module, args, kwargs)
        ready = self.planned_for(call)
        self.last = ready
        if isinstance(ready, Bare) or ready.call is None:
            self.ran = ready.reason if isinstance(ready, Bare) else "no budget was given"
            return self.unplanned(call, ready)
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
        return captured_step(self.step_of(module), module, *args, **kwargs)

    def unplanned(self, call: Arguments, entry: Ready | Bare) -> Any:
        """Run the bare module as it is, or under DTR."""
        if isinstance(entry, Dynamic):
            return self.dynamic(call)
        return self.bare(call.module, call.args, call.kwargs)

    def dynamic(self, call: Arguments) -> Any:
        """Run the bare module under DTR."""
        budget = self.settings.budget
        assert isinstance(budget, int)
        if self.runtime is None:
            device = device_of(tensor for tensors in call.tensors.values() for tensor in tensors)
            self.runtime = Runtime(budget, h_dtr_eq, device, limit=LIMIT, seed=self.settings.seed)

        def forward() -> Any:
            return self.bare(call.module, call.args, call.kwargs)

        with running_eagerly():
            return run_forward(self.runtime, forward, call.module, self.settings.loss_reserve)

    def arguments(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """A call, its tensors and its key; keywords in the order of the signature, however the call spells them."""
        if len(kwargs) > 1:
            order = order_of(self.step_of(module) or type(module).forward)
            kwargs = dict(sorted(kwargs.items(), key=lambda item: order.get(item[0], len(order))))
        if self._tensors is None or not self._tensors.current(module):
            self._tensors = Tensors(module)
        forms = self._tensors.fetch()
        leaves, layout = structure.flatten((args, kwargs), opaque=lambda value: isinstance(value, nn.Module))
        params, inputs = self._tensors.params, [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        key = (layout, tuple(map(leaf_key, leaves)), forms, autocast(params, inputs), self.step_of(module) is None)
        tensors = {"param": params, "buffer": self._tensors.buffers, "input": inputs}
        return Arguments(
            module=module, args=args, kwargs=kwargs, layout=layout, leaves=leaves, key=key, tensors=tensors
        )

    def planned_for(self, call: Arguments, answers: tuple[Scalar, ...] = ()) -> Ready | Bare:
        """The plan for a call; it is made if there is none yet.

        Args:
            call: the call.
            answers: what the first late reads gave, where a run has shown them already.
        """
        for entry in self.plans.of(call.key):
            if isinstance(entry, Ready):
                extra = self.extra_for(entry, call) if answered(entry.captured, answers) else None
                if extra is None:
                    continue
                call.extra = extra
                if (outside := learnt(entry.planned, entry.meter)) is not None:
                    with self.ranks.planning():
                        again = self.planned_again(call, entry, outside)
                    self.plans.forget(entry)
                    return self.used(call, again)
            return self.used(call, entry)
        tensors = chain_tensors(call)
        if not any(tensor.requires_grad for tensor in tensors):
            entry = Bare("nothing requires a gradient")
        else:
            with self.ranks.planning():
                entry = self.captured_and_planned(call, answers)
        self.used(call, entry)
        if len(self.plans.of(call.key)) == MANY_PLANS and isinstance(entry, Ready):
            warn_of_many(entry.captured)
        return entry

    def used(self, call: Arguments, entry: Ready | Bare) -> Ready | Bare:
        """Note the entry as the most recently used and return it; with too many, the least recently used is evicted."""
        if self.plans.use(call.key, entry):
            digests = {other.digest for other in self.plans if isinstance(other, Ready)}
            self.library = {digest: planned for digest, planned in self.library.items() if digest in digests}
        return entry

    def extra_for(self, ready: Ready, call: Arguments) -> list[torch.Tensor] | None:
        """The inputs besides the arguments, or None where a call takes other branches than the plan was traced on."""
        if not ready.watch.holds(call.module, self.watched(call.module)):
            return None
        captured = ready.captured
        device = captured.program.device
        extra = ready.watch.lifted(captured.lifted)
        inputs = (*call.tensors["input"], *extra)
        if any(is_leaf(inputs[at]) != leaf for at, leaf in captured.leaves):
            return None
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
            with undone_by(captured, ready.call.lowered, primals) as undo:
                outputs = run_step(ready.call, primals)
                answers = wrong_answers(captured, outputs)
                if answers is not None:
                    del outputs
                    undo()
            if answers is None:
                return self.finished(call, ready, outputs)
            other = self.planned_for(call, answers)
            if isinstance(other, Bare) or other.call is None:
                return self.unplanned(call, other)
            ready = self.last = other

    def finished(self, call: Arguments, ready: Ready, outputs: tuple[torch.Tensor, ...]) -> Any:
        """What the bare module would return, with its effects on Python done."""
        captured = ready.captured
        if captured.effects:
            do_effects(captured, ready.watch, outputs[len(captured.places) + len(captured.late) :])
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
        if (reason := self._never_captured()) is not None:
            return Dynamic(reason)
        try:
            with stages_of(type(module).__name__, self.settings.progress) as stages:
                with stages.stage("capture"):
                    make_opaque()  # loads what the tracer loads in any case
                    captured = capture(
                        module, call.args, call.kwargs, step=functools.partial(traced_step, self.step_of(module)),
                        differentiable=self.settings.differentiable, watched=self.watched(module), answers=answers,
                    )  # fmt: skip
                entry = self.plan(call, captured, None, stages)
        except Uncapturable as unplaced:
            error = refusal(unplaced, module)
            if self.on_uncapturable == "raise" or self.ranks.halfway:
                raise error from unplaced.__cause__
            name = type(module).__name__
            if self.on_uncapturable == "dtr":
                dynamic = self._under_dtr(call, error)
                self.agree_unplanned(call)
                return dynamic
            warn(f"{name} falls back to the unwrapped module, without a budget: {error}", RematWarning)
            self.agree_unplanned(call)
            return Bare(str(error))
        warn_of_hooks(module)
        return entry

    def _never_captured(self) -> str | None:
        """Why steps run under DTR, where the first few could not be captured: further ones are not tried."""
        if self.on_uncapturable != "dtr" or len(self.plans) < REFUSED:
            return None
        reasons = [entry.reason for entry in self.plans if isinstance(entry, Dynamic)]
        return reasons[-1] if len(reasons) == len(self.plans) else None

    def _under_dtr(self, call: Arguments, error: Uncapturable) -> Dynamic:
        """Have calls of this form run under DTR, and say so.

        Raises:
            Uncapturable: a budget that is a share of an unknown peak, or what DTR does not run.
        """
        if error.rule in NOT_UNDER_DTR:
            raise error from error.__cause__
        if isinstance(self.settings.budget, Share):
            fix = f"{error.fix} Or give the budget in bytes: the step then runs under DTR."
            refused = Uncapturable(error.rule, error.what, fix=fix)
            refused.where = error.where
            raise refused
        device_of(tensor for tensors in call.tensors.values() for tensor in tensors)
        what = (
            f"{type(call.module).__name__} runs under DTR (dynamic rematerialization), within the budget but without a plan: "
            f'{error} on_uncapturable="raise" refuses instead.'
        )
        warn(what, RematWarning)
        return Dynamic(str(error))

    def planned_again(self, call: Arguments, ready: Ready, outside: Outside) -> Ready:
        """A new plan with the memory of the loss as an audit measured it."""
        with stages_of(type(call.module).__name__, self.settings.progress) as stages:
            return self.plan(call, ready.captured, outside, stages)

    def plan(self, call: Arguments, captured: Captured, outside: Outside | None, stages: Stages) -> Ready:
        """Plan a captured call, or take the plan that its program has already."""
        digest = program_digest(captured.program)
        planned = self.library.get(digest) if outside is None else None
        if planned is None:
            shapes = call.shapes()
            try:
                planned = self.planned(call, captured, outside, stages)
            except Infeasible as error:
                raise with_changes(error, self.sample, shapes) if self.sample else error from error
            finally:
                self.forget_costs()
            self.sample = self.sample or shapes
            self.library[digest] = planned
            if isinstance(self.settings.budget, Share):
                # A share refers to the first step only: other shapes get as many bytes, not a share of their own peak.
                self.settings = evolve(self.settings, budget=planned.asked or planned.budget)
            if warning := over_budget(planned):
                warn(warning, RematWarning)
        else:
            planned = evolve(planned, captured=evolve(captured, program=planned.captured.program))
        with stages.stage("rehearsal"):
            ready = self.bound(call, planned, digest)
            if ready.rehearsal is not None:
                stages.bytes["rehearsal"] = ready.rehearsal.peak
            return ready

    def planned(self, call: Arguments, captured: Captured, outside: Outside | None, stages: Stages) -> Planned:
        """A plan that another process of the group shares, where there is one and it fits, else one of this process."""
        ranks = self.ranks
        if outside is not None or not ranks.shared:
            return self.planned_alone(captured, outside, stages)
        first = not ranks.agreed
        if first:
            self.agree(call, captured, stages)
        planned = self.replayed(captured, stages)
        if planned is None:
            planned = self.planned_alone(captured, None, stages)
            ranks.share(file_of([plan_to_save(planned, self.settings)], captured.program, self.settings))
        if first:
            ranks.settle()
        return planned

    def agree(self, call: Arguments, captured: Captured, stages: Stages) -> None:
        """Agree with the other processes on the budget and the costs, at their first planned calls."""
        if self.saved is not None:
            self.costs = {**self.saved.costs(captured.program.device), **self.costs}
        with stages.stage("cost"):
            whole = cost_step(captured, self.settings, self.costs).peak + captured.overhead
        statement = Statement(
            about=self.about(call), fingerprint=fingerprint(captured.program), whole=whole, costs=self.costs
        )
        terms = self.ranks.agree(statement, self.settings.budget)
        self.costs.update(terms.costs)
        self.settings = evolve(self.settings, budget=terms.budget)

    def agree_unplanned(self, call: Arguments) -> None:
        """Tell the other processes that this one runs its first step without a plan, if they are to agree now."""
        if self.ranks.shared and not self.ranks.agreed:
            terms = self.ranks.agree(Statement(about=self.about(call)), self.settings.budget)
            if terms.budget is not None:
                self.settings = evolve(self.settings, budget=terms.budget)
            self.ranks.settle()

    def about(self, call: Arguments) -> str:
        """What all processes of a group must have alike, in words."""
        settings = self.settings
        budget = f"{float(settings.budget.of_peak):.4%}" if isinstance(settings.budget, Share) else settings.budget
        copies = "" if settings.offloading is None else f"offload={settings.offloading.where!r}, "
        return (
            f"a {type(call.module).__name__} of {len(call.tensors['param'])} parameters with budget {budget}, {copies}"
            f"cost={settings.cost!r}, on_infeasible={settings.on_infeasible!r} and torch {minor_version(torch.__version__)}"
        )

    def replayed(self, captured: Captured, stages: Stages) -> Planned | None:
        """The plan of another process, replayed on this step; None: there is none, or it does not fit here."""
        with stages.stage("plan"):
            file = self.ranks.offer(fingerprint(captured.program))
        if file is None:
            return None
        settings, (plan,), asked = self.settings, file.plans, self.settings.budget
        over = settings.on_infeasible == "best" and isinstance(asked, int) and plan.budget > asked
        if over:
            settings = evolve(settings, budget=plan.budget)
        replay = Replay(plan=plan, origin="another process of the group", same_machine=True)
        try:
            planned = plan_captured(captured, settings, known_costs=self.costs, stages=stages, replay=replay)
        except StalePlan:
            return None
        return evolve(planned, asked=asked) if over and isinstance(asked, int) else planned

    def planned_alone(self, captured: Captured, outside: Outside | None, stages: Stages) -> Planned:
        """A plan of the file, where there is one for the step and it fits, else a new one."""
        plan = functools.partial(
            plan_captured, captured, self.settings, known_costs=self.costs, outside=outside, stages=stages
        )
        if self.saved is None or outside is not None:
            return plan()
        with stages.stage("plan"):
            replay = self.saved.replay_for(captured.program, first=not self.library)
        if replay is None:
            return plan()
        self.costs = {**self.saved.costs(captured.program.device), **self.costs}
        try:
            return plan(known_costs=self.costs, replay=replay)
        except StalePlan as error:
            self.saved.refuse(error)
            return plan(known_costs=self.costs)

    def forget_costs(self) -> None:
        """Remove the least recently used costs that are too many."""
        for text in list(self.costs)[: max(0, len(self.costs) - MOST_COSTS * self.most_plans)]:
            del self.costs[text]

    def _guesses_reserve(self, planned: Planned) -> bool:
        """Whether the bytes for a loss outside were estimated, and no step has been audited yet."""
        return not is_loss_inside(planned.captured) and not planned.audited and self.settings.loss_reserve is None

    def bound(self, call: Arguments, planned: Planned, digest: str) -> Ready:
        """A plan bound to the places of its tensors, and rehearsed."""
        captured, module = planned.captured, call.module
        program = captured.program
        index = {"param": named(module, "_parameters"), "buffer": named(module, "_buffers")}

        def place(origin: Origin) -> tuple[str, int]:
            kind, about = origin
            return kind, index[kind][about] if kind in index else about

        roles = (("param", program.params), ("buffer", program.buffers), ("input", program.inputs))
        places = tuple(place((kind, about)) for kind, values in roles for _, about in values)
        guarded = tuple(map(place, captured.guards.origins))
        early = tuple(map(place, captured.prologue.origins if captured.prologue is not None else ()))
        same = tuple((i, place(leaf.origin)) for i, leaf in enumerate(captured.out_leaves) if isinstance(leaf, Same))
        watch = Watch(captured.tokens, captured.reads)
        if not watch.holds(module, self.watched(module)):
            what = "the state of Python that the forward reads does not compare equal to itself."
            raise Uncapturable("X-STATE", what, fix="keep objects with an odd `__eq__` out of the module's attributes.")
        meter = StepMeter(program.device, wanted=self._guesses_reserve(planned))
        step = rehearsal = None
        if planned.lowered is not None:
            step = Call(
                lowered=planned.lowered, requires_grad=captured.requires_grad, differentiable=captured.differentiable,
                meter=meter, name=str(forward_of(module)), gate=self.ranks.gate if self.ranks.shared else None,
            )  # fmt: skip
        ready = Ready(
            planned=planned, digest=digest, watch=watch, places=places, guard_places=guarded, prologue_places=early, call=step,
            meter=meter, same_places=same,
        )  # fmt: skip
        extra = self.extra_for(ready, call)
        if extra is None:
            what = "what the forward asks of the tensors of this call has another answer when it is asked again."
            fix = "keep operations that differ from run to run out of what decides."
            raise Uncapturable("X-READ", what, fix=fix, where=str(forward_of(module)))
        call.extra = extra
        if self.rehearse and planned.lowered is not None:
            rehearsal = planned.rehearsed or rehearse(planned.lowered, call.at(places, extra))
        return evolve(ready, rehearsal=rehearsal)


def _fresh(entry: Ready | Bare) -> Ready | Bare:
    if isinstance(entry, Bare):
        return entry
    meter = StepMeter(entry.meter.device, wanted=entry.meter.wanted)
    call = None if entry.call is None else evolve(entry.call, meter=meter, gate=None)
    return evolve(entry, meter=meter, call=call, watch=entry.watch.copy())
