"""Who may read the tensors of modules, while a capture exchanges them for others on the module itself.

Forwards read side by side. What exchanges tensors is alone: it waits until no other thread reads, and others wait until it has
ended. What plans goes on beside forwards, one thread at a time, since it asks for the tensors in between.
"""

from __future__ import annotations

import logging
import threading
from types import TracebackType

logger = logging.getLogger(__name__)

POLITE = 1.0
"""How long a forward that begins lets a capture that waits go first [s]; a running forward may wait for it, in another thread."""
LONG = 30.0
"""How long a capture waits before it says so [s]."""


class _Planning:
    """Inside, no other thread plans or captures. A forward around it reads nothing while it waits here."""

    def __init__(self, readers: dict[int, int], changed: threading.Condition) -> None:
        self._lock = threading.RLock()
        self._readers, self._changed = readers, changed

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self._wait()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._lock.release()

    def _wait(self) -> None:
        me = threading.get_ident()
        with self._changed:
            reading = self._readers.pop(me, 0)
            self._changed.notify_all()
        try:
            self._lock.acquire()
        finally:
            if reading:
                with self._changed:
                    self._readers[me] = reading


class _Alone:
    """Inside, no other thread plans, captures or reads. A forward around it, of the same thread, is one that it may disturb."""

    def __init__(self, planning: _Planning, readers: dict[int, int], changed: threading.Condition) -> None:
        self._planning, self._readers, self._changed = planning, readers, changed
        self.owner = self.depth = self.awaited = 0

    def __enter__(self) -> None:
        self._planning.__enter__()
        try:
            with self._changed:
                self._wait()
                self.owner = threading.get_ident()
                self.depth += 1
        except BaseException:
            self._planning.__exit__(None, None, None)
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._changed:
            self.depth -= 1
            if not self.depth:
                self.owner = 0
                self._changed.notify_all()
        self._planning.__exit__(kind, error, at)

    def _wait(self) -> None:
        me = threading.get_ident()
        self.awaited += 1
        try:
            while not self._changed.wait_for(lambda: not self._readers.keys() - {me}, LONG):
                count = len(self._readers.keys() - {me})
                logger.warning("a capture waits for forwards of %d other threads to end, since %g s.", count, LONG)
        finally:
            self.awaited -= 1


class _Reading:
    """Inside, the tensors of modules are real ones, unless this thread itself captures."""

    def __init__(
        self, alone: _Alone, readers: dict[int, int], changed: threading.Condition, lock: threading.Lock
    ) -> None:
        self._alone, self._readers, self._changed = alone, readers, changed
        self._lock = lock

    def __enter__(self) -> None:
        me, alone = threading.get_ident(), self._alone
        with self._lock:
            if (alone.depth or alone.awaited) and alone.owner != me and me not in self._readers:
                self._changed.wait_for(lambda: not alone.awaited, POLITE)
                self._changed.wait_for(lambda: not alone.depth)
            self._readers[me] = self._readers.get(me, 0) + 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        me = threading.get_ident()
        with self._lock:
            count = self._readers.pop(me) - 1
            if count:
                self._readers[me] = count
            elif self._alone.awaited:
                self._changed.notify_all()


class Exchange:
    """The three ways to use the tensors of modules, each to be entered with `with`; threads may enter them within each other.

    Attributes:
        planning: for what plans. alone: for what exchanges tensors, or writes to them and puts them back. reading: for forwards.
    """

    def __init__(self) -> None:
        readers: dict[int, int] = {}
        lock = threading.Lock()
        changed = threading.Condition(lock)
        self.planning = _Planning(readers, changed)
        self.alone = _Alone(self.planning, readers, changed)
        self.reading = _Reading(self.alone, readers, changed, lock)


EXCHANGE = Exchange()
"""Of all modules of the process: they share submodules and parameters."""
