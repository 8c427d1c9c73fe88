"""Which storage to evict: costs by the measure of a score, classes of evicted storages, and the smallest score.

The same rule as the simulator's kernels (`classes.py`, `pool.py`) over objects in place of tables.
"""

from __future__ import annotations

import math
import random

import numpy as np

from remat.algorithms._dtr.scores import Chance, Family, LastAccess, Pool, Score, choice
from remat.algorithms._dtr.values import Node, Stored, readers_of


class Victims:
    """Finds the storage with the smallest score.

    Args:
        score: what is evicted first.
        seed: of the score `random`.

    Attributes:
        measure: of cost, as of the score. classes: whether it is by classes of evicted storages.
    """

    def __init__(self, score: Score, seed: int = 0) -> None:
        self.score, self.measure = score, score.measure
        self.classes = self.measure == "eq"
        self._random = random.Random(seed)

    def find(self, storages: list[Stored], clock: int) -> Stored:
        """The storage of the smallest score among some, in the order of the pool; of equal scores the last."""
        score = self.score
        if isinstance(score, Chance):
            return storages[self._random.randrange(len(storages))]
        if type(score) is LastAccess:
            return min(reversed(storages), key=lambda storage: storage.access)
        if type(score) is not Family:
            return storages[choice(score, self._pool(storages, clock))]
        best, victim = math.inf, storages[-1]
        sized, aged, classes, local = score.size, score.staleness, self.classes, self.measure == "local"
        for storage in storages:  # `Family.value`, without a call for each storage
            if classes:
                cost = storage.cost + _class_cost(storage.gone) if storage.gone else storage.cost
            else:
                cost = storage.cost if local else self.cost(storage)
            divisor = (storage.size if sized else 1) * (clock - storage.access if aged else 1)
            value = cost / divisor if divisor > 0 else math.inf
            if value <= best:
                best, victim = value, storage
                if value == 0:
                    break
        return victim

    def cost(self, storage: Stored) -> int:
        """The numerator of the score of a storage."""
        measure = self.measure
        if measure == "local":
            return storage.cost
        if measure == "no":
            return 1
        if self.classes:
            return storage.cost + _class_cost(storage.gone) if storage.gone else storage.cost
        cost = storage.cost + _evicted_cost(storage, down=False)
        return cost + _evicted_cost(storage, down=True) if measure == "e*" else cost

    def _pool(self, storages: list[Stored], clock: int) -> Pool:
        """The storages as an outside score reads them."""
        access = np.array([storage.access for storage in storages], np.int64)
        return Pool(
            cost=np.array([self.cost(storage) for storage in storages], np.int64),
            size=np.array([storage.size for storage in storages], np.int64),
            staleness=clock - access,
            access=access,
        )


def join(storage: Stored) -> None:
    """A storage was evicted: its class is merged with those of its evicted neighbors."""
    storage.node = node = Node(storage.cost)
    for other in storage.near():
        other.gone[id(storage)] = node
        if not other.material and other.node is not None:
            theirs, mine = other.node.root(), node.root()
            if theirs is not mine:
                theirs.above = mine
                mine.value += theirs.value


def leave(storage: Stored) -> None:
    """A storage is no longer evicted: its cost is subtracted from its class."""
    if storage.node is not None:
        storage.node.root().value -= storage.cost
        storage.node = None
        for other in storage.near():
            other.gone.pop(id(storage), None)


def _class_cost(gone: dict[int, Node]) -> int:
    """Cost of the distinct classes of some nodes."""
    if len(gone) == 1:
        (node,) = gone.values()
        return node.root().value
    return sum(root.value for root in {node.root() for node in gone.values()})


def _evicted_cost(storage: Stored, *, down: bool) -> int:
    """Cost of the evicted storages reached from a storage through evicted ones, towards sources or towards readers."""
    reached: set[int] = {id(storage)}
    stack, total = [storage], 0
    while stack:
        current = stack.pop()
        for other in readers_of(current) if down else current.up.values():
            if not other.material and id(other) not in reached:
                reached.add(id(other))
                total += other.cost
                stack.append(other)
    return total
