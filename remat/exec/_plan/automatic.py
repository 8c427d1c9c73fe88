"""`budget="auto"`: what the device has free now, less what the optimizer will take; see docs/decisions/0025-auto-budget.md."""

from __future__ import annotations

import logging

from torch import nn
from torch.optim import Optimizer

from remat.errors import BadArgument, RematError
from remat.exec._cost.optimizers import Maker, optimizer_memory, states_now
from remat.exec._torch.cuda_memory import GRANULE
from remat.exec._torch.memory_now import free_memory
from remat.units import Bytes, format_bytes

AUTO = "auto"
LEFT = 20
"""The 20th part of what is free is left: blocks that the allocator cannot fill, and what other code takes."""

logger = logging.getLogger(__name__)


def auto_budget(model: nn.Module, optimizer: str | Maker | Optimizer | None) -> Bytes:
    """What a step of `model` may hold above what lives now, for its optimizer to find room too.

    Args:
        model: on the device where it will be trained.
        optimizer: as for `remat.estimate`; "none": none, or one whose states will not grow.

    Raises:
        BadArgument: X-ARG, where no optimizer is named; X-OPTIMIZER.
        RematError: X-MEMORY, where the model is on no or on several devices, where the device does not say what it has free,
            or where the optimizer alone finds no room.
    """
    if optimizer is None:
        fix = 'give optimizer=…: yours, a class, a name as "adamw", or "none" where its states are there already.'
        raise BadArgument("X-ARG", 'wrap: budget="auto" depends on the optimizer, and there is none.', fix=fix)
    devices = {tensor.device for tensor in (*model.parameters(), *model.buffers()) if tensor.numel()}
    if len(devices) != 1:
        names = ", ".join(sorted(map(str, devices))) or "no device"
        raise RematError(
            "X-MEMORY", f"the model lies on {names}.", fix="put it on one device, or give the budget in bytes."
        )
    (device,) = devices
    free = free_memory(device)
    parameters = dict(model.named_parameters())
    trained = {path: parameter for path, parameter in parameters.items() if parameter.requires_grad}
    taken = optimizer_memory(optimizer, parameters, trained=trained, granule=None if device.type == "cpu" else GRANULE)
    states = taken.states - (states_now(optimizer) if isinstance(optimizer, Optimizer) else 0)
    budget = free - free // LEFT - max(0, states)
    gradients = sum(parameter.nbytes for parameter in trained.values() if parameter.grad is None)
    least = gradients + taken.scratch
    if budget < least:
        what = (
            f"{format_bytes(free)} are free on {device}, {taken.name} will keep {format_bytes(states)} and its step needs "
            f"{format_bytes(least)} with the gradients."
        )
        raise RematError("X-MEMORY", what, fix="take an optimizer that needs less, or a larger device.")
    logger.info("budget: %d B of %d B free on %s, %d B left for %s", budget, free, device, states, taken.name)
    return budget


__all__ = ["AUTO", "auto_budget"]
