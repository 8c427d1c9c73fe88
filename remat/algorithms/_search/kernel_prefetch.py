"""Compiling kernels in other processes while this one captures and measures.

`prefetch()` starts processes that fill numba's cache, unless it is complete already; `await_kernels()` waits for them and is
called before the first kernel runs. A helper is a new interpreter without output that ends when its parent ends (it waits on a
pipe that the parent holds open) and shares the work with at most one other helper. If a helper fails, the kernels that are
missing in the cache are compiled in this process.
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

from remat.algorithms._arrays.kernel_cache import is_incomplete, mark_full
from remat.algorithms._core.compilation import counted_as_compiling
from remat.algorithms._core.processes import ended, interpreter

HELPERS = 2
"""Largest number of processes that compile: one kernel takes two fifths of the total time, so more would not help."""

PATIENCE = 300.0
"""Seconds to wait for helpers before they are stopped."""

logger = logging.getLogger(__name__)


@define
class _Helpers:
    """The processes started here, and the process that may wait for them; forks of it may not."""

    processes: list[subprocess.Popen[bytes]] = field(factory=list)
    owner: int = 0

    def take(self) -> list[subprocess.Popen[bytes]]:
        """The processes, which are then forgotten; none in a fork."""
        processes, self.processes = self.processes, []
        return processes if self.owner == os.getpid() else []


_helpers = _Helpers()


def prefetch() -> bool:
    """Start filling numba's cache in other processes; returns immediately, with whether any were started.

    None are started if the cache is complete already, if there is no place for a cache, while helpers of this process are
    running, or if no second interpreter can be started (embedded Python).
    """
    if _helpers.processes or not sys.executable or not is_incomplete():
        return False
    count = min(HELPERS, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    _helpers.owner = os.getpid()
    try:
        for part in range(count):
            _helpers.processes.append(_start_helper(part, count))
    except OSError as error:
        logger.info("kernels are compiled in this process, because no other process could be started: %s", error)
    return bool(_helpers.processes)


def _start_helper(part: int, count: int) -> subprocess.Popen[bytes]:
    """A helper for one part of the work; it uses the same package and the same cache as this process."""
    code = f"from remat.algorithms._search.warmup import serve; serve({part}, {count})"
    return interpreter(code, environment={"NUMBA_CACHE_DIR": config.CACHE_DIR} if config.CACHE_DIR else None)


def await_kernels() -> None:
    """Wait until the helpers started here have ended; returns at once if there are none.

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
        logger.warning("processes that compile kernels were stopped after %.0f s; kernels are compiled here.", PATIENCE)
        return
    finally:
        _stop(processes)
    if any(codes):
        logger.info("a process that compiles kernels failed (exit codes %s); kernels are compiled here.", codes)
    else:
        mark_full()


def _stop(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        ended(process)


@atexit.register
def _stop_all() -> None:
    _stop(_helpers.take())
