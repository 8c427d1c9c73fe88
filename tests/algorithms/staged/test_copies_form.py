"""`HIlp` with a link: the formulation with copies against an exhaustive search, against POFO, and under its limits."""

from random import Random

import pytest

from remat.algorithms import HIlp, Problem, store_all_peak
from remat.algorithms._arrays.graph_arrays import flatten
from remat.algorithms._bounds.floor import first_run_floor
from remat.algorithms._copies.copy_search import CopySearch
from remat.algorithms._core.clock import Clock
from remat.algorithms._staged import copies_solver
from remat.algorithms._staged.form_copies import copies_form
from remat.algorithms._staged.memory_items import StagedGraph
from remat.algorithms._staged.slots import slots_of
from remat.algorithms._staged.solver import ENTRIES_WITH_COPIES
from remat.algorithms.named import pofo
from remat.ir import GraphBuilder, Kind, Link
from tests.algorithms.copies.oracle import optimum
from tests.algorithms.copies.test_link_bound import small_problems
from tests.algorithms.copies.test_with_copies import quick

ALONE = HIlp(gap=0, warm_start=False)


def chain_of(length, seed):
    """A chain whose backward nodes read the output and the input of their stage."""
    rng, b = Random(seed), GraphBuilder("chain")
    b.data("x", 1, Kind.INPUT)
    b.data("t", 1, Kind.TANGENT)
    for i in range(length):
        b.data(f"a{i}", rng.randint(2, 9))
        b.forward(f"F{i}", reads=[f"a{i - 1}" if i else "x"], writes=[f"a{i}"], time=rng.randint(1, 6))
    b.loss("L", reads=[f"a{length - 1}"], writes=["t"], time=1)
    for i in reversed(range(length)):
        b.data(f"g{i}", rng.randint(1, 3), Kind.GRADIENT if i else Kind.INPUT_GRAD)
        reads = [f"g{i + 1}" if i + 1 < length else "t", f"a{i}", *([f"a{i - 1}"] if i else [])]
        b.backward(f"B{i}", reads=reads, writes=[f"g{i}"], time=rng.randint(1, 6), twin=f"F{i}")
    return b.build()


def chain_problem(length, seed, share, *, speed=1, host=None):
    """Its problem at a share of the way from the floor to the peak."""
    graph = chain_of(length, seed)
    floor, peak = first_run_floor(flatten(graph))[0], store_all_peak(graph)
    budget = int(floor + share * (peak - floor))
    return Problem(graph=graph, budget=budget, link=Link.symmetric(gb_per_s=speed), host_budget=host)


def test_plans_are_those_of_an_exhaustive_search_with_copies_and_bounds_never_above_them():
    tight = tried = 0
    for problem in small_problems(2, 40):
        before = quick.solve(problem)
        limit = before.upper if before.cost is not None else problem.graph.time * 5 // 4
        best, _ = optimum(problem.graph, problem.budget, problem.link, limit)
        outcome = ALONE.solve(problem)
        if best is not None:
            assert outcome.upper == best
            assert outcome.class_bounds[0].value <= best
            tight += outcome.class_bounds[0].value == best
            tried += 1
    assert tried >= 8
    assert tight >= tried - 1  # one lane that works on copies in turn may be faster than any order of them


@pytest.mark.parametrize(("seed", "times"), [(0, (34, 30)), (2, (25, 25)), (3, (23, 23)), (5, (31, 31)), (8, (20, 20))])
def test_on_chains_no_plan_of_pofo_is_faster(seed, times):
    problem = chain_problem(3, seed, 0.5, speed=2)
    by_hilp, by_pofo = ALONE.solve(problem), pofo.solve(problem)
    assert (by_pofo.upper, by_hilp.upper) == times
    assert by_hilp.class_bounds[0].value == by_hilp.upper
    assert bool(by_hilp.cost.host_peak) == (seed > 0)  # the first one recomputes


def test_the_search_before_the_solve_ends_it_where_its_plan_takes_no_more_than_the_nodes():
    outcome = HIlp().solve(chain_problem(6, 1, 0.6, speed=2))
    assert outcome.upper == outcome.cost.time and "no MILP solve" in outcome.trail[0]


def test_a_host_budget_is_kept_and_leaves_the_bound_valid():
    wide, narrow = (HIlp(gap=0).solve(chain_problem(3, 5, 0.5, speed=2, host=host)) for host in (None, 4))
    assert wide.cost.host_peak > 4 >= narrow.cost.host_peak
    assert narrow.class_bounds[0].value <= narrow.upper


def test_other_forms_leave_copies_out_and_say_so():
    outcome = HIlp(form="published").solve(chain_problem(3, 0, 0.6))
    assert outcome.schedule is None and "copies" in outcome.trail[0]


def test_a_formulation_that_is_too_large_or_comes_too_late_leaves_the_plan_of_the_search(monkeypatch):
    problem = chain_problem(8, 2, 0.1)
    small = HIlp(entries=2000).solve(problem)
    assert small.schedule is None and "entries" in small.trail[0]
    clock, real = Clock(), copies_solver.copies_form

    def out_of_time(*args):
        clock.stop()
        return real(*args)

    monkeypatch.setattr(copies_solver, "copies_form", out_of_time)
    late = HIlp().solve(problem, clock=clock)
    assert late.cost is not None and not late.class_bounds and "stopped before" in late.trail[0]


def test_the_entries_of_a_formulation_are_about_as_many_as_is_said():
    for length in (5, 8, 12):
        graph = chain_of(length, 1)
        lanes, stage = CopySearch(chain_problem(length, 1, 0.3), Clock(), 0, "test").lanes, StagedGraph(graph)
        built = copies_form(stage, slots_of(stage, "all", None), lanes, 100, Clock()).form.linear
        assert 0.3 < len(built.val) / (ENTRIES_WITH_COPIES * HIlp()._entries(graph)) < 1.2
