"""Plans of wrapped modules as files: `save_plan`, and `load_plan` for `wrap(model, plan=…)`."""

from __future__ import annotations

import os

import torch
from torch import nn

from remat.errors import BadArgument
from remat.exec._module.entries import Ready
from remat.exec._module.saved import file_of, plan_to_save, read_file
from remat.exec._module.state import State, state_of
from remat.ir import PlanFile, SavedPlan, write_plans


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
    state = state_of(model)
    ready = _callable(state)
    budget = state.settings.budget
    if not ready or not isinstance(budget, int):
        fix = "give `wrap` a budget, and run a training step."
        raise BadArgument("X-REPORT", "the module has no plan to save yet.", fix=fix)
    program = ready[0].captured.program
    mine = (plan_to_save(entry.planned, state.settings, entry.rehearsal) for entry in ready)
    plans = {plan.fingerprint: plan for plan in (*_loaded(state, program.device), *mine)}
    measured = state.settings.cost == "measure"
    return file_of(plans.values(), program, state.settings, state.costs if measured else None)


def load_plan(path: str | os.PathLike[str]) -> PlanFile:
    """Read plans that `save_plan` wrote, for `wrap(model, sample, plan=…)`; each is replayed on its own graph.

    Raises:
        MalformedFile: the file is damaged or of another form; the message names the place.
        BadArgument: X-ARG, there is none, or it cannot be read.
    """
    return read_file(path, "load_plan: path")


__all__ = ["load_plan", "plans_of", "save_plan"]


def _callable(state: State) -> list[Ready]:
    """The entries with a plan that can run."""
    return [entry for entry in state.entries if isinstance(entry, Ready) and entry.call is not None]


def _loaded(state: State, device: torch.device) -> tuple[SavedPlan, ...]:
    """The plans of the file that the module was wrapped with, if they are for this device."""
    return state.saved.file.plans if state.saved is not None and state.saved.is_of(device) else ()
