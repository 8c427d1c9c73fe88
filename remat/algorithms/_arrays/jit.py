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
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

from numba import njit
from numba.core import event
from numba.extending import register_jitable

from remat.algorithms._arrays.kernel_sources import drop_stale
from remat.algorithms._arrays.plain_indices import KernelCompiler
from remat.algorithms._core.compilation import compile_tally
from remat.algorithms._core.interruption import Uninterrupted

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
    """A function that kernels call, which allocates nothing and returns numbers only.

    It is compiled with them, without a wrapper that makes it callable from Python and without counts of references: these are
    atomic operations, two in every call for each array of each argument, and took three quarters of the time of some kernels.
    When Python calls it, it runs as plain Python. If it allocates, it does not compile.
    """
    return _inner(function, _uncounted(function))


def inlined_kernel(function: Callable[P, R]) -> Callable[P, R]:
    """An `inner_kernel` that is inlined at every call: for a few lines that run for every position of a sequence.

    Without it LLVM leaves them as calls, which pass every array of a `Flat` as a dozen arguments.
    """
    return _inner(function, {"forceinline": True} | _uncounted(function))


def allocating_kernel(function: Callable[P, R]) -> Callable[P, R]:
    """As `inner_kernel`, for functions that allocate arrays or return some."""
    return _inner(function, {})


def _inner(function: Callable[P, R], options: dict[str, Any]) -> Callable[P, R]:
    options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True} | options | _options(function)
    return cast(Callable[P, R], register_jitable(**options)(function))


_NUMBERS = {"int", "float", "bool", "None", "tuple"}


def _uncounted(function: Callable[..., Any]) -> dict[str, Any]:
    """The option that leaves out counts of references; it would free an array that is returned while others use it."""
    returned = str(function.__annotations__.get("return", "nothing stated"))
    if not set(re.findall(r"\w+", returned)) <= _NUMBERS:
        raise TypeError(
            f"{function.__name__} returns {returned}: only functions that return numbers do without counts of references. "
            "Fix: make it an allocating_kernel."
        )
    return {"_nrt": False}


def _options(function: Callable[..., Any]) -> dict[str, Any]:
    # Divisors are at least 1 in all kernels: numpy's error model leaves out the checks for zero.
    return {"error_model": "numpy", "cache": _can_cache(function), "pipeline_class": KernelCompiler}


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


class _Waiting(threading.local):
    def __init__(self) -> None:
        self.depth, self.interruption = 0, Uninterrupted()


class _Listener(event.Listener):  # type: ignore[misc]
    """Reports to the thread's tally when numba starts and ends compiling. Meanwhile Ctrl-C waits.

    An exception in the middle of the compiler is lost, or comes out as an error of its own. Between the kernels that another one
    calls it does no harm.
    """

    def __init__(self) -> None:
        self._waiting = _Waiting()

    def on_start(self, event: object) -> None:
        waiting = self._waiting
        waiting.depth += 1
        compile_tally().begin()
        if waiting.depth == 1:
            waiting.interruption.__enter__()

    def on_end(self, event: object) -> None:
        waiting = self._waiting
        if not waiting.depth:
            return  # numba ends what an interruption has kept from beginning, too
        compile_tally().end()
        waiting.depth -= 1
        if waiting.depth:
            waiting.interruption.release()
        else:
            waiting.interruption.__exit__(None, None, None)


event.register("numba:compile", _Listener())
