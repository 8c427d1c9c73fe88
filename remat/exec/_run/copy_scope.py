"""The two generated functions of a plan with copies, called as those of a plan without: each step has copies, and ends them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from remat.exec._copy.copies import Copier

Tensors = tuple[torch.Tensor, ...]
Forward = Callable[[Tensors], tuple[Tensors, Tensors, list[Any]]]
Gradients = tuple[torch.Tensor | None, ...]
Backward = Callable[[Tensors, Tensors, Gradients, list[Any]], Gradients]


def with_copies(copier: Copier, forward: Callable[..., Any], backward: Callable[..., Any]) -> tuple[Forward, Backward]:
    """Functions that begin the copies of a step and end them, whatever happens.

    From the forward to the backward a step's copies are the last of its activations: a step whose backward never runs
    drops them, and they end then.

    Args:
        copier: begins the copies of each step.
        forward: generated; its last argument is the step's copies.
        backward: likewise.
    """

    @functools.wraps(forward)
    def run_forward(primals: Tensors) -> tuple[Tensors, Tensors, list[Any]]:
        copies = copier.begin()
        try:
            outputs, read_outputs, activations = forward(primals, copies)
        except BaseException:
            copies.abort()
            raise
        return outputs, read_outputs, [*activations, copies]

    @functools.wraps(backward)
    def run_backward(
        loose: Tensors, saved: Tensors, tangents: Gradients, activations: list[Any]
    ) -> tuple[torch.Tensor | None, ...]:
        copies = activations.pop()
        try:
            copies.resume()
            gradients: tuple[torch.Tensor | None, ...] = backward(loose, saved, tangents, activations, copies)
        except BaseException:
            copies.abort()
            raise
        copies.close()
        return gradients

    return run_forward, run_backward


__all__ = ["with_copies"]
