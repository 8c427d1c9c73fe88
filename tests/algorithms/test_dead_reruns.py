"""Reruns for nothing are left out, on names and on arrays alike."""

from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from remat.algorithms._arrays.graph_arrays import flatten
from remat.algorithms._core.dead_reruns import without_dead_reruns
from remat.algorithms._whole.tw_remat import drop_dead_reruns
from remat.ir import Run, Schedule, validate
from remat.testing.strategies import legal_graphs, scheduled
from tests.algorithms.test_exhaustive import unit_chain


def test_a_rerun_that_nobody_reads_goes_and_so_does_what_was_run_for_it():
    graph = unit_chain(4)
    names = [node.name for node in graph.computes]
    first = [Run(name) for name in names]
    for dead in (["n0"], ["n0", "n1"], ["n0", "n1", "n2"]):
        assert without_dead_reruns(graph, [*first, *map(Run, dead)]) == first
    used = [*first[:7], Run("n0"), Run("n1"), *first[7:]]  # n7 reads what n1 makes, n8 what n0 makes
    assert without_dead_reruns(graph, used) == used
    assert without_dead_reruns(graph, [*used[:7], Run("n1"), *used[7:]]) == used


@given(scheduled(legal_graphs()))
def test_what_is_left_is_valid_and_no_slower(case):
    graph, schedule = case.graph, case.schedule
    alive = without_dead_reruns(graph, schedule.runs)
    cost = validate(graph, Schedule.from_runs(graph, alive))
    assert cost.time <= validate(graph, schedule).time
    assert {run.node for run in alive} == {run.node for run in schedule.runs}


@given(st.integers(0, 10_000), st.integers(3, 9))
def test_names_and_arrays_agree(seed, length):
    graph, rng = unit_chain(length), Random(seed)
    loss, runs = graph.loss, list(range(len(graph)))
    for _ in range(rng.randint(1, 8)):
        node = rng.choice([v for v in range(len(graph)) if v != loss])
        place = rng.randint(runs.index(node) + 1, len(runs))
        runs.insert(place, node)
    on_arrays = drop_dead_reruns(flatten(graph), np.array(runs, np.int32)).tolist()
    named = without_dead_reruns(graph, [Run(graph.computes[v].name) for v in runs])
    assert [graph.node_index[run.node] for run in named] == on_arrays
