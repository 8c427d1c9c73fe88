"""Classes of evicted storages: union-find with the paper's approximate split (section 4.1, appendix C.2).

An evicted storage merges the classes of its evicted neighbors. A storage that is recomputed subtracts its cost from its class
and leaves it; the rest of the class stays together. Sets never split, and the cost of a class can drift where aliases were
added. A banished storage has no class, also where it comes back with another output of its operator. Accesses count the nodes
that each search for a root visits.
"""

from __future__ import annotations

from remat.algorithms._arrays.jit import inner_kernel
from remat.algorithms._dtr.program import Flat
from remat.algorithms._dtr.state import DIRTY, LONELY, SEVERAL, State, linked


@inner_kernel
def root(s: State, node: int) -> int:
    """The root of a node, with path compression."""
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
    """A new class with the storage `x` as its only member."""
    node = s.now[0].nodes
    s.now[0].nodes += 1
    s.nodes[node].parent = -1
    s.nodes[node].value = value
    s.storages[x].node = node
    return int(node)


@inner_kernel
def stir(g: Flat, s: State, x: int) -> None:
    """Invalidate the caches of the neighbors of `x`, which was evicted, recomputed, or banished."""
    created = s.now[0].created
    storages, places = s.storages, s.places
    for k in range(g.storages[x].near, g.storages[x + 1].near):
        if g.near[k].since >= created:
            break
        place = storages[g.near[k].storage].place
        if place >= 0:
            places[place].cached = DIRTY


@inner_kernel
def join(g: Flat, s: State, x: int) -> None:
    """`x` was evicted: its class is merged with those of its evicted neighbors."""
    node = new_class(s, x, s.storages[x].cost)
    created = s.now[0].created
    s.now[0].accesses += s.storages[x].up_pairs + s.storages[x].down_pairs
    for k in range(g.storages[x].near, g.storages[x + 1].near):
        if g.near[k].since >= created:
            break
        y = g.near[k].storage
        if s.storages[y].material or not linked(s, x, y) or s.storages[y].node < 0:
            continue
        other, mine = root(s, s.storages[y].node), root(s, node)
        if other != mine:
            s.nodes[other].parent = mine
            s.nodes[mine].value += s.nodes[other].value
    stir(g, s, x)


@inner_kernel
def leave(g: Flat, s: State, x: int) -> None:
    """`x` is no longer evicted: its cost is subtracted from its class, if it has one."""
    node = s.storages[x].node
    if node >= 0:
        root(s, node)  # read, then written: two searches
        s.nodes[root(s, node)].value -= s.storages[x].cost
        s.storages[x].node = -1
    stir(g, s, x)


@inner_kernel
def class_cost(g: Flat, s: State, x: int) -> int:
    """Cost of the distinct classes of the evicted neighbors of `x`; its place in the pool caches up to two of them."""
    near, storages, nodes, now = g.near, s.storages, s.nodes, s.now[0]
    now.stamp += 1
    stamp, created, banishing = now.stamp, now.created, now.banished > 0
    pairs = storages[x].up_pairs + storages[x].down_pairs
    total, number, visits, reads = 0, 0, 0, 0
    first, second = LONELY, LONELY
    for k in range(g.storages[x].near, g.storages[x + 1].near):
        if near[k].since >= created:
            break
        y = near[k].storage
        if storages[y].material or (banishing and not linked(s, x, y)):
            continue
        node = storages[y].node
        if node < 0:
            continue
        above = nodes[node].parent
        if above < 0:
            reads += 1
            visits += 1
            above = node
        elif nodes[above].parent < 0:
            reads += 2
            visits += 2
        else:
            above = root(s, node)
            visits += 2  # from now on
        if nodes[above].seen != stamp:
            nodes[above].seen = stamp
            total += nodes[above].value
            number += 1
            first, second = above, first
    now.accesses += pairs + reads
    place = storages[x].place
    s.places[place].visits = visits + pairs
    s.places[place].cached = first if number <= 2 else SEVERAL
    s.places[place].other = second
    return total
