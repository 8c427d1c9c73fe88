"""Scores: the loss by evicting a storage. The storage with the smallest score is evicted.

Kirisame et al. (ICLR 2021), section 2 and appendices C.3 and D.1. With c0 the cost of a storage's operators, m its bytes
and s the time since its last access:

| score | formula |
|---|---|
| `h_dtr` | (c0 + cost of its evicted neighborhood) / (m s) |
| `h_dtr_eq` | (c0 + cost of the classes of its evicted neighbors) / (m s) |
| `h_local` | c0 / (m s) |
| `msps` | (c0 + cost of its evicted ancestors) / m (Peng et al., 2020) |
| `lru` | its last access |
| `size` | 1 / m (Kumar et al., 2019) |
| `random` | a random storage |
| `h'(s, m, c)` | c / (m s), with s and m `yes` or `no` and c one of `e*`, `eq`, `local`, `no` |

A score of another package subclasses `Score`, names its measure of cost, and implements `value`.
"""

from __future__ import annotations

import math
import re
from typing import Any, ClassVar

import numpy as np
from attrs import field, frozen

from remat.algorithms._arrays.graph_arrays import Floats, Longs
from remat.algorithms._plugins.registry import entries, get
from remat.errors import BadArgument
from remat.ir.arguments import A_TEXT
from remat.settings import FLAG, Setting, one_of, takes

COSTS = ("no", "local", "ancestors", "e*", "eq")
"""Measures of cost, in the order of their codes in the kernels: 1; c0; with the cost of evicted ancestors; of the evicted
neighborhood; of the classes of evicted neighbors."""


@frozen
class Pool:
    """The storages that may be evicted, in the order of the pool: arrays of one length.

    Attributes:
        cost: by the measure that the score asked for. size: bytes. staleness: time since the last access.
        access: time of the last access.
    """

    cost: Longs
    size: Longs
    staleness: Longs
    access: Longs


@frozen
class Score:
    """Base of all scores; frozen, with a repr that rebuilds it.

    Attributes:
        MEASURE: the measure of cost the runtime keeps for it; one of `COSTS`.
    """

    MEASURE: ClassVar[str] = "local"

    @property
    def measure(self) -> str:
        """The measure of cost the runtime keeps for it."""
        return self.MEASURE

    def value(self, cost: int, size: int, staleness: int, access: int) -> float:
        """Score of one storage: its cost by the measure, its bytes, time since its last access, and time of that."""
        raise NotImplementedError

    def values(self, pool: Pool) -> Floats:
        """Scores of the whole pool; override it where numpy can do it at once."""
        rows = zip(pool.cost.tolist(), pool.size.tolist(), pool.staleness.tolist(), pool.access.tolist(), strict=True)
        return np.array([self.value(*row) for row in rows], np.float64)


def _is_score(value: Any) -> bool:
    return isinstance(value, Score) and value.measure in COSTS


A_SCORE = Setting(f"a Score, e.g. h_dtr_eq, whose MEASURE is one of {', '.join(COSTS)}", _is_score)


def choice(score: Score, pool: Pool) -> int:
    """The place in the pool of the storage to evict: the smallest score, of equal scores the last.

    Where the smallest is 0 it is the first of those, as in the public simulator: its search ends there, no score being below 0.

    Raises:
        BadArgument: P-SCORE, where the score does not give one number for each storage.
    """
    values = np.asarray(score.values(pool))
    if values.shape != pool.cost.shape or values.dtype.kind not in "fi" or np.isnan(values).any():
        what = f"a score gave {values!r:.100} for {len(pool.cost)} storages."
        raise BadArgument("P-SCORE", what, fix="return one number for each, none of them NaN.")
    smallest = values.min()
    return int(np.flatnonzero(values == smallest)[-1 if smallest else 0])


@frozen
class Family(Score):
    """The family h'(s, m, c): cost / (size x staleness), or infinity where that divides by zero.

    Attributes:
        staleness, size: whether it divides by them.
        cost: the measure of cost.
    """

    staleness: bool = field(default=True, validator=FLAG)
    size: bool = field(default=True, validator=FLAG)
    cost: str = field(default="eq", validator=one_of(*COSTS))

    @property
    def measure(self) -> str:
        """The measure of cost the runtime keeps for it."""
        return self.cost

    def value(self, cost: int, size: int, staleness: int, access: int) -> float:
        """The quotient of whole numbers, rounded once."""
        divisor = (size if self.size else 1) * (staleness if self.staleness else 1)
        return cost / divisor if divisor > 0 else math.inf


@frozen
class LastAccess(Score):
    """The last access: the least recently accessed storage is evicted first."""

    MEASURE: ClassVar[str] = "no"

    def value(self, cost: int, size: int, staleness: int, access: int) -> float:
        """The time of the last access."""
        return access


@frozen
class Chance(Score):
    """Any storage of the pool, by a generator seeded for the run: the draws of CPython's `randrange`."""

    MEASURE: ClassVar[str] = "no"


h_dtr = Family(cost="e*")
h_dtr_eq = Family(cost="eq")
h_local = Family(cost="local")
msps = Family(cost="ancestors", staleness=False)
size = Family(cost="no", staleness=False)
lru = LastAccess()
random = Chance()

OTHER_NAMES = {"h_eq": "h_dtr_eq", "h_dtr_local": "h_local", "h_msps": "msps", "h_lru": "lru", "h_size": "size",
               "h_rand": "random", "h_random": "random"}  # fmt: skip
"""What some scores are called elsewhere."""

_FAMILY = re.compile(r"h'?\(\s*(yes|no)\s*,\s*(yes|no)\s*,\s*(e\*|eqclass|eq|local|no|ancestors)\s*\)", re.IGNORECASE)


@takes(name=A_TEXT)
def score_named(name: str) -> Score:
    """The score of that name: a published one, `h'(s, m, c)`, or one that a package registers under `remat.scores`.

    Raises:
        BadArgument: P-NAME, with similar names; P-SCORE, when the object that a package registers is no score.
    """
    match = _FAMILY.fullmatch(name.strip())
    if match is not None:
        stale, large, cost = (word.lower() for word in match.groups())
        if (stale, large, cost) == ("no", "no", "no"):
            return random
        return Family(staleness=stale == "yes", size=large == "yes", cost="eq" if cost == "eqclass" else cost)
    plain = name.strip()
    if plain not in entries("scores"):
        plain = OTHER_NAMES.get(plain.lower(), plain.lower())
    score = get("scores", plain)
    score = score() if isinstance(score, type) else score
    if not isinstance(score, Score):
        raise BadArgument("P-SCORE", f"{name!r} is {score!r:.100}, not a score.", fix="register a subclass of Score.")
    return score
