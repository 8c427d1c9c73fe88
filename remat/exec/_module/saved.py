"""A file of plans that a wrapped module was given: which of them a step runs, and what is done where none is for it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

import torch
from attrs import evolve, frozen

import remat
from remat._warn import RematWarning, warn
from remat.algorithms import IMPOSSIBLE
from remat.errors import BadArgument, StalePlan
from remat.exec._cost.cost import OpCost
from remat.exec._cost.machine import machine_of, minor_version
from remat.exec._plan.planned import Planned
from remat.exec._plan.replaying import Replay, differences, fingerprint, stale, tensor_lines
from remat.exec._plan.settings import Settings
from remat.exec._program.program import Program
from remat.exec._run.rehearsal import Rehearsal
from remat.ir import PlanFile, SavedPlan, read_plans


@frozen(kw_only=True)
class SavedPlans:
    """Plans of a file.

    Attributes:
        file: the plans.
        name: of the file, for people.
        strict: whether a step that the file has no plan for is refused; else a warning says so and it is planned.
        current: whether they are of this minor version of torch; else none is run.
    """

    file: PlanFile
    name: str
    strict: bool
    current: bool = True

    def replay_for(self, program: Program, *, first: bool) -> Replay | None:
        """The plan for a captured step.

        Args:
            program: the step.
            first: whether it is the first that the module plans; other shapes that are not in the file may come later.

        Raises:
            StalePlan: X-STALE, where there is none for the first step, and the file is to be strict.
        """
        if not self.current:
            return None
        plan = self.file.plan_for(fingerprint(program))
        if plan is None:
            if first:
                near = min((differences(program, other) for other in self.file.plans), key=len)
                self.refuse(stale(self.name, near))
            return None
        same = self.is_of(program.device)
        plan = plan if same else evolve(plan, rehearsal=None, lower=0)
        origin = f"{self.name}, made on {self.file.machine} with torch {self.file.torch}"
        return Replay(plan=plan, origin=origin, same_machine=same)

    def is_of(self, device: torch.device) -> bool:
        """Whether its costs are costs here."""
        return self.file.machine == machine_of(device) and self.file.torch == torch.__version__

    def costs(self, device: torch.device) -> dict[str, OpCost]:
        """Costs of operations by signature, where they were measured on this machine."""
        if not self.is_of(device) or self.file.costs_by != "measure":
            return {}
        return {
            name: OpCost(time=time, workspace=workspace, outputs=outputs)
            for name, (time, workspace, outputs) in self.file.costs.items()
        }

    def refuse(self, error: StalePlan) -> None:
        """Raise, or warn that the step is planned anew."""
        if self.strict:
            raise error
        warn(f"the step is planned anew. {error.what}", RematWarning)


def saved_plans(plan: str | os.PathLike[str] | PlanFile, on_stale: str) -> SavedPlans:
    """What `wrap` was given as plans.

    Raises:
        StalePlan: X-STALE, they were made with another minor version of torch.
        MalformedFile: the file is damaged.
        BadArgument: X-ARG, there is none, or it cannot be read.
    """
    file = plan if isinstance(plan, PlanFile) else read_file(plan, "wrap: plan")
    name = f"the plan of {file.model}" if isinstance(plan, PlanFile) else os.fspath(plan)
    running, saved = minor_version(torch.__version__), minor_version(file.torch)
    plans = SavedPlans(file=file, name=name, strict=on_stale == "raise", current=running == saved)
    if not plans.current:
        plans.refuse(stale(name, (f"torch is {running} here and {saved} in the plan",)))
    return plans


def read_file(path: str | os.PathLike[str], place: str) -> PlanFile:
    """The plans of a file; errors as of `saved_plans`, with the place that it was given."""
    if not isinstance(path, (str, os.PathLike)):
        fix = "give a path, or what `remat.exec.load_plan` returned."
        raise BadArgument("X-ARG", f"{place} is {path!r:.80}.", fix=fix)
    try:
        return read_plans(path)
    except OSError as error:
        what = f"{place} is {os.fspath(path)!r:.200}, which cannot be read: {error.strerror}."
        raise BadArgument("X-ARG", what, fix="give the path of a file that `remat.exec.save_plan` wrote.") from error


def plan_to_save(planned: Planned, settings: Settings, rehearsal: Rehearsal | None = None) -> SavedPlan:
    """What a file holds of a plan, with what a rehearsal measured of it."""
    program, outcome = planned.captured.program, planned.outcome
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
        audited=planned.audited or settings.loss_reserve is not None,
        lower=0 if outcome.lower == IMPOSSIBLE else int(outcome.lower),
        planner=planned.planner or settings.name(),
        trail=outcome.trail,
        rehearsal=None if rehearsal is None else (rehearsal.peak, rehearsal.reserved, rehearsal.time),
        link=planned.link if outcome.cost is not None and outcome.cost.copies else None,
    )


def file_of(
    plans: Iterable[SavedPlan], program: Program, settings: Settings, costs: Mapping[str, OpCost] | None = None
) -> PlanFile:
    """The file of some plans of a module.

    Args:
        plans: one for each step.
        program: of one of them, for the name of the module and the device.
        settings: with a budget in bytes.
        costs: of operations by signature, where they were measured here.
    """
    assert isinstance(settings.budget, int)
    return PlanFile(
        model=program.name,
        remat=remat.__version__,
        torch=torch.__version__,
        machine=machine_of(program.device),
        budget=settings.budget,
        costs_by=settings.cost,
        costs={name: (cost.time, cost.workspace, cost.outputs) for name, cost in (costs or {}).items()},
        plans=tuple(plans),
    )


__all__ = ["SavedPlans", "file_of", "plan_to_save", "saved_plans"]
