"""A *pass*: a solver that improves a `Search`.

Alone it creates a `Search`, improves it and returns its plan; in a `Polish` many passes improve the same search.
"""

from __future__ import annotations

from abc import abstractmethod
from contextlib import nullcontext

from attrs import field, frozen

from remat.algorithms._core.clock import Clock
from remat.algorithms._core.outcome import Plan
from remat.algorithms._core.problem import Problem
from remat.algorithms._core.solver import is_interruption, refuse_unless_flat
from remat.algorithms._core.warm_started import WarmStarted
from remat.algorithms._core.wording import operand
from remat.algorithms._search.certifying import certify
from remat.algorithms._search.state import Search
from remat.algorithms._search.stop import CONDITION, Condition
from remat.ir import Graph, Schedule
from remat.settings import FLAG, instance


class RunMove(WarmStarted):
    """A solver that improves a search over run sequences of a flat graph: a pass."""

    __slots__ = ()

    def refuses(self, graph: Graph) -> str | None:
        """Flat graphs only."""
        return refuse_unless_flat(graph)

    @abstractmethod
    def improve(self, search: Search) -> None:
        """Offer better sequences or prove better bounds; return when done, or when the search is over."""

    def if_(self, condition: Condition, *, throughout: bool = True) -> If:
        """This pass if a condition holds when it begins; it ends when that no longer holds, unless `throughout` is false."""
        return If(self, condition, throughout=throughout)

    def plan_from(self, problem: Problem, start: Schedule | None, clock: Clock, seed: int) -> Plan:
        """Search from the captured order, and from `start` if there is one; an interruption ends it as a deadline does."""
        search = Search(problem, clock, seed, self)
        if start is not None:
            search.offer(search.arrays.sequence_of(start), "the start")
        try:
            with search.charged("plan"):
                self.improve(search)
        except (KeyboardInterrupt, SystemError) as error:
            if not is_interruption(error):
                raise
            clock.stop()
            search.trail.append(f"{self!r} was interrupted")
        clock.count(search.worked.seconds)
        if problem.proof_leaves:
            with search.charged("proof"):
                certify(search)
        return search.plan()


@frozen(repr=False)
class If(RunMove):
    """`move.if_(condition)`: does nothing if the condition does not hold; the pass ends when it no longer holds.

    Attributes:
        move: the pass. condition: on plan and bound.
        throughout: false: the pass, once begun, goes on where the condition no longer holds.
    """

    move: RunMove = field(validator=instance(RunMove, "MultiStart()"))
    condition: Condition = field(validator=CONDITION)
    throughout: bool = field(default=True, validator=FLAG, kw_only=True)

    def __repr__(self) -> str:
        begins = "" if self.throughout else ", throughout=False"
        return f"{operand(self.move)}.if_({self.condition!r}{begins})"

    def refuses(self, graph: Graph) -> str | None:
        """What the pass refuses."""
        return self.move.refuses(graph)

    def outline(self, graph: Graph) -> tuple[str, ...]:
        """The lines of the pass, with the condition."""
        first, *more = self.move.outline(graph)
        begins = "" if self.throughout else " when it begins"
        return (f"{first}, if {self.condition}{begins}", *more)

    def improve(self, search: Search) -> None:
        """The pass, under the condition."""
        if self.condition(search):
            with search.while_(self.condition) if self.throughout else nullcontext():
                self.move.improve(search)
