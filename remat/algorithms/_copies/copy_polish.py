"""Polishing a plan with copies: reruns deleted or replaced by copies, the most expensive first, and copies that serve nothing.

Time is not monotone in these moves (fewer reruns may cost idle time), so each is accepted by its exact time only. Ties are
accepted: they take load off the lanes.
"""

from __future__ import annotations

import numpy as np

from remat.algorithms._arrays.graph_arrays import Flat, Ints, Longs
from remat.algorithms._arrays.jit import inner_kernel, kernel
from remat.algorithms._copies.copy_arrays import Lanes, Runs
from remat.algorithms._copies.copy_replay import FAILED, time_of


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
def replayed(g: Flat, lanes: Lanes, seq: Ints, mask: Longs) -> tuple[int, Ints]:
    """(time [ns], where each prefetch is issued) of a plan; the time is `FAILED` if it does not fit."""
    time, copies = time_of(g, lanes, Runs(seq, mask, seq.size))
    return time, copies.issue


def reruns_in(g: Flat, seq: Ints, span: tuple[int, int]) -> Ints:
    """Positions of the reruns in a span, the most expensive first."""
    again = np.ones(len(seq), np.bool_)
    again[np.unique(seq, return_index=True)[1]] = False
    again &= g.rerun[seq]
    again[: span[0]] = again[span[1] :] = False
    places = np.flatnonzero(again)
    return places[np.argsort(-g.time[seq[places]], kind="stable")].astype(np.int32)


def delete_reruns(
    g: Flat, lanes: Lanes, plan: tuple[Ints, Longs, int], span: tuple[int, int]
) -> tuple[Ints, Longs, int]:
    """(runs, masks, time) with reruns of a span deleted, or replaced by copies, where that is not slower."""
    seq, mask, time = plan
    places = reruns_in(g, seq, span)
    for j in range(len(places)):
        at = int(places[j])  # earlier deletions have moved it
        for copied in (False, True):
            runs, masks, marked = trial_without(g, lanes, seq, mask, at, copied)
            if copied and not marked:
                continue
            faster = replayed(g, lanes, runs, masks)[0]
            if faster != FAILED and faster <= time:
                seq, mask, time = runs, masks, faster
                places[j + 1 :] -= places[j + 1 :] > at
                break
    return seq, mask, time


def clear_marks(g: Flat, lanes: Lanes, plan: tuple[Ints, Longs, int], span: tuple[int, int]) -> int:
    """Leave out copies to the reads of a span where that is not slower, in place; the time."""
    seq, mask, time = plan
    for i in range(span[0], min(span[1], len(seq))):
        bits = int(mask[i])
        for k in range(bits.bit_length()):
            if bits >> k & 1:
                mask[i] ^= 1 << k
                faster = replayed(g, lanes, seq, mask)[0]
                if faster == FAILED or faster > time:
                    mask[i] ^= 1 << k
                else:
                    time = faster
    return time


def polished(
    g: Flat, lanes: Lanes, seq: Ints, mask: Longs, span: tuple[int, int], passes: int
) -> tuple[Ints, Longs, Ints, int]:
    """Polish the positions in a span, in passes until nothing changes; plain Python around kernels, which compile faster so.

    Returns (runs, masks, where each prefetch is issued, time [ns]); the time is `FAILED` for a plan that does not fit. With no
    passes the plan is only replayed.
    """
    time, issue = replayed(g, lanes, seq, mask)
    for _ in range(passes if time != FAILED else 0):
        length, before = len(seq), time
        seq, mask, time = delete_reruns(g, lanes, (seq, mask.copy(), time), span)
        time = clear_marks(g, lanes, (seq, mask, time), span)
        time, issue = replayed(g, lanes, seq, mask)
        if time == before and len(seq) == length:
            break
    return seq, mask, issue, time
