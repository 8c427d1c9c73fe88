"""Random numbers as data: draws that take a generator's state and give the next one.

A compiler may order operations anew, and eager's generator would then give other numbers. Here the state is a tensor that goes
from draw to draw, so their order is that of the plan, and each draws what eager's would.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from attrs import define, field

from remat.exec._program.program import Ref
from remat.exec._torch import rng

_calls: dict[str, tuple[Callable[..., Any], Any]] = {}
"""What a draw calls, by its text: the function, and its arguments with tensors as `Ref`s."""


@define(eq=False)
class Draws:
    """The state of a generator on its way through a function that is traced.

    Attributes:
        device: of the generator.
        state: as the last draw left it.
    """

    device: torch.device
    state: torch.Tensor = field(init=False)

    def save(self, _device: torch.device) -> torch.Tensor:
        """In place of `rng.save`."""
        return self.state

    def replay(
        self, _device: torch.device, state: torch.Tensor, call: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        """In place of `rng.replay`; `call` is what `drawing` gave."""
        now, self.state = self.state, state
        try:
            return call(*args, **kwargs)
        finally:
            self.state = now

    def drawing(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        """What stands for a function that draws."""

        def draw(*args: Any, **kwargs: Any) -> Any:
            tensors: list[torch.Tensor] = []
            call = _emptied((args, kwargs), tensors)
            text = f"{self.device} {name} {call}"
            _calls[text] = (function, call)
            *outputs, self.state = _operation()(self.state, tensors, text)
            return tuple(outputs) if len(outputs) > 1 else outputs[0]

        return draw


@functools.cache
def _operation() -> Callable[[torch.Tensor, Sequence[torch.Tensor], str], list[torch.Tensor]]:
    """The operation `remat::draw`: what a function returns with the generator in `state`, and the state after it."""

    def draw(state: torch.Tensor, tensors: Sequence[torch.Tensor], call: str) -> list[torch.Tensor]:
        device = torch.device(call.partition(" ")[0])
        now = rng.save(device)
        rng.restore(device, state)
        try:
            return [*_run(call, tensors), rng.save(device)]
        finally:
            rng.restore(device, now)

    def shapes(state: torch.Tensor, tensors: Sequence[torch.Tensor], call: str) -> list[torch.Tensor]:
        return [*_run(call, tensors), torch.empty_like(state)]

    schema = "(Tensor state, Tensor[] tensors, str call) -> Tensor[]"
    operation = torch.library.custom_op("remat::draw", draw, mutates_args=(), schema=schema)
    operation.register_fake(shapes)
    return operation


def _run(call: str, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    function, emptied = _calls[call]
    args, kwargs = _filled(emptied, tensors)
    result = function(*args, **kwargs)
    return list(result) if isinstance(result, (tuple, list)) else [result]


def _filled(tree: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """Nested arguments with tensors in place of `Ref`s."""
    if isinstance(tree, Ref):
        return tensors[int(tree.name)]
    if isinstance(tree, (tuple, list)):
        return type(tree)(_filled(item, tensors) for item in tree)
    return {key: _filled(item, tensors) for key, item in tree.items()} if isinstance(tree, dict) else tree


def _emptied(tree: Any, tensors: list[torch.Tensor]) -> Any:
    """Nested arguments with `Ref`s in place of tensors, which are appended to `tensors`."""
    if isinstance(tree, torch.Tensor):
        tensors.append(tree)
        return Ref(str(len(tensors) - 1))
    if isinstance(tree, (tuple, list)):
        return type(tree)(_emptied(item, tensors) for item in tree)
    return {key: _emptied(item, tensors) for key, item in tree.items()} if isinstance(tree, dict) else tree


__all__ = ["Draws"]
