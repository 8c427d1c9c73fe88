"""Classes of evicted storages: union-find with the paper's approximate split (section 4.1, appendix C.2).

An evicted storage joins the classes of its evicted neighbors; one that comes back takes its cost out of its class and
leaves it, and what it joined stays together: sets never split, and a class that aliases were added to can drift.
Accesses count the nodes that each search for a root visits.
"""

from __future__ import annotations

from remat.algorithms._arrays.jit import inner_kernel
from remat.algorithms._dtr.program import Flat
from remat.algorithms._dtr.state import ACCESSES, CREATED, DIRTY, LONELY, NODES, SEVERAL, STAMP, Classes, State, linked


@inner_kernel
def root(s: State, c: Classes, node: int) -> int:
    """The root of a node; the nodes on the way to it are hung under it."""
    top, visits = node, 1
    while c.parent[top] >= 0:
        top = c.parent[top]
        visits += 1
    while c.parent[node] >= 0 and c.parent[node] != top:
        above = c.parent[node]
        c.parent[node] = top
        node = above
    s.tally[ACCESSES] += visits
    return top


@inner_kernel
def new_class(s: State, c: Classes, x: int, value: int) -> int:
    """A class of the storage `x` alone."""
    node = int(s.now[NODES])
    s.now[NODES] += 1
    c.parent[node] = -1
    c.value[node] = value
    c.node[x] = node
    return node


@inner_kernel
def stir(g: Flat, s: State, c: Classes, x: int) -> None:
    """Forget what is cached about `x` and its neighbors: it was evicted, came back, or was banished."""
    c.cached[x] = DIRTY
    for k in range(g.near.ptr[x], g.near.ptr[x + 1]):
        if g.near.since[k] >= s.now[CREATED]:
            break
        c.cached[g.near.idx[k]] = DIRTY


@inner_kernel
def join(g: Flat, s: State, c: Classes, x: int) -> None:
    """`x` was evicted: its class takes in those of its evicted neighbors."""
    node = new_class(s, c, x, s.cost[x])
    s.tally[ACCESSES] += s.up_edges[x] + s.down_edges[x]
    for k in range(g.near.ptr[x], g.near.ptr[x + 1]):
        if g.near.since[k] >= s.now[CREATED]:
            break
        y = g.near.idx[k]
        if s.material[y] or not linked(s, x, y):
            continue
        other, mine = root(s, c, c.node[y]), root(s, c, node)
        if other != mine:
            c.parent[other] = mine
            c.value[mine] += c.value[other]
    stir(g, s, c, x)


@inner_kernel
def leave(g: Flat, s: State, c: Classes, x: int) -> None:
    """`x` is no longer evicted: its cost leaves its class."""
    root(s, c, c.node[x])  # read, then written: two searches
    c.value[root(s, c, c.node[x])] -= s.cost[x]
    c.node[x] = -1
    stir(g, s, c, x)


@inner_kernel
def class_cost(g: Flat, s: State, c: Classes, x: int) -> int:
    """Cost of the distinct classes next to `x`."""
    alone = c.cached[x]
    if alone == LONELY or (alone >= 0 and c.parent[alone] < 0):
        s.tally[ACCESSES] += c.visits[x]
        return int(c.value[alone]) if alone >= 0 else 0
    s.now[STAMP] += 1
    s.tally[ACCESSES] += s.up_edges[x] + s.down_edges[x]
    total, number, last, visits = 0, 0, 0, s.up_edges[x] + s.down_edges[x]
    for k in range(g.near.ptr[x], g.near.ptr[x + 1]):
        if g.near.since[k] >= s.now[CREATED]:
            break
        y = g.near.idx[k]
        if s.material[y] or not linked(s, x, y):
            continue
        last = root(s, c, c.node[y])
        visits += 1 if last == c.node[y] else 2
        if c.seen[last] != s.now[STAMP]:
            c.seen[last] = s.now[STAMP]
            total += c.value[last]
            number += 1
    c.visits[x] = visits
    c.cached[x] = LONELY if number == 0 else last if number == 1 else SEVERAL
    return total
