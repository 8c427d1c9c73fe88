"""The validator is on trial: every kind of corruption is refused, by the rule it breaks, at the step that breaks it."""

import pytest
from hypothesis import HealthCheck, given, settings

from remat.errors import InvalidSchedule
from remat.ir import SCHEDULE_RULES, validate
from remat.testing.corruptions import CORRUPTIONS
from remat.testing.strategies import scheduled

SETTINGS = settings(max_examples=250, derandomize=True, database=None, suppress_health_check=list(HealthCheck))


def refused(corruption, example):
    made = corruption.make(example.graph, list(example.schedule.steps))
    if made is None:
        return False
    with pytest.raises(InvalidSchedule) as caught:
        validate(example.graph, made.schedule, made.budget, made.link)
    assert (caught.value.rule, caught.value.step) == (corruption.rule, made.step), str(caught.value)
    assert str(made.step) in str(caught.value) and corruption.rule in str(caught.value)
    return True


@pytest.fixture(scope="module")
def counts():
    found = dict.fromkeys((one.name for one in CORRUPTIONS), 0)

    @SETTINGS
    @given(scheduled())
    def every_kind(example):
        for one in CORRUPTIONS:
            found[one.name] += refused(one, example)

    every_kind()
    return found


@pytest.mark.parametrize("name", [one.name for one in CORRUPTIONS])
def test_corruption_is_refused_by_its_rule_at_its_step(counts, name):
    assert counts[name] > 0, "never tried"


def test_every_rule_of_a_schedule_has_a_corruption(counts, capsys):
    with capsys.disabled():
        print(f"\nkinds of corrupted schedules: {len(counts)}, tried {sum(counts.values())} times, undetected: 0")
    assert {one.rule for one in CORRUPTIONS} == set(SCHEDULE_RULES)
