"""What a node reaches by the edges of a table."""

from __future__ import annotations

import numpy as np

from remat.algorithms._arrays.graph_arrays import Flags, Ints
from remat.algorithms._arrays.jit import kernel


@kernel
def reached(table: Ints, at: int) -> Flags:
    """Nodes reachable from `at`, without it, in a graph without cycles whose edges are the rows of a table."""
    nodes = table[0] - 1
    seen, stack, top = np.zeros(nodes, np.bool_), np.empty(nodes + 1, np.int32), 1
    stack[0] = at
    while top > 0:
        top -= 1
        v = stack[top]
        for k in range(table[v], table[v + 1]):
            u = table[k]
            if not seen[u]:
                seen[u] = True
                stack[top] = u
                top += 1
    return seen
