"""What `make test-cuda` prints, as tests: skipped where there is no CUDA device."""

import pytest

from remat.zoo import cases
from tests.cuda.__main__ import attempt, exactness, peak, repeatable

pytestmark = pytest.mark.cuda


@pytest.fixture(autouse=True, scope="module")
def same_algorithms():
    repeatable()


@pytest.mark.parametrize("budget", ["100%", "70%"])
@pytest.mark.parametrize("case", cases("small"), ids=lambda case: case.name)
def test_three_steps_are_those_of_the_bare_module(case, budget):
    row = attempt(exactness, case, budget)
    assert row["good"], row


@pytest.mark.parametrize("budget", ["100%", "80%", "65%"])
@pytest.mark.parametrize("case", cases("medium"), ids=lambda case: case.name)
def test_the_peak_keeps_to_the_budget_and_the_prediction(case, budget):
    row = attempt(peak, case, budget)
    assert row["good"], row
