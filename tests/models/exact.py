"""Training steps compared to the last bit: loss, whatever is returned, gradients, parameters, buffers and three generators."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy
import torch
from attrs import frozen
from torch import Tensor, nn

from tests.models.model import Loss, seed_all, seeded

STEPS = 3
PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


@frozen
class Leaf:
    """Something compared: a tensor's copy, or a plain value."""

    path: str
    value: Any


Trace = tuple[dict[str, Leaf], ...]
"""By path what each step left."""


def train(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], loss: Loss, *, seed: int = 0) -> Trace:
    """Three steps of AdamW, all generators from a seed; the generators are put back."""
    optimizer = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], lr=1e-3)
    trace = []
    with seeded(seed):
        seed_all(seed)
        for _ in range(STEPS):
            optimizer.zero_grad()
            out = module(*args, **kwargs)
            value = loss(out)
            value.backward()
            grads = {name: p.grad for name, p in module.named_parameters()}
            optimizer.step()
            left = {"loss": value, "out": out, "grad": grads, "param": dict(module.named_parameters())}
            left |= {"buffer": dict(module.named_buffers()), "random": _generators()}
            trace.append({leaf.path: leaf for leaf in leaves_of(left, "", set())})
    return tuple(trace)


def _generators() -> dict[str, Any]:
    kind, keys, *rest = numpy.random.get_state()
    return {
        "torch": torch.get_rng_state(),
        "python": repr(random.getstate()),
        "numpy": [kind, torch.from_numpy(keys.astype("int64")), *rest],
    }


def leaves_of(value: Any, path: str, inside: set[int]) -> Iterator[Leaf]:
    """The tensors and plain values in nested containers and objects (caches, dataclasses), and the classes of these.

    Args:
        value: what to take apart.
        path: where it is.
        inside: ids of the objects around it, so that a circle ends.
    """
    if isinstance(value, Tensor):
        yield Leaf(path, value.detach().clone())
        return
    if isinstance(value, PLAIN):
        yield Leaf(path, value)
        return
    yield Leaf(f"{path}:class", type(value).__qualname__)
    if id(value) in inside or isinstance(value, type):
        return
    if isinstance(value, Mapping):
        items = [(f"{path}.{key}" if path else str(key), inner) for key, inner in value.items()]
    elif isinstance(value, (tuple, list)):
        items = [(f"{path}[{at}]", inner) for at, inner in enumerate(value)]
    else:
        items = [(f"{path}.{name}", inner) for name, inner in getattr(value, "__dict__", {}).items()]
    for where, inner in items:
        yield from leaves_of(inner, where, inside | {id(value)})


def differences(expected: Trace, got: Trace) -> list[str]:
    """What is not the same to the last bit, in words, a line each; empty: all is."""
    lines = []
    for at, (before, after) in enumerate(zip(expected, got, strict=True)):
        for path in sorted(before.keys() | after.keys()):
            if path not in before or path not in after:
                lines.append(f"step {at}: {path} {'missing' if path in before else 'is new'}")
            elif (why := _difference(before[path].value, after[path].value)) is not None:
                lines.append(f"step {at}: {path} {why}")
    return lines


def _difference(expected: Any, got: Any) -> str | None:
    """How two leaves differ."""
    if not isinstance(expected, Tensor) or not isinstance(got, Tensor):
        return None if type(expected) is type(got) and expected == got else f"is {got!r:.80}, not {expected!r:.80}"
    if (expected.shape, expected.dtype) != (got.shape, got.dtype):
        return f"is {got.dtype} {tuple(got.shape)}, not {expected.dtype} {tuple(expected.shape)}"
    if torch.equal(_bits(expected), _bits(got)):
        return None
    if torch.equal(expected, got):
        return "differs in the signs of zeros"
    if not expected.is_floating_point():
        return f"differs in {int((expected != got).sum())} of {expected.numel()} entries"
    return f"off by {float((expected - got).abs().max() / expected.abs().max()):.3g} of its largest entry"


def _bits(tensor: Tensor) -> Tensor:
    """The bytes of a tensor; for complex and floating-point numbers equal bytes mean the same number, NaN included."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)
