"""Compiling kernels in other processes while this one captures and measures.

`prefetch()` starts a process that fills numba's cache, unless it is complete already. `await_first_kernels()` waits for the
kernels that every plan begins with, and is called before the first kernel runs; `await_kernels()` waits for the others. The
helper is a new interpreter that ends when its parent ends (it waits on a pipe that the parent holds open), shares the work with
a fork of itself, and writes a byte for each half of the first kernels. If it fails, the kernels that are missing in the cache
are compiled in this process.
"""

from __future__ import annotations

import atexit
import logging
import os
import selectors
import subprocess
import sys
import time
from pathlib import Path

from attrs import define

from remat.algorithms._arrays.kernel_sources import IN_TREE, MARK
from remat.algorithms._core.compilation import counted_as_compiling
from remat.algorithms._core.processes import ended, interpreter

HALVES = 2
"""How often the helper reports: for each half of the first kernels (see `warmup.FIRST`)."""

PATIENCE = 300.0
"""Seconds to wait for a helper before it is stopped."""

logger = logging.getLogger(__name__)


@define
class _Helper:
    """The process started here, and the process that may wait for it; forks of it may not.

    Attributes:
        process: the helper, or None. owner: this process.
        halves: how many halves of the first kernels it still has to report.
        until: when it is stopped [s, monotonic].
    """

    process: subprocess.Popen[bytes] | None = None
    owner: int = 0
    halves: int = 0
    until: float = 0.0

    @property
    def running(self) -> subprocess.Popen[bytes] | None:
        """The process; None in a fork of this process."""
        return self.process if self.owner == os.getpid() else None

    def take(self) -> subprocess.Popen[bytes] | None:
        """The process, which is then forgotten."""
        process, self.process = self.running, None
        return process


_helper = _Helper()


def prefetching() -> int | None:
    """The process that fills numba's cache for this one, while it runs."""
    return None if _helper.running is None else _helper.running.pid


def prefetch() -> bool:
    """Start filling numba's cache in another process; returns immediately, with whether one was started.

    None is started if the cache is complete already, if there is no place for a cache, while a helper of this process is
    running, or if no second interpreter can be started (embedded Python).
    """
    if _helper.running or not sys.executable or not (_surely_incomplete() or _incomplete()):
        return False
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    # the same package and the same cache as this process
    code = f"from remat.algorithms._search.warmup import serve; serve({count})"
    folder = _chosen_folder()
    cache = {"NUMBA_CACHE_DIR": folder} if folder else None
    try:
        _helper.process = interpreter(code, stdout=subprocess.PIPE, environment=cache)
    except OSError as error:
        logger.info("kernels are compiled in this process, because no other process could be started: %s", error)
        return False
    _helper.owner, _helper.halves, _helper.until = os.getpid(), HALVES, time.monotonic() + PATIENCE
    return True


def _surely_incomplete() -> bool:
    """Whether no complete cache is where numba looks first; told without importing numba, so that a helper starts earlier."""
    if "NUMBA_DISABLE_JIT" in os.environ:
        return False
    if chosen := _chosen_folder():
        return not any(Path(chosen).glob(f"*/{MARK}"))
    return IN_TREE.is_dir() and os.access(IN_TREE, os.W_OK) and not (IN_TREE / MARK).exists()


def _chosen_folder() -> str:
    """The cache folder that the user chose, or none."""
    numba = sys.modules.get("numba")
    return os.environ.get("NUMBA_CACHE_DIR", "") if numba is None else numba.config.CACHE_DIR


def _incomplete() -> bool:
    from remat.algorithms._arrays.kernel_cache import is_incomplete  # brings in the compiler

    return is_incomplete()


def await_first_kernels() -> None:
    """Wait until the helper started here has compiled what every plan begins with; returns at once if there is none.

    The wait counts as compilation. An interruption stops the helper.
    """
    process = _helper.running
    if process is None or process.stdout is None or not _helper.halves:
        return
    try:
        with counted_as_compiling(), selectors.DefaultSelector() as ready:
            ready.register(process.stdout, selectors.EVENT_READ)
            while _helper.halves and ready.select(max(0.0, _helper.until - time.monotonic())):
                written = os.read(process.stdout.fileno(), HALVES)
                _helper.halves = max(0, _helper.halves - len(written)) if written else 0  # nothing: it has ended
    except BaseException:
        _stop()
        raise


def await_kernels() -> None:
    """Wait until the helper started here has ended; returns at once if there is none. Otherwise as `await_first_kernels`."""
    process = _helper.running
    if process is None:
        return
    try:
        with counted_as_compiling():
            code = process.wait(max(0.0, _helper.until - time.monotonic()))
    except subprocess.TimeoutExpired:
        logger.warning("a process that compiles kernels was stopped after %.0f s; kernels are compiled here.", PATIENCE)
        return
    finally:
        _stop()
    if code:
        logger.info("a process that compiles kernels failed (exit code %d); kernels are compiled here.", code)


@atexit.register
def _stop() -> None:
    if (process := _helper.take()) is not None:
        ended(process)
