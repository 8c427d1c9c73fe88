"""Plans that the processes of a group share: what this one states of its first step, and the plans that others made."""

from __future__ import annotations

import torch
from attrs import evolve

from remat.budget import Share
from remat.errors import StalePlan
from remat.exec._capture.capturing import Captured
from remat.exec._cost.machine import minor_version
from remat.exec._module.calls import Arguments
from remat.exec._module.ranks import Statement
from remat.exec._module.state import State
from remat.exec._plan.costing import cost_step
from remat.exec._plan.planned import Planned
from remat.exec._plan.planning import plan_captured
from remat.exec._plan.progress import Stages
from remat.exec._plan.replaying import Replay, fingerprint


def agree(state: State, call: Arguments, captured: Captured, stages: Stages) -> None:
    """Agree with the other processes on the budget and the costs, at their first planned calls."""
    if state.saved is not None:
        state.costs = {**state.saved.costs(captured.program.device), **state.costs}
    with stages.stage("cost"):
        whole = cost_step(captured, state.settings, state.costs).peak + captured.overhead
    statement = Statement(
        about=about(state, call), fingerprint=fingerprint(captured.program), whole=whole, costs=state.costs
    )
    terms = state.ranks.agree(statement, state.settings.budget)
    state.costs.update(terms.costs)
    state.settings = evolve(state.settings, budget=terms.budget)


def agree_unplanned(state: State, call: Arguments) -> None:
    """Tell the other processes that this one runs its first step without a plan, if they are to agree now."""
    if state.ranks.shared and not state.ranks.agreed:
        terms = state.ranks.agree(Statement(about=about(state, call)), state.settings.budget)
        if terms.budget is not None:
            state.settings = evolve(state.settings, budget=terms.budget)
        state.ranks.settle()


def about(state: State, call: Arguments) -> str:
    """What all processes of a group must have alike, in words."""
    settings = state.settings
    budget = f"{float(settings.budget.of_peak):.4%}" if isinstance(settings.budget, Share) else settings.budget
    copies = "" if settings.offloading is None else f"offload={settings.offloading.where!r}, "
    return (
        f"a {type(call.module).__name__} of {len(call.tensors['param'])} parameters with budget {budget}, {copies}"
        f"cost={settings.cost!r}, on_infeasible={settings.on_infeasible!r} and torch {minor_version(torch.__version__)}"
    )


def replayed(state: State, captured: Captured, stages: Stages) -> Planned | None:
    """The plan of another process, replayed on this step; None: there is none, or it does not fit here."""
    with stages.stage("plan"):
        file = state.ranks.offer(fingerprint(captured.program))
    if file is None:
        return None
    settings, (plan,), asked = state.settings, file.plans, state.settings.budget
    over = settings.on_infeasible == "best" and isinstance(asked, int) and plan.budget > asked
    if over:
        settings = evolve(settings, budget=plan.budget)
    replay = Replay(plan=plan, origin="another process of the group", same_machine=True)
    try:
        planned = plan_captured(captured, settings, known_costs=state.costs, stages=stages, source=replay)
    except StalePlan:
        return None
    return evolve(planned, asked=asked) if over and isinstance(asked, int) else planned
