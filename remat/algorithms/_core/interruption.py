"""Ctrl-C that waits, for code that an exception at any instruction leaves broken: compilers, what torch has entered."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType


class Uninterrupted:
    """`with Uninterrupted(): …`: inside, Ctrl-C waits for the end of the block, or for `release`.

    It can be entered again once it is left. Only the main thread gets signals: in others it does nothing, and also where Ctrl-C
    has no handler in Python.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[int, FrameType | None]] = []
        self._before: signal._HANDLER = None

    def __enter__(self) -> Uninterrupted:
        before = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is threading.main_thread() and callable(before):
            self._before = before
            signal.signal(signal.SIGINT, self._wait)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        before = self._before
        if before is None:
            return
        if signal.getsignal(signal.SIGINT) == self._wait:  # else a handler that was released has put another one there
            signal.signal(signal.SIGINT, before)
        try:
            self.release()
        finally:
            self._before = None

    def release(self) -> None:
        """Let each Ctrl-C that waits come through here, where an exception does no harm; those after an exception are lost."""
        waiting, self._waiting = self._waiting, []
        for number, frame in waiting:
            if callable(self._before):
                self._before(number, frame)

    def _wait(self, number: int, frame: FrameType | None) -> None:
        self._waiting.append((number, frame))
