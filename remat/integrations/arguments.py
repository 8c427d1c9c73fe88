"""What a training script says of its budget: a dataclass of plain values, as `HfArgumentParser` reads them."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass
class RematArguments:
    """How a stack plans; the names and values of `remat.exec.wrap`.

    Attributes:
        budget: most bytes a training step may hold above what lived before it: `"6GiB"`, `"40%"`, `"4096"`.
        seconds: deadline of each planning [s]; None: none.
        plan: a file of plans to begin with; None: that of the checkpoint which the training resumes from, if it has one.
        save_plans: whether plans are saved with checkpoints.
        on_infeasible: where no plan within the budget is found: "raise", or "best".
        on_uncapturable: where the step cannot be captured: "raise", "dtr" (within the budget, without a plan), or "bare"; None:
            the default of `wrap`.
        differentiable: "auto", "loss" or "all": through which outputs gradients come back; TRL's trainers compute their loss
            of several, so that there "auto" means "all".
        loss_reserve: what a loss outside the model may hold, `"64MiB"` say; None: audited.
        cost: "measure" or "estimate".
        rehearse: whether each new plan is tried before its first step.
    """

    budget: str = dataclasses.field(metadata={"help": 'Most bytes of a training step, e.g. "6GiB" or "40%".'})
    seconds: float | None = dataclasses.field(default=None, metadata={"help": "Deadline of each planning."})
    plan: str | None = dataclasses.field(default=None, metadata={"help": "File of plans to begin with."})
    save_plans: bool = dataclasses.field(default=True, metadata={"help": "Save plans with checkpoints."})
    on_infeasible: str = dataclasses.field(default="raise", metadata={"help": "raise, or best."})
    on_uncapturable: str | None = dataclasses.field(
        default=None, metadata={"help": "raise, dtr, or bare; by default dtr."}
    )
    differentiable: str = dataclasses.field(default="auto", metadata={"help": "auto, loss or all."})
    loss_reserve: str | None = dataclasses.field(default=None, metadata={"help": 'Bytes of a loss outside, "64MiB".'})
    cost: str = dataclasses.field(default="measure", metadata={"help": "measure, or estimate."})
    rehearse: bool = dataclasses.field(default=True, metadata={"help": "Try each new plan before its first step."})

    def settings(self) -> dict[str, Any]:
        """Keyword arguments of `wrap`, but budget and plan."""
        names = ("seconds", "on_infeasible", "on_uncapturable", "differentiable", "loss_reserve", "cost", "rehearse")
        return {name: getattr(self, name) for name in names}


def arguments_of(budget: str | int | RematArguments, settings: dict[str, Any]) -> RematArguments:
    """The arguments of an integration, from its budget or from a whole set of them."""
    if isinstance(budget, RematArguments):
        return dataclasses.replace(budget, **settings)
    return RematArguments(budget=str(budget), **settings)
