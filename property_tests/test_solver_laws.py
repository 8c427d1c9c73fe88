"""Every solver of the library under every law. A new solver adds one line; an exclusion states its reason."""

import pytest
from hypothesis import settings

from remat.algorithms.expression import parse
from remat.testing import check_solver

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
}


@pytest.mark.parametrize("expression", SOLVERS)
def test_every_law_holds_for(expression):
    check_solver(parse(expression), exclude=SOLVERS[expression], examples=settings().max_examples)
