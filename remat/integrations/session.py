"""What the callbacks of all stacks do: wrap a module in place when training begins, and hand its plans to checkpoints."""

from __future__ import annotations

import os
from pathlib import Path

from torch import nn

from remat._warn import warn
from remat.errors import BadArgument
from remat.exec import RematWarning, give_plans, plans_of, save_plan, wrap_in_place
from remat.integrations.arguments import RematArguments
from remat.ir import PlanFile

PLAN_NAME = "remat_plan.json.gz"
"""Name of the file of plans in the folder of a checkpoint."""


class Session:
    """The wrapped module of one training.

    Args:
        arguments: how to plan.
    """

    def __init__(self, arguments: RematArguments) -> None:
        self.arguments = arguments
        self.module: nn.Module | None = None

    def begin(self, module: nn.Module, plans: str | os.PathLike[str] | PlanFile | None = None) -> None:
        """Wrap the module in place; what is wrapped already stays as it is.

        Args:
            module: what the stack calls.
            plans: of the checkpoint that the training resumes from, if there are any.
        """
        self.module = module
        if "_remat" in module.__dict__:
            return
        file = self.arguments.plan if plans is None else plans
        wrap_in_place(module, self.arguments.budget, plan=file, on_stale="plan", **self.arguments.settings())

    def resume(self, plans: str | os.PathLike[str] | PlanFile) -> None:
        """Take the plans of a checkpoint that is loaded after the module was wrapped; before, there is nothing to plan."""
        if self.module is not None:
            give_plans(self.module, plans, on_stale="plan")

    def plans(self) -> PlanFile | None:
        """What a checkpoint is to hold; None: nothing has been planned yet, or nothing is to be saved."""
        if self.module is None or not self.arguments.save_plans:
            return None
        try:
            return plans_of(self.module)
        except BadArgument:
            return None

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the plans beside a checkpoint."""
        if self.module is not None and self.plans() is not None:
            save_plan(self.module, Path(folder) / PLAN_NAME)

    def check(self) -> None:
        """After the first step: that the module was called at all.

        Raises:
            BadArgument: X-UNUSED, when the step did not call it: something else was trained, without a budget.
        """
        state = None if self.module is None else self.module.__dict__.get("_remat")
        if self.module is not None and state is not None and state.last is None:
            what = f"the training step did not call the {type(self.module).__name__} that has the budget."
            raise BadArgument("X-UNUSED", what, fix="name the module that the step calls.")


def plans_in(folder: str | os.PathLike[str] | None) -> Path | None:
    """The file of plans in the folder of a checkpoint, if there is one."""
    if folder is None:
        return None
    path = Path(folder) / PLAN_NAME
    return path if path.is_file() else None


def warn_of_checkpointing(module: nn.Module, budget: str) -> None:
    """Say that the plan acts, and not the checkpointing that the stack switched on too."""
    what = (
        f"gradient_checkpointing=True is set too: it is switched off for the {type(module).__name__}, and the plan for "
        f"{budget} acts. Leave one of the two out."
    )
    warn(what, RematWarning)


__all__ = ["PLAN_NAME", "Session", "plans_in", "warn_of_checkpointing"]
