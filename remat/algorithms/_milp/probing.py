"""Strong branching: a variable of which either value raises the bound of a relaxation most, each tried from its optimum.

Both values of a few fractional variables are tried, by the dual simplex method from one basis of a formulation that is loaded
once; most tries take a few iterations. Source: Applegate, Bixby, Chvátal and Cook, *Finding cuts in the TSP*, 1995. Of variables
of which something is expected (see `pseudocosts`), only those that promise most are tried. The bounds of the variable chosen are
evaluated in exact integers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from attrs import field, frozen

from remat.algorithms._core.clock import Clock
from remat.algorithms._milp.answer import Answer, Floats, exact_bound, farkas
from remat.algorithms._milp.basis import DualBasis, Statuses
from remat.algorithms._milp.direct import MOST_ITERATIONS, Work, count_effort
from remat.algorithms._milp.linear import Fixings, Ints, Linear
from remat.algorithms._milp.pseudocosts import Gains
from remat.algorithms._milp.scaled import ENDED, INFEASIBLE, Scaled, iterations_of, run

_SHORT = 100  # iterations of a try; what is chosen is solved to its end
_IDLE = 6  # variables in a row that raise less than the best, after which no more are tried
_IDLE_EXPECTED = 2  # the same of those of which something is expected, the best first
_LEAST = 1e-6  # gain that counts for none, of the costs scaled


@frozen(kw_only=True)
class Branch:
    """Two relaxations that together contain every integral point of one.

    Attributes:
        column: integral in the formulation; it is 0 in the first and 1 in the second.
        answers: of both.
    """

    column: int
    answers: tuple[Answer, Answer]


class Optimum(NamedTuple):
    """Where a relaxation was solved.

    Attributes:
        value: its bound [ns]. statuses: of its optimum. iterations: that led there.
    """

    value: float
    statuses: Statuses
    iterations: int


class Probed(NamedTuple):
    """What tries have found.

    Attributes:
        branch: the best; None: neither value of any column raises the bound within the effort.
        gains: of the columns tried. effort: of all tries.
    """

    branch: Branch | None
    gains: dict[int, Gains]
    effort: int


@frozen(kw_only=True)
class Probing:
    """A formulation, some of whose columns have a given value.

    Attributes:
        linear: the formulation. fixed: of its columns.
        target: bound above which nothing more is gained [ns].
        effort: of all tries (see `Answer`). clock: ends them too.
        expected: of columns; those without are tried first.
    """

    linear: Linear
    fixed: Fixings
    target: float
    effort: float
    clock: Clock | None = None
    expected: dict[int, Gains] = field(factory=dict)

    @property
    def expired(self) -> bool:
        """Whether there is no time left."""
        return self.clock is not None and self.clock.expired

    def branched(self, optimum: Optimum, columns: Ints) -> Probed:
        """The best of these columns to branch on; those worth most come first."""
        probe = _Probe(self, optimum)
        hoped = {column: probe.score(gains) for column, gains in self.expected.items()}
        best = self._best(probe, [column for column in columns.tolist() if column not in hoped], _IDLE)
        promising = sorted(filter(hoped.__contains__, columns.tolist()), key=lambda column: -hoped[column])
        best = self._best(probe, promising, _IDLE_EXPECTED, best, hoped)
        branch = None if best is None else Branch(column=best.column, answers=probe.answers(best))
        count_effort(self.clock, probe.spent)
        return Probed(branch, probe.gains, probe.spent)

    def _best(
        self,
        probe: _Probe,
        columns: list[int],
        patience: int,
        best: _Tried | None = None,
        hoped: Mapping[int, float] = MappingProxyType({}),
    ) -> _Tried | None:
        """The best so far or of these columns, until so many in a row were no better, or are not hoped to be."""
        idle = 0
        for column in columns:
            if idle == patience or probe.spent > self.effort or self.expired:
                break
            if best is not None and hoped.get(column, math.inf) <= best.score:
                break
            tried = probe.tried(column, _LEAST**2 if best is None else best.score)
            idle = idle + 1 if tried is None else 0
            best = tried or best
        return best


class _End(NamedTuple):
    """How a solve ended: its value, the multipliers (a ray where it is infeasible), the solution, the basis of an optimum."""

    value: float
    duals: Floats | None = None
    point: Floats | None = None
    basis: DualBasis | None = None
    iterations: int = 0


@frozen
class _Tried:
    column: int
    score: float
    ends: tuple[_End, _End] = field(eq=False)


class _Probe:
    """HiGHS at the optimum of a relaxation, of which one more column is fixed."""

    def __init__(self, probing: Probing, optimum: Optimum) -> None:
        self.probing, self.before = probing, optimum
        linear = probing.linear
        self.scaled = Scaled.of(linear, np.zeros_like(linear.integral))
        self.solver = self.scaled.loaded(probing.fixed)
        self.work = Work(len(linear.rhs), max(1, optimum.iterations))
        self.spent = self.work.of(0)
        DualBasis(optimum.statuses, 1).begin(self.solver, self.scaled.order)
        run(self.solver, probing.clock)
        self.basis = self.solver.getBasis()
        self.room = max(0.0, probing.target - optimum.value) * self.scaled.unit
        self.value = optimum.value * self.scaled.unit
        self.gains: dict[int, Gains] = {}

    def tried(self, column: int, least: float) -> _Tried | None:
        """Both values of a column; None where their gains are worth no more than `least`."""
        ends = self._end(column, 0, _SHORT), self._end(column, 1, _SHORT)
        low, high = (max(0.0, min(end.value - self.value, self.room)) / self.scaled.unit for end in ends)
        if all(end.duals is not None for end in ends):
            self.gains[column] = low, high
        score = self.score((low, high))
        return _Tried(column, score, ends) if score > least else None

    def score(self, gains: Gains) -> float:
        """What gains are worth: their product."""
        low, high = (max(_LEAST, min(gain * self.scaled.unit, self.room)) for gain in gains)
        return low * high

    def _end(self, column: int, value: int, limit: int) -> _End:
        if self.probing.expired:
            return _End(0.0)
        solver, place = self.solver, int(self.scaled.places[column])
        solver.changeColBounds(place, value, value)
        solver.setBasis(self.basis)
        status = run(solver, self.probing.clock, simplex_iteration_limit=limit)
        iterations = iterations_of(solver)
        self.spent += 2 * self.work.of(iterations) // 5
        end = _End(0.0)
        if status in INFEASIBLE:
            ray = np.asarray(solver.getDualRay()[2])
            end = _End(math.inf, ray if len(ray) == len(self.scaled.right) else None)
        elif status in ENDED:
            end = self._optimum(status, iterations)
        solver.changeColBounds(place, 0, 1)
        return end

    def _optimum(self, status: str, iterations: int) -> _End:
        point, duals = self.scaled.solution(self.solver)
        basis = None
        if status == "kOptimal":
            basis = DualBasis()
            basis.end(self.solver, self.scaled.order)
        value = float(self.solver.getInfo().objective_function_value)
        return _End(value, duals, point, basis, iterations)

    def answers(self, best: _Tried) -> tuple[Answer, Answer]:
        """The answers of both values, their bounds in exact integers."""
        return self._answer(best, 0), self._answer(best, 1)

    def _answer(self, best: _Tried, value: int) -> Answer:
        end, fixed, linear = best.ends[value], self.probing.fixed, self.probing.linear
        if end.duals is not None and end.basis is None and end.value < math.inf and not self.probing.expired:
            end = self._end(best.column, value, MOST_ITERATIONS)
        with_it = Fixings(np.append(fixed.columns, best.column), np.append(fixed.values, value))
        if end.duals is None:
            return Answer()
        multipliers: Any = end.duals / self.scaled.row_unit
        if math.isinf(end.value):
            proved = farkas(linear, multipliers, fixed=with_it)
            return Answer(infeasible=proved, finished=proved)
        bound = exact_bound(linear, multipliers / self.scaled.unit, fixed=with_it)
        iterations = self.before.iterations + end.iterations
        finished = end.basis is not None
        return Answer(point=end.point, bound=max(0, bound), finished=finished, iterations=iterations, basis=end.basis)
