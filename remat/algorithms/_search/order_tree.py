"""A tree of orders: chains of instants that together stand for every schedule, each with a bound of its own.

A chain stands for the schedules in which its instants first run in its order. One more instant first runs at one place of the
chain, so the chains with the instant at each place that dependencies allow stand for the same schedules, and the least of their
bounds holds for all of them. The tree refines the chain of the least bound: it inserts the instant that raises the relaxed bound
most; where none does, the formulation is solved with integers. Other chains may need other instants, or none. Source: this
project; see docs/explanation/bounds.md.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

from attrs import evolve, field, frozen

from remat.algorithms._core.outcome import IMPOSSIBLE
from remat.algorithms._milp.answer import Answer
from remat.algorithms._search.precedence import Chain, Precedence

_PROMISING = 10  # of the instants tried on a chain, how many are tried on the chains that follow from it
_SCAN, _FIRST_SCAN = 0.25, 0.4  # share of the effort left that the choice of an instant may take; of the second instant
_RISE = 0.015  # rise of the relaxed bound for which an instant is inserted, per instant after the first: integers bring as much
_MEAN_RISE = 0.1  # the same of the mean over the orders that follow
_LEAST = 0.002  # rise for which one is inserted where integers have brought what they can

THOROUGHLY = 2
"""Solves with integers after which a leaf has no more to give."""


@frozen(order=False, eq=False)
class Leaf:
    """A chain that has not been refined further.

    Attributes:
        chain: of instants.
        relaxed: bound of its relaxation. bound: the best one [ns of recomputation].
        weight: effort of its relaxation.
        candidates: instants to insert, the most promising first.
        solved: how often it was solved with integers.
        worst: the instant where the plan of its solution exceeds the budget most.
    """

    chain: Chain
    relaxed: float
    bound: float
    weight: int = 0
    candidates: tuple[int, ...] = ()
    solved: int = 0
    worst: int | None = None


@frozen
class Limits:
    """How far a tree may grow.

    Attributes:
        instants: in a chain. orders: leaves at once. effort: of all solves.
    """

    instants: int
    orders: int
    effort: float


class OrderTree:
    """The leaves, and what has been spent on them.

    Attributes:
        target: bound at which a leaf needs no more refinement [ns of recomputation]; may be lowered.
        spent: effort of all solves so far.
    """

    def __init__(
        self,
        root: Chain,
        candidates: tuple[int, ...],
        precedence: Precedence,
        limits: Limits,
        relax: Callable[[Chain], Answer],
    ) -> None:
        """Begin with a chain that stands for all schedules; `relax` gives the relaxed bound of a chain, with its effort."""
        self.precedence, self.limits, self.relax = precedence, limits, relax
        self.target: float = IMPOSSIBLE
        self.spent: float = 0
        self._numbers = count()
        self._answers: dict[Chain, Answer] = {}
        self._leaves: list[tuple[float, int, Leaf]] = []
        self.push(evolve(self._relaxed(root, 0), candidates=candidates))

    def push(self, leaf: Leaf) -> None:
        """Add a leaf; one that no schedule belongs to may be left out."""
        heapq.heappush(self._leaves, (leaf.bound, next(self._numbers), leaf))

    def pop(self) -> Leaf:
        """Take out the leaf of the least bound."""
        return heapq.heappop(self._leaves)[2]

    @property
    def bound(self) -> float:
        """The least bound of a leaf: it holds for every schedule [ns of recomputation]."""
        return self._leaves[0][0] if self._leaves else IMPOSSIBLE

    @property
    def chains(self) -> list[Chain]:
        """Of all leaves."""
        return sorted(leaf.chain for _, _, leaf in self._leaves)

    @property
    def left(self) -> float:
        """Effort that is left."""
        return self.limits.effort - self.spent

    def split(self, leaf: Leaf, *, anyway: bool = False) -> bool:
        """Replace a leaf that was taken out by chains with one more instant; False if none raises its relaxed bound.

        Args:
            leaf: to be replaced.
            anyway: insert the instant where the plan of its solution is worst, or the best one, even if the relaxed bound does
                not rise: the solution with integers may.
        """
        if len(leaf.chain) >= self.limits.instants:
            return False
        split = self._best(leaf)
        if anyway and leaf.worst is not None and (split is None or not split.rises):
            worst = self._tried(leaf, leaf.worst, 0)
            split = evolve(worst, scores={} if split is None else split.scores) if worst.whole else split
        if split is None or not (split.rises or anyway):
            return False
        order = sorted(split.scores, key=lambda at: (-split.scores[at], at))
        for kid in split.kids:
            if kid.bound < IMPOSSIBLE:
                self.push(evolve(kid, candidates=tuple(at for at in order if at not in kid.chain)[:_PROMISING]))
        return True

    def _best(self, leaf: Leaf) -> _Split | None:
        """The instant that raises the least relaxed bound most; of those that raise it equally, the mean."""
        limit = self.spent + (_SCAN if len(leaf.chain) > 1 else _FIRST_SCAN) * self.left
        best: _Split | None = None
        scores: dict[int, float] = {}
        for at in leaf.candidates:
            if self.spent > limit:
                break
            if at not in leaf.chain:
                split = self._tried(leaf, at, 0 if best is None else best.value[0])
                scores[at] = split.value[0]
                if split.whole and (best is None or split.value > best.value):
                    best = split
        return None if best is None else evolve(best, scores=scores)

    def _tried(self, leaf: Leaf, at: int, least: float) -> _Split:
        """The chains with an instant inserted, up to the first with a relaxed bound below `least`; none if they are too many."""
        chains = self.precedence.insertions(leaf.chain, at)
        kids: list[Leaf] = []
        if len(self._leaves) + len(chains) <= self.limits.orders:
            for chain in chains:
                kids.append(self._relaxed(chain, leaf.bound))
                if min(kids[-1].relaxed, self.target) < least:
                    break
        reached = [min(kid.relaxed, self.target) for kid in kids] or [0.0]
        value = (min(reached), sum(reached) / len(reached))
        before = min(leaf.relaxed, self.target)
        asked = _LEAST if leaf.solved else max(_LEAST, _RISE * (len(leaf.chain) - 1))
        rises = value[0] > before * (1 + asked) or (len(kids) > 1 and value[1] > before * (1 + _MEAN_RISE))
        return _Split(kids=kids, value=value, rises=rises, whole=len(kids) == len(chains))

    def _relaxed(self, chain: Chain, bound: float) -> Leaf:
        """A chain with its relaxed bound; `bound` holds for it too."""
        answer = self._answers.get(chain)
        if answer is None:
            answer = self._answers[chain] = self.relax(chain)
            self.spent += answer.effort
        relaxed: float = IMPOSSIBLE if answer.infeasible else answer.bound
        return Leaf(chain=chain, relaxed=relaxed, bound=max(bound, relaxed), weight=answer.effort)


@frozen
class _Split:
    """A leaf's chain with an instant inserted.

    Attributes:
        kids: a leaf for each place.
        value: least and mean relaxed bound of them, up to the target.
        rises: whether that is worth while.
        whole: whether there is a leaf for each place.
        scores: least relaxed bound of each instant tried.
    """

    kids: list[Leaf]
    value: tuple[float, float]
    rises: bool
    whole: bool
    scores: dict[int, float] = field(factory=dict)
