"""Tensors from outside that the backward of a module writes: a planned backward gives gradients, and writes nothing else."""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from remat.errors import Uncapturable

Role = tuple[str, Any]
"""("param" or "buffer", path) or ("input", position)."""
WRITE_ELSEWHERE = "write it in the forward, or in a hook of the wrapped module or of its parameters."
_KINDS = {"param": "parameter", "buffer": "buffer", "input": "input"}


def refuse_written(roles: Iterable[Role]) -> None:
    """Refuse a step whose backward writes the tensors of some roles.

    Raises:
        Uncapturable: X-STATE, where there are any.
    """
    for role in roles:
        raise Uncapturable("X-STATE", backward_write(_described(role)), fix=WRITE_ELSEWHERE)


def backward_write(tensor: str) -> str:
    """What is wrong about it, in words."""
    return f"the backward writes {tensor} (a hook does, or an autograd function), which a planned backward would not."


def refuse_written_again(role: Role, where: str) -> None:
    """Refuse a checkpoint that writes the tensor of a role: the bare module does so in the forward and in the backward.

    Raises:
        Uncapturable: X-STATE.
    """
    what = f"a checkpoint writes {_described(role)}, and again when it runs in the backward; a planned step writes it once."
    raise Uncapturable("X-STATE", what, fix=f"leave out torch.utils.checkpoint: {_RECOMPUTES}", where=where)


def refuse_drawn_again(where: str) -> None:
    """Refuse a draw within a checkpoint that does not put the generator back: the bare module draws others in the backward.

    Raises:
        Uncapturable: X-RANDOM.
    """
    if _redraws():
        what = "a checkpoint with preserve_rng_state=False draws numbers, and others in the backward; a planned step draws once."
        fix = f"give it preserve_rng_state=True, or leave out torch.utils.checkpoint: {_RECOMPUTES}"
        raise Uncapturable("X-RANDOM", what, fix=fix, where=where)


_RECOMPUTES = "the plan itself recomputes what it has to."


def in_checkpoint() -> bool:
    """Whether what runs belongs to a checkpoint, which a trace looks through: it runs its forward once."""
    return _packing() is not None


def _packing() -> Any:
    """What the innermost checkpoint around what runs calls with each tensor that is saved; None: there is none."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return hooks[0] if hooks is not None and hooks[0].__module__ == checkpoint.__module__ else None


def _redraws() -> bool:
    """Whether what runs belongs to a checkpoint that does not put generators back when it runs again."""
    again = getattr(_enclosed(_packing(), "frame"), "recompute_fn", None)
    return _enclosed(again, "preserve_rng_state") is False


def _enclosed(function: Any, name: str) -> Any:
    """What a function has of the one around it by a name; None: nothing."""
    names = function.__code__.co_freevars if isinstance(function, types.FunctionType) else ()
    return function.__closure__[names.index(name)].cell_contents if name in names else None


def _described(role: Role) -> str:
    kind, name = role
    return f"the {_KINDS[kind]} {str(name).removeprefix('inner.')}"


__all__ = [
    "WRITE_ELSEWHERE",
    "backward_write",
    "in_checkpoint",
    "refuse_drawn_again",
    "refuse_written",
    "refuse_written_again",
]
