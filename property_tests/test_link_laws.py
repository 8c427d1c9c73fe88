"""Laws of rule S-LINK."""

from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from remat.errors import BudgetExceeded
from remat.ir import Lane, Link, Offload, Prefetch, Schedule, validate
from remat.testing.strategies import scheduled, sizes


def without_copies(schedule):
    return Schedule(tuple(step for step in schedule.steps if not isinstance(step, (Offload, Prefetch))))


@given(scheduled(copies=True))
def test_an_unbounded_link_without_latency_takes_the_time_of_the_runs_alone(example):
    cost = validate(example.graph, example.schedule, None, Link())
    runs = sum(one.end - one.start for one in cost.computations)
    assert cost.time == runs and cost.idle == 0
    assert all(one.start == one.end for one in cost.copies)


@given(scheduled())
def test_without_copies_a_link_changes_nothing(example):
    slow = Link(to_host=1, to_device=1, to_host_latency=5, to_device_latency=7)
    assert validate(example.graph, example.schedule, None, slow) == validate(example.graph, example.schedule)


@given(scheduled(copies=True))
def test_time_is_runs_and_waiting_and_lanes_make_one_copy_at_a_time(example):
    cost = validate(example.graph, example.schedule, None, example.link)
    assert cost.time == sum(one.end - one.start for one in cost.computations) + cost.idle
    for lane in Lane:
        own = [one for one in cost.intervals if one.lane is lane]
        assert own == sorted(own, key=lambda one: one.step)
        assert all(a.end <= b.start for a, b in pairwise(own))
    assert max((one.end for one in cost.intervals), default=0) == cost.time


@given(scheduled(copies=True))
def test_a_faster_link_is_never_slower(example):
    link = example.link
    faster = Link(
        to_host=link.to_host and 2 * link.to_host,
        to_device=link.to_device and 2 * link.to_device,
        to_host_latency=link.to_host_latency // 2,
        to_device_latency=link.to_device_latency // 2,
    )
    cost = validate(example.graph, example.schedule, None, link)
    assert validate(example.graph, example.schedule, None, faster).time <= cost.time


@given(scheduled(copies=True), st.integers(0, 3))
def test_under_a_budget_the_peak_keeps_it_and_only_waiting_is_added(example, less):
    free = validate(example.graph, example.schedule, None, example.link)
    budget = max(0, free.peak - less)
    try:
        cost = validate(example.graph, example.schedule, budget, example.link)
    except BudgetExceeded as error:
        assert error.live > budget
        return
    assert cost.peak <= budget and cost.time - cost.idle == free.time - free.idle and cost.time >= free.time


def live_at(graph, cost, schedule, time, *, before):
    """Bytes by the intervals alone, at a moment: an account of its own, to compare the replay with."""
    sizes = {datum.name: 0 if datum.outside else datum.size for datum in graph.data}
    phantom = {layer.phantom: layer for layer in graph.layers}
    held, leaving = {}, []
    level = 0
    by_step = {one.step: one for one in cost.intervals}
    now = 0
    for i, step in enumerate(schedule.steps):
        one = by_step.get(i)
        kind = type(step).__name__
        if kind == "Run":
            if one.start > time or (before and one.start == time):
                break
            now = one.end
            node = graph.node(step.node)
            made = {name: sizes[name] for name in node.writes}
            layer = graph.layer_by_node.get(step.node)
            if layer is not None and step.node == layer.forward and step.option < len(layer.options):
                made[layer.phantom] = layer.options[step.option].phantom
                sizes[layer.phantom] = made[layer.phantom]
            if one.end > time:
                level += sum(made.values()) + node.options[step.option].workspace
                break
            held.update(dict.fromkeys(made, 0))
        elif kind == "Drop":
            if now > time:
                break
            held.pop(step.datum)
        elif kind == "Offload":
            held.pop(step.datum)
            leaving.append((one.end, sizes[step.datum]))
        else:
            held[step.datum] = one.start
    del phantom
    level += sum(sizes[name] for name, since in held.items() if since <= time)
    return level + sum(size for end, size in leaving if end > time)


@given(scheduled(copies=True))
def test_the_peak_is_that_of_an_independent_account_of_the_intervals(example):
    """The bytes at any moment follow from the intervals: none exceeds the peak, and neither does what the host holds."""
    assume(any(isinstance(step, Offload) for step in example.schedule.steps))
    cost = validate(example.graph, example.schedule, None, example.link)
    moments = {one.start for one in cost.intervals} | {one.end for one in cost.intervals}
    assert all(live_at(example.graph, cost, example.schedule, t, before=True) <= cost.peak for t in moments)
    assert cost.host_peak <= sum(
        _size(example.graph, s.datum) for s in example.schedule.steps if isinstance(s, Offload)
    )


def _size(graph, name):
    if name in graph.data_index:
        return graph.datum(name).size
    return max(max(one.sizes) for one in graph.phantoms if one.name == name)


@given(sizes, st.integers(1, 10**12), st.integers(0, 10))
def test_copy_times_are_latency_and_bytes_rounded_up(size, speed, latency):
    link = Link(to_host=speed, to_device=2 * speed, to_host_latency=latency)
    exact = size * 10**9 / speed
    assert exact <= link.offload_time(size) - latency < exact + 1
    assert link.prefetch_time(size) <= link.offload_time(size) - latency


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, 1 << 63])
def test_a_bandwidth_is_a_positive_int(bad):
    with pytest.raises(Exception, match=r"G-(INT|RANGE)"):
        Link(to_host=bad)
