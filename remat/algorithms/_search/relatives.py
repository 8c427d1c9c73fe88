"""`Relatives`: run sequences made for one graph as starts for another of the same structure.

Two graphs have one structure when their nodes and data agree in all but sizes, times and workspaces: a training step at two
batch sizes or sequence lengths, say. A run sequence of one is then a legal one of the other, and only its peak may be too large.
"""

from __future__ import annotations

import numpy as np
from attrs import field, frozen

from remat.algorithms._search.passes import offer_shaved, variant
from remat.algorithms._search.run_move import RunMove
from remat.algorithms._search.state import Search
from remat.settings import tuple_of, whole

Runs = tuple[int, ...]
"""Numbers of the nodes of a graph, in the order of their runs."""

NEAREST = 2
"""Of the sequences that do not fit, so many are shaved until a plan is found."""
_SHAVED = "shaved"


@frozen
class Relatives(RunMove):
    """Offers run sequences made for graphs of the same structure; where none fits, shaves those of the smallest peaks.

    Proves nothing. Sequences are long and no settings that anybody writes down: the repr says how many there are.

    Attributes:
        sequences: the run sequences.
        variants: how many preferences of shaving are tried on each.
    """

    sequences: tuple[Runs, ...] = field(
        repr=lambda sequences: f"<{len(sequences)}>", validator=tuple_of(tuple_of(whole(0)))
    )
    variants: int = field(default=4, validator=whole(1, "variants"))

    def improve(self, search: Search) -> None:
        """Offer each, the fastest first, so that one alone becomes a schedule; then, without a plan, shave."""
        starts = [np.array(sequence, np.int32) for sequence in self.sequences]
        times = [search.arrays.time_of(start) for start in starts]
        for place in sorted(range(len(starts)), key=times.__getitem__):
            search.offer(starts[place], self._name(place))
        peaks = [search.arrays.peak_of(start) for start in starts] if search.best is None else []
        for rank, place in enumerate(sorted(range(len(peaks)), key=peaks.__getitem__)[:NEAREST]):
            for k in range(self.variants):
                if search.clock.expired:
                    return
                rng = search.streams.spawn("relative", rank, k)
                offer_shaved(search, starts[place], variant(k), rng, f"{self._name(place)}, {_SHAVED}")
            if search.best is not None:
                return

    def _name(self, place: int) -> str:
        return f"sequence {place + 1} of {len(self.sequences)}"


def is_repaired(trail: tuple[str, ...]) -> bool:
    """Whether a search that began with `Relatives` found no sequence that fits, and had to shave."""
    return any(_SHAVED in line.partition(":")[0] for line in trail)


__all__ = ["Relatives", "Runs", "is_repaired"]
