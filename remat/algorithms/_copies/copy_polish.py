"""Polishing a plan with copies: reruns deleted or replaced by copies, the most expensive first, and copies that serve nothing.

Time is not monotone in these moves (fewer reruns may cost idle time), so each is accepted by its exact time only. Ties are
accepted: they take load off the lanes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from remat.algorithms._arrays.graph_arrays import Flags, Flat, Ints, Longs
from remat.algorithms._arrays.jit import inner_kernel, kernel
from remat.algorithms._arrays.liveness import settle
from remat.algorithms._copies.copy_arrays import LARGE, NO_LIMIT, Lanes, Runs
from remat.algorithms._copies.copy_replay import FAILED, time_of

_DELETED = 0.5  # of the reruns


@inner_kernel
def bit_of(g: Flat, v: int, d: int) -> int:
    """The place of datum d among the reads of node v; -1: v does not read it."""
    for k in range(g.reads[v], g.reads[v + 1]):
        if g.reads[k] == d:
            return int(k - g.reads[v])
    return -1


@inner_kernel
def writes(g: Flat, v: int, d: int) -> bool:
    """Whether node v produces datum d."""
    produced = False
    for k in range(g.writes[v], g.writes[v + 1]):
        produced = produced or g.writes[k] == d
    return produced


@inner_kernel
def mark_next_read(g: Flat, runs: Runs, at: int, d: int) -> bool:
    """Mark the first read of d from `at` on, unless d is produced before it or it is marked; whether it was changed."""
    for i in range(at, runs.n):
        v = runs.seq[i]
        if writes(g, v, d):
            return False
        k = bit_of(g, v, d)
        if k >= 0:
            bit = np.int64(1) << k
            if runs.mask[i] & bit:
                return False
            runs.mask[i] |= bit
            return True
    return False


class Uses(NamedTuple):
    """Which data stay on the device after each run for a later one.

    Attributes:
        slot: the first slot of each position. stays: per slot, the reads and then the outputs of a position, whether the next
            event of the datum is a read that does not come by a copy.
        change: scratch, all zero between calls: how residency changes (see `settle`).
    """

    slot: Ints
    stays: Flags
    change: NDArray[np.int8]


@kernel
def uses_of(g: Flat, seq: Ints, mask: Longs) -> Uses:
    """The uses of a plan."""
    n, slots = seq.size, 0
    slot = np.empty(n, np.int32)
    for i in range(n):
        v = seq[i]
        slot[i] = slots
        slots += g.reads[v + 1] - g.reads[v] + g.writes[v + 1] - g.writes[v]
    stays, live = np.empty(slots, np.bool_), np.zeros(g.size.size, np.bool_)
    for i in range(n - 1, -1, -1):
        v = seq[i]
        at = slot[i] + g.reads[v + 1] - g.reads[v]
        for k in range(g.writes[v], g.writes[v + 1]):
            stays[at + k - g.writes[v]] = live[g.writes[k]]
            live[g.writes[k]] = False
        for k in range(g.reads[v], g.reads[v + 1]):
            stays[slot[i] + k - g.reads[v]] = live[g.reads[k]]
            live[g.reads[k]] = not (mask[i] >> (k - g.reads[v])) & 1
    return Uses(slot, stays, np.zeros(g.size.size, np.int8))


@kernel
def fits_without(g: Flat, plan: tuple[Ints, Longs], mem: Longs, budget: int, at: int, uses: Uses) -> bool:
    """Whether the bytes fit without the rerun at a position, if copies took no time. `mem`: bytes charged at each run.

    What it makes and a later run reads stays from its previous event on; what only it reads leaves at its previous event. What
    it fetched comes by a copy to the next read.
    """
    seq, mask = plan
    v, slot, change = seq[at], uses.slot[at], uses.change
    delta, changed_data = np.int64(0), np.int64(0)
    for k in range(g.reads[v], g.reads[v + 1]):
        d = g.reads[k]
        if not (g.keep[d] or uses.stays[slot + k - g.reads[v]] or (mask[at] >> (k - g.reads[v])) & 1):
            change[d] = -1
            delta -= g.size[d]
            changed_data += 1
    slot += g.reads[v + 1] - g.reads[v]
    for k in range(g.writes[v], g.writes[v + 1]):
        d = g.writes[k]
        if uses.stays[slot + k - g.writes[v]] and not g.keep[d]:
            change[d] = 1
            delta += g.size[d]
            changed_data += 1
    fit, j = True, at - 1
    while changed_data > 0 and j >= 0:
        ended, ends = settle(g, seq[j], change)
        delta -= ended
        changed_data -= ends
        if mem[j] + delta > budget:
            fit = False
            break
        j -= 1
    g.work[0] += at - j
    settle(g, v, change)
    return fit


@kernel
def may_stay(g: Flat, seq: Ints, mem: Longs, budget: int, at: int, k: int) -> bool:
    """Whether the bytes fit if the k-th read of a position does not come by a copy."""
    d = g.reads[g.reads[seq[at]] + k]
    g.work[0] += 1
    for i in range(at - 1, -1, -1):
        if writes(g, seq[i], d) or bit_of(g, seq[i], d) >= 0:
            return True
        if mem[i] > budget - g.size[d]:
            return False
    return True


@kernel
def trial_without(g: Flat, lanes: Lanes, seq: Ints, mask: Longs, at: int, copied: bool) -> tuple[Ints, Longs, bool]:
    """(runs, masks, whether any read was marked instead) without position `at`; what it fetched comes by a copy to the next read.

    With `copied`, the next reads of what it made come by a copy too.
    """
    n = seq.size - 1
    runs, masks = np.empty(n, np.int32), np.empty(n, np.int64)
    for i in range(n):
        j = i if i < at else i + 1
        runs[i], masks[i] = seq[j], mask[j]
    g.work[0] += n
    v = seq[at]
    trial = Runs(runs, masks, n)
    for k in range(g.reads[v], g.reads[v + 1]):
        if (mask[at] >> (k - g.reads[v])) & 1:
            mark_next_read(g, trial, at, g.reads[k])
    marked = False
    if copied:
        for k in range(g.writes[v], g.writes[v + 1]):
            d = g.writes[k]
            if lanes.movable[d] and mark_next_read(g, trial, at, d):
                marked = True
    return runs, masks, marked


@kernel
def replayed(g: Flat, lanes: Lanes, seq: Ints, mask: Longs, most: int) -> tuple[int, Ints, Longs]:
    """(time [ns], where each prefetch is issued, bytes charged at each run) of a plan.

    The time is `FAILED` if it does not fit or takes more than `most` ns.
    """
    time, copies, mem = time_of(g, lanes, Runs(seq, mask, seq.size), most)
    return time, copies.issue, mem


def reruns_in(g: Flat, seq: Ints, span: tuple[int, int]) -> Ints:
    """Positions of the reruns in a span, the most expensive first."""
    again = np.ones(len(seq), np.bool_)
    again[np.unique(seq, return_index=True)[1]] = False
    again &= g.rerun[seq]
    again[: span[0]] = again[span[1] :] = False
    places = np.flatnonzero(again)
    return places[np.argsort(-g.time[seq[places]], kind="stable")].astype(np.int32)


class PolishedPlan:
    """A plan that is polished in place: runs, masks, time [ns], where each prefetch is issued, bytes charged at each run."""

    def __init__(self, g: Flat, lanes: Lanes, seq: Ints, mask: Longs, most: int) -> None:
        self.g, self.lanes, self.seq, self.mask = g, lanes, seq, mask.copy()
        self.time, self.issue, self.mem = replayed(g, lanes, seq, mask, most)
        self.uses: Uses | None = None

    def take(self, seq: Ints, mask: Longs) -> bool:
        """Take another plan if it is not slower; whether it was taken."""
        time, issue, mem = replayed(self.g, self.lanes, seq, mask, self.time)
        if time == FAILED:
            return False
        self.seq, self.mask, self.time, self.issue, self.mem, self.uses = seq, mask, time, issue, mem, None
        return True

    def delete_reruns(self, span: tuple[int, int]) -> None:
        """Delete reruns of a span, or replace them by copies, where that is not slower."""
        places = reruns_in(self.g, self.seq, span)
        for j in range(len(places)):
            at = int(places[j])  # earlier deletions have moved it
            if self._delete(at):
                places[j + 1 :] -= places[j + 1 :] > at

    def _delete(self, at: int) -> bool:
        if self.uses is None:
            self.uses = uses_of(self.g, self.seq, self.mask)
        if fits_without(self.g, (self.seq, self.mask), self.mem, self.lanes.budget, at, self.uses):
            runs, masks, _ = trial_without(self.g, self.lanes, self.seq, self.mask, at, False)
            if self.take(runs, masks):
                return True
        runs, masks, marked = trial_without(self.g, self.lanes, self.seq, self.mask, at, True)
        return marked and self.take(runs, masks)

    def clear_marks(self, span: tuple[int, int]) -> None:
        """Leave out copies to the reads of a span where that is not slower."""
        for i in range(span[0], min(span[1], len(self.seq))):
            bits = int(self.mask[i])
            for k in range(bits.bit_length()):
                if bits >> k & 1 and may_stay(self.g, self.seq, self.mem, self.lanes.budget, i, k):
                    mask = self.mask.copy()
                    mask[i] ^= 1 << k
                    self.take(self.seq, mask)


def polished(
    g: Flat, lanes: Lanes, plan: tuple[Ints, Longs], span: tuple[int, int], passes: int, *, most: int = NO_LIMIT
) -> tuple[Ints, Longs, Ints, int, bool]:
    """Polish the positions in a span, in passes until nothing changes; plain Python around kernels, which compile faster so.

    The plan is given as (runs, masks). Returns (runs, masks, where each prefetch is issued, time [ns], whether the last pass
    changed nothing, or next to nothing); the time is `FAILED` for a plan that does not fit or takes more than `most` ns as it is
    given. With no passes the plan is only replayed. On large graphs another pass follows only where one has deleted half of the
    reruns: after fewer deletions each of those that failed nearly always fails again.
    """
    polish, settled = PolishedPlan(g, lanes, *plan, most), False
    share = _DELETED if g.required.sum() > LARGE else 0.0
    for _ in range(passes if polish.time != FAILED else 0):
        length, before, reruns = len(polish.seq), polish.time, len(reruns_in(g, polish.seq, span))
        polish.delete_reruns(span)
        deleted = length - len(polish.seq)
        polish.clear_marks(span)
        settled = (polish.time == before and not deleted) or deleted < share * reruns
        if settled:
            break
    return polish.seq, polish.mask, polish.issue, polish.time, settled
