"""From a module, a call of it and a budget to a step that can run: capture, cost, graph, solve, lower, each timed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from attrs import evolve
from torch import nn

from remat.algorithms import Clock, Outcome
from remat.budget import Share
from remat.exec._capture.capturing import Captured, capture
from remat.exec._cost.cost import OpCost
from remat.exec._plan.costing import Costed, Outside, cost_step
from remat.exec._plan.families import SINGLE, UNRELATED, Families, Relation
from remat.exec._plan.known import known_plans
from remat.exec._plan.planned import Planned
from remat.exec._plan.progress import Stages
from remat.exec._plan.replaying import Replay
from remat.exec._plan.settings import Settings
from remat.exec._plan.solving import solve
from remat.exec._plan.with_link import lowered_plan
from remat.exec._program.program import Program
from remat.exec._run.lowering import Lowered
from remat.exec._run.rehearsal import Rehearsal
from remat.ir import Schedule
from remat.settings import instance, takes
from remat.units import Bytes

logger = logging.getLogger(__name__)

Lowerer = Callable[[Program, Schedule], Lowered]


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
            replay = source if isinstance(source, Replay) else None
            lowered = None if budget is None else lowered_plan(program, graph, outcome, settings.offloading, replay)
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


def _in_bytes(budget: Bytes | Share | None, whole: Bytes) -> Bytes | None:
    """A budget as bytes; a share is of the `whole` that a call holds when it keeps everything."""
    return budget.bytes(whole) if isinstance(budget, Share) else budget
