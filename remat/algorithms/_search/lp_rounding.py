"""`SavedSet`: the saved-set programme at the hardest instants as a plan: solve, round, recompute on demand, repair.

The relaxed programme says what to hold at one instant and what to run again after it. Rounded at one half it becomes
a plan: drop the rest at its last read before the instant, and run each chain again right before its first later read.
Such a plan often exceeds the budget elsewhere; shaving repairs it and deletion thins it. Source: this project; the
programme at the loss alone is the saved-set knapsack.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from attrs import field, frozen

from remat.algorithms._arrays.graph_arrays import Flags, Flat, Ints
from remat.algorithms._arrays.jit import inner_kernel, kernel
from remat.algorithms._bounds.instants import Dependencies, Instant, instant_formulation
from remat.algorithms._milp.direct import solve_relaxed
from remat.algorithms._search.passes import ShavingParams, offer_shaved
from remat.algorithms._search.single_instant import candidate_instants
from remat.algorithms._search.state import RunMove, Search, Sequence
from remat.settings import number, tuple_of, whole


class Bringing(NamedTuple):
    """A sequence under construction, in which what is missing is made again.

    Attributes:
        out: the runs. there: per datum, whether it is resident.
        chain: nodes to run next, unsorted. wanted: per node, whether it is in `chain`.
    """

    out: Ints
    there: Flags
    chain: Ints
    wanted: Flags


@inner_kernel
def want(s: Bringing, p: int, length: int) -> int:
    """Put a node in the chain, unless it is there; returns the length of the chain now."""
    if s.wanted[p]:
        return length
    s.wanted[p] = True
    s.chain[length] = p
    return length + 1


@inner_kernel
def want_reads(g: Flat, s: Bringing, v: int, length: int) -> int:
    """Put the producers of what `v` reads and misses in the chain; returns the length of the chain now."""
    for k in range(g.read_ptr[v], g.read_ptr[v + 1]):
        if not s.there[g.read_idx[k]]:
            length = want(s, g.producer[g.read_idx[k]], length)
    return length


@inner_kernel
def run_chain(g: Flat, s: Bringing, length: int, n: int) -> int:
    """Append to the `n` runs those of the chain and of all it misses, in order; returns how many there are now."""
    done = 0
    lowest, highest = g.time.size, -1
    while done < length:
        u = s.chain[done]
        done += 1
        lowest, highest = min(lowest, u), max(highest, u)
        length = want_reads(g, s, u, length)
    for u in range(lowest, highest + 1):
        if not s.wanted[u]:
            continue
        s.wanted[u] = False
        s.out[n] = u
        n += 1
        for k in range(g.write_ptr[u], g.write_ptr[u + 1]):
            s.there[g.write_idx[k]] = True
    return n


@kernel
def recompute_on_demand(g: Flat, base: Ints, instants: Ints, saved: Flags) -> Ints:
    """`base` with reruns on demand: at each instant all but `saved[k]` is gone, and comes back right before its next read.

    What the next instant wants saved and nobody has brought back by then is made right before it.
    """
    nodes, data = g.time.size, g.size.size
    there, made = np.zeros(data, np.bool_), np.zeros(data, np.bool_)
    out = np.empty(base.size + nodes * (1 + 2 * instants.size), np.int32)
    s = Bringing(out, there, np.empty(nodes, np.int32), np.zeros(nodes, np.bool_))
    n, stage = 0, 0
    for i in range(base.size):
        v = base[i]
        if stage < instants.size and v == instants[stage]:
            length = 0
            for d in range(data):
                if made[d] and saved[stage, d] and not there[d] and g.rerun[g.producer[d]]:
                    length = want(s, g.producer[d], length)
            n = run_chain(g, s, length, n)
            for d in range(data):
                there[d] = there[d] and (saved[stage, d] or g.keep[d] or not g.rerun[g.producer[d]])
            stage += 1
        length = 0
        n = run_chain(g, s, want_reads(g, s, v, length), n)
        out[n] = v
        n += 1
        for k in range(g.write_ptr[v], g.write_ptr[v + 1]):
            there[g.write_idx[k]] = True
            made[g.write_idx[k]] = True
    return out[:n].copy()


def hardest_instants(search: Search, count: int) -> list[int]:
    """The instants of the largest bounds so far; without any, a scan in the captured order."""
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
    """Plans from the saved-set programme at the hardest instants, repaired by peak shaving. Proves nothing.

    Attributes:
        instants: how many.
        shares: parts of the budget that the programme may fill.
        threshold: data of at least this relaxed residency are saved.
    """

    instants: int = field(default=4, validator=whole(1, "instants"))
    shares: tuple[float, ...] = field(default=(1.0, 0.95, 0.88), validator=tuple_of(number(0, 1)))
    threshold: float = field(default=0.5, validator=number(0, 1))

    def improve(self, search: Search) -> None:
        """Each instant and share gives a start, shaved and thinned."""
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
        reads = search.flat.read_idx[search.flat.read_ptr[instant.at] : search.flat.read_ptr[instant.at + 1]]
        saved[reads] = True
        at = np.array([instant.at], np.int32)
        started: Sequence = recompute_on_demand(search.flat, search.base, at, saved[None, :])
        return started
