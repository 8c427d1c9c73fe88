"""The ledger of storages: what they count, which of them may be evicted, and room for what comes.

The rule of the simulator (`eviction.py`, `pool.py`) for storages that come and go while a program runs.
"""

from __future__ import annotations

import math
import threading
import weakref

from remat.algorithms._dtr.scores import Score
from remat.algorithms._dtr.values import Stored
from remat.algorithms._dtr.victims import Victims, join


class OutOfRoom(Exception):
    """Nothing is left to evict.

    Attributes:
        need: bytes that the operator needs. kept: bytes that cannot be evicted now.
    """

    def __init__(self, need: int, kept: int) -> None:
        super().__init__(need, kept)
        self.need, self.kept = need, kept


class Memory:
    """Storages within a budget, and their pool.

    Args:
        budget: bytes; None: no limit.
        score: what is evicted first.
        seed: of the score `random`.
        tiny: storages below this share of the mean size are evicted only where nothing else is left.

    Attributes:
        memory, peak: bytes now, and most. reserve: bytes set apart. clock: advances by the cost of each run.
        evictions: storages taken out of memory.
        pool, small: evictable storages in order; the tiny ones apart. busy: pending runs; meanwhile what is released waits.
        mutex: of pieces of work of several threads; what a thread releases while another has it waits too.
    """

    def __init__(self, budget: int | None, score: Score, *, seed: int = 0, tiny: float = 0.0) -> None:
        self.budget = math.inf if budget is None else budget
        self.tiny = tiny
        self.memory = self.peak = self.reserve = self.evictions = 0
        self.clock = 1
        self.pool: dict[int, weakref.ref[Stored]] = {}
        self.small: dict[int, weakref.ref[Stored]] = {}
        self.busy = 0
        self.mutex = threading.RLock()
        self.released: list[Stored] = []
        self.victims = Victims(score, seed)
        self._sizes = self._stored = 0

    def note_size(self, size: int) -> None:
        """A storage of this size comes to be: the mean that tiny ones are compared with follows."""
        self._sizes += size
        self._stored += size > 0

    def release(self, storage: Stored) -> None:
        """One reference of the program fewer; with the last one a storage is evicted."""
        storage.refs -= 1
        if storage.refs > 0:
            return
        if self.busy or not self.mutex.acquire(blocking=False):
            self.released.append(storage)
            return
        try:
            if storage.material and not storage.pinned:
                self.evict(storage)
        finally:
            self.mutex.release()

    def make_room(self, need: int, spare: int = 0) -> None:
        """Evict until `need` bytes more fit, and `spare` more, as far as evicting goes; raises `OutOfRoom`."""
        self._evict_released()
        while self.memory + self.reserve + need + spare > self.budget:
            victim = self._victim()
            if victim is None:
                if self.memory + self.reserve + need <= self.budget:
                    return
                raise OutOfRoom(need, self.memory + self.reserve)
            self.evict(victim)

    def evict(self, storage: Stored) -> None:
        """Take a storage out of memory; its values are recomputed when they are needed."""
        self.evictions += 1
        self.withdraw(storage)

    def withdraw(self, storage: Stored) -> None:
        """As `evict`, where the memory was taken over: it does not count as an eviction."""
        storage.material = False
        self.memory -= storage.charged
        storage.charged = 0
        self._leave_pool(storage)
        for value in storage.live_values():
            value.payload = None
        if self.victims.classes:
            join(storage)

    def pin(self, storage: Stored) -> None:
        """Never evict a storage that is in memory."""
        if not storage.pinned:
            storage.pinned = True
            self.lock(storage)

    def lock(self, storage: Stored) -> None:
        """Keep a storage from being evicted."""
        if storage.locks == 0:
            self._leave_pool(storage)
        storage.locks += 1

    def unlock(self, storage: Stored) -> None:
        """Release a lock; with its last lock released, the storage goes to the end of the pool."""
        storage.locks -= 1
        if storage.locks == 0 and storage.material:
            self.enter_pool(storage)

    def _victim(self) -> Stored | None:
        """The storage to evict; None: nothing can be evicted."""
        pool = self.pool or self.small
        storages = [storage for ref in list(pool.values()) if (storage := ref()) is not None]
        return self.victims.find(storages, self.clock) if storages else None

    def enter_pool(self, storage: Stored) -> None:
        """Append an unlocked storage in memory to its pool."""
        small = self.tiny > 0 and storage.size * self._stored < self.tiny * self._sizes
        (self.small if small else self.pool).setdefault(id(storage), weakref.ref(storage))

    def _leave_pool(self, storage: Stored) -> None:
        self.pool.pop(id(storage), None)
        self.small.pop(id(storage), None)

    def settle(self) -> None:
        """Evict what was released during runs, if no run is pending."""
        if not self.busy:
            self._evict_released()

    def _evict_released(self) -> None:
        """Evict what was released during runs."""
        if self.released:
            waiting, self.released = self.released, []
            for storage in waiting:
                if storage.refs > 0 or not storage.material or storage.pinned:
                    continue
                if storage.locks > 0:
                    self.released.append(storage)
                else:
                    self.evict(storage)
