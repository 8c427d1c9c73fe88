"""Seed, clock, progress and interruption pass through everything that solvers are put into."""

import time
from pathlib import Path

import pytest
from attrs import field, frozen

from remat.algorithms import (
    Clock,
    Condense,
    From,
    HIlp,
    Intervals,
    Linearise,
    OneOutputPerOp,
    Plan,
    Polish,
    Problem,
    Quantise,
    Solver,
    Status,
    StoreAll,
    Through,
    Transform,
    UnitCost,
    auto,
    best,
    first,
    gap,
    hierarchical,
    is_flat,
    pool,
    store_all_peak,
    warm,
)
from remat.ir import Schedule, load, read_joint_graph
from remat.testing import check_composition
from remat.testing.report import LawBroken

ROOT = Path(__file__).parents[1] / "data"


@frozen
class Nothing(Solver):
    """Finds nothing."""

    def plan(self, problem, clock, seed):
        return Plan()


COMPOSITIONS = {
    "alone": lambda probe: probe,
    "an alternative": lambda probe: Nothing() | probe,
    "a part of the best": lambda probe: best(StoreAll(), probe),
    "a deadline": lambda probe: probe.within(900).within(800),
    "a condition": lambda probe: probe.when(is_flat),
    "a start": lambda probe: warm(HIlp(entries=1), seed=probe),
    "started": lambda probe: warm(probe, seed=StoreAll()),
    "after a transform": lambda probe: OneOutputPerOp() >> probe,
    "after transforms": lambda probe: Linearise() >> Quantise() >> UnitCost() >> probe,
    "the top level": lambda probe: hierarchical(Intervals(6), top=probe),
    "a lower level": lambda probe: hierarchical(Intervals(6), lower=probe.sweep(peaks=2, saves=1), top=StoreAll()),
    "a pool below": lambda probe: hierarchical(
        Intervals(6), lower=pool(StoreAll(), probe).sweep(peaks=1), top=StoreAll()
    ),
    "blocks of a chain": lambda probe: Linearise(blocks=probe.sweep(peaks=2, saves=1)) >> StoreAll(),
    "levels in levels": lambda probe: hierarchical(
        Intervals(8),
        lower=hierarchical(Intervals(3), lower=probe.sweep(peaks=1, saves=1), top=StoreAll()).sweep(peaks=1, saves=1),
        top=StoreAll(),
    ),
}


@pytest.fixture(scope="module")
def layer():
    return load(ROOT / "blocks" / "gpt2_layer.json")


@pytest.mark.parametrize("compose", COMPOSITIONS.values(), ids=COMPOSITIONS)
def test_everything_passes_through(compose, layer):
    check_composition(compose, layer)


def test_starts_of_a_search_are_asked_with_the_seed_and_the_clock(layer):
    check_composition(
        lambda probe: Polish((From(probe),), stop=gap(0.0)), layer, budget=store_all_peak(layer) * 9 // 10
    )


@frozen
class Deaf(Transform):
    """Asks a solver on the way and hands nothing on to it."""

    solver: Solver
    hands: tuple = ()

    def apply(self, problem, *, clock=None, seed=0):
        given = {"clock": clock, "seed": seed}
        try:
            self.solver.solve(problem, **{name: given[name] for name in self.hands})
        except KeyboardInterrupt:
            raise AssertionError("solve is final and keeps the interruption") from None
        return Condense(Intervals(6)).apply(problem)


@pytest.mark.parametrize(
    ("hands", "law"), [((), "L-SEED"), (("seed",), "L-HEARD"), (("clock",), "L-SEED"), (("clock", "seed"), None)]
)
def test_a_transform_that_keeps_them_to_itself_breaks_a_law(hands, law, layer):
    def compose(probe):
        return Through(Deaf(probe, hands), StoreAll())

    if law is None:
        check_composition(compose, layer)
        return
    with pytest.raises(LawBroken) as broken:
        check_composition(compose, layer)
    assert broken.value.law in (law, "L-CLOCK")


def test_a_composition_that_never_asks_is_said_so(layer):
    with pytest.raises(LawBroken, match="L-NONE"):
        check_composition(lambda probe: StoreAll() | probe, layer)


@frozen
class Slow(Solver):
    """Takes two seconds of memory for each plan."""

    now: list = field(eq=False)

    def plan(self, problem, clock, seed):
        self.now[0] += 2.0
        return Plan(schedule=Schedule.from_runs(problem.graph, range(len(problem.graph))))


@frozen
class Late(Solver):
    """Takes three seconds to find nothing."""

    now: list = field(eq=False)

    def plan(self, problem, clock, seed):
        self.now[0] += 3.0
        return Plan()


def test_lower_levels_leave_time_for_the_level_above(layer):
    """Eight plans of two seconds each under a deadline of one second took sixteen, and none was left for the top."""
    now = [0.0]
    solver = hierarchical(Intervals(6), lower=Slow(now).sweep(peaks=4, saves=2), top=StoreAll()).within(1)
    outcome = solver.solve(Problem(graph=layer, budget=1 << 62), clock=Clock(now=lambda: now[0]))
    assert now[0] == 2.0
    assert outcome.trail


def test_progress_of_lower_levels_is_not_taken_for_the_plans(layer):
    heard = []
    solver = hierarchical(Intervals(6), lower=best(StoreAll(), StoreAll().within(9)).sweep(peaks=2), top=StoreAll())
    solver.solve(Problem(graph=layer, budget=1 << 62), clock=Clock(listener=heard.append))
    assert heard and {(one.best, one.bound) for one in heard} == {(None, 0)}


def test_the_last_alternative_is_asked_when_the_time_is_over():
    """A deadline that left no plan used to skip the fallback too."""
    graph = read_joint_graph(ROOT / "captured" / "mixer.json.gz")
    problem = Problem(graph=graph, budget=store_all_peak(graph) // 2)
    start = time.monotonic()
    outcome = auto.solve(problem, clock=Clock(0.0))
    assert outcome.status is Status.FEASIBLE
    assert time.monotonic() - start < 20


@pytest.mark.parametrize("join", [first, best])
def test_the_fallback_is_asked_late_where_there_is_no_plan_and_only_there(layer, join):
    asked, now = [], [0.0]

    @frozen
    class Asked(Solver):
        name: str

        def plan(self, problem, clock, seed):
            asked.append(self.name)
            return StoreAll().plan(problem, clock, seed)

    def solve(*solvers):
        clock = Clock(1, now=lambda: now[0])
        return join(*solvers).solve(Problem(graph=layer, budget=1 << 62), clock=clock)

    assert solve(Slow(now), Asked("after a plan")).cost is not None
    assert solve(Late(now), Asked("in between"), Asked("last")).cost.time == layer.time
    assert asked == ["last"]


@pytest.mark.parametrize("join", [first, best])
def test_a_stopped_clock_skips_the_fallback(layer, join):
    asked = []

    @frozen
    class Stops(Solver):
        def plan(self, problem, clock, seed):
            clock.stop()
            return Plan()

    @frozen
    class Asked(Solver):
        def plan(self, problem, clock, seed):
            asked.append(seed)
            return Plan()

    join(Stops(), Asked()).solve(Problem(graph=layer, budget=1 << 62))
    assert asked == []
