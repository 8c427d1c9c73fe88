"""What a wrapped module keeps does not grow with the number of shapes it is called with."""

import copy
import gc
import linecache
import pickle
import traceback

import pytest
import torch
from torch import nn

import remat.exec
from remat.errors import BadArgument
from remat.exec._module import state as states
from remat.exec._module.plan_table import PlanTable
from remat.exec._program.program import Role
from remat.exec._program.signatures import signature
from remat.exec._program.source import Names


def wrapped_linear(**more):
    return remat.exec.wrap(nn.Linear(2, 1), budget="1GiB", cost="estimate", rehearse=False, progress=False, **more)


def step(model, rows):
    model(torch.ones(rows, 2)).sum().backward()


def generated():
    gc.collect()
    return {name for name in linecache.cache if name.startswith("<remat")}


@pytest.mark.slow
def test_two_hundred_shapes_leave_as_many_plans_and_lines_as_are_kept():
    before = generated()
    model = wrapped_linear(most_plans=6)
    state = model.__dict__["_remat"]
    for rows in range(1, 201):
        step(model, rows)
        assert len(state.entries) <= 6 and len(state.library) <= 6
    assert len(state.entries) == 6
    assert len(generated() - before) <= 2 * 6  # the step's two functions are one text; guards another
    gradient = model.weight.grad.clone()
    step(model, 1)  # forgotten long ago, and planned anew
    assert torch.equal(model.weight.grad - gradient, torch.ones(1, 2)) and remat.exec.report(model).ran == "plan"
    del model, state
    assert generated() <= before


def test_the_least_recently_used_plan_goes_first():
    model = wrapped_linear(most_plans=2)
    state = model.__dict__["_remat"]
    step(model, 3)
    first = state.last
    for rows in (4, 3, 5, 3):
        step(model, rows)
    assert state.last is first  # 4 went, 3 stayed
    step(model, 4)
    assert len(state.entries) == 2 and first in state.entries


@pytest.mark.parametrize("most", [0, -1, 2.5, True, None])
def test_a_number_of_plans_that_is_none_is_refused(most):
    with pytest.raises(BadArgument, match="most_plans"):
        wrapped_linear(most_plans=most)


def test_copies_and_pickles_keep_the_bound():
    model = wrapped_linear(most_plans=3)
    for rows in (2, 3, 4):
        step(model, rows)
    other = copy.deepcopy(model)
    for rows in (5, 6):
        step(other, rows)
    assert len(other.__dict__["_remat"].entries) == 3 and len(model.__dict__["_remat"].entries) == 3
    assert pickle.loads(pickle.dumps(model)).__dict__["_remat"].plans.most == 3


def test_measured_costs_of_many_shapes_are_forgotten_by_last_use(monkeypatch):
    monkeypatch.setattr(states, "MOST_COSTS", 4)
    model = remat.exec.wrap(nn.Linear(2, 1), budget="1GiB", rehearse=False, progress=False, most_plans=2, family=False)
    state, seen = model.__dict__["_remat"], set()
    for rows in range(1, 8):
        step(model, rows)
        program = state.last.captured.program
        used = {signature(program, op) for op in program.nodes if op.role is not Role.LOSS}
        assert used <= set(state.costs) and len(state.costs) <= 8
        seen |= used
    assert len(seen) > 8


def test_a_table_forgets_across_keys_by_last_use():
    table = PlanTable(3)
    for key, entry in (("k", "a"), ("l", "b"), ("k", "c"), ("l", "b")):
        assert table.use(key, entry) == []
    assert table.of("k") == ("c", "a")
    assert table.use("k", "d") == ["a"] and table.of("k") == ("d", "c")
    assert table.use("m", "e") == ["c"] and table.use("m", "f") == ["b"]
    assert len(table) == 2 and sorted(table) == ["d", "e", "f"] and table.of("l") == ()


def test_equal_sources_share_their_lines_and_keep_them_while_one_lives():
    before = generated()
    source = "def fails():\n    raise ValueError('here')\n"
    first, second = (Names().compiled(source, "test")["fails"] for _ in range(2))
    assert len(generated() - before) == 1
    del first
    assert len(generated() - before) == 1
    with pytest.raises(ValueError) as caught:
        second()
    assert "raise ValueError('here')" in "".join(traceback.format_exception(caught.value))
    del second, caught
    assert generated() <= before
