"""Caches of functions (`functools.lru_cache`): what a trace has put there stands for tensors, and must not stay.

Any function that a forward calls may have one, also of a library, a method or a closure, so they are searched for among all
objects, once for each trace.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from remat._collector import all_objects
from remat.exec._torch import torch_private

CACHE = type(functools.lru_cache(len))
_LINK = "_lru_list_elem"  # what a cache of limited size holds its entries in
_MOST = 10_000  # objects looked at in one cache: one that holds more holds data


class Caches:
    """The caches that there are while a step is traced."""

    def __init__(self) -> None:
        self._all: list[Any] | None = None

    def forget_stand_ins(self) -> None:
        """Empty those that hold a tensor of a trace."""
        for cache in self._holding(_is_stand_in):
            cache.cache_clear()

    def with_tensor(self, tensor: torch.Tensor) -> tuple[Any, ...]:
        """Those that hold this tensor."""
        return tuple(self._holding(lambda item: item is tensor))

    def _holding(self, wanted: Callable[[Any], bool]) -> Iterable[Any]:
        if self._all is None:
            self._all = [item for item in all_objects() if type(item) is CACHE]
        return [cache for cache in self._all if cache.cache_info().currsize and _holds(cache, wanted)]


def _is_stand_in(item: Any) -> bool:
    return isinstance(item, (torch_private.FakeTensor, torch_private.FunctionalTensor))


def _holds(cache: Any, wanted: Callable[[Any], bool]) -> bool:
    """Whether arguments or results in a cache are, or hold, something of a kind."""
    function = (cache.__wrapped__, cache.__dict__)
    pending = [item for item in gc.get_referents(cache) if not any(item is part for part in function)]
    seen: set[int] = set()
    while pending and len(seen) < _MOST:
        item = pending.pop()
        if wanted(item):
            return True
        pending += () if id(item) in seen else _inside(item)
        seen.add(id(item))
    return False


def _inside(item: Any) -> Iterable[Any]:
    """What a container, or an object of a class without a call, holds."""
    if isinstance(item, (torch.Tensor, nn.Module, type)) or callable(item):
        return ()
    if isinstance(item, (dict, list, tuple, set, frozenset)) or type(item).__name__ == _LINK:
        return gc.get_referents(item)
    return getattr(item, "__dict__", {}).values()
