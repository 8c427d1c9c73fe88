"""A plan's peak is the allocator's: measured at most the budget and within 1 % of the prediction, in float32, above 16 MiB."""

import pytest

from remat.units import MiB
from tests.exec.support import MEDIUM, Rig


@pytest.fixture(scope="module", params=MEDIUM)
def rig(request):
    return Rig(*MEDIUM[request.param].made())


def test_the_bare_model_is_large_enough_to_tell(rig):
    assert rig.measured(rig.bare_step).peak >= 16 * MiB


@pytest.mark.parametrize("share", [100, 85, 70, 60, 50, "smallest"])
def test_the_measured_peak_is_the_predicted_one(rig, share):
    budget = rig.smallest if share == "smallest" else rig.peak * share // 100
    outcome = rig.plan(budget)
    measured = rig.measured(rig.step(outcome.schedule)).peak
    assert measured <= budget
    assert abs(measured / outcome.cost.peak - 1) <= 0.01
