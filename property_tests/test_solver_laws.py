"""Every solver of the library under every law. A new solver adds one line; an exclusion states its reason."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remat.algorithms import Exhaustive, Problem, store_all_peak
from remat.algorithms._plugins.expression import parse
from remat.testing import check_solver
from remat.testing.strategies import training_graphs

WHATEVER = "proposes its one schedule whatever the budget says; the replay decides"

SOLVERS = {
    "StoreAll()": {"L-BUDGET": WHATEVER},
    "PerLayerCheckpoint()": {"L-BUDGET": WHATEVER},
    "PerLayerCheckpoint(together=2)": {"L-BUDGET": WHATEVER},
    "Exhaustive()": {},
    "Exhaustive(max_states=5)": {},
    "StoreAll() | Exhaustive()": {},
    "best(StoreAll(), PerLayerCheckpoint())": {},
    "Exhaustive().within(5.0)": {},
    "StoreAll().when(is_flat) | Exhaustive()": {},
    "auto": {},
    "dtr": {},
    'Dtr("h_dtr")': {},
    'Dtr("h_msps")': {},
    'Dtr("h_lru", limit=2)': {},
    "tw_remat": {},
    'TwRemat("fill", leaf=2)': {},
    'From(Dtr("h_local"))': {},
    "AnyOrder(rounds=3, orders=3)": {},
}


@pytest.mark.parametrize("expression", SOLVERS)
def test_every_law_holds_for(expression):
    check_solver(parse(expression), exclude=SOLVERS[expression], examples=settings().max_examples)


@given(training_graphs(max_forward=3), st.data())
def test_a_larger_budget_never_costs_the_oracle_more(graph, data):
    peak = store_all_peak(graph)
    small, large = sorted(data.draw(st.tuples(st.integers(0, peak), st.integers(0, peak))))
    tight = Exhaustive(max_states=20_000).solve(Problem(graph=graph, budget=small))
    wide = Exhaustive(max_states=20_000).solve(Problem(graph=graph, budget=large))
    assert wide.lower <= tight.upper  # also where a search was stopped
    if tight.cost is not None:
        assert wide.cost is None or wide.upper <= tight.upper
