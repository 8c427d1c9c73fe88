"""Lower sets: the dynamic program against every sequence, and what its replays hold."""

from itertools import combinations, pairwise

import pytest

from remat.algorithms import LowerSets, Problem, least_time, store_all_peak
from remat.algorithms._whole.lower_sets import Forward, shortest_sequence
from remat.ir import GraphBuilder, Kind, validate

LEVELS = 60


def net(skips, sizes):
    """A forward of one node per size, each reading the node before and those it is named with, and its backward."""
    b = GraphBuilder("net")
    b.data("t", 1, Kind.TANGENT)
    reads = [([f"a{i - 1}"] if i else []) + [f"a{j}" for j in skips.get(i, ())] for i in range(len(sizes))]
    for i, size in enumerate(sizes):
        b.data(f"a{i}", size)
        b.data(f"g{i}", size, Kind.GRADIENT if i else Kind.INPUT_GRAD)
        b.forward(f"F{i}", reads=reads[i], writes=[f"a{i}"], time=i % 3 + 1)
    b.loss("L", reads=[f"a{len(sizes) - 1}"], writes=["t"], time=1)
    for i in reversed(range(len(sizes))):
        upper = f"g{i + 1}" if i + 1 < len(sizes) else "t"
        b.backward(f"B{i}", reads=[upper, f"a{i}", *reads[i]], writes=[f"g{i}"], time=2)
    return b.build()


def every_sequence(steps):
    """Every sequence of lower sets that ends with the whole."""
    count = len(steps.larger)
    for length in range(count - 1):
        for middle in combinations(range(1, count - 1), length):
            path = (0, *middle, count - 1)
            if all(steps.larger[a, b] for a, b in pairwise(path)):
                yield path


def judged(steps, path):
    """(levels, most bytes) of a sequence, by the definition."""
    levels, kept, most = 0, 0.0, 0.0
    for a, b in pairwise(path):
        most = max(most, kept + steps.transient[a, b])
        levels, kept = levels + int(steps.levels[a, b]), kept + steps.kept[a, b]
    return levels, most


@pytest.mark.parametrize("skips", [{}, {3: (0,), 6: (2, 4)}, {5: (0, 1)}])
def test_the_program_finds_the_fewest_levels_within_every_limit(skips):
    forward = Forward.of(net(skips, [7, 3, 9, 4, 8, 2, 6]))
    sets = forward.family(100)
    steps = forward.steps(sets, LEVELS)
    every = [judged(steps, path) for path in every_sequence(steps)]
    for limit in sorted({most for _, most in every}) + [0.0]:
        fitting = [levels for levels, most in every if most <= limit and levels <= LEVELS]
        found = (0, *shortest_sequence(steps, LEVELS, limit).tolist())
        assert (len(found) > 1) == bool(fitting)
        if fitting:
            assert judged(steps, found)[0] == min(fitting)
            assert judged(steps, found)[1] <= limit


def test_lower_sets_are_closed_and_begin_and_end_with_nothing_and_all():
    graph = net({3: (0,), 6: (2, 4)}, [5] * 8)
    forward = Forward.of(graph)
    sets = forward.family(100)
    needs = forward.reads @ forward.writes.T > 0
    assert not sets[0].any() and sets[-1].all()
    for members in sets:
        assert not (needs[members].any(axis=0) & ~members).any()
    assert len(forward.family(3)) <= 5


def test_less_memory_costs_more_time_and_all_of_it_nothing():
    graph = net({}, [10] * 24)
    peak = store_all_peak(graph)
    times = []
    for share in (1.0, 0.7, 0.5):
        outcome = LowerSets().solve(Problem(graph=graph, budget=int(peak * share)))
        cost = validate(graph, outcome.schedule, int(peak * share))
        times.append(cost.time)
    assert times[0] == graph.time == least_time(graph)
    assert times == sorted(times) and times[0] < times[-1] < 1.5 * graph.time


def test_what_nothing_fits_gets_no_plan_but_the_smallest_peak():
    graph = net({}, [10] * 24)
    outcome = LowerSets().solve(Problem(graph=graph, budget=40))
    assert outcome.schedule is None
    assert "the smallest peak is" in " ".join(outcome.trail)


def test_a_graph_without_a_forward_is_refused():
    b = GraphBuilder("loss-alone")
    b.data("t", 1, Kind.TANGENT)
    b.data("g", 4, Kind.INPUT_GRAD)
    b.loss("L", reads=[], writes=["t"], time=1)
    b.backward("B", reads=["t"], writes=["g"], time=1)
    assert "no forward" in LowerSets().refuses(b.build())
