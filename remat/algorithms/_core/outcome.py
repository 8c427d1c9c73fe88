"""The answers of solvers: a plan that is not validated yet, and the outcome of its replay.

An `Outcome` is two numbers and a witness: the time of a validated schedule, and a bound for every schedule of the
problem. Everything else (status, gap) is derived from them.
"""

from __future__ import annotations

import math
from enum import Enum
from numbers import Integral
from typing import Final

from attrs import evolve, field, frozen

from remat.algorithms._core.evidence import Evidence, stronger
from remat.errors import UnsoundBound
from remat.ir import Cost, Schedule
from remat.proof.document import Proof
from remat.settings import NAME, Setting, instance, optional, tuple_of
from remat.units import Bytes, Ns

IMPOSSIBLE: Final = math.inf
"""The lower bound of a problem that has no schedule, certified or claimed."""

NOTHING: Final = math.inf
"""The upper bound of a problem for which no schedule was found."""


def _is_bound(value: object) -> bool:
    whole = isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 0
    return whole or (isinstance(value, float) and value == IMPOSSIBLE)


_BOUND = Setting("an int of at least 0 (ns), or IMPOSSIBLE", _is_bound)


class Status(Enum):
    """The status that the two numbers of an outcome imply."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    NOT_FOUND = "not found"


_SCHEDULE = optional(instance(Schedule, "Schedule.from_runs(…)"))
_EVIDENCE = optional(instance(Evidence, "Written(graph, proof)"))


@frozen(kw_only=True)
class ClassBound:
    """A bound for a restricted class of schedules; reported next to the bound for all, never merged into it.

    Attributes:
        value: every schedule of the class takes at least this long [ns]; infinite: the class holds none.
        assumes: the class, e.g. `first runs in the captured order`.
        evidence: what `proof` is written from, for the same class or for every schedule; None: the whole bound is claimed.
    """

    value: Ns | float = field(validator=_BOUND)
    assumes: str = field(validator=NAME)
    evidence: Evidence | None = field(default=None, validator=_EVIDENCE, eq=False, repr=False)

    @property
    def proof(self) -> Proof | None:
        """A proof of a bound of the class; written and checked on first access.

        Raises:
            ProofRefused: the checker does not accept it, or it is for another class, which is a bug of its author.
        """
        return None if self.evidence is None else self.evidence.proof(self.assumes)

    @property
    def certified(self) -> Ns | float | None:
        """The bound of the class that `proof` proves [ns]; `IMPOSSIBLE`: the class is empty; None: there is no proof."""
        return _proved_by(self.proof)

    @property
    def word(self) -> str:
        """`certified` or `claimed`; reading it writes no proof."""
        return _word(self.evidence, self.value)


_CLASS_BOUNDS = tuple_of(instance(ClassBound, "ClassBound(value=…, assumes=…)"), empty=True)


def _proved_by(proof: Proof | None) -> Ns | float | None:
    """The bound of a proof; None without one."""
    if proof is None:
        return None
    return IMPOSSIBLE if proof.bound is None else proof.bound


def _word(evidence: Evidence | None, bound: Ns | float) -> str:
    """`certified` where the evidence covers the whole bound, else `claimed`."""
    return "certified" if evidence is not None and evidence.bound >= bound else "claimed"


def _united(bounds: tuple[ClassBound, ...]) -> tuple[ClassBound, ...]:
    """Each bound once; of equal bounds, the one with the stronger evidence."""
    united: dict[ClassBound, ClassBound] = {}
    for bound in bounds:
        alike = united.get(bound, bound)
        united[bound] = evolve(alike, evidence=stronger(alike.evidence, bound.evidence))
    return tuple(united.values())


@frozen(kw_only=True)
class Plan:
    """What a solver's `plan` returns. All of it is checked by the replay, except `lower`, which must hold.

    Attributes:
        schedule: the proposed schedule, or None.
        lower: a bound for every schedule of the problem [ns]; `IMPOSSIBLE`: there is none.
        trail: how the plan was found, in words.
        class_bounds: bounds of restricted classes.
        evidence: what the bound, or a smaller one, can be proved from; None: the bound is claimed.
    """

    schedule: Schedule | None = field(default=None, validator=_SCHEDULE)
    lower: Ns | float = field(default=0, validator=_BOUND)
    trail: tuple[str, ...] = field(default=(), validator=tuple_of(NAME, empty=True))
    class_bounds: tuple[ClassBound, ...] = field(default=(), validator=_CLASS_BOUNDS)
    evidence: Evidence | None = field(default=None, validator=_EVIDENCE, eq=False, repr=False)


@frozen(kw_only=True)
class Outcome:
    """What is known about a problem: two numbers and a witness.

    Attributes:
        schedule, cost: the best validated schedule and its replayed cost, or neither.
        lower: a bound for every schedule of this problem [ns], *certified* or *claimed*; `IMPOSSIBLE`: there is none.
        trail: which solvers were asked, which refused and why, and which are optimal in which class.
        class_bounds: bounds that hold for a class of schedules only.
        evidence: what `proof` is written from; None: all of the bound is claimed.
    """

    schedule: Schedule | None = field(default=None, validator=_SCHEDULE)
    cost: Cost | None = field(default=None, validator=optional(instance(Cost, "validate(graph, schedule)")))
    lower: Ns | float = field(default=0, validator=_BOUND)
    trail: tuple[str, ...] = field(default=(), eq=False)
    class_bounds: tuple[ClassBound, ...] = field(default=(), eq=False)
    evidence: Evidence | None = field(default=None, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if self.lower > self.upper:
            what = f"a lower bound of {self.lower} ns above a validated schedule of {self.upper} ns"
            raise UnsoundBound(
                "A-BOUND", f"{what} ({'; '.join(self.trail)}).", fix="report it: one of the two has a bug."
            )

    @property
    def upper(self) -> Ns | float:
        """Time of the schedule [ns], `NOTHING` (infinite) without one."""
        return NOTHING if self.cost is None else self.cost.time

    @property
    def gap(self) -> float | None:
        """How far the schedule may be from the optimum, as a fraction of the bound; None without schedule or bound."""
        if self.cost is None or self.lower <= 0:
            return None
        return self.cost.time / self.lower - 1

    @property
    def proof(self) -> Proof | None:
        """A proof of a lower bound that anyone can check; written and checked on first access.

        Raises:
            ProofRefused: the checker does not accept it, which is a bug of its author.
        """
        return None if self.evidence is None else self.evidence.proof()

    @property
    def certified(self) -> Ns | float | None:
        """The bound that `proof` proves [ns]; `IMPOSSIBLE`: there is no schedule; None: there is no proof, `lower` is claimed."""
        return _proved_by(self.proof)

    @property
    def word(self) -> str:
        """`certified`: exact and with a proof; or `claimed`: computed by a solver and lowered by its tolerance.

        No proof is written for it.
        """
        return _word(self.evidence, self.lower)

    @property
    def status(self) -> Status:
        """The status that the two numbers imply."""
        if self.cost is not None:
            return Status.OPTIMAL if self.lower == self.cost.time else Status.FEASIBLE
        return Status.INFEASIBLE if self.lower == IMPOSSIBLE else Status.NOT_FOUND

    @property
    def settled(self) -> bool:
        """Whether no further solver is needed: there is a schedule, or by the bound none exists."""
        return self.cost is not None or self.lower == IMPOSSIBLE

    def _rank(self) -> tuple[Ns | float, Bytes, str]:
        # Ties in time go to the smaller peak, then to the smaller text, so that merging commutes.
        if self.cost is None or self.schedule is None:
            return (NOTHING, 0, "")
        return (self.cost.time, self.cost.peak, "\n".join(map(str, self.schedule.steps)))

    def merge(self, other: Outcome) -> Outcome:
        """The better schedule with the better bound.

        Raises:
            UnsoundBound: when the bound of one outcome is above the schedule of the other.
        """
        instance(Outcome, "solver.solve(problem)").check(other, "merge: other")
        if self.upper != other.upper:
            winner = self if self.upper < other.upper else other
        else:
            winner = min(self, other, key=Outcome._rank)
        return evolve(
            winner,
            lower=max(self.lower, other.lower),
            trail=self.trail + other.trail,
            class_bounds=_united(self.class_bounds + other.class_bounds),
            evidence=stronger(self.evidence, other.evidence),
        )
