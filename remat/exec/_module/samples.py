"""Samples: what users give in place of a call."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from remat.errors import BadArgument


def call_of(sample: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments from a sample."""
    if isinstance(sample, torch.Tensor):
        return (sample,), {}
    if isinstance(sample, Mapping):
        return (), dict(sample)
    if isinstance(sample, (tuple, list)):
        return tuple(sample), {}
    fix = "give a tensor, a tuple of arguments or a mapping of keyword arguments."
    raise BadArgument("X-ARG", f"a sample of type {type(sample).__name__} is not a call.", fix=fix)


def samples_of(samples: Any, place: str) -> list[Any]:
    """Several samples, each of which is a call.

    Args:
        samples: what was given.
        place: function and argument, for the message.

    Raises:
        BadArgument: X-ARG.
    """
    several = isinstance(samples, Iterable) and not isinstance(samples, (torch.Tensor, Mapping, str, nn.Module))
    listed = list(samples) if several else []
    if not listed:
        what = "there are no samples" if several else f"{samples!r:.80} is no list of calls"
        raise BadArgument("X-ARG", f"{place}: {what}.", fix="give a list of calls, each as `sample` of `wrap`.")
    for sample in listed:
        call_of(sample)
    return listed


@contextlib.contextmanager
def in_training(module: nn.Module) -> Iterator[None]:
    """As in training, whatever mode the module is in; the mode is put back."""
    if module.training:
        yield
        return
    modes = [(inner, inner.training) for inner in module.modules()]
    for inner, _ in modes:
        inner.training = True
    try:
        yield
    finally:
        for inner, mode in modes:
            inner.training = mode


__all__ = ["call_of", "in_training", "samples_of"]
