"""Parts with one bug each, of every kind that the kit checks, and the laws that each may break.

`python -m tests.testing.planted` tries them all in the default run, with shrinking on.
"""

import time
from contextlib import nullcontext

from attrs import field, frozen

from remat.testing import LawBroken, check_bound, check_partitioner, check_solver, check_source, check_transform

from .bounds import BOUNDS
from .claims import CLAIMS
from .manners import MANNERS
from .partitioners import PARTITIONERS
from .promises import PROMISES
from .solvers import SOLVERS
from .sources import SOURCES
from .transforms import TRANSFORMS


@frozen
class Planted:
    """One bug.

    Attributes:
        kind, name: of the part. laws: that it may break first. check: tries them. part: what is checked.
    """

    kind: str
    name: str
    laws: tuple[str, ...]
    check: object = field(repr=False)
    part: object = field(repr=False)

    def killed(self, **more):
        """The law that it breaks, or None, and the seconds of process time that the check took."""
        start, law = time.process_time(), None
        holder = self.part.planted() if hasattr(self.part, "planted") else nullcontext(self.part)
        with holder as part:
            try:
                self.check(part, say=lambda text: None, **more)
            except LawBroken as broken:
                law = broken.law
        return law, time.process_time() - start


def _all(kind, table, check):
    return [Planted(kind, type(part).__name__, tuple(laws.split()), check, part) for part, laws in table.items()]


ALL = (
    *_all("solver", SOLVERS, check_solver),
    *_all("solver", CLAIMS, check_solver),
    *_all("solver", MANNERS, check_solver),
    *_all("solver", PROMISES, check_solver),
    *_all("transform", TRANSFORMS, check_transform),
    *_all("partitioner", PARTITIONERS, check_partitioner),
    *_all("option source", SOURCES, check_source),
    *(
        Planted("bound", name, ("L-ROW", "L-COST", "L-POSSIBLE", "L-RAISE"), check_bound, changed)
        for name, changed in BOUNDS.items()
    ),
)
