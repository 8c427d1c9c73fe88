"""The decorators of the kernels: numba, compiled once and cached on disk; the function's type annotations are preserved.

With an empty cache, compiling takes longer than planning, so kernels are written to compile fast: functions that are called
by kernels only have no wrapper for Python (`inner_kernel`); loops around large kernels are plain Python, because numba
optimizes everything that a kernel calls again as part of that kernel; and operations that numba compiles slowly (sorts, masks,
assignment to slices) are written as loops. Arrays that belong together are passed as one `NamedTuple`, so that no kernel takes
more than six arguments. Kernels are not split further than readability needs, because each additional function costs a tenth of
a second or more.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

from numba import njit
from numba.core import event
from numba.extending import register_jitable

from remat.algorithms._arrays.kernel_sources import drop_stale
from remat.algorithms._core.compilation import compile_tally

P = ParamSpec("P")
R = TypeVar("R")

logger = logging.getLogger(__name__)

UNCACHED = (
    "compiled kernels cannot be cached, so each process compiles them again, which takes about 20 s (%s). "
    "Fix: set NUMBA_CACHE_DIR to a folder that can be written."
)


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile `function` at its first call and cache the result: next to its source, or in numba's user cache."""
    return cast(Callable[P, R], njit(no_cfunc_wrapper=True, **_options(function))(function))


def inner_kernel(function: Callable[P, R]) -> Callable[P, R]:
    """A function that kernels call: compiled with them, without a wrapper that makes it callable from Python.

    When Python calls it, it runs as plain Python.
    """
    options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True} | _options(function)
    return cast(Callable[P, R], register_jitable(**options)(function))


def inlined_kernel(function: Callable[P, R]) -> Callable[P, R]:
    """An `inner_kernel` that is inlined at every call: for a few lines that run for every position of a sequence.

    Without it LLVM leaves them as calls, which pass every array of a `Flat` as a dozen arguments.
    """
    options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "forceinline": True} | _options(function)
    return cast(Callable[P, R], register_jitable(**options)(function))


def _options(function: Callable[..., Any]) -> dict[str, Any]:
    # Divisors are at least 1 in all kernels: numpy's error model leaves out the checks for zero.
    return {"error_model": "numpy", "cache": _can_cache(function)}


_cacheable: dict[str, bool] = {}
"""Whether kernels can be cached, for each folder with sources."""


def _can_cache(function: Callable[..., Any]) -> bool:
    """Whether numba has a place to cache a function; if it has none, this is logged once."""
    folder = os.path.dirname(function.__code__.co_filename)
    if folder not in _cacheable:
        try:
            path = njit(cache=True)(function).stats.cache_path
            _cacheable[folder] = path is None or drop_stale(Path(path))
        except RuntimeError as error:  # neither that folder nor the user's cache folder can be written
            if all(_cacheable.values()):
                logger.warning(UNCACHED, error)
            _cacheable[folder] = False
    return _cacheable[folder]


class _Listener(event.Listener):  # type: ignore[misc]
    """Reports to the thread's tally when numba starts and ends compiling."""

    def on_start(self, event: object) -> None:
        compile_tally().begin()

    def on_end(self, event: object) -> None:
        compile_tally().end()


event.register("numba:compile", _Listener())
