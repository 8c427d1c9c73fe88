"""`prepare`: plans for the shapes of a training before it starts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from remat.exec._module.plans import Plans
from remat.exec._module.preparation import Preparation, ShapeFit, prepare_all
from remat.exec._module.state import state_of


def prepare(
    model: nn.Module, samples: Iterable[Any], *, progress: bool | Callable[[ShapeFit], None] | None = None
) -> Preparation:
    """Plan every shape that a training will meet, and say which have no plan within the budget.

    The largest is planned first, so that the plans of the others come from it in tenths of a second where their operations are
    the same. Nothing is trained: parameters, buffers, gradients and random numbers are as before. Processes of a group prepare
    the same samples in the same order.

    Args:
        model: what `wrap` returned.
        samples: calls, each a tensor, a tuple of arguments or a mapping of keyword arguments; of each combination of shapes one
            is enough. A budget that is a share still refers to the first of them where nothing was planned before.
        progress: a bar on the error stream: None: if that is a terminal; True: in any case; False: none; or a function that is
            called with each `ShapeFit`.

    Returns:
        What was found; `Preparation.check()` raises where something does not fit. Shapes beyond `most_plans` are planned again in
        training, from the plans of the others.

    Raises:
        BadArgument: X-REPORT, when the module is not wrapped; X-ARG, when there are no samples.
        Uncapturable: a step cannot be captured, and may not run otherwise.
    """
    state = state_of(model)
    assert isinstance(state, Plans)
    return prepare_all(state, model, samples, progress)


__all__ = ["Preparation", "ShapeFit", "prepare"]
