"""`SavedSet`: plans from the saved-set formulation at the hardest instants: solve, round, recompute on demand, repair.

The relaxed formulation says which data are resident at one instant and what runs again after it. Rounded at one half it gives
a plan: the other data are dropped at their last read before the instant and recomputed right before their next read.
Such a plan often exceeds the budget elsewhere; shaving repairs it, and deletion removes reruns that are not needed. Source:
this project; at the loss the formulation is the saved-set knapsack.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from attrs import field, frozen

from remat.algorithms._arrays.graph_arrays import Flags, Flat, Ints, row_of
from remat.algorithms._arrays.jit import inner_kernel, kernel
from remat.algorithms._bounds.instants import Dependencies, Instant, instant_formulation
from remat.algorithms._milp.direct import solve_relaxed
from remat.algorithms._search.passes import ShavingParams, offer_shaved
from remat.algorithms._search.single_instant import candidate_instants
from remat.algorithms._search.state import RunMove, Search, Sequence
from remat.settings import number, tuple_of, whole


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


def hardest_instants(search: Search, count: int) -> list[int]:
    """The instants of the largest bounds so far; if there are none, instants are scanned in the captured order first."""
    if not search.bounds.hardness:
        dependencies = Dependencies(search.flat)
        for at in candidate_instants(search, 8, 3):
            instant = instant_formulation(search.flat, dependencies, at, search.budget, fixed=True)
            answer = None if instant.impossible else solve_relaxed(instant.linear, clock=search.clock)
            if answer is not None and not answer.infeasible:
                search.bounds.record_instant(at, answer.bound)
            if search.clock.expired:
                break
    return search.bounds.hardest(count)


@frozen
class SavedSet(RunMove):
    """Plans from the saved-set formulation at the hardest instants, repaired by peak shaving. Proves nothing.

    Attributes:
        instants: how many.
        shares: fractions of the budget that the formulation may fill.
        threshold: data of at least this relaxed residency are saved.
    """

    instants: int = field(default=4, validator=whole(1, "instants"))
    shares: tuple[float, ...] = field(default=(1.0, 0.95, 0.88), validator=tuple_of(number(0, 1)))
    threshold: float = field(default=0.5, validator=number(0, 1))

    def improve(self, search: Search) -> None:
        """Shave and thin one start per instant and share."""
        dependencies = Dependencies(search.flat)
        for rank, at in enumerate(hardest_instants(search, self.instants)):
            for k, share in enumerate(self.shares):
                if search.clock.expired:
                    return
                budget = int(search.budget * share)
                instant = instant_formulation(search.flat, dependencies, at, budget, fixed=True)
                start = None if instant.impossible else self._start(search, instant)
                if start is None:
                    continue
                how = f"{self!r} at {search.problem.graph.computes[at].name}, share {share}"
                offer_shaved(search, start, ShavingParams(), search.streams.spawn("saved set", rank, k), how)

    def _start(self, search: Search, instant: Instant) -> Sequence | None:
        answer = solve_relaxed(instant.linear, clock=search.clock)
        if answer.point is None:
            return None
        saved = np.ones(search.flat.size.size, np.bool_)
        with_column = instant.resident >= 0
        saved[with_column] = answer.point[instant.resident[with_column]] >= self.threshold
        reads = row_of(search.flat.reads, instant.at)
        saved[reads] = True
        at = np.array([instant.at], np.int32)
        start: Sequence = recompute_on_demand(search.flat, search.base, at, saved[None, :])
        return start
