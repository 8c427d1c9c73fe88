"""Hearing a refusal while this process waits in a collective of its stack: one thread for each group looks at the store.

The main thread looks before a call and before its gradients leave the backward. Behind that point it may be in a collective that
a process which refuses never joins: it leaves it when that process ends, with a message of the backend that gives no reason.
"""

from __future__ import annotations

import atexit
import logging
import threading
import weakref

from remat.errors import GroupError
from remat.exec._module.board import Board, refused_in
from remat.exec._torch.groups import Members, is_running

logger = logging.getLogger(__name__)

INTERVAL = 0.5
"""Seconds between two looks; longer in groups of more than `MANY` processes, in proportion."""
MANY = 256
GRACE = 0.5
"""Seconds that the main thread has to raise a refusal before the log says it."""

_threads: dict[str, Hearing] = {}
_lock = threading.Lock()


class Hearing(threading.Thread):
    """Waits for refusals in a group and logs those that the main thread does not raise.

    Args:
        members: the group.
    """

    def __init__(self, members: Members) -> None:
        super().__init__(name="remat-refusals", daemon=True)
        self.members = members
        self.boards: weakref.WeakValueDictionary[int, Board] = weakref.WeakValueDictionary()
        self._ended = threading.Event()

    def run(self) -> None:
        """Look until there is a refusal, or no group any more."""
        pause, refusals = INTERVAL * max(1.0, self.members.size / MANY), 0
        try:
            while not self._ended.wait(pause) and is_running():
                while (number := refused_in(self.members, refusals)) is not None:
                    refusals += 1
                    self._tell(number)
        except GroupError:
            return  # without the store there is nothing to hear; the main thread says so

    def _tell(self, number: int) -> None:
        board = self.boards.get(number)
        if board is None or board.refused or board.heard is not None:
            return
        refusal = board.acknowledged()
        self._ended.wait(GRACE)
        if board.heard is None:
            logger.error("%s", refusal)

    def end(self) -> None:
        """Stop; the thread must not be inside the store when the interpreter ends."""
        self._ended.set()
        self.join(1.0)


def hear(board: Board) -> None:
    """Have refusals of later steps on a board logged, also while the main thread waits in a collective."""
    members = board.members
    with _lock:
        thread = _threads.get(members.name)
        if thread is None or not thread.is_alive() or thread.members.store is not members.store:
            thread = _threads[members.name] = Hearing(members)
            thread.start()
            atexit.register(thread.end)
        thread.boards[board.number] = board


__all__ = ["Hearing", "hear"]
