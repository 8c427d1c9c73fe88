"""`warm(main, seed=…)` through the combinators and the transforms, and what a start may not do."""

import pytest
from attrs import evolve, field, frozen

from remat.algorithms import (
    Applied,
    OneOutputPerOp,
    Plan,
    Problem,
    Quantise,
    Solver,
    StoreAll,
    Transform,
    UnitCost,
    WarmStarted,
    best,
    first,
    is_flat,
    nodes_at_most,
    warm,
)
from remat.errors import BadArgument
from remat.ir import Schedule, validate
from tests.algorithms.test_runs_liveness import chain

GRAPH = chain(4)
PEAK = validate(GRAPH, Schedule.from_runs(GRAPH, range(len(GRAPH)))).peak
PROBLEM = Problem(graph=GRAPH, budget=PEAK)


@frozen
class Starts(WarmStarted):
    """Notes its starts, and plans nothing better."""

    heard: list = field(factory=list, eq=False)

    def plan_from(self, problem, start, clock, seed):
        self.heard.append(start)
        return Plan(schedule=start, trail=("started",))


@frozen
class Never(Solver):
    """Finds nothing, and takes no start."""

    def plan(self, problem, clock, seed):
        return Plan()


WAYS = {
    "within": lambda main: main.within(60),
    "when": lambda main: main.when(is_flat),
    "nested": lambda main: main.within(60).when(is_flat).within(50),
    "first": lambda main: first(Never(), main),
    "best": lambda main: best(Never(), main.within(9)),
    "a transform": lambda main: OneOutputPerOp() >> main,
    "the seed of another start": lambda main: warm(Starts(), seed=main),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_start_passes_through(way):
    main = Starts()
    expression = way(main)
    assert expression.takes_start
    outcome = warm(expression, seed=StoreAll()).solve(PROBLEM)
    (start,) = main.heard
    assert [run.node for run in start.runs] == [node.name for node in GRAPH.computes]
    assert outcome.upper == StoreAll().solve(PROBLEM).upper


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_without_a_start_it_plans_as_ever(way):
    main = Starts()
    way(main).solve(PROBLEM)
    assert main.heard == [None]


@frozen
class Smaller(Transform):
    """The same problem with no memory at all."""

    carries_starts = True

    def apply(self, problem, *, clock=None, seed=0):
        return Applied(problem=evolve(problem, budget=0), lift=lambda one: one, carry=lambda one: one)


def test_a_start_that_does_not_fit_the_transformed_problem_is_left_aside_and_that_is_said():
    main = Starts()
    outcome = warm(Smaller() >> main, seed=StoreAll()).solve(PROBLEM)
    assert main.heard == [None]
    assert any("start does not fit" in words for words in outcome.trail)


def test_transforms_in_turn_carry_a_start_where_each_does():
    main = Starts()
    warm(OneOutputPerOp() >> OneOutputPerOp() >> main, seed=StoreAll()).solve(PROBLEM)
    assert [start is None for start in main.heard] == [False]
    assert not (OneOutputPerOp() >> UnitCost() >> main).takes_start
    assert (Quantise() >> main).takes_start


def test_what_takes_no_start_is_refused_with_the_way_out():
    for main in (StoreAll(), Never() | StoreAll(), StoreAll().within(3), UnitCost() >> Starts()):
        assert not main.takes_start
        with pytest.raises(BadArgument, match="takes a start"):
            warm(main, seed=StoreAll())


def test_a_part_that_refuses_is_not_started():
    main = Starts()
    outcome = warm(first(main.when(nodes_at_most(1)), Starts()), seed=StoreAll()).solve(PROBLEM)
    assert main.heard == [] and outcome.schedule is not None
    assert any("refused" in words for words in outcome.trail)
