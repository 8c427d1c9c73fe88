"""What kernels read of a link, and the state of a plan with copies: a run sequence and a bit mask per run.

Bit k of a run's mask says that its k-th read (in the order of `Flat.reads`) *comes by a copy*: the datum is off the device
from its last event (production or read) to this read. Inserting or removing runs moves the masks with them. After an event, a
datum that no run reads before its next production is dropped; one whose next read is unmarked stays; one whose next read is
marked is offloaded, or only dropped if its copy on the host is still valid.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from remat.algorithms._arrays.graph_arrays import Flags, Flat, Ints, Longs
from remat.algorithms._arrays.jit import allocating_kernel, inner_kernel
from remat.algorithms._arrays.liveness import step_back
from remat.ir import Link
from remat.units import Bytes

MOST_READS = 62
"""Reads per node: a mask is a signed 64-bit integer."""

LARGE = 2000
"""Nodes above which a shaving takes tenths of a second, and passes are shorter."""

NO_LIMIT = 1 << 62
"""Host memory without a limit [bytes]."""


class Lanes(NamedTuple):
    """The link and the budgets.

    Attributes:
        out, back: time of a copy of each datum to the host and to the device [ns].
        movable: data that may be copied: those with bytes and one writer that are not kept.
        budget, host: bytes that may be live on the device and on the host.
    """

    out: Longs
    back: Longs
    movable: Flags
    budget: int
    host: int


class Runs(NamedTuple):
    """The first `n` runs of a sequence, and the mask of each."""

    seq: Ints
    mask: Longs
    n: int


class Copies(NamedTuple):
    """The copies of a sequence: an entry per marked read, in the order of the reads.

    Attributes:
        reader: position of the read. datum: what is copied. before: position of its previous event.
        carries: whether it is copied to the host after `before`; else the copy on the host is valid.
        origin: the entry that carries it to the host: itself or an earlier one.
        last: whether it is the last prefetch of its copy on the host.
        issue: position before which the prefetch is issued.
        same_before: the next entry with the same `before`, -1: none. at: per position, the first entry with this `before`.
    """

    reader: Ints
    datum: Ints
    before: Ints
    carries: Flags
    origin: Ints
    last: Flags
    issue: Ints
    same_before: Ints
    at: Ints


def lanes_of(flat: Flat, link: Link, budget: Bytes, host: Bytes | None) -> Lanes:
    """The link as arrays."""
    sizes = flat.size.tolist()
    return Lanes(
        out=np.array([link.offload_time(size) for size in sizes], np.int64),
        back=np.array([link.prefetch_time(size) for size in sizes], np.int64),
        movable=(flat.producer >= 0) & ~flat.keep & (flat.contributions == 1) & (flat.size > 0),
        budget=budget,
        host=NO_LIMIT if host is None else host,
    )


@inner_kernel
def count_marks(mask: Longs, n: int) -> int:
    """Number of marked reads."""
    count = 0
    for i in range(n):
        bits = mask[i]
        while bits:
            bits &= bits - 1
            count += 1
    return count


@allocating_kernel
def list_copies(g: Flat, runs: Runs) -> Copies:
    """The copies of a sequence."""
    seq, mask, n = runs.seq, runs.mask, runs.n
    count = count_marks(mask, n)
    reader, datum, before = np.empty(count, np.int32), np.empty(count, np.int32), np.empty(count, np.int32)
    carries, origin, last = np.empty(count, np.bool_), np.empty(count, np.int32), np.empty(count, np.bool_)
    same_before, at = np.empty(count, np.int32), np.full(n, -1, np.int32)
    event, latest = np.full(g.size.size, -1, np.int32), np.full(g.size.size, -1, np.int32)
    on_host = np.zeros(g.size.size, np.bool_)
    m = 0
    for i in range(n):
        v = seq[i]
        bits = mask[i]
        for k in range(g.reads[v], g.reads[v + 1]):
            d = g.reads[k]
            if bits and (bits >> (k - g.reads[v])) & 1:
                reader[m], datum[m], before[m] = i, d, event[d]
                carries[m], origin[m], last[m] = not on_host[d], m, True
                if on_host[d]:
                    origin[m], last[latest[d]] = origin[latest[d]], False
                on_host[d], latest[d] = True, m
                m += 1
            event[d] = i
        for k in range(g.writes[v], g.writes[v + 1]):
            event[g.writes[k]] = i
            on_host[g.writes[k]] = False
    for m in range(count - 1, -1, -1):
        same_before[m] = at[before[m]]
        at[before[m]] = m
    return Copies(reader, datum, before, carries, origin, last, np.empty(count, np.int32), same_before, at)


@allocating_kernel
def mark_first_runs(g: Flat, runs: Runs, first: Flags) -> None:
    """Fill `first` with whether each position is its node's first run."""
    seen = np.zeros(g.time.size, np.bool_)
    for i in range(runs.n):
        first[i] = not seen[runs.seq[i]]
        seen[runs.seq[i]] = True


@allocating_kernel
def away_profile(g: Flat, runs: Runs, first: Flags, mem: Longs) -> int:
    """Fill `mem[:n]` with the bytes charged at each run if copies took no time; return the peak.

    No schedule of this sequence with these copies has a lower peak.
    """
    seq, mask, n = runs.seq, runs.mask, runs.n
    live = g.keep.copy()
    level = 0
    for d in range(g.size.size):
        if live[d]:
            level += g.size[d]
    peak = 0
    for i in range(n - 1, -1, -1):
        v = seq[i]
        level += step_back(g, v, first[i], live)
        mem[i] = level + g.charge[v]
        peak = max(peak, mem[i])
        bits = mask[i]
        k = g.reads[v]
        while bits:
            if bits & 1:
                live[g.reads[k]] = False
                level -= g.size[g.reads[k]]
            bits >>= 1
            k += 1
    return peak


@allocating_kernel
def changes(g: Flat, runs: Runs, mem: Longs, copies: Copies) -> Longs:
    """By how much each run changes the bytes that are live; `mem` is the profile of copies without time.

    What is copied to the host after a run leaves later, when the copy ends; what a run fetches has come before it.
    """
    n = runs.n
    change = np.empty(n, np.int64)
    after = np.int64(0)
    for d in range(g.size.size):
        after += g.size[d] if g.keep[d] else 0
    m = copies.reader.size - 1
    for i in range(n - 1, -1, -1):
        before = mem[i] - g.charge[runs.seq[i]]
        change[i] = after - before
        carried = copies.at[i]
        while carried >= 0:
            change[i] += g.size[copies.datum[carried]] if copies.carries[carried] else 0
            carried = copies.same_before[carried]
        after = before
        while m >= 0 and copies.reader[m] == i:
            after -= g.size[copies.datum[m]]
            m -= 1
    return change
