"""From a module, a call of it and a budget to a step that can run: capture, cost, graph, solve, lower, each timed.

Also what a budget means in bytes, and the error when no plan fits: the smallest budget with a plan, and what no plan fits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from attrs import evolve, field, frozen
from torch import nn

from remat.algorithms import IMPOSSIBLE, Clock, Outcome, Problem, Solver, StoreAll, store_all_peak
from remat.algorithms._core.startup import importing
from remat.budget import Share
from remat.exec._capture.capturing import TRACERS, Captured, capture
from remat.exec._copy.offloading import Offloading
from remat.exec._cost.cost import OpCost, estimate, resized
from remat.exec._cost.shared import measured
from remat.exec._plan.build import build_graph, recosted
from remat.exec._plan.families import SINGLE, UNRELATED, Families, Relation
from remat.exec._plan.known import known_plans
from remat.exec._plan.progress import Listener, Stages
from remat.exec._plan.replaying import Replay
from remat.exec._plan.smallest import infeasible
from remat.exec._plan.with_link import lowered_plan
from remat.exec._program.program import Program
from remat.exec._run.inner import Compile
from remat.exec._run.lowering import Lowered
from remat.exec._run.rehearsal import Rehearsal
from remat.ir import Graph, Link, Schedule
from remat.settings import FLAG, SECONDS, SEED, Setting, either, function, instance, one_of, optional, takes, whole
from remat.units import Bytes, format_bytes

if TYPE_CHECKING:
    from remat.algorithms._curves.budget_sweep import Lowest

logger = logging.getLogger(__name__)

COSTS = ("measure", "estimate")
GRACE = 0.3
"""Seconds of planning that may pass over a deadline; a tenth of the deadline if that is more."""
SCALARS: Bytes = 4096
"""Scalars that a loss outside the module is assumed to hold while the backward runs."""


DIFFERENTIABLE = ("auto", "loss", "all")
INFEASIBLE = ("raise", "best")

Budget = Bytes | Share | None
Lowerer = Callable[[Program, Schedule], Lowered]
_BUDGET = Setting(
    "what `parse_budget` reads, or None",
    lambda value: value is None or isinstance(value, Share) or whole(0).accepts(value),
)


@frozen(kw_only=True)
class Settings:
    """How steps are planned; what `remat.exec.wrap` was given.

    Attributes:
        budget: as read by `parse_budget`.
        step: what is called as `step(module, *args, **kwargs)` in place of the module's forward, or None.
        differentiable: see `capture`.
        tracer: see `capture`.
        loss_reserve: bytes that a loss outside the module may hold, or None for an audited estimate.
        solver: plans; None: `remat.algorithms.plan_first`.
        seconds: deadline of one planning [s], or None. Counted from when the graph is built, without imports and compilation.
        cost: "measure" or "estimate".
        seed: of the solver.
        on_infeasible: "raise", or "best": where no plan is found, take the plan of the smallest budget that has one.
        offloading: where copies go; None: there are none.
        compiler: compiles the functions of plans; None: eager's kernels run them.
        progress: where the stages are shown, as in `stages_of`.
    """

    SETTINGS_RULE: ClassVar[str] = "X-ARG"

    budget: Budget = field(validator=_BUDGET)
    step: Callable[..., Any] | None = field(
        default=None, validator=optional(function("lambda module, x: module(x).sum()"))
    )
    differentiable: str = field(default="auto", validator=one_of(*DIFFERENTIABLE))
    tracer: str = field(default="auto", validator=one_of(*TRACERS))
    loss_reserve: Bytes | None = field(default=None, validator=optional(whole(0, "bytes")))
    solver: Solver | None = field(default=None, validator=optional(instance(Solver, "remat.algorithms.quick")))
    seconds: float | None = field(default=None, validator=optional(SECONDS))
    cost: str = field(default="measure", validator=one_of(*COSTS))
    seed: int = field(default=0, validator=SEED)
    on_infeasible: str = field(default="raise", validator=one_of(*INFEASIBLE))
    progress: bool | Listener | None = field(default=None, validator=optional(either(FLAG, function("print"))))
    offloading: Offloading | None = field(default=None, validator=optional(instance(Offloading, "Offloading(True)")))
    compiler: Compile | None = field(
        default=None, validator=optional(function("remat.exec._torch.inductor.compile_graph"))
    )

    def planner(self) -> Solver:
        """The solver, the default one where none was named; it plans copies too where the problem has a link."""
        if self.solver is not None:
            return self.solver
        with importing():
            from remat.algorithms._search.auto import plan_first  # imports compiled kernels, so only when it is needed

        return plan_first

    def link(self, device: torch.device) -> Link | None:
        """The link that copies of a step go over; it may be measured for this. None: there are no copies."""
        return None if self.budget is None or self.offloading is None else self.offloading.link(device)

    @property
    def host_budget(self) -> Bytes | None:
        """Most bytes of copies on the host; None: no limit."""
        return None if self.offloading is None else self.offloading.host_budget

    def name(self) -> str:
        """The solver, as text for reports."""
        return "plan_first" if self.solver is None else repr(self.solver)


@frozen(kw_only=True, eq=False)
class Planned:
    """A step that can run.

    Attributes:
        captured: the trace, with sizes as measured.
        graph: what was planned on.
        outcome: what the solver returned.
        lowered: the generated functions.
        budget: bytes, or None where there is none; what a call holds outside the plan (`Captured.overhead`) is in it.
        reserve, retained: what a loss outside the module is assumed to hold, at its peak and during the backward [bytes].
        audited: whether these two were measured on a real step.
        excess: the part of `retained` that gradients of outputs take which arrive in another layout than the trace's [bytes].
        store_all: replayed peak of `StoreAll` [bytes].
        seconds: of each stage: capture, cost, plan, lower, later rehearsal; `bound` is a part of plan; import and compile are in
            none.
        asked: the budget asked for, where no plan was found for it and this is the plan of the smallest budget found; else None.
        origin: where the plan comes from, where it was saved and not made here; empty: made here.
        planner: who made it, where it was not made here.
        rehearsed: what was measured of it on this machine, before it was saved.
        link: that it was planned with; None: without copies.
        provenance: "own": it was made for this step; "unrelated": likewise, and its operations are others than those of all
            steps planned before (a loop unrolled in time, a size of 1); "family": it comes from plans of other sizes;
            "repaired": from one of these that did not fit and was shaved.
        unfilled: why the step was captured, where captures at other sizes were there to fill it in from; empty: it was filled
            in, or there were none.
        inner: what compiled its functions, and the plans that were tried; empty: eager's kernels run them.
        fitted: the plans that were tried, and what a step held each time, where the first one held more than the budget.
    """

    captured: Captured
    graph: Graph
    outcome: Outcome
    lowered: Lowered | None
    budget: Bytes | None
    reserve: Bytes
    retained: Bytes
    audited: bool
    excess: Bytes
    store_all: Bytes
    seconds: dict[str, float]
    asked: Bytes | None = None
    origin: str = ""
    planner: str = ""
    rehearsed: Rehearsal | None = None
    link: Link | None = None
    provenance: str = SINGLE
    unfilled: str = ""
    inner: str = ""
    fitted: str = ""


@frozen
class Outside:
    """What a loss outside the module holds: at its peak, and while the backward runs; measured or assumed.

    `excess` is the part of `retained` that gradients take which arrive in another layout than the trace's.
    """

    reserve: Bytes
    retained: Bytes
    measured: bool = False
    excess: Bytes = 0


@takes(
    rule="X-ARG", module=instance(nn.Module, "nn.Linear(3, 4)"), settings=instance(Settings, "Settings(budget=2**30)")
)
def plan_step(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    settings: Settings,
    *,
    known_costs: dict[str, OpCost] | None = None,
    outside: Outside | None = None,
    stages: Stages | None = None,
) -> Planned:
    """Capture, cost, solve and lower one step.

    Args:
        module: whose step it is; nothing of it changes.
        args: positional arguments of a call, for shapes.
        kwargs: keyword arguments of that call.
        settings: budget, solver and so on.
        known_costs: measured costs by signature, used and added to.
        outside: what a loss outside the module holds, where that was measured.
        stages: timed and told; its table of seconds becomes the plan's.

    Raises:
        Uncapturable: the step cannot be one graph.
        Infeasible: no plan within the budget was found.
    """
    stages = Stages(type(module).__name__) if stages is None else stages
    with stages.stage("capture"):
        captured = capture(
            module, args, kwargs, step=settings.step, differentiable=settings.differentiable, tracer=settings.tracer
        )
    return plan_captured(captured, settings, known_costs=known_costs, outside=outside, stages=stages)


@frozen(kw_only=True, eq=False)
class Costed:
    """A captured step with what its operations cost.

    Attributes:
        program: with sizes as measured.
        graph: to plan on.
        loss: what a loss outside the module holds.
        peak: of a step that keeps everything [bytes].
        link: that copies go over, as given or measured; None: there are none.
    """

    program: Program
    graph: Graph
    loss: Outside
    peak: Bytes
    link: Link | None = None


@frozen
class Alike:
    """A graph that differs from another one in costs alone, and the signatures of the other one's nodes, by name."""

    graph: Graph
    signatures: Mapping[str, str]


def cost_step(
    captured: Captured,
    settings: Settings,
    known_costs: dict[str, OpCost] | None,
    outside: Outside | None = None,
    *,
    brief: bool = False,
) -> Costed:
    """Cost a captured step; arguments as for `plan_step`, and whether a few calls of each operation are enough."""
    program = captured.program
    costs = estimate(program) if settings.cost == "estimate" else measured(program, known_costs, brief=brief)
    return with_costs(captured, settings, costs, outside=outside)


def with_costs(
    captured: Captured,
    settings: Settings,
    costs: Mapping[str, OpCost],
    *,
    outside: Outside | None = None,
    alike: Alike | None = None,
) -> Costed:
    """A captured step with costs of its nodes; `alike`: a graph of the same structure, and the signatures of the nodes."""
    program = resized(captured.program, costs)
    loss = outside or outside_of(program, captured, settings)
    reserves = {"loss_reserve": loss.reserve, "loss_retained": loss.retained}
    if alike is None:
        graph = build_graph(program, costs, **reserves)
    else:
        graph = recosted(alike.graph, program, costs, alike.signatures, **reserves)
    link = settings.link(program.device)
    return Costed(program=program, graph=graph, loss=loss, peak=store_all_peak(graph), link=link)


def plan_captured(
    captured: Captured,
    settings: Settings,
    *,
    known_costs: dict[str, OpCost] | None = None,
    outside: Outside | None = None,
    stages: Stages | None = None,
    source: Replay | Families | None = None,
) -> Planned:
    """Cost, solve and lower a captured step; arguments and errors as for `plan_step`.

    With a saved plan as `source` nothing is solved: it is replayed on the graph as it is measured here, and refused (`StalePlan`)
    where it does not fit the budget. With families a step whose structure they have is planned from theirs where that is
    possible, and they learn the plan.
    """
    stages = Stages(captured.program.name) if stages is None else stages
    replay = source if isinstance(source, Replay) else None
    families = source if isinstance(source, Families) else None
    with stages.stage("cost"):
        assumed = outside or _saved_outside(replay, settings)
        later = families is not None and bool(families.by_structure)
        alone = UNRELATED if families is not None and later and not families.has(captured.program) else SINGLE
        costed = cost_step(captured, settings, known_costs, assumed, brief=later)
        stages.bytes["cost"] = costed.peak
    planned = plan_costed(captured, costed, settings, stages=stages, source=source)
    planned = planned if planned.provenance != SINGLE else evolve(planned, provenance=alone)
    return planned if replay is None else _from_file(planned, replay)


def plan_costed(
    captured: Captured,
    costed: Costed,
    settings: Settings,
    *,
    stages: Stages,
    source: Replay | Families | None = None,
    lowering: Lowerer | None = None,
) -> Planned:
    """Solve and lower a captured step with its costs; arguments and errors as for `plan_captured`.

    `lowering` makes the functions of a plan without copies, where others than the usual ones are wanted.
    """
    program, graph, loss, peak = costed.program, costed.graph, costed.loss, costed.peak
    with stages.stage("plan"):
        asked = _in_bytes(settings.budget, peak + captured.overhead)
        outcome, budget, relation = _outcome(captured, costed, asked, settings, stages, source)
        if outcome.cost is not None:
            stages.bytes["plan"] = outcome.cost.peak
    with stages.stage("lower"):
        if lowering is not None and budget is not None and outcome.schedule is not None:
            lowered: Lowered | None = lowering(program, outcome.schedule)
        else:
            lowered = None if budget is None else lowered_plan(program, graph, outcome, settings.offloading)
    return Planned(
        captured=evolve(captured, program=program),
        graph=graph,
        outcome=outcome,
        lowered=lowered,
        budget=budget,
        reserve=loss.reserve,
        retained=loss.retained,
        audited=loss.measured,
        excess=loss.excess,
        store_all=peak,
        seconds=stages.seconds,
        asked=None if budget == asked else asked,
        link=costed.link,
        planner="" if relation is None else relation.planner,
        provenance=SINGLE if relation is None else relation.provenance,
    )


def _outcome(
    captured: Captured,
    costed: Costed,
    asked: Bytes | None,
    settings: Settings,
    stages: Stages,
    source: Replay | Families | None,
) -> tuple[Outcome, Bytes | None, Relation | None]:
    """The plan, the budget it is for, and how it comes from plans of other sizes, where it does."""
    overhead = captured.overhead
    if isinstance(source, Replay) and asked is not None:
        return source.outcome(costed.graph, asked, overhead, costed.link), asked, None
    relation = None
    families = source if isinstance(source, Families) and costed.link is None else None  # they know runs, not copies
    if families is not None and asked is not None and overhead < asked < costed.peak + overhead:
        stages.base, clock = costed.graph.time, Clock(settings.seconds, listener=stages.hear)
        relation = families.relation(
            costed.program, costed.graph, asked - overhead, peak=costed.peak, clock=clock, seed=settings.seed
        )
        if settings.seconds is not None:
            settings = evolve(settings, seconds=max(0.0, settings.seconds - clock.elapsed))
    if relation is not None:
        outcome, budget = relation.outcome, asked
    else:
        outcome, budget = solve(costed, asked, settings, stages, overhead)
    if costed.program.structure and (relation is not None or outcome.cost is None or not outcome.cost.reruns):
        return outcome, budget, relation  # a filled program: its plan is the family's, or keeps everything
    if families is not None and budget is not None:
        families.learn(costed.program, costed.graph, outcome)
    if budget is not None:
        known_plans.learn(captured.program, outcome)  # the digest, which sizes as measured do not change, is known
    return outcome, budget, relation


def _from_file(planned: Planned, replay: Replay) -> Planned:
    """With where the plan comes from, and what was measured of it on this machine, if it was the same step to the byte."""
    plan = replay.plan
    tried = None
    if replay.same_machine and plan.rehearsal is not None and planned.graph == plan.graph:
        peak, reserved, time = plan.rehearsal
        tried = Rehearsal(peak=peak, reserved=reserved, time=time)
    logger.info("%s: %s", planned.captured.program.name, replay.note)
    return evolve(planned, origin=replay.note, planner=plan.planner, rehearsed=tried)


def _saved_outside(replay: Replay | None, settings: Settings) -> Outside | None:
    """What a loss outside was taken to hold when the plan was made, unless the user says."""
    if replay is None or settings.loss_reserve is not None:
        return None
    plan = replay.plan
    # what was measured has its copies of gradients in it: the loss is the same, so they do not come on top
    return Outside(plan.reserve, plan.retained, measured=plan.audited, excess=plan.retained if plan.audited else 0)


def outside_of(program: Program, captured: Captured, settings: Settings) -> Outside:
    """Nothing for a loss inside; else `loss_reserve`, else twice the outputs that the loss reads: a copy and one gradient.

    A few scalars (the loss, the gradient it starts with) stay until the backward has ended.
    """
    if settings.loss_reserve is not None:
        return Outside(max(0, settings.loss_reserve - SCALARS), min(SCALARS, settings.loss_reserve))
    if is_loss_inside(captured):
        return Outside(0, 0)
    got = [program.storage_of(program.outputs[at]).size for at in captured.differentiable]
    return Outside(2 * sum(got), SCALARS)


def is_loss_inside(captured: Captured) -> bool:
    """Whether gradients come back through one 0-dim output, which the caller only calls backward on."""
    if len(captured.differentiable) != 1:
        return False
    output = captured.program.outputs[captured.differentiable[0]]
    return captured.program.values[output].spec.shape == ()


def _in_bytes(budget: Bytes | Share | None, whole: Bytes) -> Bytes | None:
    """A budget as bytes; a share is of the `whole` that a call holds when it keeps everything."""
    return budget.bytes(whole) if isinstance(budget, Share) else budget


def _note_interruption(clock: Clock, outcome: Outcome) -> None:
    """After a Ctrl-C, say that the best plan is kept; without a plan, interrupt."""
    if clock.stopped and outcome.schedule is None:
        raise KeyboardInterrupt
    if clock.stopped:
        logger.warning("interrupted: the best plan so far is kept")


def solve(
    costed: Costed, asked: Bytes | None, settings: Settings, stages: Stages, overhead: Bytes = 0
) -> tuple[Outcome, Bytes | None]:
    """The plan and the budget it is for: nothing is recomputed where everything fits, else what the solver returns.

    Where the default solver finds nothing, a plan of the step that was found before in this process is taken if it fits; else it
    counts among the budgets that are known to have a plan. A Ctrl-C keeps the best plan so far, if there is one.

    Args:
        costed: the step, with the peak of `StoreAll` and the link.
        asked: the budget, or None.
        settings: solver, deadline and so on.
        stages: told what happens.
        overhead: bytes of the budget that a call holds outside the plan.

    Raises:
        Infeasible: no plan was found, and `settings.on_infeasible` is "raise".
    """
    graph, peak, link = costed.graph, costed.peak, costed.link
    if asked is None:
        return StoreAll().solve(Problem(graph=graph, budget=peak)), None
    budget = max(0, asked - overhead)
    if budget >= peak:
        return StoreAll().solve(Problem(graph=graph, budget=budget)), asked
    stages.base = graph.time
    planner = settings.planner()
    clock = Clock(settings.seconds, listener=stages.hear)
    problem = Problem(graph=graph, budget=budget, link=link, host_budget=None if link is None else settings.host_budget)
    outcome = planner.solve(problem, clock=clock, seed=settings.seed)
    if outcome.schedule is None and problem.host_budget is not None:  # a refusal says what it takes
        problem = evolve(problem, host_budget=None)
        outcome = planner.solve(problem, clock=clock, seed=settings.seed)
    over = clock.expired
    if not outcome.settled and settings.solver is None and not clock.stopped:
        outcome = outcome.merge(_cheap().solve(problem, clock=Clock(), seed=settings.seed))
    earlier = (
        known_plans.replayed(costed.program, graph) if outcome.schedule is None and settings.solver is None else None
    )
    if earlier is not None and _peak(earlier) <= budget:
        outcome = outcome.merge(earlier)
    _note_interruption(clock, outcome)
    if "bound" in clock.spent:
        stages.seconds["bound"] = clock.spent["bound"]
    if outcome.schedule is not None:
        return outcome, asked
    problem = evolve(problem, host_budget=None if link is None else settings.host_budget)
    lowest = _lowest(problem, outcome, settings, clock)
    if earlier is not None and _peak(earlier) < lowest.point.budget:
        lowest = evolve(lowest, point=evolve(lowest.point, budget=_peak(earlier), outcome=earlier))
    if settings.on_infeasible == "raise":
        smallest, seconds = lowest.point.budget, settings.seconds if over else None
        raise infeasible(asked, smallest=smallest, floor=lowest.limit, seconds=seconds, overhead=overhead)
    outcome = lowest.point.outcome
    # a plan that copies all that it can is far from the best at its budget
    if link is not None and settings.solver is None and not clock.stopped:
        again = evolve(problem, budget=lowest.point.budget)
        outcome = outcome.merge(planner.solve(again, clock=clock, seed=settings.seed))
    _note_interruption(clock, outcome)
    return outcome, lowest.point.budget + overhead


def _peak(outcome: Outcome) -> Bytes:
    assert outcome.cost is not None
    return outcome.cost.peak


def _cheap() -> Solver:
    """The solver that runs even when the time is over."""
    from remat.algorithms._search.auto import cheap

    return cheap


def _lowest(problem: Problem, outcome: Outcome, settings: Settings, clock: Clock) -> Lowest:
    """The smallest budget with a plan, in about a second on hundreds of nodes, and within the deadline and its grace."""
    with importing():
        from remat.algorithms._curves.budget_sweep import over_link, quick_lowest_budget  # import compiled kernels

    graph, budget = problem.graph, problem.budget
    left = 1.0 + len(graph) / 1000 if settings.solver is None else None
    if settings.seconds is not None:
        grace = max(GRACE, settings.seconds / 10)
        allowed = max(0.0, settings.seconds + grace - clock.elapsed)
        left = allowed if left is None else min(left, allowed)
    brief = Clock(left)
    bare = partial(quick_lowest_budget, graph, settings.solver, below=budget, clock=brief, seed=settings.seed)
    lowest = bare() if problem.link is None else over_link(problem, bare, settings.solver, brief, settings.seed)
    if brief.stopped:
        clock.stop()
    if outcome.lower == IMPOSSIBLE:
        lowest = evolve(lowest, impossible=max(lowest.impossible, budget))
    return lowest


def above_budget(planned: Planned, measured: Bytes) -> str:
    """A warning that a rehearsal held more than the budget, which no operation was measured to take; empty where it did not."""
    if planned.budget is None or measured <= planned.budget:
        return ""
    cause, fix = "some operation takes more memory in the step than on its own", ", and report it, with the module"
    if planned.captured.program.device.type == "cuda":
        cause = "the allocator gives cached blocks that are larger than what is asked for"
        fix = ", or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, under which blocks are as large as they need to be"
    return (
        f"the rehearsal of the plan held {format_bytes(measured)} ({measured} B), and the budget is "
        f"{format_bytes(planned.budget)} ({planned.budget} B): {cause}. "
        f"Give a budget that is {measured - planned.budget} B smaller{fix}."
    )


def over_budget(planned: Planned) -> str:
    """A warning that the plan is for the smallest budget found, in place of the budget asked for; empty where it is not."""
    if planned.asked is None or planned.budget is None:
        return ""
    return (
        f"no plan for {format_bytes(planned.asked)} ({planned.asked} B) was found; the step runs in the smallest budget a plan "
        f"was found for, {format_bytes(planned.budget)} ({planned.budget} B)."
    )
