"""Plans of wrapped modules as files: `save_plan`, and `load_plan` for `wrap(model, plan=…)`."""

from __future__ import annotations

import os

import torch
from torch import nn

import remat
from remat.algorithms import IMPOSSIBLE
from remat.errors import BadArgument
from remat.exec._cost.machine import machine_of
from remat.exec._module.plans import Ready, State
from remat.exec._plan.replaying import fingerprint, tensor_lines
from remat.ir import PlanFile, SavedPlan, read_plans, write_plans


def save_plan(model: nn.Module, path: str | os.PathLike[str]) -> PlanFile:
    """Write every plan of a wrapped module to one file, whole or not at all; gzipped when the name ends in `.gz`.

    Plans of the file that the module itself was given, and that it has not needed yet, stay in it.

    Args:
        model: what `remat.exec.wrap` returned; it has planned a step within a budget.
        path: of the file.

    Returns:
        What was written.

    Raises:
        BadArgument: X-REPORT, when the module is not wrapped, or has no plan yet.
    """
    file = plans_of(model)
    write_plans(file, path)
    return file


def plans_of(model: nn.Module) -> PlanFile:
    """What `save_plan` writes.

    Raises:
        BadArgument: X-REPORT, when the module is not wrapped, or has no plan yet.
    """
    state = model.__dict__.get("_remat")
    if not isinstance(state, State):
        raise BadArgument("X-REPORT", "the module is not wrapped.", fix="give what `remat.exec.wrap` returned.")
    ready = _callable(state)
    budget = state.settings.budget
    if not ready or not isinstance(budget, int):
        fix = "give `wrap` a budget, and run a training step."
        raise BadArgument("X-REPORT", "the module has no plan to save yet.", fix=fix)
    (device,) = {entry.captured.program.device for entry in ready[:1]}
    plans = {plan.fingerprint: plan for plan in (*_loaded(state, device), *(_saved(entry, state) for entry in ready))}
    measured = state.settings.cost == "measure"
    return PlanFile(
        model=ready[0].captured.program.name,
        remat=remat.__version__,
        torch=torch.__version__,
        machine=machine_of(device),
        budget=budget,
        costs_by=state.settings.cost,
        costs={name: (cost.time, cost.workspace, cost.outputs) for name, cost in state.costs.items() if measured},
        plans=tuple(plans.values()),
    )


def _saved(ready: Ready, state: State) -> SavedPlan:
    planned, program, tried = ready.planned, ready.captured.program, ready.rehearsal
    outcome = planned.outcome
    assert outcome.schedule is not None and planned.budget is not None
    return SavedPlan(
        fingerprint=fingerprint(program),
        tensors=tensor_lines(program),
        graph=planned.graph,
        schedule=outcome.schedule,
        budget=planned.budget,
        overhead=planned.captured.overhead,
        reserve=planned.reserve,
        retained=planned.retained,
        audited=planned.audited or state.settings.loss_reserve is not None,
        lower=0 if outcome.lower == IMPOSSIBLE else int(outcome.lower),
        planner=planned.planner or state.settings.name(),
        trail=outcome.trail,
        rehearsal=None if tried is None else (tried.peak, tried.reserved, tried.time),
    )


def load_plan(path: str | os.PathLike[str]) -> PlanFile:
    """Read plans that `save_plan` wrote, for `wrap(model, sample, plan=…)`; each is replayed on its own graph.

    Raises:
        MalformedFile: the file is damaged or of another form; the message names the place. OSError when it cannot be read.
    """
    return read_plans(path)


__all__ = ["load_plan", "plans_of", "save_plan"]


def _callable(state: State) -> list[Ready]:
    """The entries with a plan that can run."""
    return [entry for entry in state.entries if isinstance(entry, Ready) and entry.call is not None]


def _loaded(state: State, device: torch.device) -> tuple[SavedPlan, ...]:
    """The plans of the file that the module was wrapped with, if they are for this device."""
    return state.saved.file.plans if state.saved is not None and state.saved.is_of(device) else ()
