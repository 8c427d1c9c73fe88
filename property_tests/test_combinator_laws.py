"""Laws of the combinators: |, best, within, when, warm, >>, sweep and pool."""

from attrs import evolve, frozen
from hypothesis import assume, given
from hypothesis import strategies as st

from remat.algorithms import (
    IMPOSSIBLE,
    Applied,
    Clock,
    Exhaustive,
    Outcome,
    Plan,
    Problem,
    Solver,
    StoreAll,
    Transform,
    WarmStarted,
    best,
    first,
    nodes_at_most,
    warm,
)
from remat.algorithms._core.option_pool import pool
from remat.algorithms._core.options import dominates, undominated
from remat.algorithms._plugins.expression import parse
from remat.ir import LayerOption, Schedule, clusters, part, validate
from remat.testing import memory_clock
from remat.testing.strategies import chain_graphs, problems, tiny_graphs, training_graphs, valid_schedules


@frozen
class Fixed(Solver):
    """A solver that answers what it is told: a schedule or none, a bound or none."""

    schedule: Schedule | None = None
    lower: float = 0
    refusal: str | None = None

    def refuses(self, graph):
        return self.refusal

    def plan(self, problem, clock, seed):
        return Plan(schedule=self.schedule, lower=self.lower, trail=("fixed",))


@frozen
class Improves(WarmStarted):
    """Answers another fixed schedule, or the start's own runs."""

    schedule: Schedule | None = None

    def plan_from(self, problem, start, clock, seed):
        return Plan(schedule=self.schedule or start)


@st.composite
def settings_(draw, solvers=3):
    """A problem, and solvers that answer valid schedules, sound bounds, refusals, or nothing."""
    problem = draw(problems(tiny_graphs()))
    exact = Exhaustive(max_states=1000).solve(problem)
    optimum = exact.lower
    found = []
    for _ in range(solvers):
        schedule = draw(st.one_of(st.none(), valid_schedules(problem.graph)))
        bound = draw(st.sampled_from([0, 0, optimum // 2 if optimum != IMPOSSIBLE else IMPOSSIBLE, optimum]))
        refusal = draw(st.sampled_from([None, None, None, "not today"]))
        found.append(Fixed(schedule, bound, refusal))
    return problem, found


def answer(outcome):
    return (outcome.upper, None if outcome.cost is None else outcome.cost.peak, outcome.schedule, outcome.lower)


@given(settings_())
def test_first_is_associative_and_idempotent(setting):
    problem, (a, b, c) = setting
    assert answer(((a | b) | c).solve(problem)) == answer((a | (b | c)).solve(problem))
    assert (a | b) | c == a | (b | c)
    assert answer((a | a).solve(problem)) == answer(a.solve(problem))


@given(settings_())
def test_best_is_associative_commutative_and_idempotent(setting):
    problem, (a, b, c) = setting
    one = answer(best(a, b, c).solve(problem))
    assert one == answer(best(best(a, b), c).solve(problem)) == answer(best(a, best(b, c)).solve(problem))
    assert one == answer(best(c, a, b).solve(problem)) == answer(best(b, b, c, a, a).solve(problem))


@given(settings_(solvers=2))
def test_best_is_never_worse_than_a_part_and_first_keeps_proofs(setting):
    problem, (a, b) = setting
    outcomes = [one.solve(problem) for one in (a, b)]
    joined, tried = best(a, b).solve(problem), first(a, b).solve(problem)
    assert joined.upper == min(one.upper for one in outcomes)
    assert joined.lower == max(one.lower for one in outcomes)
    assert tried.lower >= outcomes[0].lower
    assert tried.upper <= outcomes[0].upper or outcomes[0].lower == IMPOSSIBLE
    if tried.schedule is None and tried.lower != IMPOSSIBLE:
        assert all(one.schedule is None for one in outcomes)


@given(settings_(solvers=2))
def test_outcomes_merge_to_the_smaller_time_and_the_larger_bound(setting):
    problem, (a, b) = setting
    one, other = a.solve(problem), b.solve(problem)
    merged = one.merge(other)
    assert (merged.upper, merged.lower) == (min(one.upper, other.upper), max(one.lower, other.lower))
    assert answer(merged) == answer(other.merge(one)) and answer(one.merge(one)) == answer(one)
    assert answer(Outcome().merge(one)) == answer(one)


@frozen
class Looks(Solver):
    """Looks at the clock until it is over, and says in the trail how often."""

    def plan(self, problem, clock, seed):
        looks = 0
        while not clock.expired and looks < 200:
            looks += 1
        return Plan(trail=(str(looks),))


def looks(solver, problem, limit):
    return int(solver.solve(problem, clock=memory_clock(limit)).trail[0])


@given(problems(chain_graphs(max_length=1)), st.integers(1, 20), st.integers(1, 20))
def test_of_nested_deadlines_the_earlier_counts(problem, a, b):
    nested = Looks().within(float(a)).within(float(b))
    alone = Looks().within(float(min(a, b)))
    assert looks(nested, problem, None) <= looks(alone, problem, None) + 1
    assert looks(Looks().within(1000.0), problem, a) <= looks(Looks(), problem, a) + 1


@given(settings_(solvers=1), st.integers(0, 12))
def test_when_refuses_by_its_test_and_names_it(setting, limit):
    problem, (a,) = setting
    chosen = a.when(nodes_at_most(limit))
    outcome = chosen.solve(problem)
    if len(problem.graph) <= limit:
        assert answer(outcome) == answer(a.solve(problem))
    else:
        assert outcome.schedule is None and outcome.lower == 0
        assert f"nodes_at_most({limit})" in outcome.trail[0]


@given(settings_(solvers=1), st.data())
def test_warm_is_never_worse_than_its_seed(setting, data):
    problem, (seed,) = setting
    other = data.draw(st.one_of(st.none(), valid_schedules(problem.graph)))
    found = warm(Improves(other), seed=seed).solve(problem)
    alone = seed.solve(problem)
    assert found.upper <= alone.upper and found.lower >= alone.lower


@frozen
class Shrink(Transform):
    """The same problem with a smaller budget: schedules lift, proofs do not."""

    by: int = 1

    def apply(self, problem, *, clock=None, seed=0):
        return Applied(problem=evolve(problem, budget=max(0, problem.budget - self.by)), lift=lambda schedule: schedule)


@frozen
class Same(Transform):
    """The same problem: proofs hold."""

    keeps_proofs = True

    def apply(self, problem, *, clock=None, seed=0):
        return Applied(problem=problem, lift=lambda schedule: schedule)


@given(problems(tiny_graphs()))
def test_transforms_compose_associatively_and_lift_bounds_only_with_proofs(problem):
    t, u, s = Shrink(1), Shrink(2), Exhaustive(max_states=1000)
    assert answer(((t >> u) >> s).solve(problem)) == answer((t >> (u >> s)).solve(problem))
    assert repr((t >> u) >> s) == repr(t >> (u >> s))
    assert answer((Same() >> s).solve(problem)) == answer(s.solve(problem))
    shrunk = (t >> s).solve(problem)
    assert shrunk.lower == 0 and (Same() >> t >> s).solve(problem).lower == 0
    assert shrunk.upper >= s.solve(problem).upper


numbers = st.integers(0, 4)
options = st.builds(
    LayerOption,
    forward=numbers,
    backward=numbers,
    phantom=numbers,
    forward_workspace=numbers,
    backward_workspace=numbers,
    backward_reads=st.sampled_from([(), ("a",), ("a", "b")]),
)


@given(st.lists(options, max_size=8))
def test_no_option_of_a_pool_dominates_another_and_none_is_lost(offered):
    kept = undominated(offered)
    assert undominated(kept) == kept
    assert not any(a is not b and dominates(a, b) for a in kept for b in kept)
    assert all(any(dominates(a, b) for a in kept) for b in offered)
    assert set(kept) <= set(offered)


@given(training_graphs(min_forward=2, max_forward=3))
def test_a_pool_offers_what_its_parts_offer(graph):
    forward = [node.name for node in graph.computes[: graph.loss]]
    cluster = clusters(graph, {"c": forward})[0]
    assume(cluster.backward)
    block = part(graph, cluster)
    a, b = Exhaustive(max_states=300).sweep(peaks=2, saves=2), StoreAll().sweep(peaks=1, saves=1)
    both = pool(a, b).options(block)
    assert set(both) == set(undominated([*a.options(block), *b.options(block)]))
    assert pool(Exhaustive(max_states=300), b).sweep(peaks=2, saves=2) == pool(a, b) == pool(pool(a), b)


def test_reprs_of_compositions_read_back():
    a, b = StoreAll(), Exhaustive(max_nodes=5)
    for one in (a | b, best(a, b), a.within(3), (a | b).when(nodes_at_most(4)).within(2), a.sweep(peaks=2), pool(a, b)):
        assert parse(repr(one)) == one


@given(settings_(solvers=1))
def test_a_bound_is_not_taken_over_for_a_problem_with_a_link_it_does_not_model(setting):
    from remat.ir import Link

    problem, (a,) = setting
    assume(a.refusal is None)
    linked = Problem(graph=problem.graph, budget=problem.budget, link=Link())
    assert a.solve(linked).lower == 0 and best(a, a).solve(linked).lower == 0
    if a.schedule is not None and validate(problem.graph, a.schedule).peak <= problem.budget:
        assert a.solve(linked).upper == a.solve(problem).upper
    assert Clock().remaining > 0
