"""The backward sweep on graphs small enough to count by hand."""

import numpy as np
import pytest
from numba import njit

from remat.algorithms._arrays.graph_arrays import flatten
from remat.algorithms._arrays.liveness import block_maxima, exceeds, extend_skyline, highest_from, memory_profile
from remat.algorithms._arrays.sorting import stable_order
from remat.ir import GraphBuilder, Kind, Schedule, validate


def chain(length=3, size=4):
    b = GraphBuilder("chain")
    b.data("x", 100, Kind.INPUT)
    b.data("t", 1, Kind.TANGENT)
    for i in range(length):
        b.data(f"a{i}", size)
        b.data(f"g{i}", size, Kind.GRADIENT if i else Kind.INPUT_GRAD)
        b.forward(f"F{i}", reads=["x" if i == 0 else f"a{i - 1}"], writes=[f"a{i}"], time=2)
    b.loss("L", reads=[f"a{length - 1}"], writes=["t"], time=1)
    for i in reversed(range(length)):
        gradient = "t" if i == length - 1 else f"g{i + 1}"
        b.backward(f"B{i}", reads=[gradient, "x" if i == 0 else f"a{i - 1}"], writes=[f"g{i}"], time=3)
    return b.build()


def peak_of(graph, sequence):
    memory = np.zeros(len(sequence), np.int64)
    return memory_profile(flatten(graph), np.array(sequence, np.int32), len(sequence), memory), memory.tolist()


def test_the_captured_order_of_a_chain():
    # F0: a0. F1: a0 a1. F2: a0 a1 a2. L: a0 a1 a2 t. B2: t a1 a0 g2. B1: t g2 a0 g1. B0: t g1 g0.
    assert peak_of(chain(), range(7)) == (13, [4, 8, 12, 13, 13, 13, 9])


def test_a_rerun_ends_the_earlier_residency_at_its_last_read():
    # F0 F1 F2 L, then F1 again before B2: a1 is gone between F2 and there.
    peak, profile = peak_of(chain(), [0, 1, 2, 3, 1, 4, 5, 6])
    assert profile[3] == 4 + 4 + 1  # a0, a2, t
    assert peak == validate(chain(), Schedule.from_runs(chain(), [0, 1, 2, 3, 1, 4, 5, 6])).peak


def test_contributions_grow_one_datum_and_are_charged_again():
    b = GraphBuilder("shared")
    b.data("t", 1, Kind.TANGENT)
    b.data("w", 10, Kind.PARAM_GRAD)
    b.data("a", 2)
    b.forward("F", writes=["a"], time=1)
    b.loss("L", reads=["a"], writes=["t"], time=1)
    b.backward("B1", reads=["t"], writes=["w"], time=1)
    b.backward("B2", reads=["t", "a"], writes=["w"], time=1)
    assert peak_of(b.build(), range(4)) == (23, [2, 3, 13, 23])  # B2: t a, the sum so far, its own part
    assert not flatten(b.build()).rerun[2:].any()


def test_backward_nodes_that_lead_to_nothing_are_left_out():
    b = GraphBuilder("useless")
    b.data("t", 1, Kind.TANGENT)
    b.data("g", 1, Kind.GRADIENT)
    b.forward("F", time=1)
    b.loss("L", writes=["t"], time=1)
    b.backward("B", reads=["t"], writes=["g"], time=5)
    assert flatten(b.build()).required.tolist() == [True, True, False]


def test_whether_a_range_exceeds_a_limit():
    values = np.arange(100, dtype=np.int64)
    values[50] = 1000
    top = np.zeros(4, np.int64)
    njit(block_maxima)(values, 0, 100, top)
    compiled = njit(exceeds)
    for low, high in ((0, 99), (0, 49), (50, 50), (51, 99), (3, 2), (31, 64)):
        for limit in (-1, 2, 49, 63, 98, 999, 1000):
            assert compiled(values, top, low, high, limit) == any(values[low : high + 1] > limit)


def test_the_skyline_gives_the_maximum_from_any_position_to_the_last():
    values = np.random.default_rng(0).integers(0, 9, 40)  # many equal values
    skyline = np.zeros(41, np.int32)
    extend, highest = njit(extend_skyline), njit(highest_from)
    assert highest(values, skyline, 0) < 0
    for last in range(40):
        extend(values, skyline, last)
        assert [highest(values, skyline, low) for low in range(last + 1)] == [
            values[low : last + 1].max() for low in range(last + 1)
        ]
        assert highest(values, skyline, last + 1) < 0


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 64, 100])
def test_the_sort_of_the_kernels_is_numpys_stable_sort(count):
    keys = np.random.default_rng(count).integers(0, 12, count).astype(np.float64)  # many equal keys
    assert njit(stable_order)(keys).tolist() == np.argsort(keys, kind="stable").tolist()
