"""Random streams by name: `Streams(seed).spawn("start", 3)` is the state of a generator, determined by seed, name and keys.

The numbers of all streams are in one table, so that no two purposes share a stream. Keys outside the range of a purpose
get a stream by a hash of the name and the keys.
"""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np
from attrs import frozen

from remat.algorithms._arrays.graph_arrays import Seed

_STREAMS: Final[dict[str, tuple[int, tuple[tuple[int, int], ...]]]] = {
    "peak shaving": (1, ()),
    "shift": (2, ()),
    "shifted order": (3, ()),
    "relative": (10, ((10, 8), (1, 10))),
    "start": (100, ((1, 200),)),
    "easy budget": (300, ()),
    "postpone": (301, ((1, 9),)),
    "lower budget": (310, ((1, 90),)),
    "relief": (400, ((1, 500),)),
    "checkpoints": (900, ((1, 100),)),
    "saved set": (1000, ((10, 100), (1, 10))),
    "captured order": (2000, ((10, 200), (1, 10))),
    "descent": (4000, ((1, 1000),)),
    "solver": (5000, ((10, 100), (1, 10))),
    "copies": (4, ()),
    "any order": (6000, ((10, 400), (1, 8))),
    "settling": (6009, ((10, 400),)),
    "drawn": (6008, ((10, 400),)),
    "oscillation": (10_012, ((10_000, 1 << 40),)),
    "pool": (10_002, ((10_000, 1 << 40), (1, 2))),
    "best": (10_009, ((10_000, 1 << 40),)),
    "ruined copies": (10_011, ((10_000, 1 << 40),)),
    "new start": (10_000, ((10_000, 1 << 40), (20, 500))),
    "from new start": (10_001, ((10_000, 1 << 40), (20, 500))),
}
"""For each purpose: its first number, and per key (counted from 0) the step between numbers and how many values it may have."""


@frozen
class Streams:
    """The random streams of one seed."""

    seed: int

    def spawn(self, name: str, *keys: int) -> Seed:
        """The state of a generator (see `rng`): a uint64 array of length 1.

        Args:
            name: the purpose, a key of the table.
            keys: which of its streams: an int from 0 for each key that the table lists.
        """
        mixed = (self.seed * 0x9E3779B97F4A7C15 + _number(name, keys) * 0xBF58476D1CE4E5B9 + 1) % (1 << 64)
        return np.array([mixed], np.uint64)


def _number(name: str, keys: tuple[int, ...]) -> int:
    first, axes = _STREAMS[name]
    if len(keys) != len(axes):
        raise ValueError(f"{name!r} has {len(axes)} keys, not {len(keys)}")
    if all(0 <= key < count for key, (_, count) in zip(keys, axes, strict=True)):
        return first + sum(key * step for key, (step, _) in zip(keys, axes, strict=True))
    digest = hashlib.sha256(repr((name, keys)).encode()).digest()
    return 1 << 63 | int.from_bytes(digest[:7])
