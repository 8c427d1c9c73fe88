"""The checks are themselves on trial: one planted bug of each kind and law here, all of them by `make planted`."""

import re
from pathlib import Path

import pytest

from tests.testing.planted import ALL

FAST = list({(one.kind, one.laws): one for one in reversed(ALL) if one.laws != ("L-TIME",)}.values())
KINDS = {"solver": 40, "transform": 12, "partitioner": 10, "option source": 6, "bound": 12}


@pytest.mark.parametrize("planted", FAST, ids=lambda one: f"{one.kind} {one.name}")
def test_a_planted_bug_breaks_a_law_that_it_may_break(planted):
    law, _ = planted.killed(shrink=False)
    assert law in planted.laws


def test_a_part_that_never_ends_is_interrupted(monkeypatch):
    monkeypatch.setattr("remat.testing.guard.PATIENCE", 2.0)
    (endless,) = (one for one in ALL if one.kind == "transform" and one.name == "NeverEnds")
    law, _ = endless.killed()
    assert law == "L-TIME"


def test_there_are_bugs_of_every_kind_and_each_has_a_name():
    names = [(one.kind, one.name) for one in ALL]
    assert len(set(names)) == len(names)
    assert all(sum(one.kind == kind for one in ALL) >= least for kind, least in KINDS.items())


def test_the_example_of_a_broken_law_is_small_with_shrinking_on():
    from remat.testing import LawBroken, check_solver
    from tests.testing.planted.claims import CountsDeadNodes

    with pytest.raises(LawBroken) as broken:
        check_solver(CountsDeadNodes(), say=str)
    assert len(re.findall(r"^(forward|loss|backward)", broken.value.example, re.M)) <= 2


def test_the_make_target_is_there():
    assert "planted:" in Path("Makefile").read_text()
