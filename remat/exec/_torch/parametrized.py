"""The cache of parametrized weights (`torch.nn.utils.parametrize.cached`), which is one for the whole process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch.nn.utils import parametrize


@contextmanager
def own_parametrizations() -> Iterator[None]:
    """Inside, the cache is another, empty at first: no traced weight comes into that of the user, or out of an earlier trace."""
    outside, parametrize._cache = parametrize._cache, {}
    try:
        yield
    finally:
        parametrize._cache = outside


def keeps_parametrizations() -> bool:
    """Whether a weight is computed once for several uses."""
    return parametrize._cache_enabled > 0
