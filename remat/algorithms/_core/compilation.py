"""Time spent compiling kernels, apart from planning: on an empty cache it is longer than most plans take.

`with CompileClock() as compiled: …` measures in `compiled.seconds` how long the thread compiled in the block, or waited for
kernels that another process compiled. Deadlines leave these seconds out (see `Clock`). Importing this imports no compiler:
`remat.algorithms._arrays.jit` reports when numba begins and ends. Loading kernels from the cache is not counted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class CompileTally:
    """Seconds that one thread has spent compiling, nested compilations counted once.

    Any thread may read it; only the thread it belongs to calls `begin` and `end`.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._state: tuple[float, float | None] = (
            0.0,
            None,
        )  # completed seconds, start of the running one; replaced as a whole

    @property
    def seconds(self) -> float:
        """Wall seconds so far, including a compilation that is still running."""
        ended, since = self._state
        return ended if since is None else ended + time.monotonic() - since

    def begin(self) -> None:
        """A compilation begins."""
        if self._depth == 0:
            self._state = self.seconds, time.monotonic()
        self._depth += 1

    def end(self) -> None:
        """The compilation that began last has ended; without one, nothing happens: Ctrl-C may have come before `begin`."""
        self._depth = max(0, self._depth - 1)
        if self._depth == 0:
            self._state = self.seconds, None


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.tally = CompileTally()


_of_thread = _OfThread()


def compile_tally() -> CompileTally:
    """The tally of the calling thread."""
    return _of_thread.tally


def compile_seconds() -> float:
    """Wall seconds that the calling thread has spent compiling kernels so far."""
    return _of_thread.tally.seconds


@contextmanager
def counted_as_compiling() -> Iterator[None]:
    """Count the block as compilation of the calling thread."""
    tally = compile_tally()
    tally.begin()
    try:
        yield
    finally:
        tally.end()


class CompileClock:
    """Wall seconds that the calling thread compiles kernels within a block.

    Attributes:
        seconds: of the block, so far while it runs.
    """

    def __init__(self) -> None:
        self._tally = compile_tally()
        self._from = self._tally.seconds
        self._total: float | None = None

    @property
    def seconds(self) -> float:
        """Seconds compiled in the block, or in it so far."""
        return self._tally.seconds - self._from if self._total is None else self._total

    def __enter__(self) -> CompileClock:
        self._tally = compile_tally()
        self._from, self._total = self._tally.seconds, None
        return self

    def __exit__(self, *_error: object) -> None:
        self._total = self._tally.seconds - self._from
