"""The interface of back ends, which solve formulations under limits. This library has `backends.py`, `cp_sat.py`, `in_child.py`.

Another package registers its own under the entry-point group `remat.backends`; `remat.testing.check_backend` tries the laws.
"""

from __future__ import annotations

import math
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar, Final

from attrs import evolve, field, frozen

from remat.algorithms._milp.answer import Answer, Floats, less_tolerance
from remat.algorithms._milp.milp_model import MilpModel
from remat.errors import BackendMissing
from remat.settings import FLAG, SECONDS, Setting, either, function, number, optional, whole

_INSTALL: Final = {
    "HIGHS": "highspy",
    "SCIP": "pyscipopt",
    "GUROBI": "gurobipy",
    "CPLEX": "cplex",
    "MOSEK": "Mosek",
    "CP-SAT": "'remat[ortools]'",
    "CBC": "cylp",
    "COPT": "coptpy",
    "GLPK_MI": "cvxopt",
    "SCIPY": "scipy",
    "XPRESS": "xpress",
    "cvxpy": "cvxpy",
}
"""Packages of solvers; of what is not here, a package of the same name may be anything."""

RULE: Final = "A-LIMIT"
"""Id of a refusal of settings here."""

NODES = optional(whole(1, "nodes"))
"""A limit of nodes."""


@frozen(kw_only=True)
class Limits:
    """When to stop.

    Attributes:
        gap: relative gap between incumbent and bound at which to stop.
        seconds: wall clock.
        nodes: of the branch and bound tree; None: no limit.
    """

    SETTINGS_RULE: ClassVar[str] = RULE

    gap: float = field(default=1e-2, validator=number(0))
    seconds: float = field(
        default=math.inf, validator=either(SECONDS, Setting("infinity", lambda value: value == math.inf))
    )
    nodes: int | None = field(default=None, validator=NODES)


Seen = Callable[[Floats | None, int], bool]
"""Called with a new incumbent (or None) and the bound so far [ns]; returns whether to stop."""


@frozen(kw_only=True)
class Hints:
    """Optional inputs of a solve, and its listener. A back end without starts ignores the first two.

    Attributes:
        start: a feasible point in the columns of the formulation (integral ones count).
        cutoff: points that cost this much or more are not wanted [ns].
        seen: called with incumbents and bounds while the solver works, where the back end supports it.
        second: solve with other settings (HiGHS with presolve switched, SCIP and CP-SAT without), to confirm a result.
    """

    SETTINGS_RULE: ClassVar[str] = RULE

    start: Floats | None = field(default=None, eq=False)
    cutoff: float | None = field(default=None, validator=optional(number(0)))
    seen: Seen | None = field(default=None, validator=optional(function("lambda point, bound: False")))
    second: bool = field(default=False, validator=FLAG)


NO_HINTS: Final = Hints()


class Backend(ABC):
    """Solves a model under limits. Subclasses are frozen attrs classes of settings; their repr rebuilds them."""

    __slots__ = ()

    SETTINGS_RULE: ClassVar[str] = RULE

    takes_start: ClassVar[bool] = False
    """Whether it can begin from a point, and restrict the search to costs below a cut-off."""

    def with_save(self) -> Backend:
        """The settings that suit formulations with a second budget, for what is saved."""
        return self

    @abstractmethod
    def check(self) -> None:
        """Raise `BackendMissing` when it is not installed."""

    @abstractmethod
    def solve(self, model: MilpModel, limits: Limits, hints: Hints = NO_HINTS) -> Answer:
        """Solve.

        Args:
            model: with its budgets set; `model.linear` and `model.right` are the formulation in exact integers,
                `model.problem` is the same for CVXPY.
            limits: when to stop.
            hints: a start, a cut-off, a listener.
        """


def missing(solver: str) -> BackendMissing:
    """The error of a solver that is not installed."""
    package = _INSTALL.get(solver)
    fix = "https://www.cvxpy.org/install says how." if package is None else f"pip install {package}"
    return BackendMissing("A-BACKEND", f"the solver {solver} is not installed.", fix=fix)


def below(answer: Answer, cutoff: float, model: MilpModel) -> Answer:
    """The answer of a solve that was restricted to costs below a cut-off: its bound is at most the cut-off."""
    most = less_tolerance(cutoff * model.cost_unit, model.cost_unit)
    if answer.infeasible:
        words = f"{answer.note} below the cut-off"
        return evolve(answer, bound=most, infeasible=False, exhausted=True, finished=True, note=words)
    bound = min(answer.bound, most)
    if answer.point is None or float(model.linear.cost @ answer.point) >= cutoff:
        return evolve(answer, bound=bound)
    return answer


@contextmanager
def deferred_interruption(press: Callable[[], None]) -> Iterator[None]:
    """Within the block, Ctrl-C only calls `press`: an exception must not cross the C++ frames of a solver."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, lambda number, frame: press())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
