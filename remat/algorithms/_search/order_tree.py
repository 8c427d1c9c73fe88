"""A tree of orders: chains of instants that together stand for every schedule, each with a bound of its own.

A chain stands for the schedules in which its instants first run in its order. One more instant first runs at one place of the
chain, so the chains with the instant at each place that dependencies allow stand for the same schedules, and the least of their
bounds holds for all of them. The tree refines the chain of the least bound: it inserts the instant that raises the relaxed bound
most; where none does, it branches on what is undecided at an instant. A leaf is a chain with decisions, and stands for the
schedules of both. Other leaves may need other instants, or none. Source: this project; see docs/explanation/bounds.md.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from itertools import count
from typing import Protocol

import numpy as np
from attrs import evolve, frozen
from numpy.typing import NDArray

from remat.algorithms._bounds.decisions import Decision
from remat.algorithms._bounds.fixed_order import spans_of
from remat.algorithms._core.outcome import IMPOSSIBLE
from remat.algorithms._milp.answer import Answer
from remat.algorithms._milp.basis import DualBasis
from remat.algorithms._search.precedence import Chain, Precedence

_PROMISING = 10  # of the instants tried on a chain, how many are tried on the chains that follow from it
_SCAN = 0.15  # share of the effort left that the choice of an instant may take
_SCAN_DECIDED = 0.05  # the same for a leaf with decisions
_SHARE = 0.25  # the same for the choice of a decision
_PATIENCE = 32  # instants in a row that raise no more than those before, after which no more are tried
_PATIENCE_LATER = 8  # the same of a third one or later, once there is one that is worth while
FAILURES = 4  # instants with formulations that cannot be solved, after which no more are tried
_SHORT = 3  # instants up to which any stages are taken together: all pairs of instants
RISE = 0.002  # rise of the relaxed bound for which an instant is inserted
_MEAN_RISE = 0.1  # the same of the mean over the orders that follow

Stage = tuple[int, int]
"""From one instant (a node) to another, or to `END`, the end of the step."""

END = -1


@frozen(order=False, eq=False)
class Leaf:
    """A chain that has not been refined further.

    Attributes:
        chain: of instants.
        together: stages taken together that have rows of their own: any of a short chain; of a longer one those of the chain it
            came from, and the one that its last instant divides.
        relaxed: bound of its relaxation. finished: whether that was solved to its end. bound: the best one [ns of recomputation].
        point: solution of its relaxation. basis: where the dual method ended on that, after so many iterations in all.
        candidates: instants to insert, the most promising first.
        decisions: it stands for the schedules of the chain with all of them.
        checked: how often a solve with integers was asked whether to stop; 0: there was none. each: effort for each time.
        ended: whether that solve came to its end. worst: instant where the plan of its solution is worst.
    """

    chain: Chain
    together: frozenset[Stage]
    relaxed: float
    bound: float
    finished: bool = True
    point: NDArray[np.float64] | None = None
    basis: DualBasis | None = None
    iterations: int = 0
    candidates: tuple[int, ...] = ()
    decisions: tuple[Decision, ...] = ()
    checked: int = 0
    each: float = 0
    ended: bool = False
    worst: int | None = None

    @property
    def unknown(self) -> bool:
        """Whether nothing is known of its relaxation: the formulation is too large, or there was no time for it."""
        return self.point is None and self.relaxed == 0


Kids = list[tuple[Decision, Answer]]
"""Decisions of which every schedule has one, with the relaxed bound of those that do."""


@frozen
class Limits:
    """How far a tree may grow.

    Attributes:
        instants: in a chain. orders: chains at once. effort: of all solves. leaves: at once.
    """

    instants: int
    orders: int
    effort: float
    leaves: int = 500


class Grower(Protocol):
    """What a tree asks of the one who grows it."""

    def relaxed(self, chain: Chain, together: frozenset[Stage], effort: float, leaf: Leaf | None) -> Answer:
        """A relaxed bound of a chain with rows for these stages taken together, for at most an effort.

        The chain is that of the leaf with one more instant, for the schedules with its decisions; None: it is the first.
        """
        ...

    def branched(self, leaf: Leaf, effort: float) -> tuple[Kids, int]:
        """A decision and its opposite, each with the relaxed bound of a leaf's schedules with it; and the effort of finding them.

        No decisions if none raises its bound within an effort.
        """
        ...

    def ranked(self, leaf: Leaf) -> Iterable[int]:
        """The instants to try on a leaf, the most promising first; those of its chain are passed over."""
        ...


class OrderTree:
    """The leaves, and what has been spent on them.

    Attributes:
        target: bound at which a leaf needs no more refinement [ns of recomputation]; may be lowered.
        spent: effort of all solves so far.
    """

    def __init__(
        self, root: Chain, candidates: tuple[int, ...], precedence: Precedence, limits: Limits, grower: Grower
    ) -> None:
        """Begin with a chain that stands for all schedules."""
        self.precedence, self.limits, self.grower = precedence, limits, grower
        self.target: float = IMPOSSIBLE
        self.spent: float = 0
        self._numbers = count()
        self._answers: dict[tuple[Chain, frozenset[Stage], tuple[Decision, ...]], Answer] = {}
        self._leaves: list[tuple[float, int, Leaf]] = []
        self.push(evolve(self._relaxed(root, frozenset(), limits.effort), candidates=candidates))

    def push(self, leaf: Leaf) -> None:
        """Add a leaf, unless no schedule belongs to it."""
        if leaf.bound < IMPOSSIBLE:
            heapq.heappush(self._leaves, (leaf.bound, next(self._numbers), leaf))

    def pop(self) -> Leaf:
        """Take out the leaf of the least bound."""
        return heapq.heappop(self._leaves)[2]

    @property
    def bound(self) -> float:
        """The least bound of a leaf: it holds for every schedule [ns of recomputation]."""
        return self._leaves[0][0] if self._leaves else IMPOSSIBLE

    @property
    def leaves(self) -> list[Leaf]:
        """All of them, one of the least bound first."""
        return [leaf for _, _, leaf in self._leaves]

    def restore(self, leaves: Iterable[Leaf]) -> None:
        """Go back to these leaves, which stand for every schedule too."""
        self._leaves = []
        for leaf in leaves:
            self.push(leaf)

    @property
    def chains(self) -> list[Chain]:
        """Of all leaves, each once."""
        return sorted({leaf.chain for _, _, leaf in self._leaves})

    @property
    def left(self) -> float:
        """Effort that is left."""
        return self.limits.effort - self.spent

    def allow(self, effort: float) -> None:
        """Let it spend so much more from here."""
        self.limits = evolve(self.limits, effort=self.spent + effort)

    def split(self, leaf: Leaf) -> list[Leaf]:
        """A leaf's chain with one more instant at each place; none if no instant raises its relaxed bound."""
        best = self._best(leaf) if len(leaf.chain) < self.limits.instants else None
        return best.kids if best is not None and best.rises else []

    def inserted(self, leaf: Leaf, at: int) -> list[Leaf]:
        """A leaf's chain with an instant at each place, whether or not that raises anything.

        None if they are too many, or one of them takes too much: nothing could follow on it.
        """
        if len(leaf.chain) >= self.limits.instants or at in leaf.chain:
            return []
        split = self._tried(leaf, at, 0, self.spent + _SCAN * self.left)
        return split.kids if split.whole and all(kid.finished for kid in split.kids) else []

    def branched(self, leaf: Leaf) -> list[Leaf]:
        """A leaf's chain with a decision and with its opposite; none if that raises neither bound, or leaves are too many."""
        if leaf.point is None or len(self._leaves) >= self.limits.leaves:
            return []
        kids, effort = self.grower.branched(leaf, _SHARE * self.left)
        self.spent += effort
        return [
            self._leaf(leaf.chain, leaf.together, answer, evolve(leaf, decisions=(*leaf.decisions, decision)))
            for decision, answer in kids
        ]

    def _best(self, leaf: Leaf) -> _Split | None:
        """The instant that raises the least relaxed bound most; of those that raise it equally, the mean."""
        limit = self.spent + (_SCAN_DECIDED if leaf.decisions else _SCAN) * self.left
        best: _Split | None = None
        patience, idle, failures = _PATIENCE, 0, 0
        scores: dict[int, float] = {}
        for at in self.grower.ranked(leaf):
            if self.spent > limit or failures >= FAILURES or idle >= patience:
                break
            if at in leaf.chain:
                continue
            split = self._tried(leaf, at, 0 if best is None else best.value[0], limit)
            failures += split.unknown
            scores[at] = split.value[0]
            idle += 1
            if split.whole and (best is None or split.value > best.value):
                best, idle = split, 0
                patience = _PATIENCE_LATER if best.rises and len(leaf.chain) > 1 else _PATIENCE
        if best is None:
            return None
        promising = sorted(scores, key=lambda at: -scores[at])[: _PROMISING + 1]
        untried = [at for at in leaf.candidates if at not in scores]
        return evolve(best, kids=[evolve(kid, candidates=(*promising, *untried)) for kid in best.kids])

    def _tried(self, leaf: Leaf, at: int, least: float, limit: float) -> _Split:
        """The chains with an instant inserted, up to the first with a relaxed bound below `least`; none if they are too many.

        The effort spent in all stays below `limit`.
        """
        chains = self.precedence.insertions(leaf.chain, at)
        kids: list[Leaf] = []
        if len(self.chains) + len(chains) <= self.limits.orders:
            for chain in chains:
                together = _together(chain) if len(chain) <= _SHORT else leaf.together | _divided(chain, at)
                kids.append(self._relaxed(chain, together, limit - self.spent, leaf))
                if min(kids[-1].relaxed, self.target) < least:
                    break
        reached = [min(kid.relaxed, self.target) for kid in kids] or [0.0]
        value = (min(reached), sum(reached) / len(reached))
        before = min(leaf.relaxed, self.target)
        rises = value[0] > before * (1 + RISE) or (len(kids) > 1 and value[1] > before * (1 + _MEAN_RISE))
        return _Split(kids=kids, value=value, rises=rises, whole=len(kids) == len(chains))

    def _relaxed(self, chain: Chain, together: frozenset[Stage], effort: float, leaf: Leaf | None = None) -> Leaf:
        """A chain with its relaxed bound, found with at most an effort; it is that of a leaf, whose bound holds for it too."""
        key = chain, together, () if leaf is None else leaf.decisions
        answer = self._answers.get(key)
        if answer is None:
            answer = self._answers[key] = self.grower.relaxed(chain, together, effort, leaf)
            self.spent += answer.effort
        return self._leaf(chain, together, answer, leaf)

    def _leaf(self, chain: Chain, together: frozenset[Stage], answer: Answer, leaf: Leaf | None) -> Leaf:
        """A chain with the answer to its relaxation, and with the candidates and decisions of a leaf."""
        relaxed: float = IMPOSSIBLE if answer.infeasible else answer.bound
        return Leaf(
            chain=chain,
            together=together,
            relaxed=relaxed,
            bound=relaxed if leaf is None else max(leaf.bound, relaxed),
            finished=answer.finished,
            point=answer.point,
            basis=answer.basis,
            iterations=answer.iterations,
            candidates=() if leaf is None else leaf.candidates,
            decisions=() if leaf is None else leaf.decisions,
        )


def _together(chain: Chain) -> frozenset[Stage]:
    """Any two or more stages of a chain."""
    ends = (*chain, END)
    return frozenset((ends[start], ends[end]) for start, end in spans_of(len(chain), 2))


def _divided(chain: Chain, at: int) -> frozenset[Stage]:
    """The stage that an instant of a chain divides; none if it is the first."""
    i = chain.index(at)
    return frozenset([(chain[i - 1], chain[i + 1] if i + 1 < len(chain) else END)] if i else [])


@frozen
class _Split:
    """A leaf's chain with an instant inserted.

    Attributes:
        kids: a leaf for each place.
        value: least and mean relaxed bound of them, up to the target.
        rises: whether that is worth while.
        whole: whether there is a leaf for each place.
    """

    kids: list[Leaf]
    value: tuple[float, float]
    rises: bool
    whole: bool

    @property
    def unknown(self) -> bool:
        """Whether there are leaves, and none is known to bound anything."""
        return bool(self.kids) and all(kid.unknown for kid in self.kids)
