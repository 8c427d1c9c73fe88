"""The one-time costs of a process, whatever it plans: importing the solver libraries and compiling their kernels.

A deadline of planning excludes both, and a report shows them separately: a clock of `planning_time` stands still meanwhile.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from remat._collector import collector_paused
from remat.algorithms._core.compilation import CompileTally, compile_seconds, compile_tally


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.tally = CompileTally()


_importing = _OfThread()


@contextmanager
def importing() -> Iterator[None]:
    """Count the block as an import. Random numbers that a library draws when it is imported are not taken from the user's."""
    tally, state = _importing.tally, random.getstate()
    tally.begin()
    try:
        with collector_paused():
            yield
    finally:
        random.setstate(state)
        tally.end()


def import_seconds() -> float:
    """Seconds that this thread has spent in blocks of `importing`."""
    return _importing.tally.seconds


def planning_time() -> float:
    """The time in seconds, less what this thread has spent on imports and compilation."""
    return time.monotonic() - import_seconds() - compile_seconds()


def planning_timer() -> Callable[[], float]:
    """As `planning_time`, of the thread that asks for it here, whichever reads it: the time of a `Clock`."""
    imports, compilation = _importing.tally, compile_tally()
    return lambda: time.monotonic() - imports.seconds - compilation.seconds


__all__ = ["compile_seconds", "import_seconds", "importing", "planning_time", "planning_timer"]
