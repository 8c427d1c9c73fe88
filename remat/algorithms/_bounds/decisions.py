"""What a solution with integers decides at an instant: whether a datum is resident, whether a node has run.

Every schedule of a chain of instants has decided each. So those in which a datum is resident at an instant and those in which it
is not are all of them, and the least bound of both formulations holds for all. Source: this project.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from remat.algorithms._arrays.graph_arrays import Flat
from remat.algorithms._bounds.ordered_instants import Chained
from remat.algorithms._milp.linear import Fixings, Ints

RESIDENT, RAN = "resident", "ran"

_WHOLE = 1e-3  # distance from an integer below which a variable is one


class Decision(NamedTuple):
    """At the first run of an instant.

    Attributes:
        kind: RESIDENT: a datum is resident; RAN: a node has run.
        at: the instant. item: the datum or the node.
        value: 1 if that is so, 0 if not.
    """

    kind: str
    at: int
    item: int
    value: int


def fixings(chained: Chained, decisions: Iterable[Decision]) -> Fixings:
    """The columns with which a formulation says so; what it knows without one is left out."""
    groups = {RESIDENT: chained.resident, RAN: chained.ran}
    number = {at: k for k, at in enumerate(chained.instants)}
    given = [(int(groups[kind][number[at], item]), value) for kind, at, item, value in decisions]
    pairs = np.array([pair for pair in given if pair[0] >= 0], np.int64).reshape(-1, 2)
    return Fixings(pairs[:, 0], pairs[:, 1])


def decided(chained: Chained, column: int) -> tuple[Decision, Decision]:
    """What a column says if it is 0, and if it is 1."""
    for kind, columns in ((RESIDENT, chained.resident), (RAN, chained.ran)):
        places = np.argwhere(columns == column)
        if len(places):
            k, item = places[0].tolist()
            return Decision(kind, chained.instants[k], item, 0), Decision(kind, chained.instants[k], item, 1)
    raise LookupError(f"column {column} decides nothing.")


def undecided(chained: Chained, flat: Flat, point: NDArray[np.float64], most: int) -> Ints:
    """The columns that a solution leaves undecided, at most so many, those of most bytes first; a node counts as the largest."""
    weight = np.zeros(len(point))
    weight[chained.ran[chained.ran >= 0]] = flat.size.max(initial=1)
    k, d = np.nonzero(chained.resident >= 0)
    weight[chained.resident[k, d]] = flat.size[d]
    share = np.minimum(point, 1 - point)
    columns = np.flatnonzero(chained.linear.integral & (share > _WHOLE))
    order = np.argsort(-(weight * share)[columns], kind="stable")
    return np.asarray(columns[order][:most], np.int64)
