"""Each stack that is installed here, bare and within a budget: planned once, exact to the last bit, within the budget."""

import pytest

from tests.models.operators import declare_torchvision_operators
from tests.stacks.processes import row_of
from tests.stacks.scripts import STACKS

SLOW = ("TRL", "Trainer, two processes")
CASES = [
    pytest.param(
        stack, kind, id=f"{stack.name}-{kind}", marks=[pytest.mark.slow] if stack.name.startswith(SLOW) else []
    )
    for stack in STACKS
    for kind in stack.types
]


@pytest.mark.parametrize(("stack", "kind"), CASES)
@pytest.mark.filterwarnings("ignore")
def test_a_stack_trains_as_without_a_budget(stack, kind, tmp_path):
    if stack.missing:
        pytest.skip(f"{', '.join(stack.missing)} not installed")
    declare_torchvision_operators()
    row = row_of(stack, kind, tmp_path)
    assert row.good, row
