"""Hugging Face's Trainer, and what derives from it (TRL's SFTTrainer): a callback, or a trainer with an argument more."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from torch import nn
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from remat.integrations.arguments import RematArguments, arguments_of
from remat.integrations.session import Session, plans_in, warn_of_checkpointing


class RematCallback(TrainerCallback):
    """Trains within a budget: `Trainer(…, callbacks=[RematCallback(budget="6GiB")])`.

    The model is wrapped in place when training begins, after the trainer has prepared it, and its first batch is planned. Plans
    are saved with checkpoints and found again when training resumes. Where `gradient_checkpointing=True` is set too, the plan
    acts, and a warning says so.

    Args:
        budget: as of `remat.exec.wrap`, or a whole set of arguments.
        settings: other fields of `RematArguments`.
    """

    def __init__(self, budget: str | int | RematArguments, **settings: Any) -> None:
        self.session = Session(arguments_of(budget, settings))
        self.resumed_from: str | Path | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Wrap the model."""
        model: nn.Module = kwargs["model"]
        if args.gradient_checkpointing:
            warn_of_checkpointing(model, self.session.arguments.budget)
            _disable_checkpointing(model)
        arguments = self.session.arguments
        if arguments.differentiable == "auto" and type(args).__module__.startswith("trl."):
            self.session.arguments = dataclasses.replace(arguments, differentiable="all")
        self.session.begin(model, plans_in(self._resumed(args, state)))

    def _resumed(self, args: TrainingArguments, state: TrainerState) -> Path | None:
        """Folder of the checkpoint that training goes on from."""
        if state.global_step == 0:
            return None
        if isinstance(args.resume_from_checkpoint, str):
            return Path(args.resume_from_checkpoint)
        return Path(self.resumed_from or Path(args.output_dir) / f"checkpoint-{state.global_step}")

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """See that the step ran what was wrapped."""
        self.session.check()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Save the plans with the checkpoint."""
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if state.is_world_process_zero and folder.is_dir():
            self.session.save(folder)


def _disable_checkpointing(model: nn.Module) -> None:
    """What the trainer switched on: the checkpointing, and the hook on the embedding that it asks for."""
    name = "activation_checkpointing_disable"  # the older name is deprecated from transformers 5.23 on
    getattr(model, name if hasattr(model, name) else "gradient_checkpointing_disable")()
    if hasattr(model, "_require_grads_hook"):
        model.disable_input_require_grads()  # type: ignore[operator]


class RematTrainerMixin:
    """Gives a trainer the argument `remat`: `class MyTrainer(RematTrainerMixin, SFTTrainer): …`.

    Args:
        remat: how to plan; None: the trainer is as without the mixin.
        args, kwargs: of the trainer.
    """

    def __init__(self, *args: Any, remat: RematArguments | str | int | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.remat_callback = None if remat is None else RematCallback(remat)
        if self.remat_callback is not None:
            self.add_callback(self.remat_callback)  # type: ignore[attr-defined]

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """As the trainer's, with the plans of the checkpoint."""
        if self.remat_callback is not None and isinstance(resume_from_checkpoint, str):
            self.remat_callback.resumed_from = resume_from_checkpoint
        return super().train(resume_from_checkpoint, *args, **kwargs)  # type: ignore[misc]


class RematTrainer(RematTrainerMixin, Trainer):
    """`transformers.Trainer` with a budget: `RematTrainer(model, args, …, remat=RematArguments(budget="6GiB"))`."""


__all__ = ["RematCallback", "RematTrainer", "RematTrainerMixin"]
