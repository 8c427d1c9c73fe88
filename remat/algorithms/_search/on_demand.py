"""Reruns on demand: what is resident at given instants is prescribed, and missing data are recomputed before they are read."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from remat.algorithms._arrays.graph_arrays import Flags, Flat, Ints
from remat.algorithms._arrays.jit import inner_kernel, kernel


class OnDemand(NamedTuple):
    """A sequence under construction, in which missing data are recomputed.

    Attributes:
        out: the runs. resident: per datum, whether it is resident.
        chain: nodes to run next, unsorted. in_chain: per node, whether it is in `chain`.
    """

    out: Ints
    resident: Flags
    chain: Ints
    in_chain: Flags


@inner_kernel
def add_to_chain(s: OnDemand, p: int, length: int) -> int:
    """Add a node to the chain, unless it is in it; returns the new length of the chain."""
    if s.in_chain[p]:
        return length
    s.in_chain[p] = True
    s.chain[length] = p
    return length + 1


@inner_kernel
def add_missing_reads(g: Flat, s: OnDemand, v: int, length: int) -> int:
    """Add the producers of the missing data that `v` reads to the chain; returns the new length of the chain."""
    for k in range(g.reads[v], g.reads[v + 1]):
        if not s.resident[g.reads[k]]:
            length = add_to_chain(s, g.producer[g.reads[k]], length)
    return length


@inner_kernel
def run_chain(g: Flat, s: OnDemand, length: int, n: int) -> int:
    """Append the nodes of the chain and those that they need to the `n` runs, in order; returns the new number of runs."""
    done = 0
    lowest, highest = g.time.size, -1
    while done < length:
        u = s.chain[done]
        done += 1
        lowest, highest = min(lowest, u), max(highest, u)
        length = add_missing_reads(g, s, u, length)
    for u in range(lowest, highest + 1):
        if not s.in_chain[u]:
            continue
        s.in_chain[u] = False
        s.out[n] = u
        n += 1
        for k in range(g.writes[u], g.writes[u + 1]):
            s.resident[g.writes[k]] = True
    return n


@kernel
def recompute_on_demand(g: Flat, base: Ints, instants: Ints, saved: Flags) -> Ints:
    """`base` with reruns on demand: at instant k only `saved[k]` is resident, other data are recomputed before their next read.

    Data saved at the next instant that are missing by then are recomputed right before it.
    """
    nodes, data = g.time.size, g.size.size
    resident, produced = np.zeros(data, np.bool_), np.zeros(data, np.bool_)
    out = np.empty(base.size + nodes * (1 + 2 * instants.size), np.int32)
    s = OnDemand(out, resident, np.empty(nodes, np.int32), np.zeros(nodes, np.bool_))
    n, stage = 0, 0
    for i in range(base.size):
        v = base[i]
        if stage < instants.size and v == instants[stage]:
            length = 0
            for d in range(data):
                if produced[d] and saved[stage, d] and not resident[d] and g.rerun[g.producer[d]]:
                    length = add_to_chain(s, g.producer[d], length)
            n = run_chain(g, s, length, n)
            for d in range(data):
                resident[d] = resident[d] and (saved[stage, d] or g.keep[d] or not g.rerun[g.producer[d]])
            stage += 1
        length = 0
        n = run_chain(g, s, add_missing_reads(g, s, v, length), n)
        out[n] = v
        n += 1
        for k in range(g.writes[v], g.writes[v + 1]):
            resident[g.writes[k]] = True
            produced[g.writes[k]] = True
    return out[:n].copy()
