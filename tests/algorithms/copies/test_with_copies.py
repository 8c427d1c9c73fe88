"""`WithCopies`, and `auto` with a link: never slower than without copies or than POFO, within the host's budget."""

import random
from pathlib import Path

import numpy as np
import pytest
from attrs import evolve

from remat.algorithms import (
    BoundMarks,
    CopiesAlone,
    LargerBudgets,
    Linearise,
    LinkInstants,
    MultiStart,
    Pofo,
    Polish,
    Problem,
    ReplaceReruns,
    RuinCopies,
    ShaveBoth,
    ShavePostponed,
    SingleInstant,
    Solver,
    StoreAll,
    WithCopies,
    auto,
    parse,
    store_all_peak,
    warm,
)
from remat.algorithms._arrays.graph_arrays import flatten, row_of
from remat.algorithms._bounds.floor import first_run_floor
from remat.algorithms._copies import copy_search
from remat.algorithms._copies.copy_moves import BOTH, Prices
from remat.algorithms._copies.copy_search import CopyMove, CopySearch
from remat.algorithms._copies.copy_shaving import shaved
from remat.algorithms._copies.with_copies import WITHOUT_COPIES
from remat.algorithms._core.clock import Clock
from remat.algorithms._core.outcome import Plan
from remat.errors import BadArgument
from remat.ir import Graph, GraphBuilder, Kind, Link, Offload, Schedule, read_joint_graph, validate
from tests.benchmarks.tiny import tiny_graph

CAPTURED = Path(__file__).parents[2] / "data" / "captured"
SLOW, FAST = Link.symmetric(gb_per_s=0.5), Link.symmetric(gb_per_s=4, latency=1)
plain = Polish((MultiStart(starts=4), SingleInstant(after_loss=2, heaviest=0, mixed=0)))
quick = WithCopies(
    plain,
    (ReplaceReruns(), ShaveBoth(exponents=(1.0,)), LinkInstants(after_loss=(1,), heaviest=0), RuinCopies(work=3e3)),
)


def budget_of(graph, part):
    """A budget between the floor that copies leave and the peak."""
    floor = first_run_floor(flatten(graph))[0]
    return floor + int(part * (store_all_peak(graph) - floor))


def chain(stages):
    """A flat training chain whose activations are of different sizes."""
    b = GraphBuilder(f"chain{stages}")
    b.data("x", 9, Kind.INPUT)
    b.data("t", 1, Kind.TANGENT)
    for i in range(stages):
        b.data(f"a{i}", 4 + 3 * i % 5)
        b.data(f"g{i}", 4 + 3 * i % 5, Kind.GRADIENT)
        b.data(f"w{i}", 1, Kind.PARAM_GRAD)
        b.forward(f"F{i}", reads=[f"a{i - 1}" if i else "x"], writes=[f"a{i}"], time=3 + i % 2)
    b.loss("L", reads=[f"a{stages - 1}"], writes=["t"], time=1)
    for i in reversed(range(stages)):
        later = f"g{i + 1}" if i < stages - 1 else "t"
        writes = [f"g{i}", f"w{i}"]
        b.backward(f"B{i}", reads=[later, f"a{i}", *([f"a{i - 1}"] if i else ["x"])], writes=writes, time=5)
    return b.build()


@pytest.mark.parametrize("link", [SLOW, FAST], ids=["slow", "fast"])
def test_a_plan_with_copies_is_never_slower_than_one_without(link):
    rng, faster = random.Random(1), 0
    for _ in range(6):
        graph = tiny_graph(rng, 6, summed=rng.random() < 0.5)
        budget = budget_of(graph, 0.4)
        without = plain.solve(Problem(graph=graph, budget=budget))
        linked = quick.solve(Problem(graph=graph, budget=budget, link=link))
        assert linked.upper <= without.upper
        assert linked.lower <= linked.upper
        faster += linked.upper < without.upper
    assert faster


@pytest.mark.parametrize(("stages", "share"), [(4, 0.6), (6, 0.4), (8, 0.3)])
def test_a_plan_of_a_chain_is_no_slower_than_the_optimum_of_pofo(stages, share):
    graph = chain(stages)
    problem = Problem(graph=graph, budget=budget_of(graph, share), link=Link.symmetric(gb_per_s=1))
    ours, pofo = quick.solve(problem), (Linearise() >> Pofo()).solve(problem)
    assert ours.cost is not None
    assert ours.upper <= pofo.upper
    assert ours.lower <= ours.upper


def test_without_a_link_it_is_the_solver_without_copies():
    graph = chain(5)
    problem = Problem(graph=graph, budget=budget_of(graph, 0.5))
    assert quick.solve(problem).schedule == plain.solve(problem).schedule
    assert quick.solve(problem).lower == plain.solve(problem).lower


def test_the_bound_without_copies_stands_beside():
    graph = chain(6)
    problem = Problem(graph=graph, budget=budget_of(graph, 0.5), link=FAST)
    outcome, without = quick.solve(problem), plain.solve(Problem(graph=graph, budget=problem.budget))
    (beside,) = outcome.class_bounds
    assert (beside.assumes, beside.value) == (WITHOUT_COPIES, without.lower)
    assert outcome.word == "certified"
    assert outcome.lower <= outcome.upper < without.lower


def test_the_host_has_a_budget_of_its_own():
    graph = chain(8)
    problem = {"graph": graph, "budget": budget_of(graph, 0.4), "link": FAST}
    free = quick.solve(Problem(**problem))
    assert free.cost.host_peak > 8
    tight = quick.solve(Problem(**problem, host_budget=8))
    assert tight.cost.host_peak <= 8
    assert tight.upper >= free.upper
    none = quick.solve(Problem(**problem, host_budget=0))
    assert none.cost.host_peak == 0
    with pytest.raises(BadArgument, match="host_budget"):
        Problem(**problem, host_budget=-1)


def test_a_schedule_over_the_budget_of_the_host_is_not_taken():
    class Given(Solver):
        def plan(self, problem, clock, seed):
            return Plan(schedule=schedule)

    graph = chain(8)
    problem = Problem(graph=graph, budget=budget_of(graph, 0.4), link=FAST)
    free = quick.solve(problem)
    schedule = free.schedule
    assert Given().solve(problem).upper == free.upper
    refused = Given().solve(Problem(graph=graph, budget=problem.budget, link=FAST, host_budget=free.cost.host_peak - 1))
    assert refused.schedule is None
    assert "on the host" in refused.trail[-1]


def test_a_start_with_copies_is_kept_or_bettered():
    graph = chain(8)
    problem = Problem(graph=graph, budget=budget_of(graph, 0.4), link=FAST)
    first = quick.solve(problem)
    assert any(isinstance(step, Offload) for step in first.schedule.steps)
    assert warm(quick, seed=quick).solve(problem).upper <= first.upper


def test_a_start_may_run_nodes_that_need_not_run():
    b = GraphBuilder("idle")
    b.data("x", 0, Kind.INPUT)
    for name, kind in (("a", Kind.ACTIVATION), ("t", Kind.TANGENT), ("unused", Kind.GRADIENT), ("g", Kind.INPUT_GRAD)):
        b.data(name, 4, kind)
    b.forward("F", reads=["x"], writes=["a"], time=5)
    b.loss("L", reads=["a"], writes=["t"], time=1)
    b.backward("U", reads=["a", "t"], writes=["unused"], time=7)
    b.backward("B", reads=["a", "t"], writes=["g"], time=9)
    graph = b.build()
    search = CopySearch(Problem(graph=graph, budget=20, link=FAST), Clock(), 0, "test")
    start = Schedule.from_runs(graph, ["F", "L", "U", "B"])
    assert validate(graph, start).time == 22
    assert search.offer(search.replayed(*search.runs_of(start)), "the start") and search.best.time == 15


def test_a_plan_that_the_validator_does_not_confirm_gives_way_to_the_best_before_it(monkeypatch):
    graph = chain(4)
    problem = Problem(graph=graph, budget=store_all_peak(graph), link=FAST)
    search = CopySearch(problem, Clock(), 0, "test")
    right = search.replayed(search.base, search.bare(search.base))
    wrong = evolve(right, time=right.time - 1)
    assert search.offer(right, "right") and search.offer(wrong, "wrong") and search.best is wrong
    schedule = search.schedule()
    assert search.best is right and validate(graph, schedule, problem.budget, FAST).time == right.time
    alone = CopySearch(problem, Clock(), 0, "test")
    assert alone.offer(wrong, "wrong")
    assert alone.schedule() is None and alone.best is None


def test_equal_seeds_plan_alike_and_a_deadline_leaves_a_plan():
    graph = tiny_graph(random.Random(5), 8, summed=False)
    problem = Problem(graph=graph, budget=budget_of(graph, 0.5), link=SLOW)
    assert quick.solve(problem, seed=3).schedule == quick.solve(problem, seed=3).schedule
    assert quick.within(1e-4).solve(problem).lower <= quick.solve(problem).upper


def test_auto_plans_copies_where_there_is_a_link():
    assert isinstance(auto, WithCopies)
    graph = chain(6)
    outcome = auto.within(0.3).solve(Problem(graph=graph, budget=budget_of(graph, 0.4), link=FAST))
    assert any(isinstance(step, Offload) for step in outcome.schedule.steps)


def test_its_text_rebuilds_it():
    assert parse(repr(quick)) == quick
    assert repr(WithCopies(StoreAll())) == "WithCopies(StoreAll())"


def test_cheap_lane_time_ends_at_its_capacity():
    """Without a capacity cheap copies close all gaps; with one, about so much lane time is used, and reruns close the rest."""
    graph = read_joint_graph(CAPTURED / "gpt12.json.gz")
    link = Link.symmetric(gb_per_s=12)
    search = CopySearch(Problem(graph=graph, budget=int(0.5 * store_all_peak(graph)), link=link), Clock(), 0, "test")

    def lane_time(capacity):
        prices = Prices(search.time_prices, 0.02, 1.0, 0.0, 0.0, BOTH, capacity)
        seq, mask = search.shaved(search.base, search.bare(search.base), prices, search.streams.spawn("copies"))
        reads = [
            row_of(search.flat.reads, v)[k]
            for v, bits in zip(seq, mask, strict=True)
            for k in range(62)
            if bits >> k & 1
        ]
        return sum(int(search.lanes.out[d] + search.lanes.back[d]) for d in reads), len(seq) - len(search.base)

    unlimited, few = lane_time(float("inf"))
    largest = int((search.lanes.out + search.lanes.back).max())
    for part in (0.1, 0.3):
        used, more = lane_time(part * unlimited)
        assert 0 < used <= part * unlimited + largest
        assert more > few


def test_the_gap_at_which_a_search_ends_grows_with_the_graph():
    search = CopySearch(Problem(graph=chain(3), budget=10**6, link=SLOW), Clock(), 0, "test")
    assert search.close == 0.0005
    search.base = np.zeros(5000, np.int32)
    assert search.close == pytest.approx(0.003)


def test_large_graphs_are_shaved_for_capacities_alone(monkeypatch):
    """The prices without a capacity are for graphs on which a shaving takes hundredths of a second."""
    graph = read_joint_graph(CAPTURED / "gpt12.json.gz")
    problem = Problem(graph=graph, budget=int(0.5 * store_all_peak(graph)), link=Link.symmetric(gb_per_s=12))
    capacities: dict[int, set[float]] = {}
    for large in (2000, 100):
        monkeypatch.setattr(copy_search, "LARGE", large)
        search = CopySearch(problem, Clock(), 0, "test")
        shaved, seen = search.shaved, capacities.setdefault(large, set())
        monkeypatch.setattr(search, "shaved", lambda *a, f=shaved, s=seen: (s.add(a[2].capacity), f(*a))[1])
        ShaveBoth().improve(search)
        assert search.best.time < 1.06 * search.base_time
    assert float("inf") in capacities[2000]
    assert len(capacities[100]) >= 5
    assert float("inf") not in capacities[100]


@pytest.mark.parametrize(("name", "share"), [("gpt12", 0.5), ("encdec6", 0.35), ("resnet101", 0.5)])
def test_a_list_of_moves_may_serve_several(name, share):
    """On graphs of equal layers the plans are nearly as fast; the rest of the list is worth at least .8 of its first."""
    graph = read_joint_graph(CAPTURED / f"{name}.json.gz")
    link = Link.symmetric(gb_per_s=12)
    search = CopySearch(Problem(graph=graph, budget=int(share * store_all_peak(graph)), link=link), Clock(), 0, "test")
    prices = Prices(search.time_prices, 0.02, 0.7, 0.0, 0.0, BOTH, 0.3 * search.base_time)
    times = {}
    for served in (1, 8):
        rng = search.streams.spawn("copies")
        args = search.flat, search.lanes, prices._replace(served=served), search.base, search.bare(search.base), rng
        seq, mask, fit = shaved(*args)
        assert fit
        times[served] = search.replayed(seq, mask).time
    assert times[8] <= 1.02 * times[1]


def test_plans_that_polishing_leaves_as_they_are_or_far_behind_are_not_polished_again(monkeypatch):
    graph = read_joint_graph(CAPTURED / "gpt12.json.gz")
    problem = Problem(graph=graph, budget=int(0.5 * store_all_peak(graph)), link=Link.symmetric(gb_per_s=12))
    search = CopySearch(problem, Clock(), 0, "test")
    CopiesAlone().improve(search)
    ShaveBoth().improve(search)
    ReplaceReruns().improve(search)
    polish = search.polished
    polished = []
    monkeypatch.setattr(
        search, "polished", lambda seq, *more, **most: (polished.append(seq), polish(seq, *more, **most))[1]
    )
    before = search.best
    open_ = [plan for plan in search.pool if not plan.settled and plan.time <= 1.25 * before.time]
    assert len(open_) < len(search.pool)
    ReplaceReruns().improve(search)
    assert len(polished) == len(open_)
    assert search.best is before


def reached(move, plain_gap, rough, effort=0.0):
    """The time of the best plan of one pass over that without recomputation, on the U-Net at 35 %; None: it offers none."""
    graph = read_joint_graph(CAPTURED / "unet.json.gz")
    link = Link.symmetric(gb_per_s=12)
    problem = Problem(graph=graph, budget=int(0.35 * store_all_peak(graph)), link=link)
    search = CopySearch(problem, Clock(), 0, "test", rough)
    search.plain_gap, search.plain_effort = plain_gap, effort
    move.improve(search)
    return None if search.best is None else search.best.time / search.base_time


def test_plans_of_larger_budgets_lead_where_shaving_does_not():
    rough = MultiStart(starts=8)
    assert reached(LargerBudgets(), 0.01, rough) < reached(ShaveBoth(), 0.01, rough)


def test_larger_budgets_are_left_alone_where_the_plain_plan_is_close_to_its_bound():
    rough = MultiStart(starts=8)
    assert reached(LargerBudgets(), 0.001, rough) is None
    assert reached(LargerBudgets(), 0.01, None) is None
    # unless that took long itself
    assert reached(LargerBudgets(), 0.001, rough, effort=3.0) == reached(LargerBudgets(), 0.01, rough)


def test_searches_take_a_few_times_the_effort_of_the_plan_without_copies():
    graph = read_joint_graph(CAPTURED / "unet.json.gz")
    problem = Problem(graph=graph, budget=int(0.35 * store_all_peak(graph)), link=Link.symmetric(gb_per_s=12))

    def searched(plain_gap, plain_effort, taken):
        """(gain, effort) of a search after others have taken so much."""
        search = CopySearch(problem, Clock(), 0, "test")
        ShaveBoth(lane_prices=(0.4,), exponents=(1.0,), best=1).improve(search)
        first = search.best.time
        search.rough_effort = taken - search.effort
        search.plain_gap, search.plain_effort = plain_gap, plain_effort
        RuinCopies(work=2e6, searches=2).improve(search)
        return first - search.best.time, search.effort - taken

    gain, unlimited = searched(float("inf"), 1.0, taken=3.5)
    assert gain > 0
    assert searched(float("inf"), 1.0, taken=96) == (0, 0.0)  # where there is no plan without copies
    assert searched(0.002, 1.0, taken=3.5) == (0, 0.0)
    assert searched(0.002, 2.0, taken=3.5) == (gain, unlimited)
    assert searched(0.002, 0.0, taken=3.5) == (gain, unlimited)  # of a solver whose effort nobody counts
    _, rest = searched(0.002, 1.0, taken=3.49)
    assert 0.01 <= rest < unlimited / 2  # the last iteration ends later


def crowded() -> Graph:
    """Two nodes whose kept gradients fit before a heavy node, and a datum for after it that does not then fit too."""
    b = GraphBuilder("crowded")
    for name, size, kind in (("t", 1, Kind.TANGENT), ("x", 10, Kind.ACTIVATION), ("h", 1, Kind.GRADIENT)):
        b.data(name, size, kind)
    for name, size in (("w0", 10), ("w1", 10), ("g", 1)):
        b.data(name, size, Kind.PARAM_GRAD)
    b.forward("F", writes=["x"], time=2, run_once=True)
    b.loss("L", reads=["x"], writes=["t"], time=1)
    b.backward("W0", reads=["t"], writes=["w0"], time=3)
    b.backward("W1", reads=["t"], writes=["w1"], time=3)
    b.backward("heavy", reads=["t"], writes=["h"], time=3, workspace=12)
    b.backward("last", reads=["x", "h"], writes=["g"], time=3)
    return b.build()


def test_orders_with_room_beside_a_heavy_node_need_not_carry_away_what_runs_after_it():
    graph = crowded()
    problem = Problem(graph=graph, budget=34, link=SLOW)  # 34 at the heavy node without x, 24 with it before W0 and W1
    both, postponed = (CopySearch(problem, Clock(), 0, "test") for _ in range(2))
    ShaveBoth().improve(both)
    ShavePostponed().improve(postponed)
    assert np.array_equal(both.start, both.base)
    assert both.best.time > graph.time == postponed.best.time
    assert validate(graph, postponed.schedule(), 34, SLOW).time == graph.time
    assert postponed.other_starts == [postponed.best]
    planned = CopySearch(problem, Clock(), 0, "test")
    planned.plain_gap = 0.01  # where there is a plan without copies, others begin from that
    ShavePostponed().improve(planned)
    assert planned.best is None


@pytest.mark.parametrize("plain", [MultiStart(starts=1), StoreAll()])
def test_thorough_plans_of_larger_budgets_are_for_where_no_plan_without_copies_is_there(plain):
    class Asked(Solver):
        def __init__(self, name):
            self.name, self.budgets = name, []

        def plan(self, problem, clock, seed):
            self.budgets.append(problem.budget)
            return Plan()

    graph = chain(5)
    rough, thorough = Asked("rough"), Asked("thorough")
    problem = Problem(graph=graph, budget=budget_of(graph, 0.3), link=SLOW)
    WithCopies(plain, (LargerBudgets(factors=(2,)),), rough=rough, thorough=thorough).solve(problem)
    asked, other = (thorough, rough) if plain == StoreAll() else (rough, thorough)
    assert asked.budgets == [2 * problem.budget] and not other.budgets


@pytest.mark.parametrize(
    "move",
    [
        ShaveBoth(lane_prices=(1, 2), exponents=(1,)),
        ShavePostponed(reserves=(0, 1), lane_prices=(1,), exponent=1),
        LargerBudgets(factors=(1, 2), lane_prices=(1,), plain=0),
        RuinCopies(work=1000, temperature=0, unless=0, disorder=1, undone=1, gathering=1),
    ],
)
def test_settings_may_be_whole_numbers(move):
    graph = chain(5)
    solver = WithCopies(MultiStart(starts=1), (ShaveBoth(), move), rough=MultiStart(starts=1))
    for part in (0.1, 0.5):
        problem = Problem(graph=graph, budget=budget_of(graph, part), link=FAST)
        assert solver.solve(problem).schedule is not None


def test_rough_plans_count_as_effort():
    graph = read_joint_graph(CAPTURED / "unet.json.gz")
    problem = Problem(graph=graph, budget=int(0.35 * store_all_peak(graph)), link=Link.symmetric(gb_per_s=12))
    search = CopySearch(problem, Clock(), 0, "test", MultiStart(starts=8))
    search.plain_gap = 0.01
    LargerBudgets().improve(search)
    assert search.rough_effort > 0
    assert search.effort > search.rough_effort


def test_the_rough_solver_stands_in_its_text():
    assert parse(repr(auto)) == auto
    assert (
        repr(WithCopies(StoreAll(), rough=MultiStart(starts=8))) == "WithCopies(StoreAll(), rough=MultiStart(starts=8))"
    )


def test_capacities_are_tried_with_the_last_exponent_on_large_graphs(monkeypatch):
    """The smaller the exponent, the larger the data that cheap lane time goes to: other plans."""
    graph = read_joint_graph(CAPTURED / "resnet101.json.gz")
    problem = Problem(graph=graph, budget=int(0.35 * store_all_peak(graph)), link=Link.symmetric(gb_per_s=12))

    def best_of(*exponents):
        search = CopySearch(problem, Clock(), 0, "test")
        ShaveBoth(lane_prices=(1e3,), exponents=exponents, best=60).improve(search)
        return search.best.time

    monkeypatch.setattr(copy_search, "LARGE", 100)
    alone = best_of(1.0), best_of(0.7)
    assert alone[0] != alone[1]
    assert (best_of(0.7, 1.0), best_of(1.0, 0.7)) == alone


def test_on_a_large_graph_the_search_ends_when_it_is_close(monkeypatch):
    """Passes after the plan without copies are left out once the gap is within what is close for the graph's size."""

    class Counting(CopyMove):
        def improve(self, search):
            called.append(search.large)

    called = []
    graph = read_joint_graph(CAPTURED / "unet.json.gz")
    problem = Problem(graph=graph, budget=int(0.35 * store_all_peak(graph)), link=Link.symmetric(gb_per_s=900))
    for large, close in ((2000, 0.1), (100, 0.1), (100, 1e-6)):
        monkeypatch.setattr(copy_search, "LARGE", large)
        monkeypatch.setattr(copy_search, "_CLOSE", close)
        monkeypatch.setattr(copy_search, "_CLOSE_PER_NODE", 0.0)
        outcome = WithCopies(plain, (Counting(),)).solve(problem)
        assert 1e-6 < outcome.gap <= 0.1
    assert called == [False, True]


def test_instants_with_a_link_are_firm_and_end_on_large_graphs_where_they_bring_nothing(monkeypatch):
    graph = read_joint_graph(CAPTURED / "resnet101.json.gz")
    problem = Problem(graph=graph, budget=int(0.35 * store_all_peak(graph)), link=Link.symmetric(gb_per_s=12))
    examined, bounds = {}, {}
    for large, patience in ((2000, 1), (100, 1), (100, 3)):
        monkeypatch.setattr(copy_search, "LARGE", large)
        search = CopySearch(problem, Clock(), 0, "test")
        LinkInstants(patience=patience).improve(search)
        examined[large, patience], bounds[large, patience] = len(search.marks_of_bound), search.lower
        assert all(bound > 0 for bound, _ in search.marks_of_bound)  # the gradient of a weight bounds nothing
    assert 2 <= examined[100, 1] < examined[100, 3] < examined[2000, 1] == 12
    assert graph.time < bounds[100, 1] <= bounds[100, 3] <= bounds[2000, 1]


def test_marks_of_the_bound_are_left_out_on_large_graphs(monkeypatch):
    graph = read_joint_graph(CAPTURED / "unet.json.gz")
    problem = Problem(graph=graph, budget=int(0.35 * store_all_peak(graph)), link=Link.symmetric(gb_per_s=12))
    found = []
    for large in (2000, 100):
        monkeypatch.setattr(copy_search, "LARGE", large)
        search = CopySearch(problem, Clock(), 0, "test")
        LinkInstants().improve(search)
        assert search.marks_of_bound
        BoundMarks().improve(search)
        found.append(search.best)
    assert found[0] is not None
    assert found[1] is None
