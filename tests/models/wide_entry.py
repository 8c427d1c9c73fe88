"""How an entry of the wide zoo becomes a factory of one training step that is captured without weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from tests.models.model import Call, Loss, Model


class Step(nn.Module):
    """A module with its loss: a training step that returns the loss alone."""

    def __init__(self, module: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.module, self.loss = module, loss

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.loss(self.module(*args, **kwargs))


def step_of(model: Model) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """What `capture_without_weights` takes of an entry: its step in training mode, arguments, keyword arguments."""
    call = model.call()
    return Step(model.factory(), model.loss).train(), call.args, call.kwargs


def alone(name: str, factory: Callable[[], nn.Module], call: Callable[[], Call], loss: Loss, *tags: str) -> Model:
    """An entry that needs torch alone."""
    return Model(name=f"torch-{name}", factory=factory, call=call, loss=loss, tags=frozenset(("torch", *tags)))
