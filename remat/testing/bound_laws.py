"""The laws of a formulation of a lower bound, and `check_bound`, which tests them on random schedules of random graphs."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from fractions import Fraction
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from remat.algorithms._milp.linear import Linear
from remat.ir import Graph, print_text
from remat.settings import instance, one_of, whole
from remat.testing.relaxation import Formulation, Relaxation, broken_row, cost_of
from remat.testing.report import Report, Say, Tally, check_arguments
from remat.testing.trace import Trace
from remat.testing.trial import Trial
from remat.testing.trying import Examples, try_examples

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

BOUND_LAWS = {
    "L-REFUSE": "`refuses` answers None or a line of text, always the same",
    "L-RAISE": "nothing is raised for a graph that is not refused",
    "L-POINT": "the point of a schedule is 0 or 1 in each column, or between them where the column is not integral",
    "L-ROW": "the point of every schedule of the class satisfies every row",
    "L-COST": "base and cost of the point sum to at most the schedule's time",
    "L-POSSIBLE": "a formulation is not called impossible if a schedule of the class fits",
    "L-PURE": "the graph is not changed",
}
_AMONG = one_of("all", "captured", "staged")
_BYTES = whole(0, "bytes")
_FORMULATION = instance(Formulation, "Formulation(linear=builder.build(), base=0)")
SCHEDULES = 6
"""Random schedules of each graph."""


def check_bound(
    relaxation: Relaxation,
    *,
    graphs: SearchStrategy[Graph] | None = None,
    exclude: Mapping[str, str] | None = None,
    examples: int = 150,
    shrink: bool = True,
    say: Say | None = None,
) -> Report:
    """Check that a formulation is a relaxation: the point of each random schedule is feasible and costs no more.

    Args:
        relaxation: the bound under check.
        graphs: a hypothesis strategy of graphs it accepts; None: from the relaxation's `families`.
        exclude: laws to leave out, each with a reason; the report prints them.
        examples: number of graphs; each is tested with several schedules, with the smallest budget for each.
        shrink: look for the smallest example of a broken law.
        say: called with the text of the report; None: print it.

    Raises:
        LawBroken: with the law, the place, the row and the schedule; `L-NONE` if every graph was refused.
    """
    check_arguments("check_bound", relaxation, instance(Relaxation, "a subclass of it"), exclude, examples, graphs)
    tally = Tally(relaxation, BOUND_LAWS, exclude)
    _AMONG.check(relaxation.among, f"{relaxation!r}: among")
    tried = Examples(graphs=graphs, count=examples, shrink=shrink, families=relaxation.families)
    try_examples(lambda graph, seed: _Trial(relaxation, graph, seed, tally).run(), tried, tally)
    return tally.report(say)


class _Trial(Trial):
    """Schedules of one graph, tested under all laws."""

    def __init__(self, relaxation: Relaxation, graph: Graph, seed: int, tally: Tally) -> None:
        super().__init__(relaxation, graph, print_text(graph), BOUND_LAWS, tally)
        self.relaxation = relaxation
        self.random = Random(seed)

    def run(self) -> None:
        if self.refused():
            return
        for _ in range(SCHEDULES):
            trace = self.asked("`trace`", lambda: self.relaxation.trace(self.graph, self.random.randint))
            for place in self.asked("`places`", partial(self.places, trace)):
                self.check_place(trace, place)
        if self.tally.tries("L-PURE"):
            self.expect("L-PURE", print_text(self.graph) == self.example, "the graph has changed.")

    def places(self, trace: Trace) -> list[Hashable]:
        return list(self.relaxation.places(trace, self.random))

    def check_place(self, trace: Trace, place: Hashable) -> None:
        """The laws of one formulation and one schedule."""
        bound = self.relaxation
        budget = self.asked("`needs`", lambda: bound.needs(trace, place))
        _BYTES.check(budget, f"{bound!r}: the answer of needs")
        formulation = self.asked("`formulation`", lambda: bound.formulation(self.graph, place, budget))
        _FORMULATION.check(formulation, f"{bound!r}: the answer of formulation")
        where = "" if place is None else f" at {place!r}"
        context = f"within {budget} B{where}, by the schedule\n{'; '.join(map(str, trace.schedule.steps))}\n"
        if self.tally.tries("L-POSSIBLE"):
            self.expect(
                "L-POSSIBLE", not formulation.impossible, f"it is called impossible, although it is satisfied {context}"
            )
        if formulation.impossible:
            return
        point = self.asked("`point`", lambda: [_exact(x) for x in bound.point(formulation, trace, place)])
        if self.tally.tries("L-POINT"):
            fine = _is_point(formulation.linear, point)
            self.expect("L-POINT", fine, f"the point is {point}, of {len(formulation.linear.cost)} columns, {context}")
        self.check_point(formulation, point, budget, context, trace)

    def check_point(
        self, formulation: Formulation, point: list[int | Fraction], budget: int, context: str, trace: Trace
    ) -> None:
        """L-ROW and L-COST."""
        if self.tally.tries("L-ROW"):
            broken = broken_row(formulation.linear, point, budget)
            self.expect("L-ROW", broken is None, f"{broken}, {context}")
        if self.tally.tries("L-COST"):
            cost = formulation.base + cost_of(formulation.linear, point)
            self.expect("L-COST", cost <= trace.time, f"{cost} ns are bounded, and {trace.time} ns are taken {context}")


def _exact(value: float | Fraction) -> int | Fraction:
    """The value itself: what lies between whole numbers is not rounded to one."""
    if isinstance(value, Fraction):
        return value
    whole_value = int(value)
    return whole_value if whole_value == value else Fraction(float(value))


def _is_point(linear: Linear, point: list[int | Fraction]) -> bool:
    """Whether each value is 0 or 1, or between them in a column that is neither integral nor implied to be."""
    if len(point) != len(linear.cost):
        return False
    free = ~(linear.integral | linear.implied)
    return all(x in (0, 1) or (may_be and 0 <= x <= 1) for x, may_be in zip(point, free.tolist(), strict=True))


__all__ = ["BOUND_LAWS", "Formulation", "Relaxation", "check_bound"]
