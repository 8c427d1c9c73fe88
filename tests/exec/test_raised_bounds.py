"""The gap of a report: true at once, and smaller once the bounds that planning left out are asked for."""

import copy

import pytest
import torch
from attrs import evolve

import remat.exec
from remat.exec._module import state
from remat.exec._program.inputs import make
from remat.exec._program.program import Spec
from remat.zoo import GPT2


@pytest.fixture(scope="module")
def wrapped():
    torch.manual_seed(0)
    model, tokens = GPT2(layers=2, width=32, heads=2, context=16), torch.randint(256, (4, 16))
    return remat.exec.wrap(model, (tokens, tokens), budget="45%", rehearse=False, cost="estimate", progress=False)


def test_a_report_says_what_was_proved_while_planning_and_raises_it_when_asked(wrapped, monkeypatch):
    first = remat.exec.report(wrapped)
    assert first.planner == "plan_first" and first.gap is not None and not first.tightened
    tight = remat.exec.report(wrapped, tighten=True)
    assert tight.tightened and tight.schedule == first.schedule and tight.predicted_time == first.predicted_time
    assert first.lower <= tight.lower <= first.predicted_time
    assert tight.gap == pytest.approx(tight.predicted_time / tight.lower - 1) and tight.gap <= first.gap
    monkeypatch.setattr(state, "with_raised_bound", lambda *_: pytest.fail("computed twice"))
    again = remat.exec.report(wrapped, tighten=True)
    assert (again.lower, again.trail) == (tight.lower, tight.trail) and remat.exec.report(wrapped).lower == tight.lower


def test_a_raised_bound_is_of_one_plan(wrapped):
    """A plan made anew has the bound of its own planning."""
    state = wrapped.__dict__["_remat"]
    ready = next(iter(state.entries))
    state.raise_bound(ready)
    other = evolve(ready, planned=evolve(ready.planned, outcome=copy.copy(ready.planned.outcome)))
    assert state.outcome_of(other) is other.planned.outcome is not state.outcome_of(ready)


def test_where_nothing_is_recomputed_nothing_is_raised():
    model = torch.nn.Linear(4, 4)
    bare = remat.exec.wrap(model, torch.ones(2, 4), rehearse=False, progress=False)
    assert not remat.exec.report(bare, tighten=True).tightened


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool], ids=str)
@pytest.mark.parametrize("count", [0, 1, 1 << 16, (1 << 16) + 1, 3 * (1 << 16) + 5])
def test_large_inputs_repeat_a_block_of_random_numbers(dtype, count):
    tensor = make(Spec.of(torch.empty(count, dtype=dtype)), 1, torch.Generator().manual_seed(0))
    assert (
        tensor.shape == (count,)
        and tensor.dtype == dtype
        and tensor.untyped_storage().nbytes() == count * dtype.itemsize
    )
    block = 1 << 16
    assert torch.equal(tensor[block:], tensor[: max(0, count - block)])
    if dtype.is_floating_point and count > 1:
        assert 0.04 < tensor.min() < tensor.max() <= 1.0
