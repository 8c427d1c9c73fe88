"""What the processes of a group tell each other while they plan: texts by key, in the store of the group.

Nothing here is a collective, so nothing has to come in one order on all processes. Every wait ends: with what it waits for, with
the refusal of another process, or with the time-out of the group.
"""

from __future__ import annotations

import base64
import json
import logging
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

from remat.errors import GroupError, Infeasible, RematError
from remat.exec._torch.groups import Members

logger = logging.getLogger(__name__)

PIECE = 4 * 2**20
"""Most characters of one value of the store, which takes 8 MiB."""
NOTICE = 30.0
"""Seconds of waiting after which the log says for whom."""
LINGER = 2.0
"""Most seconds for which a process that refuses waits until the others know: the store may end with the process."""
PAUSES = (0.001, 0.02)
"""Seconds between two looks at the store: at first, and at most."""
_LONGEST = 16_000
"""Most characters of a reason that are passed on."""


class Board:
    """Texts that the processes of a group write for each other.

    Args:
        members: the group.
        number: tells the boards of a group apart; the same on all processes.

    Attributes:
        number: this board's.
        heard: the refusal of another process, once it was raised here.
        refused: whether this process refused.
    """

    def __init__(self, members: Members, number: int) -> None:
        self.members = members
        self.number = number
        self.heard: RematError | None = None
        self.refused = False
        self._acknowledged = False
        self._store = members.section(f"{_of_group(members)}/{number}")

    # -- texts ---------------------------------------------------------------------------------------------------------

    def put(self, key: str, text: str) -> None:
        """Write a text; who finds the key finds the whole text.

        Raises:
            GroupError: X-WAIT, when the store cannot be reached; all other methods too.
        """
        packed = base64.b64encode(zlib.compress(text.encode())).decode()
        pieces = [packed[at : at + PIECE] for at in range(0, len(packed), PIECE)]
        with self._reaching():
            for at, piece in enumerate(pieces):
                self._store.set(f"{key}/{at}", piece)
            self._store.set(key, str(len(pieces)))

    def peek(self, key: str) -> str | None:
        """The text, if it has been written."""
        with self._reaching():
            if not self._store.check([key]):
                return None
            count = int(self._store.get(key))
            packed = b"".join(self._store.get(f"{key}/{at}") for at in range(count))
        return zlib.decompress(base64.b64decode(packed)).decode()

    def wait(self, writers: Mapping[str, int]) -> list[str]:
        """The texts of some keys, when all have been written.

        Args:
            writers: the rank that writes a key, by key.

        Raises:
            Infeasible, GroupError: another process refused, and with which reason.
            GroupError: X-WAIT, when the time-out of the group is over; it names the ranks.
        """
        texts: dict[str, str] = {}
        for pause in self._looks(lambda: [rank for key, rank in writers.items() if key not in texts]):
            for key in writers.keys() - texts.keys():
                text = self.peek(key)
                if text is not None:
                    texts[key] = text
            if len(texts) == len(writers):
                break
            self.raise_refusal()
            time.sleep(pause)
        return [texts[key] for key in writers]

    def _looks(self, missing: Callable[[], list[int]]) -> Iterator[float]:
        """Pauses until the time-out of the group is over; a notice on the way."""
        start, pause, noticed = time.monotonic(), PAUSES[0], False
        while (waited := time.monotonic() - start) < self.members.timeout:
            yield pause
            pause = min(2 * pause, PAUSES[1])
            if waited > NOTICE and not noticed:
                noticed = True
                logger.warning("rank %d waits for %s to arrive or to plan", self.members.rank, _listed(missing()))
        ranks = tuple(missing())
        what = f"rank {self.members.rank} waited {self.members.timeout:g} s for {_listed(ranks)}, which did not plan this module."
        fix = "call the wrapped module on every process of the group, or give group=None to plan on each process alone."
        raise GroupError("X-WAIT", what, ranks=ranks, fix=fix)

    def _reaching(self) -> AbstractContextManager[None]:
        return _reaching(self.members)

    # -- who plans -----------------------------------------------------------------------------------------------------

    def planning_begins(self) -> None:
        """This process is about to plan what the others may not wait for in vain."""
        with self._reaching():
            self._store.add("begun", 1)

    def planning_ends(self) -> None:
        """It has planned, or refused."""
        with self._reaching():
            self._store.add("ended", 1)

    def begun(self) -> int:
        """How often a process has begun to plan."""
        with self._reaching():
            return int(self._store.get("begun")) if self._store.check(["begun"]) else 0

    def ended(self) -> int:
        """How often one has ended."""
        with self._reaching():
            return int(self._store.get("ended")) if self._store.check(["ended"]) else 0

    # -- refusals ------------------------------------------------------------------------------------------------------

    def refuse(self, error: BaseException, *, later: bool = False) -> None:
        """Tell the others why this process cannot go on, and wait a little until they know.

        Args:
            error: why.
            later: whether all had agreed before, so that others may be in a collective of their stack.
        """
        self.refused = True
        with self._reaching():
            self._store.set("refusal", _written(error, self.members))
            if later:
                group = self.members.section(_of_group(self.members))
                group.set(f"refused/{group.add('refusals', 1) - 1}", str(self.number))
        until = time.monotonic() + (LINGER if isinstance(error, Exception) else 0.0)
        with self._reaching():
            while time.monotonic() < until and self._store.add("heard", 0) < self.members.size - 1:
                time.sleep(PAUSES[1])

    def raise_refusal(self) -> None:
        """Raise what another process refused with, if one did."""
        error = self.acknowledged()
        if error is not None:
            self.heard = error
            raise error

    def acknowledged(self) -> RematError | None:
        """What a process refused with, if one did; the one that refused is told that this one knows."""
        with self._reaching():
            if not self._store.check(["refusal"]):
                return None
            text = self._store.get("refusal").decode()
            if not (self._acknowledged or self.refused):
                self._acknowledged = True
                self._store.add("heard", 1)
        return _read(text, self.members)


def refused_in(members: Members, at: int) -> int | None:
    """The number of the board of a refusal of a later step, the `at`-th in the group from 0 on; None: there are not as many.

    Raises:
        GroupError: X-WAIT, when the store cannot be reached.
    """
    store = members.section(_of_group(members))
    with _reaching(members):
        return int(store.get(f"refused/{at}")) if store.check([f"refused/{at}"]) else None


def _of_group(members: Members) -> str:
    return f"remat/{members.name}"


@contextmanager
def _reaching(members: Members) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # of the store: the process that serves it has ended, or the network
        what = f"rank {members.rank} cannot reach the store of the group: {error}"
        fix = "see the other ranks: the one that serves the store has probably ended."
        raise GroupError("X-WAIT", what, ranks=(members.rank,), fix=fix) from error


def _listed(ranks: Sequence[int]) -> str:
    return f"rank{'' if len(ranks) == 1 else 's'} {', '.join(map(str, ranks))}"


def _written(error: BaseException, members: Members) -> str:
    """A refusal as text."""
    numbers = [error.budget, error.smallest, error.floor] if isinstance(error, Infeasible) else None
    words = f"{error.rule}: {error.what}" if isinstance(error, RematError) else f"{type(error).__name__}: {error}"
    record = {
        "rank": members.rank,
        "rule": error.rule if isinstance(error, GroupError) else "X-RANK",
        "what": words[:_LONGEST],
        "fix": error.fix if isinstance(error, RematError) else "see the messages of that rank.",
        "numbers": numbers,
    }
    return json.dumps(record)


def _read(text: str, members: Members) -> RematError:
    """The error that the other processes raise for it."""
    record = json.loads(text)
    rank, fix = record["rank"], record["fix"]
    what = f"rank {rank} of {members.size} cannot go on, so that no rank does. It says: {record['what']}"
    if record["numbers"] is not None:
        budget, smallest, floor = record["numbers"]
        return Infeasible(what, budget=budget, smallest=smallest, floor=floor, fix=fix)
    return GroupError(record["rule"], what, ranks=(rank,), fix=fix)


__all__ = ["Board", "refused_in"]
