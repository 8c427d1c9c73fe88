"""Pseudocosts: by what the decisions of variables have raised bounds, per unit by which they changed the variables.

What a variable brought in one relaxation is a guess at what it brings in another, so that few need to be tried in each. Sources:
Bénichou et al., *Experiments in mixed-integer linear programming*, 1971; Achterberg, Koch and Martin, *Branching rules
revisited*, 2005 (reliability branching).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import NamedTuple

from remat.algorithms._milp.answer import Floats

Gains = tuple[float, float]
"""By what a bound rises where a variable is 0, and where it is 1 [ns]."""


class _Rates(NamedTuple):
    """Sums of gains per unit for either value, and of how many tries."""

    low: float
    high: float
    tries: int


_NONE = _Rates(0.0, 0.0, 0)


class Pseudocosts:
    """Mean gains per unit of variables, by name."""

    def __init__(self) -> None:
        self._rates: dict[Hashable, _Rates] = {}

    def note(self, names: Mapping[int, Hashable], point: Floats, gains: Mapping[int, Gains]) -> None:
        """What columns brought at a point where their values were strictly between 0 and 1."""
        for column, (low, high) in gains.items():
            value, rates = float(point[column]), self._rates.get(names[column], _NONE)
            sums = rates.low + low / value, rates.high + high / (1 - value)
            self._rates[names[column]] = _Rates(*sums, rates.tries + 1)

    def expected(self, names: Mapping[int, Hashable], point: Floats) -> dict[int, Gains]:
        """What columns are expected to bring at a point, those of which something is noted."""
        gains: dict[int, Gains] = {}
        for column, name in names.items():
            if (rates := self._rates.get(name)) is not None:
                value = float(point[column])
                gains[column] = rates.low / rates.tries * value, rates.high / rates.tries * (1 - value)
        return gains
