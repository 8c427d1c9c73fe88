"""Compiling kernels in other processes while this one captures and measures.

`prefetch()` starts processes that fill numba's cache, unless it is full already; `await_kernels()` waits for them and is
called where the first kernel is about to run. A helper is a fresh interpreter without output that ends with its parent (it
reads the parent's end of a pipe) and shares the work with at most one other. Whatever goes wrong with it, kernels that are
not in the cache by then are compiled here as if it had never been started.
"""

from __future__ import annotations

import atexit
import logging
import os
import subprocess
import sys
import time

from attrs import define, field
from numba import config

from remat.algorithms._arrays.kernel_cache import mark_full, wanting
from remat.algorithms._core.compilation import counted_as_compiling
from remat.algorithms._core.processes import ended, interpreter

HELPERS = 2
"""Most processes that compile: the largest kernel takes two fifths of the whole, more would wait for it."""

PATIENCE = 300.0
"""Seconds to wait for helpers before they are given up."""

logger = logging.getLogger(__name__)


@define
class _Helpers:
    """The processes started here, and the process that may wait for them: a fork of it may not."""

    processes: list[subprocess.Popen[bytes]] = field(factory=list)
    owner: int = 0

    def take(self) -> list[subprocess.Popen[bytes]]:
        """The processes, which are then forgotten; none in a fork."""
        processes, self.processes = self.processes, []
        return processes if self.owner == os.getpid() else []


_helpers = _Helpers()


def prefetch() -> bool:
    """Start filling numba's cache in other processes; returns at once, with whether any were started.

    None are started where the cache is full already, where there is no place for one, while helpers of this process are at
    work, and where the interpreter cannot be started again (an embedded one).
    """
    if _helpers.processes or not sys.executable or not wanting():
        return False
    count = min(HELPERS, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    _helpers.owner = os.getpid()
    try:
        for part in range(count):
            _helpers.processes.append(_started(part, count))
    except OSError as error:
        logger.info("kernels are compiled in this process, another could not be started: %s", error)
    return bool(_helpers.processes)


def _started(part: int, count: int) -> subprocess.Popen[bytes]:
    """A helper for one part of the work; it sees the package that this process sees, and the same cache."""
    code = f"from remat.algorithms._search.warmup import serve; serve({part}, {count})"
    return interpreter(code, environment={"NUMBA_CACHE_DIR": config.CACHE_DIR} if config.CACHE_DIR else None)


def await_kernels() -> None:
    """Wait until the helpers started here have ended; nothing to do when there are none.

    The wait counts as compilation. An interruption stops the helpers.
    """
    processes = _helpers.take()
    if not processes:
        return
    until = time.monotonic() + PATIENCE
    try:
        with counted_as_compiling():
            codes = [process.wait(max(0.0, until - time.monotonic())) for process in processes]
    except subprocess.TimeoutExpired:
        logger.warning("processes that compile kernels were given up after %.0f s; they are compiled here.", PATIENCE)
        return
    finally:
        _end(processes)
    if any(codes):
        logger.info("a process that compiles kernels failed (exit codes %s); they are compiled here.", codes)
    else:
        mark_full()


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        ended(process)


@atexit.register
def _end_all() -> None:
    _end(_helpers.take())
