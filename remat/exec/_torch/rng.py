"""Random numbers: what a generator's state weighs, and how a replay of an operation draws the same numbers again.

A state is saved where a node that is replayed draws first; a replay sets it, runs, and puts the current state back, so that after
the step the generator stands where the bare module would have left it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from remat.exec._torch.torch_private import OpOverload

CPU_STATE = 5056
"""Bytes of a CPU generator's saved state. A CUDA generator's 16 bytes live on the host and cost the device nothing."""


def draws(target: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call advances the generator: the operation says so, and it is not an attention with dropout at zero."""
    if torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    for i, argument in enumerate(target._schema.arguments):
        if argument.name == "dropout_p":
            return (args[i] if i < len(args) else kwargs.get("dropout_p", argument.default_value)) != 0
        if argument.name == "train" and i < len(args):
            return args[i] is not False
    return True


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


def generators() -> tuple[torch.Generator, ...]:
    """Torch's default generators on every device in use."""
    on_devices = torch.cuda.is_available() and torch.cuda.is_initialized()
    return (torch.default_generator, *(torch.cuda.default_generators if on_devices else ()))


@contextmanager
def kept() -> Iterator[None]:
    """Restore all generators at the end: torch's on every device in use, Python's and numpy's."""
    states = [(generator, generator.get_state()) for generator in generators()]
    python, numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        for generator, state in states:
            generator.set_state(state)
        random.setstate(python)
        np.random.set_state(numpy)


def others() -> dict[str, Any]:
    """States of the generators that belong to Python and numpy, which no plan replays, in a form that compares."""
    legacy: Any = np.random.get_state()  # a tuple here, by numpy's types perhaps a dict
    name, keys, *rest = legacy
    return {"random": random.getstate(), "numpy.random": (name, keys.tobytes(), *rest)}
