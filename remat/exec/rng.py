"""Random numbers: what a generator's state weighs, and how a replay of an operation draws the same numbers again.

A state is saved where a node that is replayed draws first; a replay sets it, runs, and puts the current state back, so that after
the step the generator stands where the bare module would have left it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

CPU_STATE = 5056
"""Bytes of a CPU generator's saved state. A CUDA generator's 16 bytes live on the host and cost the device nothing."""


def state_bytes(device: torch.device) -> int:
    """Device bytes of one saved generator state."""
    return CPU_STATE if device.type == "cpu" else 0


def save(device: torch.device) -> torch.Tensor:
    """The state of the device's default generator."""
    return torch.get_rng_state() if device.type == "cpu" else torch.cuda.get_rng_state(device)


def restore(device: torch.device, state: torch.Tensor) -> None:
    """Set the state of the device's default generator."""
    if device.type == "cpu":
        torch.set_rng_state(state)
    else:
        torch.cuda.set_rng_state(state, device)


def replay(device: torch.device, state: torch.Tensor, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Run `call` with the generator in `state`; the generator is afterwards as it was before."""
    now = save(device)
    restore(device, state)
    try:
        return call(*args, **kwargs)
    finally:
        restore(device, now)


@contextmanager
def kept(device: torch.device) -> Iterator[None]:
    """Put the generators of the host and of a device back at the end."""
    states = {place: save(place) for place in {torch.device("cpu"), device}}
    try:
        yield
    finally:
        for place, state in states.items():
            restore(place, state)
