"""Caches of functions (`functools.lru_cache`): what a trace has put there stands for tensors, and must not stay.

Any function that a forward calls may have one, also of a library. Those that the walk over the state of Python does not meet are
searched for among all objects, which takes tens of milliseconds: again only where something was imported since.
"""

from __future__ import annotations

import functools
import gc
import sys
import weakref
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
    """The caches that a trace may fill, as they are when it begins.

    Args:
        reached: those that the walk has met.
    """

    def __init__(self, reached: Iterable[Any]) -> None:
        self._all = list({id(cache): cache for cache in (*reached, *_ELSEWHERE.caches())}.values())
        self._misses = [cache.cache_info().misses for cache in self._all]

    def empty(self, caches: Iterable[Any]) -> None:
        """Empty some of them."""
        for cache in caches:
            cache.cache_clear()
            self._misses[self._all.index(cache)] = -1

    def forget_stand_ins(self) -> None:
        """Empty those that hold a tensor of a trace: among those filled since, or that came with an import in the forward."""
        before = set(map(id, self._all))
        imported = [cache for cache in _ELSEWHERE.caches() if id(cache) not in before]
        self._all += imported
        self._misses += [0] * len(imported)
        filled = (
            cache for cache, misses in zip(self._all, self._misses, strict=True) if cache.cache_info().misses != misses
        )
        self.empty([cache for cache in filled if _holds(cache, _is_stand_in)])

    def with_tensor(self, tensor: torch.Tensor) -> tuple[Any, ...]:
        """Those that hold this tensor."""
        return tuple(cache for cache in self._all if _holds(cache, lambda item: item is tensor))


class _Elsewhere:
    """All caches that there were when something was last imported."""

    def __init__(self) -> None:
        self._caches: weakref.WeakSet[Any] = weakref.WeakSet()
        self._modules = 0

    def caches(self) -> list[Any]:
        """Those of them that there still are."""
        if self._modules != len(sys.modules):
            self._modules = len(sys.modules)
            self._caches = weakref.WeakSet(item for item in all_objects() if type(item) is CACHE)
        return list(self._caches)


_ELSEWHERE = _Elsewhere()


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
