"""`HIlp` and `Ilp` as solvers: known optima, starts, refusals, huge and tiny numbers, correction terms."""

import math
import random
from pathlib import Path

import pytest
from attrs import evolve

from remat.algorithms._bounds.floor import node_floor
from remat.algorithms._core.outcome import IMPOSSIBLE, Status
from remat.algorithms._core.problem import Problem
from remat.algorithms._core.solver import best
from remat.algorithms._core.warm_started import warm
from remat.algorithms._milp.answer import exact_bound
from remat.algorithms._milp.backend import Limits
from remat.algorithms._milp.backends import Cvxpy, Highs
from remat.algorithms._milp.milp_model import model_of
from remat.algorithms._staged.decode import point_of, reordered, schedule_of
from remat.algorithms._staged.form_checkmate import OneOutputPerOp
from remat.algorithms._staged.form_events import events_form
from remat.algorithms._staged.form_published import published_form
from remat.algorithms._staged.knapsack import FullRelaxation
from remat.algorithms._staged.memory_items import StagedGraph
from remat.algorithms._staged.solver import HIlp, Ilp
from remat.algorithms._whole.exhaustive import Exhaustive
from remat.errors import RematError
from remat.ir import Cluster, GraphBuilder, Kind, Schedule, condense, expand, load, validate
from remat.ir.link import Link

BLOCKS = Path(__file__).parent.parent.parent / "data" / "blocks"


def unit_chain(n):
    """The unit training chain of the Checkmate literature: 2n + 1 nodes, each of one byte and one nanosecond."""
    b = GraphBuilder("unit")
    for i in range(n):
        b.data(f"a{i}", 1)
    b.data("l", 1)
    b.data("t", 0, Kind.TANGENT)
    for i in range(n):
        b.data(f"g{i}", 1, Kind.GRADIENT)
    for i in range(n):
        b.forward(f"F{i}", reads=[f"a{i - 1}"] if i else [], writes=[f"a{i}"], time=1)
    b.loss("L", reads=[f"a{n - 1}"], writes=["l", "t"], time=1)
    for i in reversed(range(n)):
        before = "l" if i == n - 1 else f"g{i + 1}"
        b.backward(f"B{i}", reads=[before, f"a{i}", "t"], writes=[f"g{i}"], time=1)
    return b.build()


def long_chain(n, sizes, times, seed=0):
    rng = random.Random(seed)
    b = GraphBuilder("long")
    b.data("x", 0, Kind.INPUT)
    b.data("t", 1, Kind.TANGENT)
    for i in range(n):
        b.data(f"a{i}", rng.choice(sizes))
        b.data(f"g{i}", rng.choice(sizes), Kind.GRADIENT if i else Kind.INPUT_GRAD)
        b.forward(f"F{i}", reads=[f"a{i - 1}" if i else "x"], writes=[f"a{i}"], time=rng.choice(times))
    b.loss("L", reads=[f"a{n - 1}"], writes=["t"], time=1)
    for i in reversed(range(n)):
        gradient = "t" if i == n - 1 else f"g{i + 1}"
        b.backward(f"B{i}", reads=[gradient, f"a{i - 1}" if i else "x"], writes=[f"g{i}"], time=rng.choice(times))
    return b.build()


@pytest.mark.parametrize(("budget", "time"), [(3, 15), (4, 11), (5, 10), (6, 9)])
def test_staged_optima_of_the_unit_chain_are_those_of_the_literature(budget, time):
    problem = Problem(graph=unit_chain(4), budget=budget)
    for solver in (
        HIlp(gap=0, warm_start=False),
        Ilp(gap=0, form="checkmate"),
        HIlp(gap=0, form="published"),
        HIlp(gap=0, backend=Cvxpy()),
    ):
        assert solver.solve(problem).upper == time


def test_what_highs_once_called_infeasible_is_solved():
    # presolve of HiGHS 1.13 to 1.15.1 lost the point of such a formulation at the middle budget
    b = GraphBuilder("trap")
    for i in range(5):
        b.data(f"d{i}", 1)
    b.data("t", 0, Kind.TANGENT)
    edges = {0: (), 1: (0,), 2: (1,), 3: (1, 2), 4: (0, 3)}
    for i in range(4):
        b.forward(f"n{i}", reads=[f"d{k}" for k in edges[i]], writes=[f"d{i}"], time=1)
    b.loss("n4", reads=["d0", "d3"], writes=["d4", "t"], time=1)
    graph = b.build()
    times = []
    for budget in (2, 3, 4, 5):
        outcomes = [HIlp(gap=0, form=form, backend=one).solve(Problem(graph=graph, budget=budget))
                    for form in ("events", "published") for one in (Highs(), Cvxpy(), Cvxpy(solver="HIGHS"))]  # fmt: skip
        assert len({one.upper for one in outcomes}) == 1
        times.append(outcomes[0].upper)
    assert times[1] < math.inf and times == sorted(times, reverse=True)


def test_status_follows_from_evidence():
    graph = unit_chain(4)
    below = HIlp().solve(Problem(graph=graph, budget=1))
    assert below.status is Status.INFEASIBLE  # one node alone needs two bytes: a proof for every schedule
    chain = long_chain(6, [3, 5, 8], [2, 3])
    peak = validate(chain, Schedule.from_runs(chain, range(len(chain)))).peak
    lowest = Problem(graph=chain, budget=node_floor(chain))
    assert HIlp().solve(lowest).status is Status.INFEASIBLE  # the bound of single instants proves it for every schedule
    outcome = HIlp(warm_start=False).solve(lowest)
    assert outcome.status is Status.NOT_FOUND and outcome.lower < IMPOSSIBLE
    (bound,) = outcome.class_bounds
    assert bound.value == math.inf and "staged" in bound.assumes
    good = HIlp(gap=0, warm_start=False).solve(Problem(graph=chain, budget=peak))
    assert good.upper == chain.time and good.lower == 0 and good.class_bounds[0].value <= good.upper


def test_a_start_is_the_first_incumbent_and_is_never_lost():
    graph = long_chain(7, [3, 5, 8], [2, 3])
    peak = validate(graph, Schedule.from_runs(graph, range(len(graph)))).peak
    problem = Problem(graph=graph, budget=int(peak * 0.8))
    seed = Exhaustive(max_nodes=20)
    outcome = warm(HIlp(gap=0.5), seed=seed).solve(problem)
    assert outcome.upper == seed.solve(problem).upper
    assert any("first incumbent" in words for words in outcome.trail)
    stopped = warm(HIlp(), seed=seed).solve(evolve(problem, deadline=0.0))
    assert stopped.upper == math.inf or stopped.upper == outcome.upper


def test_a_start_in_another_order_moves_the_formulation_to_its_order():
    b = GraphBuilder("fork")
    b.data("x", 0, Kind.INPUT)
    for name, size in (("a", 1), ("b", 6), ("c", 1)):
        b.data(name, size)
    b.data("t", 1, Kind.TANGENT)
    b.forward("Fa", reads=["x"], writes=["a"], time=1)
    b.forward("Fb", reads=["x"], writes=["b"], time=9)
    b.forward("Fc", reads=["b"], writes=["c"], time=1)
    b.loss("L", reads=["a", "c"], writes=["t"], time=1)
    graph = b.build()
    problem = Problem(graph=graph, budget=7)
    start = Schedule.from_runs(graph, ["Fb", "Fc", "Fa", "L"])
    assert [node.name for node in reordered(graph, start).computes] == ["Fb", "Fc", "Fa", "L"]
    form = events_form(StagedGraph(reordered(graph, start)))
    point = point_of(form, start)
    assert point is not None and schedule_of(form, point).runs == start.runs
    assert point_of(events_form(StagedGraph(graph)), start) is None
    outcome = warm(HIlp(gap=0), seed=Exhaustive()).solve(problem)
    assert outcome.upper == 12
    assert HIlp(gap=0, order="graph", warm_start=False).solve(problem).upper > outcome.upper
    assert best(HIlp(), Exhaustive()).solve(problem).upper == 12


@pytest.mark.parametrize("backend", [Highs(), Cvxpy()], ids=repr)
def test_sizes_to_a_terabyte_and_times_from_a_nanosecond_to_minutes_replay(backend):
    graph = long_chain(8, [1, 3 * 10**6, 7 * 10**9, 10**12], [1, 10**4, 10**8, 10**11], seed=3)
    peak = validate(graph, Schedule.from_runs(graph, range(len(graph)))).peak
    times = []
    for share in (1.0, 0.9, 0.75, 0.6):
        budget = int(peak * share)
        outcome = HIlp(gap=0, backend=backend).solve(Problem(graph=graph, budget=budget))
        assert outcome.cost is None or outcome.cost.peak <= budget
        times.append(outcome.upper)
        if outcome.cost is not None:
            assert Exhaustive(max_nodes=20).solve(Problem(graph=graph, budget=budget)).upper <= outcome.upper
    assert times[0] == graph.time and times == sorted(times)
    assert times[1] < math.inf


def test_what_a_solver_cannot_say_is_refused_with_the_way_out():
    graph = load(BLOCKS / "gpt2_layer.json")
    assert "window" in HIlp(entries=1000).refuses(graph)
    assert HIlp(entries=10**6).refuses(graph) is None
    assert "OneOutputPerOp" in Ilp(form="checkmate").refuses(graph)
    layered = condense(graph, [whole(graph)]).graph
    assert "layers" in Ilp().refuses(layered) and HIlp().refuses(layered) is None
    for wrong in ({"form": "best"}, {"reruns": "some"}, {"window": 0}, {"gap": -1}, {"backend": "HIGHS"}):
        with pytest.raises(RematError):
            HIlp(**wrong)
    linked = HIlp(form="published").solve(Problem(graph=unit_chain(2), budget=9, link=Link.symmetric(gb_per_s=1)))
    assert linked.schedule is None and "copies" in linked.trail[0]


def test_reprs_rebuild_the_solver():
    for solver in (
        HIlp(),
        HIlp(gap=0.05, reruns="backward-once", window=9, backend=Cvxpy()),
        Ilp(form="checkmate"),
        OneOutputPerOp(),
    ):
        assert eval(repr(solver)) == solver
    assert repr(HIlp()) == "HIlp()"
    assert repr(HIlp().sweep(peaks=20, saves=20)) == "HIlp().sweep(peaks=20, saves=20)"


def test_one_formulation_serves_all_budgets():
    graph = load(BLOCKS / "unet_down.json")
    budget_solver = HIlp(gap=0).build(graph)
    problem = budget_solver.model.problem
    peak = validate(graph, Schedule.from_runs(graph, range(len(graph)))).peak
    for share in (0.8, 0.9, 1.0, 0.85):
        fresh = HIlp(gap=0, warm_start=False).solve(Problem(graph=graph, budget=int(peak * share)))
        assert budget_solver.solve(int(peak * share)).cost.time == fresh.upper
    assert budget_solver.model.problem is problem and len(problem.variables()) == 2


def test_the_exact_bound_stands_whatever_the_multipliers():
    graph = long_chain(5, [3, 5, 8], [2, 3])
    budget = int(validate(graph, Schedule.from_runs(graph, range(len(graph)))).peak * 0.9)
    linear = events_form(StagedGraph(graph)).linear
    optimum = HIlp(gap=0, warm_start=False).solve(Problem(graph=graph, budget=budget)).upper
    rng = random.Random(1)
    import numpy as np

    for _ in range(50):
        wild = np.array([rng.uniform(-3, 9) for _ in range(linear.shape[0])])
        assert exact_bound(linear, wild, budget) <= optimum
    assert FullRelaxation().solve(Problem(graph=graph, budget=budget)).class_bounds[0].value <= optimum
    assert "instants" in FullRelaxation(entries=10).refuses(graph)


def test_rows_over_what_runs_again_leave_kept_sums_alone_once_they_are_complete():
    b = GraphBuilder("kept")
    b.data("x", 0, Kind.INPUT)
    b.data("a", 4)
    b.data("c", 4)
    b.data("t", 1, Kind.TANGENT)
    b.data("w", 2, Kind.PARAM_GRAD)
    b.data("g", 3, Kind.INPUT_GRAD)
    b.forward("Fa", reads=["x"], writes=["a"], time=2)
    b.forward("Fc", reads=["a"], writes=["c"], time=3)
    b.loss("L", reads=["c"], writes=["t"], time=1)
    b.backward("B1", reads=["t", "c"], writes=["w"], time=2)
    b.backward("B2", reads=["t", "a"], writes=["w"], time=2)
    b.backward("B3", reads=["w", "a"], writes=["g"], time=2)
    graph = b.build()
    assert len(graph.datum("w").writers) == 2 and graph.datum("w").keep
    for budget in range(node_floor(graph), 16):
        plain, cut = (
            HIlp(gap=0, warm_start=False, cuts=one).solve(Problem(graph=graph, budget=budget)) for one in (False, True)
        )
        assert plain.upper == cut.upper
    assert cut.upper == graph.time


# -- levels ------------------------------------------------------------------------------------------------------------


def whole(graph):
    forward = tuple(node.name for node in graph.computes[: graph.loss])
    return Cluster(
        name="whole", forward=forward, backward=tuple(node.name for node in graph.computes[graph.loss + 1 :])
    )


def halves(graph):
    """Two clusters of a chain, each with its backward."""
    loss, middle = graph.loss, graph.loss // 2
    names = [node.name for node in graph.computes]
    return [
        Cluster(name="first", forward=tuple(names[:middle]), backward=tuple(names[loss + 1 + loss - middle :])),
        Cluster(
            name="second", forward=tuple(names[middle:loss]), backward=tuple(names[loss + 1 : loss + 1 + loss - middle])
        ),
    ]


@pytest.mark.parametrize("seed", range(6))
def test_correction_terms_are_exact_for_the_expanded_schedule(seed):
    graph = long_chain(6, [1, 2, 4, 7], [1, 2, 5], seed=seed)
    condensed = condense(graph, halves(graph))
    peak = validate(graph, Schedule.from_runs(graph, range(len(graph)))).peak
    corrected, plain = HIlp(gap=0).top(condensed), HIlp(gap=0).build(condensed.graph)
    gained = 0
    for budget in range(peak * 6 // 10, peak + 1):
        fine, coarse = corrected.solve(budget), plain.solve(budget)
        assert len(fine.notes) <= 2  # never over the budget: no solve was repeated with less room
        if coarse.schedule is not None:
            assert validate(graph, expand(condensed, coarse.schedule)).peak <= budget
            assert fine.cost is not None and fine.cost.time <= coarse.cost.time
        gained += fine.cost is not None and (coarse.cost is None or fine.cost.time < coarse.cost.time)
        if fine.cost is not None:
            assert fine.cost.peak <= budget
            assert fine.cost.time >= HIlp(gap=0).solve(Problem(graph=graph, budget=budget)).upper
    assert gained or seed


def test_the_published_form_of_a_level_agrees():
    graph = long_chain(6, [1, 2, 4, 7], [1, 2, 5], seed=1)
    stage = StagedGraph(condense(graph, halves(graph)).graph)
    for budget in (10, 14, 18, 22):
        values = []
        for form in (events_form(stage), published_form(stage)):
            model = model_of(form.linear)
            model.set(budget)
            point = Highs().solve(model, Limits(gap=0)).point
            values.append(None if point is None else round(float(form.linear.cost @ point), 3))
        assert values[0] == values[1]
