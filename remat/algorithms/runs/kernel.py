"""The decorator of this package's kernels: numba, compiled once and cached on disk, with the types of the function kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

from numba import njit

P = ParamSpec("P")
R = TypeVar("R")


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile `function` at its first call, and cache the result beside its source."""
    return cast(Callable[P, R], njit(cache=True)(function))
