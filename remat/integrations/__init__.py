"""Training stacks that plan by one line: Hugging Face's Trainer (TRL's too), Lightning, Accelerate.

Each stack is imported when its name is first asked for. All plan at the first real batch, so that precision, devices,
accumulation and what the stack adds to a call are as in training.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from remat._lazy import lazy

if TYPE_CHECKING:
    from remat.integrations.accelerate import with_budget
    from remat.integrations.arguments import RematArguments
    from remat.integrations.huggingface import RematCallback, RematTrainer, RematTrainerMixin
    from remat.integrations.lightning import RematLightningCallback

__all__ = [
    "RematArguments",
    "RematCallback",
    "RematLightningCallback",
    "RematTrainer",
    "RematTrainerMixin",
    "with_budget",
]

if not TYPE_CHECKING:
    _WHERE = {
        "RematArguments": "remat.integrations.arguments:RematArguments",
        "RematCallback": "remat.integrations.huggingface:RematCallback",
        "RematTrainer": "remat.integrations.huggingface:RematTrainer",
        "RematTrainerMixin": "remat.integrations.huggingface:RematTrainerMixin",
        "RematLightningCallback": "remat.integrations.lightning:RematLightningCallback",
        "with_budget": "remat.integrations.accelerate:with_budget",
    }
    __getattr__, __dir__ = lazy(__name__, _WHERE)
