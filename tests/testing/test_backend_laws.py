"""`check_backend`: back ends that keep the laws pass, and each planted bug breaks the law that is about it."""

import numpy as np
import pytest
from attrs import evolve, frozen

from remat.algorithms import Answer, Backend, Cvxpy, Highs, Hints
from remat.errors import BackendMissing
from remat.testing import LawBroken, check_backend


@pytest.mark.parametrize(
    ("backend", "examples"),
    [(Highs(), 12), (Highs(implied=False, presolve=True), 10), (Cvxpy(solver="SCIP"), 10)],
    ids=repr,
)
def test_back_ends_of_this_library_keep_the_laws(backend, examples):
    report = check_backend(backend, examples=examples, say=lambda text: None)
    assert report.tried["L-BOUND"] > examples and report.tried["L-INFEASIBLE"] > 0
    assert (report.tried.get("L-CUTOFF", 0) > 0) == backend.takes_start


def test_a_back_end_that_is_missing_is_not_checked():
    with pytest.raises(BackendMissing):
        check_backend(Cvxpy(solver="NOPE"))


@frozen
class Planted(Backend):
    """HiGHS, with one bug."""

    bug: str = ""
    takes_start = True

    def check(self):
        pass

    def solve(self, model, limits, hints=Hints()):
        answer = Highs().solve(model, limits, hints)
        changed = {
            "a bound too high by one": {"bound": answer.bound + 1},
            "a point over the budget": {"point": None if answer.point is None else np.ones_like(answer.point)},
            "infeasible without a proof": {"point": None, "bound": 0, "infeasible": True, "finished": True},
            "infeasible below a cut-off": {"infeasible": answer.infeasible or hints.cutoff is not None},
            "a bound that is a float": {"bound": float(answer.bound)},
        }
        if self.bug == "raises":
            raise ValueError("no")
        if self.bug == "forgets the budget":
            model.set(10**6)
            return Highs().solve(model, limits, hints)
        if self.bug == "ignores the gap and says it is finished":
            return self.worst(answer, model, hints)
        return evolve(answer, **changed.get(self.bug, {}))

    def worst(self, answer, model, hints):
        """The most expensive point."""
        linear = model.linear
        columns = len(linear.cost)
        dear = None
        for number in range(1 << columns):
            point = np.array([number >> k & 1 for k in range(columns)])
            sums = np.zeros(len(linear.rhs), np.int64)
            np.add.at(sums, linear.row, linear.val * point[linear.col])
            kept = np.where(linear.equal, sums == model.right, sums <= model.right).all()
            if kept and (dear is None or linear.cost @ point > linear.cost @ dear):
                dear = point
        if dear is None or hints.cutoff is not None:
            return answer
        return Answer(point=dear.astype(float), finished=True)


KILLED = {
    "a bound too high by one": {"L-BOUND"},
    "a point over the budget": {"L-POINT"},
    "infeasible without a proof": {"L-INFEASIBLE"},
    "infeasible below a cut-off": {"L-CUTOFF"},
    "a bound that is a float": {"L-INT"},
    "raises": {"L-RAISE"},
    "forgets the budget": {"L-POINT", "L-BOUND", "L-CUTOFF", "L-REPEAT"},
    "ignores the gap and says it is finished": {"L-GAP"},
}


@pytest.mark.parametrize("bug", KILLED)
def test_a_planted_bug_is_killed_by_its_law(bug):
    with pytest.raises(LawBroken) as broken:
        check_backend(Planted(bug), words={"Planted": Planted}, examples=30, say=lambda text: None)
    assert broken.value.law in KILLED[bug]
    assert "minimize" in broken.value.example
