"""What an entry of the catalogue is: a module and one training call of it, tiny, from a seed, in the type asked for."""

from __future__ import annotations

import contextlib
import inspect
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy
import torch
from attrs import field, frozen
from torch import Tensor, nn

Loss = Callable[[Any], Tensor]
TYPES = (torch.float32, torch.float64, torch.bfloat16)


@frozen
class Call:
    """Arguments of one training call."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(factory=dict)


@frozen
class Built:
    """A model that can be trained: `loss(module(*args, **kwargs)).backward()`.

    Attributes:
        module: in training mode, with the dropout that its own package gives it by default.
        args: positional arguments of one training call.
        kwargs: keyword arguments of that call.
        loss: from what the module returns to a 0-dim loss.
    """

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    loss: Loss

    def named(self) -> dict[str, Any]:
        """The same call by keyword alone."""
        bound = inspect.signature(self.module.forward).bind(*self.args, **self.kwargs)
        return bound.arguments.pop("kwargs", {}) | bound.arguments


@frozen(kw_only=True)
class Model:
    """An entry of the catalogue.

    Attributes:
        name: the package's prefix and the model, as in `hf-gpt2`; unique.
        factory: makes the module; weights follow the global generator of torch.
        call: makes the arguments of one training call, from the same generator.
        loss: from what the module returns to a 0-dim loss: `returned_loss` where the module computes it, else how its users do.
        types: the floating-point types in which its own package runs it on a CPU.
        tags: what the model is (`causal`, `vision`, …) and what is special in its call (`padded`, `cache`, `data-dependent`, …).
    """

    name: str
    factory: Callable[[], nn.Module]
    call: Callable[[], Call]
    loss: Loss
    tags: frozenset[str]
    types: tuple[torch.dtype, ...] = TYPES

    @property
    def loss_inside(self) -> bool:
        """Whether the module returns its loss."""
        return self.loss is returned_loss

    def build(self, dtype: torch.dtype = torch.float32, seed: int = 0) -> Built:
        """The module and its call from a seed; every floating-point tensor of a type; all generators as before."""
        with seeded(seed):
            module, call = self.factory(), self.call()
        return Built(module.to(dtype).train(), cast(call.args, dtype), cast(call.kwargs, dtype), self.loss)


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Start the generators of torch, Python and numpy from a seed; put them back at the end."""
    states = torch.get_rng_state(), random.getstate(), numpy.random.get_state()
    seed_all(seed)
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        numpy.random.set_state(states[2])


def seed_all(seed: int) -> None:
    """Start the generators of torch, Python and numpy from a seed."""
    torch.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed)


def cast(value: Any, dtype: torch.dtype) -> Any:
    """The same nested arguments with floating-point tensors of a type; integers, masks and plain values stay."""
    if isinstance(value, Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, Mapping):
        return {key: cast(inner, dtype) for key, inner in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(cast(inner, dtype) for inner in value)
    return value


# -- losses ----------------------------------------------------------------------------------------------------------------


def returned_loss(out: Any) -> Tensor:
    """The loss that a module returns: alone, as the attribute or entry `loss`, or first in a tuple."""
    if isinstance(out, Tensor):
        return out
    if isinstance(out, tuple):
        return out[0]
    return out["loss"] if isinstance(out, Mapping) else out.loss


def classified(out: Any) -> Tensor:
    """Cross-entropy of the first output, its classes in the last dimension, against fixed classes."""
    scores = first_tensor(out)
    scores = scores.reshape(-1, scores.shape[-1])
    return nn.functional.cross_entropy(scores, torch.arange(scores.shape[0]) % scores.shape[-1])


def regressed(out: Any) -> Tensor:
    """Mean square error of the first output against a fixed wave."""
    values = first_tensor(out)
    wave = torch.linspace(0, 10, values.numel(), dtype=values.dtype).sin().view(values.shape)
    return nn.functional.mse_loss(values, wave)


def summed(out: Any) -> Tensor:
    """The sum of a mapping of losses, as detectors return them."""
    return torch.stack(list(out.values())).sum()


def first_tensor(out: Any) -> Tensor:
    """The output itself, or the first of several: an entry, or the attribute that diffusers calls `sample`."""
    if isinstance(out, Tensor):
        return out
    return out.sample if hasattr(out, "sample") else out[0]
