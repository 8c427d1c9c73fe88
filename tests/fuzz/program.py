"""From a seed to a random module: its source, and what that source makes."""

import linecache
from collections.abc import Callable

import torch
from attrs import frozen
from torch import nn

from tests.fuzz.blocks import BLOCKS
from tests.fuzz.writer import Writer

HEAD = '''\
"""Random module {seed}: {kind}, batch {batch}, length {length}, width {width}."""

import collections
import dataclasses
import random

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

Output = collections.namedtuple("Output", "loss hidden extras")


@dataclasses.dataclass
class Result:
    loss: torch.Tensor
    hidden: torch.Tensor
    rows: int = 0


class Squash(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.tanh(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return grad * (1 - y * y)


def inputs(step):
    draw = torch.Generator().manual_seed(step)
    lengths = torch.randint(1, {length} + 1, ({batch},), generator=draw)
    mask = torch.arange({length}) < lengths[:, None]
    mask[0] = True
    return {{
        "x": torch.randn({batch}, {length}, {width}, generator=draw).to({dtype}),
        "mask": torch.ones_like(mask) if step % 3 == 2 else mask,
        "ids": torch.randint(0, 10, ({batch}, {length}), generator=draw),
        "target": torch.randn({batch}, {length}, {width}, generator=draw).to({dtype}),
    }}


def squares(value):
    """A loss of everything in an output that requires a gradient."""
    if isinstance(value, torch.Tensor):
        return value.square().mean() if value.requires_grad else 0.0
    if isinstance(value, dict):
        value = list(value.values())
    return sum(squares(part) for part in value) if isinstance(value, (list, tuple)) else 0.0


class Fuzzed(nn.Module):
    def __init__(self):
        super().__init__()
'''
OUTPUTS = (
    ("loss", "out"),
    ("loss", "out"),
    ("(loss, {0})", "out[0]"),
    ('{{"loss": loss, "parts": [{0}, ({1}.detach(), None)], "rows": len(x)}}', 'out["loss"]'),
    ("Output(loss, {0}, [{1}, 3])", "out.loss"),
    ("Result(loss=loss, hidden={0}, rows=len(x))", "out.loss"),
    ("{0}", "squares(out)"),
    ("({0}, {1} * 2)", "squares(out)"),
    ('{{"hidden": {0}, "more": [{1}.mean(1)]}}', "squares(out)"),
)
"""What is returned, and the loss of it."""
SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, None, None)


@frozen(kw_only=True)
class Program:
    """A random module.

    Attributes:
        seed: what it was drawn from.
        kind: type of its parameters and inputs, or "autocast".
        source: the whole of it, readable and runnable.
        share: the budget, as a part of the peak of keeping everything; None: as small as can be.
        build, inputs, loss: what the source makes.
        reserve: for a loss outside the module [bytes]; None: it is inside, or left to the audit of the first step.
        rehearse: whether the plan is tried before the first step.
    """

    seed: int
    kind: str
    source: str
    share: float | None
    build: Callable[[], nn.Module]
    inputs: Callable[[int], dict[str, torch.Tensor]]
    loss: Callable
    reserve: int | None
    rehearse: bool


def program(seed):
    """The random module of a seed."""
    w = Writer(seed)
    for _ in range(w.draw.randint(4, 14)):
        (block,) = w.draw.choices(tuple(BLOCKS), tuple(BLOCKS.values()))
        block(w)
    source, inside = _source(w, seed)
    names, dtype = _run(source, seed), _dtype(w.kind)
    size = w.batch * w.length * w.width * dtype.itemsize
    reserve = None if inside or w.chance(0.3) else 12 * size
    return Program(
        seed=seed,
        kind=w.kind,
        source=source,
        share=w.pick(*SHARES),
        build=lambda: names["Fuzzed"]().to(dtype),
        inputs=names["inputs"],
        loss=names["loss"],
        reserve=reserve,
        rehearse=w.chance(0.3),
    )


def _dtype(kind):
    return torch.float32 if kind == "autocast" else getattr(torch, kind)


def _source(w, seed):
    last = w.value(f"{w.linear()}({w.stream[-1]})")
    result, loss = w.draw.choice(OUTPUTS)
    inside = "loss" in result
    if inside and w.chance(0.4):
        head = w.layer("head", f"nn.Linear({w.width}, 10)")
        w.line(f"loss = functional.cross_entropy({head}({last}).flatten(0, 1), ids.flatten())")
    elif inside:
        w.line(f"loss = functional.mse_loss({last}, target)")
    w.line(f"return {result.format(last, w.draw.choice(w.stream[1:]))}")
    facts = {"seed": seed, "kind": w.kind, "batch": w.batch, "length": w.length, "width": w.width}
    lines = [
        HEAD.format(**facts, dtype=_dtype(w.kind)).rstrip(),
        *w.setup,
        "",
        "    def forward(self, x, mask, ids, target):",
        *w.lines,
        "",
        "",
        "def loss(out):",
        f"    return {loss}",
        "",
    ]
    return "\n".join(lines), inside


def _run(source, seed):
    """Execute a source as a file of its own, so that messages can name its lines."""
    file = f"fuzz_{seed}.py"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    names = {"__name__": f"tests.fuzz.fuzz_{seed}"}
    exec(compile(source, file, "exec"), names)
    return names
