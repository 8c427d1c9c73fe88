"""Every solver of the library under every law: the table of laws. A new solver adds one line; an exclusion states its reason."""

from collections.abc import Callable, Mapping

import pytest
from attrs import field, frozen
from hypothesis import given, settings
from hypothesis import strategies as st

from remat.algorithms import Exhaustive, Problem, parse, store_all_peak
from remat.algorithms._plugins.registry import registered
from remat.ir import Graph
from remat.testing import check_solver
from remat.testing.case import case_of
from remat.testing.hash_order import in_a_child
from remat.testing.solver_laws import answered
from remat.testing.strategies import layered_graphs, training_graphs
from remat.testing.trying import Examples
from tests.algorithms.chain.chains import chains

WHATEVER = "proposes its one schedule whatever the budget says; the replay decides"
AT_ONCE = "asked of all solvers in one process, by the trial that follows"
ELSEWHERE = 8
"""Number of problems of a solver that are solved in the child process."""


@frozen(kw_only=True)
class On:
    """How a solver is tried: on which graphs (None: flat, chains and layered, all tiny), on what part of the examples."""

    graphs: Callable[[], st.SearchStrategy[Graph]] | None = None
    part: int = 1
    least: int = 1
    exclude: Mapping[str, str] = field(factory=dict)


def of_two_stages() -> st.SearchStrategy[Graph]:
    """Chains as long as an exhaustive search can finish."""
    return chains(max_stages=2, options=2).map(lambda chain: chain.graph)


def flat() -> st.SearchStrategy[Graph]:
    """Flat graphs, most of which are no chains."""
    return training_graphs(min_forward=2, max_forward=3)


def of_layers() -> st.SearchStrategy[Graph]:
    """Graphs of layers with options."""
    return layered_graphs(max_layers=2, max_options=2)


ALL = On()
QUARTER = On(part=4)
CHAINS = On(graphs=of_two_stages, part=3, least=15)
FLAT = On(graphs=flat, part=5, least=10)
BLIND = {"L-BUDGET": WHATEVER}

SOLVERS = {
    "StoreAll()": On(exclude=BLIND),
    "PerLayerCheckpoint()": On(exclude=BLIND),
    "PerLayerCheckpoint(together=2)": On(exclude=BLIND),
    "LowerSets()": ALL,
    "LowerSets(family=3, levels=20, limits=5)": QUARTER,
    "Exhaustive()": ALL,
    "Exhaustive(max_states=5)": ALL,
    "StoreAll() | Exhaustive()": ALL,
    "best(StoreAll(), PerLayerCheckpoint())": ALL,
    "Exhaustive().within(5.0)": ALL,
    "StoreAll().when(is_flat) | Exhaustive()": ALL,
    "auto": QUARTER,
    "quick": QUARTER,
    "plan_first": QUARTER,
    "raise_bound": QUARTER,
    "WithCopies(quick)": QUARTER,
    "WithCopies(HIlp())": On(graphs=of_layers, part=10, least=5),
    "dtr": ALL,
    'Dtr("h_dtr")': ALL,
    'Dtr("h_msps")': ALL,
    'Dtr("h_lru", limit=2)': ALL,
    "tw_remat": ALL,
    'TwRemat("fill", leaf=2)': ALL,
    'From(Dtr("h_local"))': ALL,
    "AnyOrder(rounds=3, orders=3)": ALL,
    "BranchAndBound(effort=2e6)": QUARTER,
    "CutFloor()": QUARTER,
    "Floor()": QUARTER,
    "SingleInstant()": QUARTER,
    "HardestInstants()": QUARTER,
    "MultiInstant()": QUARTER,
    "MultiStart()": QUARTER,
    "PeakShaving()": QUARTER,
    "Delete()": QUARTER,
    "Enumerate()": QUARTER,
    "Shift()": QUARTER,
    "SavedSet()": QUARTER,
    "Continuation(iterations=20)": QUARTER,
    "Postpone()": QUARTER,
    "Checkpoints()": QUARTER,
    "Relieve(work=20000.0)": QUARTER,
    "Oscillation(seconds=0.01)": QUARTER,
    "CoarseToFine(merge=Merge(share=0.5), coarse=Oscillation(seconds=0.01), fine=Oscillation(seconds=0.01),"
    " last=Oscillation(seconds=0.01, restart=False))": QUARTER,
    "RuinAndRecreate(work=20000.0)": QUARTER,
    "Polish((MultiStart(), Delete()))": QUARTER,
    "HIlp(gap=0)": QUARTER,
    "HIlp(gap=0, warm_start=False)": QUARTER,
    'HIlp(reruns="backward-once", window=3)': QUARTER,
    'OneOutputPerOp() >> Ilp(gap=0, form="checkmate")': QUARTER,
    "warm(HIlp(), seed=StoreAll())": QUARTER,
    "Corrected(Condense(Segments(2)), HIlp(gap=0))": QUARTER,
    "SavedSetKnapsack()": QUARTER,
    "TightenedKnapsack()": QUARTER,
    "FullRelaxation()": QUARTER,
    "Periodic()": On(graphs=of_two_stages, part=3, least=15, exclude=BLIND),
    "Periodic(2)": On(graphs=of_two_stages, part=3, least=15, exclude=BLIND),
    "Periodic(balanced=True)": CHAINS,
    "Revolve()": CHAINS,
    "UnitCost() >> Revolve()": CHAINS,
    "Rotor()": CHAINS,
    "RkRotor()": CHAINS,
    "Quantise(7) >> RkRotor()": CHAINS,
    "Pofo()": CHAINS,
    "Pofo(slots=6)": CHAINS,
    "OffloadOnly()": CHAINS,
    "Autocapper(limits=5)": CHAINS,
    "Opportunist()": CHAINS,
    "chen": On(graphs=flat, part=5, least=10, exclude=BLIND),
    "revolve": FLAT,
    "rotor": FLAT,
    "pofo": FLAT,
    "offload_only": FLAT,
    "autocapper": FLAT,
    "opportunist": FLAT,
}


def examples_of(how: On) -> Examples:
    """The graphs and seeds on which a solver is tried."""
    graphs = None if how.graphs is None else how.graphs()
    return Examples(graphs=graphs, count=max(how.least, settings().max_examples // how.part), shrink=True)


@pytest.mark.parametrize("expression", SOLVERS)
def test_every_law_holds_for(expression):
    how = SOLVERS[expression]
    tried = examples_of(how)
    exclude = {**how.exclude, "L-HASH": AT_ONCE}
    check_solver(parse(expression), graphs=tried.graphs, exclude=exclude, examples=tried.count, say=str)


def test_plans_are_the_same_in_a_process_with_another_hash_seed():
    asked, cases = [], {}
    for expression, how in SOLVERS.items():
        if how.graphs not in cases:  # the first of them are those of a solver with fewer examples
            cases[how.graphs] = [case_of(graph, seed) for graph, seed in examples_of(On(graphs=how.graphs))]
        solver, count = parse(expression), examples_of(how).count
        planned = [case for case in cases[how.graphs][:count] if solver.refuses(case.problem.graph) is None]
        assert planned
        asked += [(solver, case.problem, case.seed) for case in planned[:: max(1, len(planned) // ELSEWHERE)]]
    elsewhere = in_a_child(plan_of, None, asked, patience=600)
    for question, answer in zip(asked, elsewhere, strict=True):
        assert answer == plan_of(None, question), question


def plan_of(_, question):
    """A plan as text, here and in the child."""
    solver, problem, seed = question
    return answered(solver, (problem, seed))


def test_every_solver_is_on_trial():
    tried = " ".join(SOLVERS)
    solvers = {name for name, where in registered("solvers").items() if ".named:" not in where}
    assert {name for name in solvers if f"{name}(" not in tried and name not in SOLVERS} == set()


@given(training_graphs(max_forward=3), st.data())
def test_a_larger_budget_never_costs_the_oracle_more(graph, data):
    peak = store_all_peak(graph)
    small, large = sorted(data.draw(st.tuples(st.integers(0, peak), st.integers(0, peak))))
    tight = Exhaustive(max_states=20_000).solve(Problem(graph=graph, budget=small))
    wide = Exhaustive(max_states=20_000).solve(Problem(graph=graph, budget=large))
    assert wide.lower <= tight.upper  # also where a search was stopped
    if tight.cost is not None:
        assert wide.cost is None or wide.upper <= tight.upper
