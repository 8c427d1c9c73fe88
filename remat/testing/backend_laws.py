"""The laws of a back end, and `check_backend`, which tries all of them on small formulations whose points are enumerated."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Mapping
from random import Random
from typing import Any, Final

import numpy as np
from attrs import evolve, frozen

from remat.algorithms._milp.answer import Answer, Floats
from remat.algorithms._milp.backend import Backend, Hints, Limits
from remat.algorithms._milp.linear import Builder, Linear
from remat.algorithms._milp.milp_model import MilpModel, model_of
from remat.settings import instance
from remat.testing.report import LawBroken, Report, Say, Tally, check_arguments
from remat.testing.trial import check_repr

BACKEND_LAWS = {
    "L-RAISE": "nothing is raised for a formulation",
    "L-INT": "`solve` answers an Answer, its point an array with one entry per column",
    "L-POINT": "the point is 0 or 1 in integral columns and keeps every row",
    "L-BOUND": "no point costs less than `bound`, and an incumbent none less than the bound told with it",
    "L-GAP": "`finished` with a point: the point's cost is within the gap of the least",
    "L-INFEASIBLE": "where it finds no point twice, the second time with other settings, there is none",
    "L-CUTOFF": "below a cut-off it finds what is there, and says `infeasible` of nothing but the whole",
    "L-STOP": "without time, and stopped by `seen`, it claims no more than is true",
    "L-REPEAT": "asked again, it answers the same",
    "L-REPR": "`repr` rebuilds the back end",
    "L-PICKLE": "it survives pickling, as worker pools need",
}
_COLUMNS: Final = 7
_TOLERANCE: Final = 1e-5
"""Of a point: integrality, relative cost and rows relative to their largest entry, as solvers in floats have it."""


def check_backend(
    backend: Backend,
    *,
    exclude: Mapping[str, str] | None = None,
    words: Mapping[str, Any] | None = None,
    examples: int = 30,
    say: Say | None = None,
) -> Report:
    """Try every law of a back end on small random formulations, some of them without a point.

    Args:
        backend: the back end under check; it is installed.
        exclude: laws to leave out, each with a reason; the report prints them.
        words: names in its repr that no registry knows, and what they stand for.
        examples: number of formulations, each under several budgets.
        say: takes the report as text; None: the standard output.

    Raises:
        LawBroken: with the law and the formulation.
        BackendMissing: it is not installed.
    """
    check_arguments("check_backend", backend, instance(Backend, "Highs()"), exclude, examples)
    backend.check()
    tally = Tally(backend, BACKEND_LAWS, exclude)
    check_repr(backend, tally, words)
    if tally.tries("L-PICKLE") and pickle.loads(pickle.dumps(backend)) != backend:
        raise LawBroken("L-PICKLE", f"{backend!r} is another after pickling.")
    for number in range(examples):
        tally.examples += 1
        _Trial(backend, Random(number), tally).run()
    return tally.report(say)


@frozen(eq=False)
class _Points:
    """All points of a formulation under its budgets, each with its cost."""

    points: Floats
    cost: Floats

    @classmethod
    def of(cls, model: MilpModel) -> _Points:
        """Enumerate them."""
        linear, right = model.linear, model.right
        every = np.array(list(itertools.product((0, 1), repeat=len(linear.cost))), np.int64)
        matrix = np.zeros(linear.shape, np.int64)
        matrix[linear.row, linear.col] = linear.val
        sums = every @ matrix.T
        kept = np.where(linear.equal, sums == right, sums <= right).all(1)
        return cls(every[kept].astype(float), (every[kept] @ linear.cost).astype(float))

    @property
    def least(self) -> float:
        """The least cost; infinite without a point."""
        return float(self.cost.min()) if len(self.cost) else float("inf")


class _Trial:
    """One formulation tried under all laws."""

    def __init__(self, backend: Backend, random: Random, tally: Tally) -> None:
        self.backend, self.tally = backend, tally
        self.linear, budget = _random_formulation(random)
        self.model = model_of(self.linear)
        self.model.set(budget)
        self.points = _Points.of(self.model)

    def run(self) -> None:
        """All laws."""
        limits = Limits(gap=0.0)
        answer = self.ask(limits)
        self.judge(answer, limits.gap)
        if self.tally.tries("L-REPEAT"):
            again = self.ask(limits)
            same = (again.bound, again.infeasible) == (answer.bound, answer.infeasible)
            same = same and _whole(again.point) == _whole(answer.point)
            self.expect("L-REPEAT", same, f"answered {_described(answer)}, then {_described(again)}.")
        second = self.ask(limits, Hints(second=True))
        self.judge(second, limits.gap)
        if answer.infeasible and second.infeasible and self.tally.tries("L-INFEASIBLE"):
            self.expect(
                "L-INFEASIBLE", not len(self.points.cost), f"says infeasible, and {self.points.points[:1]} is a point."
            )
        self.judge(self.ask(Limits(gap=0.5)), 0.5)
        if len(self.points.cost) and self.backend.takes_start:
            self.hinted()
        self.stopped()

    def ask(self, limits: Limits, hints: Hints = Hints()) -> Answer:
        """The answer; L-RAISE and L-INT."""
        try:
            answer = self.backend.solve(self.model, limits, hints)
        except Exception as error:
            self.tally.tries("L-RAISE")
            raise self.broken("L-RAISE", f"`solve` raised {type(error).__name__}: {error}") from error
        if self.tally.tries("L-INT"):
            fine = isinstance(answer, Answer) and type(answer.bound) is int
            fine = fine and (answer.point is None or answer.point.shape == self.linear.cost.shape)
            self.expect("L-INT", fine, f"`solve` answers {answer!r:.200}.")
        return answer

    def judge(self, answer: Answer, gap: float) -> None:
        """L-POINT, L-BOUND and L-GAP of an answer without a cut-off."""
        least = self.points.least
        if answer.point is not None and self.tally.tries("L-POINT"):
            self.expect("L-POINT", self.near(answer.point), f"{_described(answer)} breaks a row.")
        if self.tally.tries("L-BOUND"):
            self.expect("L-BOUND", answer.bound <= least, f"{_described(answer)}, and a point costs {least}.")
        if answer.finished and answer.point is not None and self.tally.tries("L-GAP"):
            most = least / (1 - gap) * (1 + _TOLERANCE) + 1e-6
            cost = float(self.linear.cost @ answer.point)
            self.expect("L-GAP", cost <= most, f"{_described(answer)} costs {cost}, and a point costs {least}.")

    def near(self, point: Floats) -> bool:
        """Whether rounding the integral columns gives a point, within the tolerance of solvers in floats."""
        whole = np.where(self.linear.integral, np.round(point), point)
        return bool(
            np.abs(whole - point).max(initial=0) <= _TOLERANCE and (self.points.points == np.round(whole)).all(1).any()
        )

    def hinted(self) -> None:
        """L-CUTOFF: just above the least cost it is found, at the least cost nothing is."""
        if not self.tally.tries("L-CUTOFF"):
            return
        least, start = self.points.least, self.points.points[self.points.cost.argmax()]
        above = self.ask(Limits(gap=0.0), Hints(start=start, cutoff=least + 1))
        self.expect(
            "L-CUTOFF", above.point is not None and self.near(above.point), f"below {least + 1}: {_described(above)}."
        )
        if least > 0:
            at = self.ask(Limits(gap=0.0), Hints(cutoff=least))
            fine = not at.infeasible and at.bound <= least
            self.expect("L-CUTOFF", fine, f"below {least}, which is the least cost: {_described(at)}.")

    def stopped(self) -> None:
        """L-STOP, and L-BOUND of what is told on the way."""
        if not self.tally.tries("L-STOP"):
            return
        late = self.ask(Limits(gap=0.0, seconds=0.0))
        self.judge(evolve(late, finished=False), 0.0)
        heard: list[tuple[Floats | None, int]] = []

        def seen(point: Floats | None, bound: int) -> bool:
            heard.append((point, bound))
            return True

        self.judge(evolve(self.ask(Limits(gap=0.0), Hints(seen=seen)), finished=False), 0.0)
        for point, bound in heard:
            self.expect(
                "L-BOUND", bound <= self.points.least, f"told a bound of {bound}: a point costs {self.points.least}."
            )
            self.expect("L-POINT", point is None or self.near(point), f"told {point}, which breaks a row.")

    def expect(self, law: str, holds: bool, what: str) -> None:
        """Say that a law is broken unless it holds."""
        if not holds:
            raise self.broken(law, what)

    def broken(self, law: str, what: str) -> LawBroken:
        """The error of a broken law."""
        return LawBroken(law, f"{self.backend!r}: {what} ({BACKEND_LAWS[law]})", example=_text(self.model))


def _random_formulation(random: Random) -> tuple[Linear, int]:
    """Knapsack-like rows with a budget, covering rows and an equation now and then; the budget may be too small."""
    builder, count = Builder(), random.randint(1, _COLUMNS)
    for _ in range(count):
        builder.new(1, cost=random.choice((0, 1, random.randint(1, 50))), integral=True)
    sizes = [random.randint(1, 20) for _ in range(count)]
    memory = builder.rows(1, budget=1)
    builder.entries(memory, list(range(count)), sizes)
    for _ in range(random.randint(1, 4)):
        chosen = random.sample(range(count), random.randint(1, count))
        builder.row([(column, -random.randint(1, 3)) for column in chosen], -random.randint(1, 3))
    if random.random() < 0.4:
        chosen = random.sample(range(count), random.randint(1, count))
        builder.row([(column, 1) for column in chosen], 1, equal=True)
    return builder.build(), random.randint(0, sum(sizes))


def _whole(point: Floats | None) -> list[float] | None:
    return None if point is None else np.round(point).tolist()


def _described(answer: Answer) -> str:
    words = [f"bound {answer.bound}"]
    words += ["no point" if answer.point is None else f"point {np.round(answer.point, 3).tolist()}"]
    words += [word for word in ("finished", "infeasible", "exhausted") if getattr(answer, word)]
    return ", ".join(words)


def _text(model: MilpModel) -> str:
    linear, right = model.linear, model.right
    lines = [f"minimize {linear.cost.tolist()} x, x in {{0, 1}}"]
    for row in range(len(right)):
        entries = linear.row == row
        terms = " + ".join(f"{v} x{c}" for v, c in zip(linear.val[entries], linear.col[entries], strict=True)) or "0"
        lines.append(f"{terms} {'=' if linear.equal[row] else '<='} {right[row]}")
    return "\n".join(lines)


__all__ = ["BACKEND_LAWS", "check_backend"]
