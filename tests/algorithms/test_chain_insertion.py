"""Profiles and uses that follow runs as they come and go are those of the sequence computed anew."""

import random

import numpy as np
import pytest

from remat.algorithms._arrays.chain_insertion import (
    Chain,
    Profile,
    copy_into,
    empty_insertion,
    fall_of,
    fall_of_copy,
    insert_into,
    most_uses,
    uses_in,
)
from remat.algorithms._arrays.graph_arrays import flatten, row_of
from remat.algorithms._arrays.liveness import BLOCK, block_maxima, memory_profile
from remat.algorithms._copies.copy_arrays import Runs, away_profile, lanes_of, mark_first_runs
from remat.algorithms._search.deletion import Thinning, fits_without, remove
from remat.ir import Link
from tests.benchmarks.tiny import tiny_graph

NO_MASKS = np.empty(0, np.int64)
ROOM = 200


def away(flat, seq, mask):
    """The profile of a sequence with copies that take no time."""
    runs, first, mem = Runs(seq, mask, len(seq)), np.empty(len(seq), np.bool_), np.empty(len(seq), np.int64)
    mark_first_runs(flat, runs, first)
    away_profile(flat, runs, first, mem)
    return mem


def profile_of(flat, seq, mask, mem, budget):
    """The sequence in arrays with room for more runs."""
    wide_seq, wide_mem = np.zeros(len(seq) + ROOM, np.int32), np.zeros(len(seq) + ROOM, np.int64)
    wide_seq[: len(seq)], wide_mem[: len(seq)] = seq, mem
    wide_mask = NO_MASKS if mask is None else np.zeros(len(wide_seq), np.int64)
    wide_mask[: len(seq)] = 0 if mask is None else mask
    uses = uses_in(flat, wide_seq, wide_mask, len(seq), ROOM * most_uses(flat))
    return Profile(wide_seq, wide_mask, len(seq), wide_mem, uses, budget)


def lists(flat, uses, n, seq):
    """Of each use of each position: its place, that of the use before it and the kind of the next."""
    per_node = [len(row_of(flat.reads, v)) + len(row_of(flat.writes, v)) for v in range(flat.time.size)]
    found = []
    for i in range(n):
        for use in range(uses.at[i], uses.at[i] + per_node[seq[i]]):
            before = uses.before[use]
            found.append(
                (int(uses.place[use]), int(uses.place[before]) if before >= 0 else -1, int(uses.following[use]))
            )
    return found


def random_chain(flat, seq, b, rng):
    """A node that ran before position b, with some of those that make what it reads, in order."""
    ran = sorted({v for v in seq[:b].tolist() if flat.rerun[v]})
    if not ran:
        return None
    chain = {rng.choice(ran)}
    for v in sorted(chain):
        chain |= {p for p in (int(flat.producer[d]) for d in row_of(flat.reads, v)) if p in ran and rng.random() < 0.5}
    return np.array(sorted(chain), np.int32)


def over(mem, budget):
    return int(np.maximum(mem - budget, 0).sum())


@pytest.mark.parametrize("copies", [False, True])
def test_chains_and_copies_change_the_profile_and_the_uses_as_computed_anew(copies):
    rng, copied = random.Random(5), 0
    for _ in range(40):
        flat = flatten(tiny_graph(rng, rng.randint(4, 9), rng.random() < 0.5))
        movable = lanes_of(flat, Link(), 0, None).movable
        seq = np.flatnonzero(flat.required).astype(np.int32)
        mask = np.zeros(len(seq), np.int64) if copies else None
        mem = np.empty(len(seq), np.int64)
        memory_profile(flat, seq, len(seq), mem)
        budget = int(0.7 * mem.max())
        profile, scratch = profile_of(flat, seq, mask, mem, budget), empty_insertion(flat, len(seq) + ROOM, 64)
        for _ in range(6):
            before = over(profile.mem[: profile.n], budget)
            b = rng.randrange(1, profile.n)
            reads = row_of(flat.reads, profile.seq[b]).tolist()
            movables = [k for k, d in enumerate(reads) if movable[d] and copies and not (profile.mask[b] >> k) & 1]
            if movables and rng.random() < 0.5:
                bit = rng.choice(movables)
                fall = fall_of_copy(flat, profile, b, bit)
                copy_into(flat, profile, b, bit)
                copied += 1
            else:
                nodes = random_chain(flat, profile.seq[: profile.n], b, rng)
                if nodes is None:
                    continue
                masks = np.zeros(len(nodes), np.int64) if copies else NO_MASKS
                if copies:
                    made = {int(d) for v in nodes for d in row_of(flat.writes, v)}
                    fetched = set()
                    for i, v in enumerate(nodes):
                        for k, d in enumerate(row_of(flat.reads, v).tolist()):
                            if movable[d] and d not in made | fetched and rng.random() < 0.4:
                                masks[i] |= 1 << k
                                fetched.add(d)
                chain = Chain(nodes, masks, len(nodes))
                fall = fall_of(flat, profile, b, chain, scratch)
                n = insert_into(flat, profile, b, chain, scratch)
                profile = profile._replace(n=n)
            now, n = profile.seq[: profile.n].copy(), profile.n
            if copies:
                anew = away(flat, now, profile.mask[:n].copy())
            else:
                anew = np.empty(n, np.int64)
                memory_profile(flat, now, n, anew)
            assert profile.mem[:n].tolist() == anew.tolist()
            assert fall == before - over(anew, budget)
            fresh = uses_in(flat, now, profile.mask[:n] if copies else NO_MASKS, n, 0)
            assert lists(flat, profile.uses, n, now) == lists(flat, fresh, n, now)
            assert not scratch.is_touched.any() and not scratch.steps.any()
    assert (copied > 20) == copies


def test_removed_reruns_change_the_profile_and_the_uses_as_computed_anew():
    rng, removed, refused = random.Random(6), 0, 0
    for _ in range(120):
        flat = flatten(tiny_graph(rng, rng.randint(4, 9), rng.random() < 0.5))
        nodes, most = flat.time.size, most_uses(flat)
        seq = np.flatnonzero(flat.required).tolist()
        for _ in range(8):
            v = rng.choice(seq)
            if flat.rerun[v]:
                seq.insert(rng.randint(seq.index(v) + 1, len(seq)), v)
        seq = np.array(seq, np.int32)
        mem, top = np.empty(len(seq), np.int64), np.empty(len(seq) // BLOCK + 1, np.int64)
        budget = int(memory_profile(flat, seq, len(seq), mem))
        block_maxima(mem, 0, len(seq), top)
        ints, longs = np.empty(max(nodes, most), np.int32), np.empty(max(nodes, most), np.int64)
        t = Thinning(seq, mem, top, uses_in(flat, seq, NO_MASKS, len(seq), 0), ints, ints.copy(), ints.copy(), longs)
        kept = list(range(len(seq)))
        for p in rng.sample(kept, len(kept)):
            if p == min(i for i in kept if seq[i] == seq[p]) or not flat.rerun[seq[p]]:
                continue
            left = [i for i in kept if i != p]
            anew = np.empty(len(left), np.int64)
            fits = int(memory_profile(flat, seq[left].copy(), len(left), anew)) <= budget
            assert fits_without(flat, t, p, budget) == fits
            if not fits:
                refused += 1
                continue
            remove(flat, t, p)
            kept, removed = left, removed + 1
            assert mem[kept].tolist() == anew.tolist()
    assert removed > 50
    assert refused > 10
