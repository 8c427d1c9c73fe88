"""`check_solver` is itself on trial: every planted bug is caught by the law that is about it."""

from functools import cache

import pytest

from remat.algorithms import Exhaustive
from remat.testing import LawBroken, check_solver
from remat.testing.solver_laws import SOLVER_LAWS

from .planted import PLANTED

EXAMPLES = 300
NAMES = {type(one).__name__: one for one in PLANTED}


@cache
def broken_by(name):
    """The law that breaks when only the law about the bug is tried, so that this one has to find it."""
    solver = NAMES[name]
    others = {one: "another law is on trial" for one in SOLVER_LAWS if one not in PLANTED[solver]}
    try:
        check_solver(solver, examples=EXAMPLES, exclude=others, shrink=False, say=lambda text: None)
    except LawBroken as error:
        return error.law
    return None


@pytest.mark.parametrize("name", NAMES)
def test_planted_bug_breaks_its_law(name):
    assert broken_by(name) in PLANTED[NAMES[name]].split(" or ")


def test_no_planted_bug_survives(capsys):
    surviving = [name for name in NAMES if broken_by(name) is None]
    with capsys.disabled():
        print(f"\nplanted bugs in solvers: {len(NAMES)}, surviving: {len(surviving)} {' '.join(surviving)}")
    assert not surviving


def test_the_sound_solver_keeps_all_laws_and_the_report_says_what_was_left_out():
    said = []
    report = check_solver(Exhaustive(), examples=40, exclude={"L-LINK": "searches no copies"}, say=said.append)
    assert "L-LINK: left out, because searches no copies" in said[0]
    assert set(report.tried) == set(SOLVER_LAWS) - {"L-LINK"}


@pytest.mark.parametrize("reason", ["", "  ", None])
def test_an_exclusion_needs_a_reason(reason):
    with pytest.raises(Exception, match="without a reason"):
        check_solver(Exhaustive(), exclude={"L-LINK": reason}, say=lambda text: None)


def test_an_unknown_law_cannot_be_excluded():
    with pytest.raises(Exception, match="L-NOPE"):
        check_solver(Exhaustive(), exclude={"L-NOPE": "because"}, say=lambda text: None)


def test_a_solver_that_refuses_everything_is_not_called_checked():
    with pytest.raises(LawBroken, match="nothing was checked"):
        check_solver(Exhaustive(max_nodes=1), say=lambda text: None)
