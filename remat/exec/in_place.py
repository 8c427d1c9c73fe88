"""Wrapping a module in place: for stacks that hold the module already, under a DDP or a compiled module, say."""

from __future__ import annotations

import os
from typing import Any

from torch import nn

from remat.errors import BadArgument
from remat.exec._module.calls import Wrapped
from remat.exec._module.saved import saved_plans
from remat.exec._module.state import state_of
from remat.exec.wrapping import become_bare, become_wrapped, wrap
from remat.ir import PlanFile


def wrap_in_place(model: nn.Module, budget: int | str | None = None, **settings: Any) -> nn.Module:
    """Make the module itself what `wrap` would return; its first training call is planned.

    Args:
        model: any module. It stays the same object; its class becomes one derived from it, of the same name.
        budget: as of `wrap`.
        settings: all other keyword arguments of `wrap`.

    Returns:
        The module.

    Raises:
        BadArgument: X-ARG, also for a `sample`.
    """
    if "sample" in settings:
        what = "wrap_in_place: sample is given; the first training call is planned."
        raise BadArgument("X-ARG", what, fix="leave it out, or give shapes=[sample].")
    wrapped = wrap(model, None, budget, **settings)
    if wrapped is not model:
        become_wrapped(model, wrapped.__dict__["_remat"])
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
    become_bare(model)
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
