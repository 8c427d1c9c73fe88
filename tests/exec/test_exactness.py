"""A wrapped model computes what the bare one computes: loss, gradients, buffers, random state, to the last bit of float64."""

import pytest
import torch

import remat.exec
from remat.errors import Infeasible
from tests.exec.support import LIGHT, SMALL, Rig, assert_same, differences, evicting, train


@pytest.mark.parametrize("name", SMALL)
def test_keeping_everything_changes_nothing(name):
    wrapped = assert_same(SMALL[name], "100%")
    assert remat.exec.report(wrapped).reruns == 0


@pytest.mark.parametrize("name", SMALL)
def test_half_of_the_memory_changes_nothing(name):
    wrapped = assert_same(SMALL[name], "50%")
    assert remat.exec.report(wrapped).reruns > 0


@pytest.mark.parametrize("name", SMALL)
def test_the_smallest_budget_with_a_plan_changes_nothing(name):
    case = SMALL[name]
    module, sample = case.instantiate(torch.float64)
    with pytest.raises(Infeasible) as refused:
        remat.exec.wrap(module, sample, 1, cost="estimate", solver=LIGHT)
    found, floor = refused.value.smallest, refused.value.floor
    assert 1 < floor <= found
    wrapped = assert_same(case, found)
    assert floor <= remat.exec.report(wrapped).predicted_peak <= found


@pytest.mark.parametrize("name", SMALL)
def test_evicting_every_forward_value_changes_nothing(name):
    case = SMALL[name]
    bare, sample = case.instantiate(torch.float64)
    rig = Rig(*case.instantiate(torch.float64), cost="estimate")
    forward = rig.forward(evicting(rig.graph))
    assert differences(train(bare, sample), train(rig.module, rig.sample, call=forward), case.tied) == []
