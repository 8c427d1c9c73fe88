"""Who may read the tensors of modules, while a capture exchanges them for others on the module itself.

Forwards read at the same time. What exchanges tensors is alone: it waits until no other thread reads, and others wait until it
has ended. What plans goes on while others read, one thread at a time, since it asks for the tensors in between.
"""

from __future__ import annotations

import logging
import threading
from types import TracebackType

from attrs import define, field

logger = logging.getLogger(__name__)

POLITE = 1.0
"""How long a forward that begins lets a capture that waits go first [s]; a running forward may wait for it, in another thread."""
LONG = 30.0
"""How long a capture waits before it says so [s]."""


@define(eq=False)
class _Threads:
    """What threads do now.

    Attributes:
        lock: of all that is here. changed: notified where somebody may wait for it.
        readers: how many forwards of each thread are within each other.
        owner, depth: the thread that is alone, and how often within itself; 0: none is.
        awaited: number of threads that wait to be alone.
    """

    lock: threading.Lock = field(factory=threading.Lock)
    changed: threading.Condition = field(init=False)
    readers: dict[int, int] = field(factory=dict)
    owner: int = 0
    depth: int = 0
    awaited: int = 0

    def __attrs_post_init__(self) -> None:
        self.changed = threading.Condition(self.lock)

    def others(self) -> int:
        """How many other threads read."""
        return len(self.readers.keys() - {threading.get_ident()})

    def wait_while_another_is_alone(self) -> None:
        """With the lock."""
        if self.depth and self.owner != threading.get_ident():
            self.changed.wait_for(lambda: not self.depth)


class Turns:
    """A lock whose owner may take it again. A forward around it reads nothing while it waits for its turn."""

    def __init__(self, threads: _Threads) -> None:
        self._lock, self._threads = threading.RLock(), threads

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self._wait()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._lock.release()

    def _wait(self) -> None:
        me, threads = threading.get_ident(), self._threads
        with threads.lock:
            reading = threads.readers.pop(me, 0)
            threads.changed.notify_all()
        try:
            self._lock.acquire()
        finally:
            if reading:
                with threads.lock:
                    threads.wait_while_another_is_alone()
                    threads.readers[me] = reading


class _Alone:
    """Inside, no other thread plans, captures or reads. A forward around it, of the same thread, is one that it may disturb."""

    def __init__(self, planning: Turns, threads: _Threads) -> None:
        self._planning, self._threads = planning, threads

    def __enter__(self) -> None:
        self._planning.__enter__()
        threads = self._threads
        try:
            with threads.lock:
                threads.awaited += 1
                try:
                    while not threads.changed.wait_for(lambda: not threads.others(), LONG):
                        logger.warning("a capture has waited %g s for forwards of other threads.", LONG)
                finally:
                    threads.awaited -= 1
                threads.owner = threading.get_ident()
                threads.depth += 1
        except BaseException:
            self._planning.__exit__(None, None, None)
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        threads = self._threads
        with threads.lock:
            threads.depth -= 1
            if not threads.depth:
                threads.owner = 0
                threads.changed.notify_all()
        self._planning.__exit__(kind, error, at)


class _Reading:
    """Inside, the tensors of modules are real ones, unless this thread itself captures."""

    def __init__(self, threads: _Threads) -> None:
        self._threads, self._lock = threads, threads.lock

    def __enter__(self) -> None:
        me, threads = threading.get_ident(), self._threads
        with self._lock:
            if (threads.depth or threads.awaited) and threads.owner != me and me not in threads.readers:
                threads.changed.wait_for(lambda: not threads.awaited, POLITE)
                threads.wait_while_another_is_alone()
            threads.readers[me] = threads.readers.get(me, 0) + 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        me, threads = threading.get_ident(), self._threads
        with self._lock:
            count = threads.readers.pop(me) - 1
            if count:
                threads.readers[me] = count
            elif threads.awaited:
                threads.changed.notify_all()


class Exchange:
    """The three ways to use the tensors of modules, each to be entered with `with`; threads may enter them within each other.

    Attributes:
        planning: for what plans. alone: for what exchanges tensors, or writes to them and puts them back. reading: for forwards.
    """

    def __init__(self) -> None:
        self.threads = _Threads()
        self.planning = self.turns()
        self.alone = _Alone(self.planning, self.threads)
        self.reading = _Reading(self.threads)

    def turns(self) -> Turns:
        """A lock for forwards that cannot run at the same time."""
        return Turns(self.threads)


EXCHANGE = Exchange()
"""Of all modules of the process: they share submodules and parameters."""
