"""Which nodes first run before which: in every schedule, and in those that a chain of instants stands for."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from remat.algorithms._arrays.graph_arrays import Flat
from remat.algorithms._bounds.instants import Dependencies

Chain = tuple[int, ...]
"""Instants (node indices) in the order of their first runs; it stands for the schedules with this order."""


class Precedence:
    """Which nodes precede which in every schedule of a graph."""

    def __init__(self, flat: Flat) -> None:
        self.flat = flat
        self.dependencies = Dependencies(flat)
        self._before: dict[int, NDArray[np.bool_]] = {}

    def before(self, at: int) -> NDArray[np.bool_]:
        """Nodes that have run whenever `at` first runs."""
        if at not in self._before:
            self._before[at] = self.dependencies.ancestors(at)
            self._before[at] |= self.flat.phase < self.flat.phase[at]
        return self._before[at]

    def insertions(self, chain: Chain, at: int) -> list[Chain]:
        """The chain with one more instant, at each place that dependencies allow.

        Every schedule of the chain belongs to exactly one of them.
        """
        first = max((i + 1 for i, other in enumerate(chain) if self.before(at)[other]), default=0)
        last = min((i for i, other in enumerate(chain) if self.before(other)[at]), default=len(chain))
        return [(*chain[:i], at, *chain[i:]) for i in range(first, last + 1)]

    def orders(self, instants: frozenset[int], most: int) -> list[Chain] | None:
        """All orders in which the instants may first run; None when there are more than `most`."""
        orders = list(islice(self._extensions(instants), most + 1))
        return orders if len(orders) <= most else None

    def _extensions(self, left: frozenset[int]) -> Iterator[Chain]:
        if not left:
            yield ()
        for at in sorted(left):
            if not any(self.before(at)[other] for other in left):
                for rest in self._extensions(left - {at}):
                    yield (at, *rest)
