"""Bounds of chains of instants: their formulations, relaxed, and with decisions at instants."""

from __future__ import annotations

from attrs import evolve

from remat.algorithms._bounds.decisions import decided, fixings, undecided
from remat.algorithms._bounds.inserted_instant import inherited
from remat.algorithms._bounds.instants import Dependencies
from remat.algorithms._bounds.ordered_instants import Chained, ordered_formulation
from remat.algorithms._milp.answer import Answer
from remat.algorithms._milp.basis import DualBasis
from remat.algorithms._milp.direct import solve_relaxed
from remat.algorithms._milp.probing import Optimum, Probing
from remat.algorithms._milp.pseudocosts import Pseudocosts
from remat.algorithms._search.order_tree import END, Kids, Leaf, Stage
from remat.algorithms._search.precedence import Chain
from remat.algorithms._search.state import Search

_PROBED = 48  # undecided variables that may be tried on a leaf


class ChainBounds:
    """Solves formulations of chains, those of at most `largest` variables, until the clock of the search has expired."""

    def __init__(self, search: Search, dependencies: Dependencies, largest: int) -> None:
        self.search, self.dependencies, self.largest = search, dependencies, largest
        self.pseudocosts = Pseudocosts()
        self._kept: tuple[Leaf, Chained | None] | None = None

    def of(self, leaf: Leaf) -> Chained | None:
        """The formulation of a leaf, kept for what is asked of it next; None where it is too large or there is no time."""
        if self.search.clock.expired:
            return None
        if self._kept is None or self._kept[0] is not leaf:
            self._kept = leaf, self.of_chain(leaf.chain, leaf.together)
        return self._kept[1]

    def of_chain(self, chain: Chain, together: frozenset[Stage] | None) -> Chained | None:
        """The formulation of a chain, with rows for stages taken together, if given; None where it is too large."""
        search = self.search
        number = {at: k for k, at in enumerate((*chain, END))}
        coarse = None if together is None else [(number[begin], number[end]) for begin, end in together]
        formulation = ordered_formulation(search.flat, self.dependencies, chain, search.budget, coarse=coarse)
        return formulation if formulation.variables <= self.largest else None

    def relaxed(self, chain: Chain, together: frozenset[Stage], effort: float, leaf: Leaf | None) -> Answer:
        """A relaxed bound, begun from that of a leaf with an instant less; 0 where the formulation is too large."""
        formulation = None if self.search.clock.expired else self.of_chain(chain, together)
        if formulation is None:
            return Answer()
        if formulation.impossible:
            return Answer(infeasible=True, finished=True)
        basis = DualBasis()
        ended = None if leaf is None or leaf.basis is None else leaf.basis.ended
        if leaf is not None and ended is not None and (before := self.of(leaf)) is not None:
            basis = DualBasis(inherited(before, ended, formulation), leaf.iterations)
        given = None if leaf is None else fixings(formulation, leaf.decisions)
        answer = solve_relaxed(formulation.linear, effort, start=basis, clock=self.search.clock, fixed=given)
        return evolve(answer, basis=basis)

    def solved(self, leaf: Leaf, effort: float) -> tuple[Answer, DualBasis] | None:
        """The relaxed bound of a leaf with its decisions, and the basis that it ended with; None without a formulation."""
        if (formulation := self.of(leaf)) is None:
            return None
        basis, given = DualBasis(), fixings(formulation, leaf.decisions)
        return solve_relaxed(formulation.linear, effort, start=basis, clock=self.search.clock, fixed=given), basis

    def branched(self, leaf: Leaf, effort: float, target: float) -> tuple[Kids, int]:
        """The decision at an instant of a leaf that raises its bound most, and its opposite; and the effort of finding it.

        A bound of `target` needs not be raised further.
        """
        formulation = self.of(leaf)
        if leaf.point is None or leaf.basis is None or leaf.basis.ended is None or formulation is None:
            return [], 0
        columns = undecided(formulation, self.search.flat, leaf.point, _PROBED)
        if not len(columns):
            return [], 0
        # the same datum or node at the same instant, in any chain
        names = {column: decided(formulation, column)[1] for column in columns.tolist()}
        probing = Probing(
            linear=formulation.linear,
            fixed=fixings(formulation, leaf.decisions),
            target=target,
            effort=effort,
            clock=self.search.clock,
            expected=self.pseudocosts.expected(names, leaf.point),
        )
        branch, gains, spent = probing.branched(Optimum(leaf.relaxed, leaf.basis.ended, leaf.iterations), columns)
        self.pseudocosts.note(names, leaf.point, gains)
        if branch is None:
            return [], spent
        return list(zip(decided(formulation, branch.column), branch.answers, strict=True)), spent
