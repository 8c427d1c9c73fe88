"""The saved-set programme at one instant: what must be resident, and what must run again later, when a node first runs.

Take the moment just before the first run of a backward node t (or the loss). Its ancestors and all forward nodes have run, its
descendants have not; every other backward node v has or has not (z). Per datum d with producer p: s = d is resident, y = p runs
again later. A reader that has not run yet, or that runs again later, needs s or y. Residents, kept data, outputs and workspace of t
fit the budget. The least total time of y bounds the recomputation of every valid schedule, in any order (S-PHASE, S-KEEP and S-MEM
are all it uses). With `fixed` the set of nodes that have run is that of the captured order, and the bound holds for that order only;
at the loss the two are the same. Source: this project; see docs/explanation/bounds.md.
"""

from __future__ import annotations

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from remat.algorithms.bounds.program import Program, Rows
from remat.algorithms.runs.csr import BACKWARD, FORWARD, Flat

DONE, AHEAD, EITHER = 1, 0, 2


@frozen
class Instant:
    """The programme at the first run of node `at`; column of each datum's s and each node's y and z, -1: none."""

    at: int
    program: Program
    resident: NDArray[np.int32]
    again: NDArray[np.int32]
    ran: NDArray[np.int32]


def closure(flat: Flat, at: int, forward: bool) -> NDArray[np.bool_]:
    """Nodes reachable from `at` along data (descendants when `forward`, else ancestors), without `at`."""
    seen = np.zeros(flat.time.size, np.bool_)
    stack = [at]
    while stack:
        v = stack.pop()
        if forward:
            made = flat.write_idx[flat.write_ptr[v] : flat.write_ptr[v + 1]]
            near = [int(c) for d in made for c in flat.use_idx[flat.use_ptr[d] : flat.use_ptr[d + 1]]]
            # a contribution is seen through the datum it grows: readers follow every contributor
            grown = flat.read_idx[flat.read_ptr[v] : flat.read_ptr[v + 1]]
            near += [int(c) for d in grown if d in flat.grows[v] for c in flat.readers_after[int(d)] if c > v]
        else:
            near = [int(p) for p in flat.before[v]]
        for u in near:
            if not seen[u]:
                seen[u] = True
                stack.append(u)
    seen[at] = False
    return seen
