"""Wrapping a module in place: for stacks that hold the module already, under a DDP or a compiled module, say."""

from __future__ import annotations

import os
from typing import Any

from torch import nn

from remat.errors import BadArgument
from remat.exec._module.calls import INSTANCE_FORWARD, Wrapped
from remat.exec._module.saved import saved_plans
from remat.exec._module.state import state_of
from remat.exec.wrapping import wrap
from remat.ir import PlanFile


def wrap_in_place(model: nn.Module, budget: int | str | None = None, **settings: Any) -> nn.Module:
    """Make the module itself what `wrap` would return; its first training call is planned.

    Args:
        model: any module. It stays the same object; its class becomes one derived from it, of the same name.
        budget: as of `wrap`.
        settings: all other keyword arguments of `wrap`.

    Returns:
        The module.
    """
    wrapped = wrap(model, None, budget, **settings)
    forward = model.__dict__.pop("forward", None)
    model.__dict__.pop("_compiled_call_impl", None)
    model.__class__ = type(wrapped)
    model.__dict__["_remat"] = wrapped.__dict__["_remat"]
    if forward is not None:  # set on the instance, by a stack: it is what will be planned
        model.forward = forward
    return model


def unwrap(model: nn.Module) -> nn.Module:
    """Make a module that was wrapped in place what it was; its plans are forgotten.

    Raises:
        BadArgument: X-ARG, when the module is not wrapped.
    """
    if not isinstance(model, Wrapped):
        raise BadArgument(
            "X-ARG", f"unwrap: the module is a {type(model).__name__}, not a wrapped one.", fix="wrap it."
        )
    if type(model).__mro__[1] is not Wrapped:
        what = (
            f"unwrap: the class of the module was changed after it was wrapped, to {type(model).__mro__[0].__name__}."
        )
        raise BadArgument("X-ARG", what, fix="unwrap before `fully_shard`.")
    del model.__dict__["_remat"]
    forward = model.__dict__.pop(INSTANCE_FORWARD, None)
    model.__dict__.pop("forward", None)
    model.__class__ = type(model).__mro__[2]
    if forward is not None:
        model.__dict__["forward"] = forward
    return model


def give_plans(model: nn.Module, plan: str | os.PathLike[str] | PlanFile, on_stale: str = "raise") -> None:
    """Have a wrapped module run plans of a file, from the next step on that it has no plan for.

    Args:
        model: what `wrap` returned, or what was wrapped in place.
        plan: plans of a file, as of `wrap`.
        on_stale: as of `wrap`.

    Raises:
        BadArgument: X-ARG, when the module is not wrapped; StalePlan and MalformedFile as of `wrap`.
    """
    state_of(model, "X-ARG").saved = saved_plans(plan, on_stale)


__all__ = ["give_plans", "unwrap", "wrap_in_place"]
