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
        self._handler: signal._HANDLER = None

    def __enter__(self) -> Uninterrupted:
        handler = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is threading.main_thread() and callable(handler):
            self._handler = handler
            signal.signal(signal.SIGINT, lambda number, frame: self._waiting.append((number, frame)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)
            self.release()
            self._handler = None

    def release(self) -> None:
        """Let a Ctrl-C that waits come through here, where an exception does no harm."""
        if self._waiting and callable(self._handler):
            number, frame = self._waiting[0]
            self._waiting.clear()
            self._handler(number, frame)
