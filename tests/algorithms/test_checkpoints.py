"""Plans that keep what crosses cuts of the forward: which nodes run again, how low their peaks are, on chains and any graph."""

import random
from collections import Counter

import numpy as np
import pytest

from remat.algorithms import Checkpoints, Clock, MultiStart, Problem, auto, plan_first, store_all_peak
from remat.algorithms._search.checkpoints import _checkpointed, _cuts, _forward
from remat.algorithms._search.state import Search
from remat.errors import BadArgument
from remat.ir import Graph, GraphBuilder, Kind, validate
from tests.algorithms.test_runs_liveness import chain
from tests.benchmarks.tiny import tiny_graph

LAYERS = 64


def search_of(graph: Graph, share: float = 1.0) -> Search:
    return Search(Problem(graph=graph, budget=int(share * store_all_peak(graph))), Clock(), 0, "test")


def checkpointed(search: Search, *levels: int) -> list[int]:
    return _checkpointed(search.flat, search.base, _forward(search.flat, search.base), levels).tolist()


@pytest.mark.parametrize("parts", [2, 4, 8])
def test_each_segment_but_the_last_runs_once_more_from_what_crosses_its_cut(parts):
    search = search_of(chain(LAYERS))
    runs = Counter(checkpointed(search, parts))
    assert set(runs.values()) == {1, 2}
    again = {v for v, count in runs.items() if count == 2}
    forward = search.base[: LAYERS + 1].tolist()
    begins = [0, *_cuts(_forward(search.flat, search.base), 0, LAYERS + 1, parts), LAYERS + 1]
    assert max(np.diff(begins)) <= 2 * min(np.diff(begins))
    kept = {forward[at - 1] for at in begins[1:-1]}  # the node before a cut made what crosses it
    assert set(forward[: begins[-2]]) - kept <= again <= set(forward[: begins[-2]])


def test_nested_cuts_run_nodes_once_more_for_each_level_and_need_less_memory():
    search = search_of(chain(4 * LAYERS))
    peaks = []
    for levels in ((4,), (4, 4), (4, 4, 4)):
        runs = checkpointed(search, *levels)
        assert max(Counter(runs).values()) == 1 + len(levels)
        cost = validate(search.problem.graph, search.arrays.schedule_of(np.array(runs, np.int32)))
        peaks.append(cost.peak)
    assert peaks[0] > 1.5 * peaks[1] > 1.5 * peaks[2]


def test_a_cut_lies_where_few_bytes_cross():
    """Layers of two nodes with a large datum inside: cuts come between layers, though half of the time ends inside one."""
    b = GraphBuilder("bottlenecks")
    for i in range(9):
        b.data(f"wide{i}", 100)
        b.data(f"thin{i}", 1)
        b.forward(f"A{i}", reads=[f"thin{i - 1}"] if i else [], writes=[f"wide{i}"], time=2)
        b.forward(f"B{i}", reads=[f"wide{i}"], writes=[f"thin{i}"], time=2)
    b.data("t", 1, Kind.TANGENT)
    b.loss("L", reads=["thin8"], writes=["t"], time=1)
    search = search_of(b.build())
    forward = _forward(search.flat, search.base)
    for parts in (2, 3, 4):
        assert [int(forward.crossing[at]) for at in _cuts(forward, 0, forward.nodes, parts)] == [1] * (parts - 1)
    assert checkpointed(search, 2) == search.base.tolist()  # nothing to run again without a backward


@pytest.mark.parametrize("seed", range(40))
def test_any_graph_has_them(seed):
    rng = random.Random(seed)
    graph = tiny_graph(rng, rng.randint(2, 12), rng.random() < 0.5)
    search = search_of(graph)
    for levels in ((2,), (5,), (2, 2), (3, 2, 2)):
        validate(graph, search.arrays.schedule_of(np.array(checkpointed(search, *levels), np.int32)))


def test_they_find_plans_and_faster_ones_where_shaving_the_captured_order_is_shortsighted():
    graph = chain(200)
    problem = Problem(graph=graph, budget=int(0.1 * store_all_peak(graph)))
    shaved, cut = MultiStart().solve(problem), Checkpoints().solve(problem)
    assert cut.cost is not None
    assert shaved.cost is None or cut.cost.time < shaved.cost.time


def test_plans_that_are_not_faster_leave_the_search_as_it_is():
    search = search_of(chain(LAYERS), 0.3)
    MultiStart().improve(search)
    Checkpoints().improve(search)
    before = [time for time, _ in search.incumbents.pool]
    Checkpoints().improve(search)
    Checkpoints(((2,),)).improve(search)
    assert [time for time, _ in search.incumbents.pool] == before


def test_large_graphs_get_the_few_whose_peaks_are_nearest_to_the_budget(monkeypatch):
    monkeypatch.setattr("remat.algorithms._search.checkpoints._LARGE", 100)
    search, move = search_of(chain(LAYERS), 0.3), Checkpoints()
    forward = _forward(search.flat, search.base)
    chosen = [parts for parts, _ in move._starts(search)]
    peaks = {
        levels: search.arrays.peak_of(np.array(checkpointed(search, *levels), np.int32)) / search.budget
        for levels in move._levels
        if np.prod(levels) <= forward.nodes
    }
    assert len(chosen) == 4
    off = {levels: max(peak, 1 / peak) for levels, peak in peaks.items()}
    assert max(off[levels] for levels in chosen) <= min(off[levels] for levels in set(peaks) - set(chosen))
    assert move.outline(search.problem.graph)[0].endswith("4 shavings")


def test_a_level_divides_into_two_parts_at_least():
    with pytest.raises(BadArgument, match="parts"):
        Checkpoints(((1,),))


def test_the_default_planners_have_them():
    assert repr(Checkpoints()) in repr(auto)
    assert repr(Checkpoints()) in repr(plan_first)
