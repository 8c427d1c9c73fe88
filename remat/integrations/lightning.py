"""Lightning: a callback that gives one module of a `LightningModule` a budget."""

from __future__ import annotations

from typing import Any

import lightning.pytorch
from torch import nn

from remat.errors import BadArgument
from remat.integrations.arguments import RematArguments, arguments_of
from remat.integrations.session import Session
from remat.ir import parse_plans, print_plans


class RematLightningCallback(lightning.pytorch.Callback):
    """Trains within a budget: `Trainer(callbacks=[RematLightningCallback(budget="6GiB")])`.

    The module that the training step calls is wrapped in place before the strategy takes the model, and its first batch is
    planned. What the step computes with the outputs is a loss outside: it is audited in the first step. Plans travel in
    checkpoints.

    Args:
        budget: as of `remat.exec.wrap`, or a whole set of arguments.
        module: path of the module that `training_step` calls, "model" say; "" for the `LightningModule` itself, whose `forward`
            is then what is planned. None: its only child with parameters that are trained.
        settings: other fields of `RematArguments`.
    """

    def __init__(self, budget: str | int | RematArguments, module: str | None = None, **settings: Any) -> None:
        self.session = Session(arguments_of(budget, settings))
        self.path = module

    def setup(
        self, trainer: lightning.pytorch.Trainer, pl_module: lightning.pytorch.LightningModule, stage: str
    ) -> None:
        """Wrap the module."""
        if stage == "fit":
            self.session.begin(module_at(pl_module, self.path))

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """See that the step ran what was wrapped."""
        self.session.check()

    def state_dict(self) -> dict[str, Any]:
        """The plans, for a checkpoint."""
        plans = self.session.plans()
        return {} if plans is None else {"plans": print_plans(plans)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The plans of a checkpoint."""
        if "plans" in state_dict:
            self.session.resume(parse_plans(state_dict["plans"]))


def module_at(root: nn.Module, path: str | None) -> nn.Module:
    """A module by its path, or the only child with parameters that are trained.

    Raises:
        BadArgument: X-MODULE-PATH, when there is none, or more than one.
    """
    if path is not None:
        try:
            return root.get_submodule(path)
        except AttributeError as error:
            fix = "give a path as `named_modules` has it."
            raise BadArgument("X-MODULE-PATH", f"{type(root).__name__} has no module {path!r}.", fix=fix) from error
    trained = [name for name, child in root.named_children() if any(p.requires_grad for p in child.parameters())]
    if len(trained) != 1 or any(p.requires_grad for p in root.parameters(recurse=False)):
        what = f"{type(root).__name__} has {len(trained)} children with parameters that are trained ({', '.join(trained)})."
        fix = 'say which of them the step calls, module="model" say, or module="" for all.'
        raise BadArgument("X-MODULE-PATH", what, fix=fix)
    return root.get_submodule(trained[0])


__all__ = ["RematLightningCallback", "module_at"]
