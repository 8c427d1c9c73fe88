"""Laws of residency: the bytes that pictures and exports give names to are the validator's, all of them and no others."""

from itertools import accumulate

from hypothesis import given

from remat.ir import Run, validate
from remat.testing.strategies import scheduled
from remat.viz.residency import residency


def replayed(example):
    cost = validate(example.graph, example.schedule, None, example.link)
    return residency(example.graph, example.schedule, cost)


def step_of(change):
    _, size, stay = change
    return stay.step if size > 0 else stay.until


@given(scheduled())
def test_the_stays_of_each_step_sum_to_the_validators_timeline(example):
    memory = replayed(example)
    live, lows = 0, []
    changes = list(memory.changes)
    for at, step in enumerate(example.schedule.steps):
        # a run is at its height before what ends with it ends: that comes after all that begins, in the order of changes
        height = live
        while changes and step_of(changes[0]) == at:
            live += changes.pop(0)[1]
            height = max(height, live)
        lows.append(height if isinstance(step, Run) else live)
    assert tuple(lows) == memory.cost.timeline


@given(scheduled(copies=True))
def test_the_highest_level_is_the_peak_with_copies_too(example):
    memory = replayed(example)
    assert max(memory.levels, default=0) == memory.cost.peak == sum(stay.size for stay in memory.at_peak)


@given(scheduled(copies=True))
def test_groups_sum_to_the_levels_and_none_is_negative(example):
    memory = replayed(example)
    assert [sum(column) for column in zip(*memory.by_group.values(), strict=True)] == list(memory.levels)
    assert all(size >= 0 for sizes in memory.by_group.values() for size in sizes)
    assert list(accumulate(change for _, change, _ in memory.changes)) == list(memory.levels)


@given(scheduled(copies=True))
def test_reruns_and_reads_are_those_of_the_schedule(example):
    memory = replayed(example)
    assert sum(run.again for run in memory.runs) == memory.cost.reruns
    assert sum(run.end - run.start for run in memory.runs if run.again) == memory.cost.recomputation
    steps = example.schedule.steps
    for stay in memory.stays:
        assert stay.start <= stay.end and stay.step <= stay.until
        for at in stay.reads:
            assert stay.step <= at <= stay.until and isinstance(steps[at], Run)
            assert stay.group.name == "WORKSPACE" or stay.name in example.graph.touched(steps[at]).reads
