"""Classes of evicted storages: union-find with the paper's approximate split (section 4.1, appendix C.2).

An evicted storage joins the classes of its evicted neighbors; one that comes back takes its cost out of its class and
leaves it, and what it joined stays together: sets never split, and a class that aliases were added to can drift.
Accesses count the nodes that each search for a root visits.
"""

from __future__ import annotations

from remat.algorithms._arrays.jit import inner_kernel
from remat.algorithms._dtr.program import Flat
from remat.algorithms._dtr.state import DIRTY, LONELY, SEVERAL, State, linked


@inner_kernel
def root(s: State, node: int) -> int:
    """The root of a node; the nodes on the way to it are hung under it."""
    nodes = s.nodes
    top, visits = node, 1
    while nodes[top].parent >= 0:
        top = nodes[top].parent
        visits += 1
    while nodes[node].parent >= 0 and nodes[node].parent != top:
        above = nodes[node].parent
        nodes[node].parent = top
        node = above
    s.now[0].accesses += visits
    return int(top)


@inner_kernel
def new_class(s: State, x: int, value: int) -> int:
    """A class of the storage `x` alone."""
    node = s.now[0].nodes
    s.now[0].nodes += 1
    s.nodes[node].parent = -1
    s.nodes[node].value = value
    s.storages[x].node = node
    return int(node)


@inner_kernel
def stir(g: Flat, s: State, x: int) -> None:
    """Forget what is cached about `x` and its neighbors: it was evicted, came back, or was banished."""
    s.storages[x].cached = DIRTY
    created = s.now[0].created
    for k in range(g.storages[x].near, g.storages[x + 1].near):
        if g.near[k].since >= created:
            break
        s.storages[g.near[k].storage].cached = DIRTY


@inner_kernel
def join(g: Flat, s: State, x: int) -> None:
    """`x` was evicted: its class takes in those of its evicted neighbors."""
    node = new_class(s, x, s.storages[x].cost)
    created = s.now[0].created
    s.now[0].accesses += s.storages[x].up_pairs + s.storages[x].down_pairs
    for k in range(g.storages[x].near, g.storages[x + 1].near):
        if g.near[k].since >= created:
            break
        y = g.near[k].storage
        if s.storages[y].material or not linked(s, x, y):
            continue
        other, mine = root(s, s.storages[y].node), root(s, node)
        if other != mine:
            s.nodes[other].parent = mine
            s.nodes[mine].value += s.nodes[other].value
    stir(g, s, x)


@inner_kernel
def leave(g: Flat, s: State, x: int) -> None:
    """`x` is no longer evicted: its cost leaves its class."""
    node = s.storages[x].node
    root(s, node)  # read, then written: two searches
    s.nodes[root(s, node)].value -= s.storages[x].cost
    s.storages[x].node = -1
    stir(g, s, x)


@inner_kernel
def class_cost(g: Flat, s: State, x: int) -> int:
    """Cost of the distinct classes next to `x`; caches the class where there is one at most."""
    s.now[0].stamp += 1
    stamp, created = s.now[0].stamp, s.now[0].created
    visits = s.storages[x].up_pairs + s.storages[x].down_pairs
    s.now[0].accesses += visits
    total, number, last = 0, 0, 0
    for k in range(g.storages[x].near, g.storages[x + 1].near):
        if g.near[k].since >= created:
            break
        y = g.near[k].storage
        if s.storages[y].material or not linked(s, x, y):
            continue
        last = root(s, s.storages[y].node)
        visits += 1 if last == s.storages[y].node else 2
        if s.nodes[last].seen != stamp:
            s.nodes[last].seen = stamp
            total += s.nodes[last].value
            number += 1
    s.storages[x].visits = visits
    s.storages[x].cached = LONELY if number == 0 else last if number == 1 else SEVERAL
    return total
