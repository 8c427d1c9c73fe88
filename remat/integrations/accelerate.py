"""Accelerate: plans in the checkpoints of `save_state`, and found again by `load_state`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from accelerate import Accelerator
from torch import nn

from remat.integrations.arguments import RematArguments, arguments_of
from remat.integrations.session import Session, plans_in


def with_budget(
    accelerator: Accelerator, model: nn.Module, budget: str | int | RematArguments, **settings: Any
) -> nn.Module:
    """Wrap a model in place, and have its plans saved and loaded with the accelerator's state.

    Args:
        accelerator: whose `save_state` and `load_state` are to take the plans along.
        model: bare, before or after `accelerator.prepare`; what is prepared is unwrapped first.
        budget: as of `remat.exec.wrap`, or a whole set of arguments.
        settings: other fields of `RematArguments`.

    Returns:
        The model that was given.
    """
    session = Session(arguments_of(budget, settings))
    session.begin(accelerator.unwrap_model(model, keep_torch_compile=False))

    def save(models: list[nn.Module], weights: list[dict[str, Any]], folder: str) -> None:
        if accelerator.is_main_process:
            Path(folder).mkdir(parents=True, exist_ok=True)
            session.save(folder)

    def load(models: list[nn.Module], folder: str) -> None:
        path = plans_in(folder)
        if path is not None:
            session.resume(path)

    accelerator.register_save_state_pre_hook(save)
    accelerator.register_load_state_pre_hook(load)
    return model


__all__ = ["with_budget"]
