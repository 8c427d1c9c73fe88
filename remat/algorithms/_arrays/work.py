"""Planning work: what the kernels have done so far, the same on every machine, and the seconds that it usually takes.

A unit is a position of a run sequence that a kernel visits; each kernel adds what it visits to `Flat.work`. Formulations are not
counted here: they have limits of their own (branch-and-bound nodes, simplex iterations).
"""

from __future__ import annotations

from typing import Final

from remat.algorithms._arrays.graph_arrays import Flat

RATE: Final = 5e7
"""Units that count as a second. A statement, not a measurement (a core does four to six times as many by now): effort in seconds
is work over this rate, so that the same problem and seed give the same plan on any machine, busy or not."""

GAIN: Final = 1e-4
"""How much faster, relatively, a plan must be to count as a gain."""


class Worked:
    """The work on a problem, and how much of it is after the last gain.

    Attributes:
        gained: seconds of work before the last gain.
        agreed: whether another search, from another start, has come to just the time of the best plan and to no better one.
    """

    def __init__(self, flat: Flat) -> None:
        self._flat = flat
        self._best = float("inf")
        self.gained = 0.0
        self.agreed = False

    @property
    def seconds(self) -> float:
        """Seconds of work so far, at the stated rate."""
        return int(self._flat.work[0]) / RATE

    @property
    def idle(self) -> float:
        """Seconds of work since the last gain."""
        return self.seconds - self.gained

    def note(self, time: float) -> None:
        """A better plan of this time was found; small gains add up until they count."""
        self.agreed = False
        if time < self._best * (1 - GAIN):
            self._best, self.gained = time, self.seconds
