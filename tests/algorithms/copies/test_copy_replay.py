"""The compiled replay of S-LINK against the validator on random plans with copies; and what shaving and polish keep."""

import random

import numpy as np
import pytest

from remat.algorithms._arrays.graph_arrays import flatten, row_of
from remat.algorithms._copies import copy_polish
from remat.algorithms._copies.copy_arrays import NO_LIMIT, lanes_of
from remat.algorithms._copies.copy_moves import BOTH, Prices
from remat.algorithms._copies.copy_polish import fits_without, polished, replayed, reruns_in, trial_without, uses_of
from remat.algorithms._copies.copy_replay import FAILED
from remat.algorithms._copies.copy_schedule import schedule_with_copies
from remat.algorithms._copies.copy_shaving import shaved
from remat.algorithms._whole.baselines import store_all_peak
from remat.errors import BudgetExceeded
from remat.ir import Link, validate
from tests.benchmarks.tiny import tiny_graph

SPEEDS = (None, 5 * 10**8, 10**9, 2 * 10**9)


def random_link(rng):
    """A link of bytes per nanosecond about those of the graphs."""
    speeds = {"to_host": rng.choice(SPEEDS), "to_device": rng.choice(SPEEDS)}
    return Link(**speeds, to_host_latency=rng.choice((0, 0, 1)), to_device_latency=rng.choice((0, 0, 2)))


def random_runs(flat, rng):
    """The captured order with reruns at random places, and random copies of what may be copied."""
    seq = np.flatnonzero(flat.required).tolist()
    for _ in range(rng.randint(0, 5)):
        v = rng.choice(seq)
        if flat.rerun[v]:
            seq.insert(rng.randint(seq.index(v) + 1, len(seq)), v)
    share, mask = rng.choice((0.1, 0.3, 0.6)), np.zeros(len(seq), np.int64)
    movable = lanes_of(flat, Link(), 0, None).movable
    for i, v in enumerate(seq):
        for k, d in enumerate(row_of(flat.reads, v).tolist()):
            mask[i] |= int(movable[d] and rng.random() < share) << k
    return np.array(seq, np.int32), mask


def trials(seed, count):
    """(graph, flat, link, lanes, seq, mask) at random, `count` times."""
    rng = random.Random(seed)
    for _ in range(count):
        graph = tiny_graph(rng, rng.randint(3, 9), rng.random() < 0.5)
        flat, link, peak = flatten(graph), random_link(rng), store_all_peak(graph)
        host = rng.choice((None, None, rng.randint(5, 40)))
        lanes = lanes_of(flat, link, rng.randint(int(0.7 * peak), int(1.2 * peak)), host)
        yield graph, flat, link, lanes, *random_runs(flat, rng)


@pytest.mark.parametrize("seed", range(3))
def test_the_compiled_replay_takes_the_time_that_the_validator_takes(seed):
    agreed = waited = 0
    for graph, flat, link, lanes, seq, mask in trials(seed, 60):
        runs, masks, issue, time, _ = polished(flat, lanes, (seq, mask), (0, 0), 0)
        if time == FAILED:
            continue
        cost = validate(graph, schedule_with_copies(graph, flat, runs, masks, issue), lanes.budget, link)
        assert cost.time == time
        assert cost.host_peak <= lanes.host
        agreed += 1
        waited += cost.idle > 0
    assert agreed >= 10
    assert waited >= 5


def test_what_the_replay_refuses_no_timing_of_the_validator_saves():
    """Where the profile of copies without time exceeds the budget, the schedule made for a larger budget does too."""
    refused = 0
    for graph, flat, link, lanes, seq, mask in trials(7, 60):
        lanes = lanes._replace(host=1 << 62)
        if polished(flat, lanes, (seq, mask), (0, 0), 0)[3] != FAILED:
            continue
        wide = lanes._replace(budget=1 << 40)
        runs, masks, issue, *_ = polished(flat, wide, (seq, mask), (0, 0), 0)
        with pytest.raises(BudgetExceeded):
            validate(graph, schedule_with_copies(graph, flat, runs, masks, issue), lanes.budget, link)
        refused += 1
    assert refused >= 10


def test_the_bytes_without_a_rerun_are_known_without_a_replay():
    """Over a link without limits a replay fails for want of bytes only."""
    kept = deleted = 0
    for _, flat, _, _, seq, mask in trials(17, 300):
        mem = replayed(flat, lanes_of(flat, Link(), NO_LIMIT, None), seq, mask, NO_LIMIT)[2]
        lanes = lanes_of(flat, Link(), int(mem.max()), None)
        for at in reruns_in(flat, seq, (0, len(seq))).tolist():
            runs, masks, _ = trial_without(flat, lanes, seq, mask, at, False)
            fits = replayed(flat, lanes, runs, masks, NO_LIMIT)[0] != FAILED
            assert fits_without(flat, (seq, mask), mem, lanes.budget, at, uses_of(flat, seq, mask)) == fits
            kept += not fits
            deleted += fits
    assert kept >= 10
    assert deleted >= 10


def test_polish_is_never_slower_and_removes_what_serves_nothing():
    shorter = ended = 0
    for graph, flat, link, lanes, seq, mask in trials(11, 60):
        before = polished(flat, lanes, (seq, mask), (0, 0), 0)[3]
        if before == FAILED:
            continue
        runs, masks, issue, time, settled = polished(flat, lanes, (seq, mask), (0, len(seq)), 3)
        assert time <= before
        if settled:  # once more changes nothing
            again = polished(flat, lanes, (runs, masks), (0, len(runs)), 1)
            assert (again[3], len(again[0])) == (time, len(runs))
            ended += 1
        assert validate(graph, schedule_with_copies(graph, flat, runs, masks, issue), lanes.budget, link).time == time
        shorter += len(runs) < len(seq)
    assert shorter >= 5
    assert ended >= 5


def test_on_large_graphs_another_pass_follows_only_where_one_has_deleted_many_of_the_reruns(monkeypatch):
    monkeypatch.setattr(copy_polish, "_DELETED", 1.1)  # no pass deletes so many
    ended = 0
    for _, flat, _, lanes, seq, mask in trials(11, 60):
        monkeypatch.setattr(copy_polish, "LARGE", 2000)
        whole = polished(flat, lanes, (seq, mask), (0, len(seq)), 3)
        once = polished(flat, lanes, (seq, mask), (0, len(seq)), 1)
        monkeypatch.setattr(copy_polish, "LARGE", 0)
        brief = polished(flat, lanes, (seq, mask), (0, len(seq)), 3)
        if once[3] != FAILED and len(reruns_in(flat, seq, (0, len(seq)))):
            assert [part.tolist() for part in brief[:3]] == [part.tolist() for part in once[:3]]
            assert brief[4]
            assert whole[3] <= brief[3]
            ended += 1
    assert ended >= 5


@pytest.mark.parametrize("served", [1, 8])
def test_shaving_ends_within_the_budget_and_copies_only_what_may_be_copied(served):
    fits = 0
    for graph, flat, link, lanes, _, _ in trials(13, 40):
        lanes = lanes._replace(host=1 << 62, budget=int(0.8 * store_all_peak(graph)))
        base, rng = np.flatnonzero(flat.required).astype(np.int32), np.array([1], np.uint64)
        prices = Prices(flat.time.astype(float), 0.5, 1.0, 0.0, 0.0, BOTH, served=served)
        seq, mask, fit = shaved(flat, lanes, prices, base, np.zeros(len(base), np.int64), rng)
        for v, bits in zip(seq.tolist(), mask.tolist(), strict=True):
            reads = row_of(flat.reads, v)
            assert all(lanes.movable[d] for k, d in enumerate(reads.tolist()) if bits >> k & 1)
        if fit:
            runs, masks, issue, time, _ = polished(flat, lanes, (seq, mask), (0, 0), 0)
            assert time != FAILED
            validate(graph, schedule_with_copies(graph, flat, runs, masks, issue), lanes.budget, link)
            fits += len(runs) > len(base) or bool(masks.any())
    assert fits >= 10
