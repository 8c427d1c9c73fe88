"""Modules that `fully_shard` (FSDP2) has taken: their parameters are distributed tensors, and whole ones while they run.

FSDP1 is told apart here, to be refused where it is inside.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


def is_sharded(module: nn.Module) -> bool:
    """Whether `fully_shard` was called on this very module."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and isinstance(module, fsdp.FSDPModule)


def class_name(module: nn.Module) -> str:
    """Name of the module's class, of the one it was before it was sharded: a plan is for both."""
    classes = type(module).__mro__
    if not is_sharded(module):
        return classes[0].__name__
    return classes[classes.index(sys.modules["torch.distributed.fsdp"].FSDPModule) + 1].__name__


@contextmanager
def gathered(module: Any) -> Iterator[None]:
    """Inside, the module's parameters are whole, as they are while it runs; a collective of its group where it is sharded."""
    if not is_sharded(module):
        yield
        return
    module.unshard()
    try:
        yield
    finally:
        module.reshard()


def share_state(module: nn.Module, other: nn.Module) -> None:
    """Have another module with the same parameters answer to the methods of a sharded module."""
    if is_sharded(module):
        from torch.distributed import _composable_state

        state = _composable_state._get_module_state(module)
        assert state is not None
        _composable_state._insert_module_state(other, state)


def sharded_inside(module: nn.Module) -> str:
    """Path of a module inside that is sharded on its own; empty: there is none."""
    return next((path for path, inner in module.named_modules() if path and is_sharded(inner)), "")


def flat_inside(module: nn.Module) -> str | None:
    """Path of the first `FullyShardedDataParallel` (FSDP1) in a module, empty for the module itself; None: there is none."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None:
        return None
    return next(
        (path for path, inner in module.named_modules() if isinstance(inner, fsdp.FullyShardedDataParallel)), None
    )


__all__ = ["class_name", "flat_inside", "gathered", "is_sharded", "sharded_inside", "share_state"]
