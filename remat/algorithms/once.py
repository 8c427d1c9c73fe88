"""What a process pays once, whatever it plans: importing the libraries of the solvers and compiling their kernels.

A deadline of planning leaves both out, and a report shows them apart: a clock of `planning_time` stands still meanwhile.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class _Seconds(threading.local):
    """Seconds of the calling thread. `depth` counts entries, so that what is nested counts once."""

    def __init__(self) -> None:
        self.total = 0.0
        self.depth = 0
        self.start = 0.0

    def enter(self) -> None:
        if not self.depth:
            self.start = time.monotonic()
        self.depth += 1

    def leave(self) -> None:
        if not self.depth:
            return  # the listener came after the start
        self.depth -= 1
        if not self.depth:
            self.total += time.monotonic() - self.start


_importing = _Seconds()
_compiling = _Seconds()


@contextmanager
def importing() -> Iterator[None]:
    """Count the block as an import."""
    _importing.enter()
    try:
        yield
    finally:
        _importing.leave()


def import_seconds() -> float:
    """Seconds that this thread has spent in blocks of `importing`."""
    return _importing.total


def compile_seconds() -> float:
    """Seconds that this thread has spent compiling kernels, loading them from the cache, or waiting for another that did.

    Counted from the first call on that finds numba imported.
    """
    if "numba" in sys.modules:
        _listen()
    return _compiling.total


@functools.cache
def _listen() -> None:
    """Hear of every entry to numba's compiler from now on."""
    from numba.core import event

    class Listener(event.Listener):  # type: ignore[misc]
        def on_start(self, event: object) -> None:
            del event
            _compiling.enter()

        def on_end(self, event: object) -> None:
            del event
            _compiling.leave()

    event.register("numba:compiler_lock", Listener())


def planning_time() -> float:
    """The time in seconds, less what this thread has spent on imports and compilation: for `Clock(now=planning_time)`."""
    return time.monotonic() - import_seconds() - compile_seconds()


__all__ = ["compile_seconds", "import_seconds", "importing", "planning_time"]
