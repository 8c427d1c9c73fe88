"""The bound with a link: every schedule with copies has a point in it, it is never above the optimum, and it may end a search."""

import random
from fractions import Fraction
from typing import ClassVar

import numpy as np
import pytest

from remat.algorithms import IMPOSSIBLE, Problem, proved_floor, store_all_peak
from remat.algorithms._arrays.graph_arrays import BACKWARD, flatten, row_of
from remat.algorithms._bounds.floor import first_run_floor
from remat.algorithms._copies.copy_polish import polished
from remat.algorithms._copies.copy_replay import FAILED
from remat.algorithms._copies.copy_schedule import schedule_with_copies
from remat.algorithms._copies.link_bound import Reach, link_formulation
from remat.ir import Drop, Link, Offload, Prefetch, Run, validate
from remat.ir.cost import Lane
from remat.testing.bound_laws import check_bound
from remat.testing.link_relaxations import AtInstantWithLink
from tests.algorithms.copies.oracle import optimum
from tests.algorithms.copies.paying import paying_graphs
from tests.algorithms.copies.test_copy_replay import trials
from tests.algorithms.copies.test_with_copies import quick
from tests.benchmarks.tiny import tiny_graph
from tests.testing.planted import ALL


def needed_runs(flat, seq):
    """Whether each run is its node's first or makes something that a needed run reads."""
    read, needed, seen = set(), [], set()
    first = [v not in seen and not seen.add(v) for v in seq]
    for v, is_first in zip(reversed(seq), reversed(first), strict=True):
        makes = set(row_of(flat.writes, v).tolist())
        needed.append(is_first or not makes.isdisjoint(read))
        if needed[-1]:
            read = (read - makes) | set(row_of(flat.reads, v).tolist())
        else:
            read -= makes
    return needed[::-1]


def charged_at(graph, schedule, cost, place):
    """The data that are charged right before the run of a step, what arrives and what still leaves included."""
    start = next(way.start for way in cost.intervals if way.step == place and way.lane is Lane.COMPUTE)
    ways = {way.step: way for way in cost.intervals}
    here = set()
    for at, step in enumerate(schedule.steps[:place]):
        if isinstance(step, Run):
            here |= set(graph.node(step.node).writes)
        elif isinstance(step, Drop) or (isinstance(step, Offload) and ways[at].end <= start):
            here.discard(step.datum)
        elif isinstance(step, Prefetch) and ways[at].start <= start:
            here.add(step.datum)
    return start, {graph.data_index[name] for name in here}


def point_of(flat, formulation, runs, charged, times):
    """The point of a schedule: s, z, y, o, and w in units of its range; runs: (before the instant, from it on), needed ones."""
    before, after = runs
    instant, (start, end) = formulation.instant, times
    x = [Fraction(0)] * len(formulation.linear.cost)
    for v in range(flat.time.size):
        if instant.ran[v] >= 0:
            x[instant.ran[v]] = Fraction(v in before)
        if instant.again[v] >= 0:
            x[instant.again[v]] = Fraction(v in before and v in after)
    made = set()
    for v in after:
        for d in row_of(flat.reads, v).tolist():
            if formulation.off[d] >= 0 and d not in charged and d not in made:
                x[formulation.off[d]] = Fraction(1)
        made |= set(row_of(flat.writes, v).tolist())
    for d in range(flat.size.size):
        if instant.resident[d] >= 0:
            x[instant.resident[d]] = Fraction(d in charged)
    ran = set(before)
    passed = sum(int(flat.time[v]) for v in ran)
    left = sum(int(flat.time[v]) for v in range(flat.time.size) if flat.required[v] and v not in ran)
    again = sum(int(flat.time[v]) for v in ran & set(after))
    x[formulation.waits[0]] = Fraction(start - passed, formulation.most)
    x[formulation.waits[1]] = Fraction(end - start - left - again, formulation.most)
    return x


def broken(linear, x):
    """The rows that a point breaks."""
    sums = [Fraction(0)] * len(linear.rhs)
    for row, col, value in zip(linear.row.tolist(), linear.col.tolist(), linear.val.tolist(), strict=True):
        sums[row] += value * x[col]
    return [row for row, (total, rhs) in enumerate(zip(sums, linear.rhs.tolist(), strict=True)) if total > rhs]


def points(seed, count):
    """(formulation, point, overhead) at every instant of random schedules with copies."""
    for graph, flat, link, lanes, seq, mask in trials(seed, count):
        seq, mask, issue, time, _ = polished(flat, lanes, (seq, mask), (0, 0), 0)
        if time == FAILED:
            continue
        schedule = schedule_with_copies(graph, flat, seq, mask, issue)
        cost = validate(graph, schedule, lanes.budget, link)
        steps = [at for at, step in enumerate(schedule.steps) if isinstance(step, Run)]
        needed, reach = needed_runs(flat, seq.tolist()), Reach(flat)
        for at in [graph.loss, *np.flatnonzero((flat.phase == BACKWARD) & flat.required).tolist()]:
            i = seq.tolist().index(at)
            start, charged = charged_at(graph, schedule, cost, steps[i])
            overhead = cost.time - int(flat.time.sum())
            formulation = link_formulation(flat, lanes, reach, at, max(1, overhead))
            runs = (
                [v for v, keep in zip(seq[:i].tolist(), needed[:i], strict=True) if keep],
                [v for v, keep in zip(seq[i:].tolist(), needed[i:], strict=True) if keep],
            )
            yield formulation, point_of(flat, formulation, runs, charged, (start, cost.time)), overhead


def test_every_schedule_with_copies_has_a_point_that_costs_its_overhead():
    off = 0
    for formulation, x, overhead in points(3, 15):
        assert not formulation.instant.impossible
        assert all(0 <= value <= 1 for value in x)
        assert broken(formulation.linear, x) == []
        assert sum(int(cost) * value for cost, value in zip(formulation.linear.cost, x, strict=True)) == overhead
        off += any(x[column] for column in formulation.off[formulation.off >= 0].tolist())
    assert off >= 7


def test_the_lanes_bind_only_what_is_off_the_device():
    """A row whose time on the far side may not pass would bind without any copy."""
    tight = 0
    for formulation, x, _ in points(5, 20):
        for column in formulation.off[formulation.off >= 0].tolist():
            tight += bool(x[column])
            x[column] = Fraction(0)
        for column in formulation.waits:
            x[column] = Fraction(0)
        rows = broken(formulation.linear, x)
        assert all(row < len(formulation.instant.facts) for row in rows)  # readers may miss what was off, lanes hold
    assert tight


class Counting(AtInstantWithLink):
    """Counts the points with data off the device, and those that wait or run what nodes need not."""

    seen: ClassVar[dict[str, int]] = {}

    def point(self, formulation, trace, place):
        x, columns = super().point(formulation, trace, place), formulation.meaning.off
        self.seen["off"] += any(x[column] for column in columns[columns >= 0].tolist())
        self.seen["waits"] += any(x[column] for column in formulation.meaning.waits)
        return x


@pytest.mark.parametrize("speed", [(None, None), (1, 1), (0.25, 0.5)], ids=["unbounded", "equal", "slow"])
def test_the_laws_of_bounds_hold_where_copies_pay(speed):
    rates = [None if part is None else int(part * 10**9) for part in speed]
    relaxation = Counting(link=Link(to_host=rates[0], to_device=rates[1], to_device_latency=1))
    Counting.seen.update(off=0, waits=0)
    report = check_bound(relaxation, graphs=paying_graphs(), examples=8, shrink=False, say=lambda text: None)
    assert report.tried["L-ROW"] >= 150
    assert Counting.seen["off"] >= 10  # otherwise the rows for copies would be idle
    assert Counting.seen["waits"] >= 20


def test_a_fault_that_shows_only_where_copies_and_reruns_overlap_is_found():
    fault = "reruns after the instant give the lane no time"
    law, _ = next(planted for planted in ALL if planted.name == fault).killed(shrink=False)
    assert law == "L-ROW"


def small_problems(seed, count, slowness=1):
    """Problems with a link on random graphs of five nodes, at every budget between the floor and the peak."""
    rng = random.Random(seed)
    for _ in range(count):
        graph = tiny_graph(rng, 2, summed=rng.random() < 0.5)
        latency = rng.choice((0, 1))
        to_host, to_device = rng.choice((1, 2, 4)) * 10**9, rng.choice((1, 3)) * 10**9
        speeds = {"to_host": to_host // slowness, "to_device": to_device // slowness}
        link = Link(**speeds, to_host_latency=latency, to_device_latency=latency)
        for budget in range(first_run_floor(flatten(graph))[0], store_all_peak(graph)):
            yield Problem(graph=graph, budget=budget, link=link)


def test_no_bound_is_above_the_optimum_over_all_schedules_with_copies_and_plans_reach_it():
    feasible = raised = 0
    for problem in (*small_problems(2, 20), *small_problems(3, 20, slowness=4)):
        outcome = quick.solve(problem)
        limit = outcome.upper if outcome.cost is not None else problem.graph.time * 5 // 4
        best, _ = optimum(problem.graph, problem.budget, problem.link, limit)
        assert outcome.upper == (IMPOSSIBLE if best is None else best)
        assert best is None or outcome.lower <= best
        assert outcome.certified == outcome.lower  # the proof, as the checker reads it, says all of it
        assert outcome.proof.link == (problem.link if outcome.proof.theorem == "link" else None)
        feasible += best is not None
        raised += problem.graph.time < outcome.certified < IMPOSSIBLE
    assert feasible >= 4 and raised


def test_a_link_leaves_of_the_floor_what_one_node_needs():
    """Below it no schedule exists, link or not; between it and the floor without copies there may be one."""
    rng, below = random.Random(4), 0
    for _ in range(150):
        graph = tiny_graph(rng, 4, summed=False)
        floor, whole = first_run_floor(flatten(graph))[0], proved_floor(graph)
        assert floor <= whole
        fast = Link.symmetric(gb_per_s=50)
        if floor < whole and below < 3:
            below += quick.solve(Problem(graph=graph, budget=whole - 1, link=fast)).cost is not None
    impossible = quick.solve(Problem(graph=graph, budget=floor - 1, link=fast))
    assert (impossible.cost, impossible.lower) == (None, IMPOSSIBLE)
    assert below
