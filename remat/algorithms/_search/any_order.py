"""`AnyOrder`: a bound for every schedule from several instants, over all orders of the instants; and plans from its solutions.

A tree of orders (`order_tree`) begins with the hardest instant and refines the order of the least bound: one more instant is
inserted wherever dependencies allow, as long as one raises the relaxed bound, or two together do; then the formulation is
solved with integers, and decisions divide it, chosen by strong branching. Where integers close much of the gap, they are solved
to the end, by turns with instants at which the plan of their solution is worst. Otherwise instants come from where the plan of
a solution exceeds the budget, from heavy working sets, and from the positions of most memory of the best plan. Stages taken
together have rows of their own (see `fixed_order`), so that another instant cannot lower a relaxed bound. A solution also gives
the stage in which each node first runs, so its plan may leave the captured order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain as joined
from itertools import islice, zip_longest

from attrs import evolve, field, frozen

from remat.algorithms._bounds.ordered_instants import Chained
from remat.algorithms._core.outcome import IMPOSSIBLE
from remat.algorithms._milp.answer import EFFORT_RATE, Answer
from remat.algorithms._milp.direct import solve_mixed
from remat.algorithms._search.chain_bounds import ChainBounds
from remat.algorithms._search.instant_choice import candidates, worst_instant, worst_instants
from remat.algorithms._search.lp_rounding import hardest_instants
from remat.algorithms._search.order_tree import FAILURES, RISE, Kids, Leaf, Limits, OrderTree, Stage
from remat.algorithms._search.precedence import Chain, Precedence
from remat.algorithms._search.pressure import Pressures
from remat.algorithms._search.run_move import RunMove
from remat.algorithms._search.solution_starts import SolutionPlans, described
from remat.algorithms._search.state import Search
from remat.settings import number, whole

_CHECKS = 30  # of the solve with integers, a third of a second to one
_MOST_CHECKS = 300  # of one to the end: where that is near, one to three seconds
_FEWEST = 5  # checks, fewer of which bring little
_SOLVED = 0.25  # share of the effort left that it may take
_IDLE = 0.25  # share of the effort of branching that may bring nothing
_VAIN = 1  # instants in a row that are inserted although they raise nothing, and after which nothing rises
_STEP = 100_000  # effort of a step at least: on small graphs calls take longer than iterations
_NEAR = 0.05  # gap of a plan above which divided solutions do not settle: the searches that follow bring more for their work
_INTEGRAL = 0.1  # share of the gap, closed by integers at once, above which they are what the relaxation lacks
_DRAWN = 0.2  # seconds of work for plans of relaxed solutions, per second of all solves that are allowed
_SETTLED = 0.3  # seconds of work in which divided solutions settle, per second of all solves


@frozen
class AnyOrder(RunMove):
    """A bound for every schedule from the saved-set formulation at several instants; and plans from its solutions.

    Attributes:
        rounds: largest number of instants in an order.
        largest: largest number of variables of a formulation, without those of stages taken together; larger ones are not built.
        effort: limit on the effort of all solves (see `Answer`). 1e7: about a second.
        orders: largest number of orders that are bounded, each with instants of its own; the least of their bounds counts.
        scanned: number of heavy working sets among the instants that are tried, and of positions of most memory in the best plan.
        variants: how many preferences of shaving are tried on the sequence that a solution of the least bound describes. On
            those of all other solutions it is one, in haste.
        settling: seconds of work of the search from the sequence that each solution describes.
        patience: number of consecutive instants without a better bound or plan after which no more are inserted.
    """

    rounds: int = field(default=10, validator=whole(1, "instants"))
    largest: int = field(default=10_000, validator=whole(1, "variables"))
    effort: float = field(default=6e7, validator=number(0))
    orders: int = field(default=24, validator=whole(1, "orders"))
    scanned: int = field(default=36, validator=whole(1, "instants"))
    variants: int = field(default=4, validator=whole(1, "variants"))
    settling: float = field(default=0.2, validator=number(0))
    patience: int = field(default=6, validator=whole(1, "instants"))

    def improve(self, search: Search) -> None:
        """Refine the order of the least bound, until the search may end or the formulations cost too much.

        The second time in a search it does nothing: the tree would grow as before.
        """
        if self not in search.bounds.grown and (growth := grown(search, self, self)) is not None:
            with search.charged("bound"):
                growth.run()


Refine = Callable[[Leaf], list[Leaf] | None]
"""What brings leaves in place of one; none or None: it cannot."""


def grown(search: Search, settings: AnyOrder, by: RunMove) -> Growth | None:
    """A tree that a pass grows from the hardest instant, kept for those that follow; None if there is no instant."""
    with search.charged("bound"):
        if (at := next(iter(hardest_instants(search, 1)), None)) is None:
            return None
        growth = search.bounds.grown[by] = Growth(settings, search, at)
        return growth


class Growth:
    """A tree of orders that grows from an instant: by further instants, then by decisions."""

    def __init__(self, settings: AnyOrder, search: Search, at: int) -> None:
        self.settings, self.search = settings, search
        self.precedence = Precedence(search.flat)
        limits = Limits(settings.rounds, settings.orders, settings.effort)
        self.bounds = ChainBounds(search, self.precedence.dependencies, settings.largest)
        self.pressures = Pressures(search.flat, self.precedence.dependencies, search.budget)
        self.plans = SolutionPlans(search, f"the formulation of {settings!r}", settings.variants, settings.settling)
        self.branching = False
        self.vain = 0  # instants inserted although they raised nothing, since the bound last rose
        self._closed: float = 0  # by the last solve with integers: how much it raised the bound of its leaf
        self._before: list[Leaf] = []  # the leaves before the first of them
        self.tree = OrderTree((at,), candidates(search, settings.scanned), self.precedence, limits, self)

    def run(self) -> None:
        """Insert instants while they bring something, solve with integers, then branch with the effort that is left.

        Where integers close much of the gap, relaxed bounds say little: instants that raised one a little only are left out
        again, and others come from integral solutions.
        """
        tree = self.tree
        firm = self._insert()
        little = {leaf.chain for leaf in firm} != set(tree.chains)
        if self._solve():
            if little:
                tree.restore(firm)
                self._solve()
            self._alternate()
        self.branch(tree.left)

    def _insert(self) -> list[Leaf]:
        """Insert instants while they bring something; the leaves after the last one that was worth while by itself."""
        search, tree, idle = self.search, self.tree, 0
        firm, bound = tree.leaves, tree.bound
        while idle < self.settings.patience and not search.over:
            lower, best = search.lower, search.best_time
            if not self._step(tree.split, self._inserted):
                break
            idle = 0 if search.lower > lower or search.best_time < best else idle + 1
            self.vain = 0 if search.lower > lower else self.vain
            if tree.bound > bound * (1 + RISE):
                firm, bound = tree.leaves, tree.bound
        if self.vain:
            tree.restore(self._before)
        return firm

    def _solve(self) -> bool:
        """Solve the leaves of the least bound with integers, while that closes a good part of the gap; whether it did for all."""
        search, bound = self.search, self.tree.bound
        worth = _INTEGRAL * (search.best_time - search.arrays.base_time - bound)
        while not search.over and self._step(self._solved):
            if self._closed <= worth:
                return False
        return self.tree.bound - bound > worth

    def _alternate(self) -> None:
        """Solve with integers to the end where that is near, else branch; then insert where an integral solution's plan is worst.

        Until nothing rises after an instant, which is taken back.
        """
        search, tree = self.search, self.tree
        before, bound = tree.leaves, -1.0
        while not search.over:
            while not search.over and self._step(self._solved_further):
                pass
            leaves, solved = tree.leaves, tree.bound
            if not (leaves and leaves[0].ended):
                self.branch(tree.left)
                if search.over or tree.bound > solved:
                    return
                tree.restore(leaves)
            if solved <= bound:
                tree.restore(before)
                return
            before, bound = leaves, solved
            self.vain, self.branching = 0, False
            if not self._step(self._inserted):
                return

    def branch(self, effort: float) -> None:
        """Branch on decisions, for at most an effort, until nothing is left to do or much of it brought nothing.

        Where none raises a bound, at a leaf whose solution is integral or nearly so, another instant may.
        """
        search, tree = self.search, self.tree
        tree.allow(effort)
        gained, self.branching = tree.spent, True
        while not search.over and tree.spent - gained < _IDLE * effort:
            lower, spent = search.lower, tree.spent
            if not self._step(self._completed, self._branched, tree.split, self._inserted):
                return
            tree.spent = max(tree.spent, spent + _STEP)
            if search.lower > lower:
                gained = tree.spent

    def _step(self, *ways: Refine) -> bool:
        """Refine the leaf of the least bound in the first way that can, and prove that of all; whether there was any."""
        search, tree = self.search, self.tree
        tree.target = search.best_time - search.arrays.base_time
        if tree.bound >= tree.target:
            self._prove()
        if tree.left <= 0 or tree.bound >= tree.target:
            return False
        leaf = tree.pop()
        refined = next(filter(None, (way(leaf) for way in ways)), None)
        for refinement in refined or [leaf]:
            tree.push(refinement)
        if refined is not None:
            self._prove()
        return refined is not None

    def ranked(self, leaf: Leaf) -> list[int]:
        """Instants to try on a leaf: by turns where the plan of its relaxed solution exceeds the budget, and its candidates.

        Offers that plan too, unless it branches from another: then divided solutions settle.
        """
        formulation = self.bounds.of(leaf)
        if leaf.point is None or formulation is None:
            return list(leaf.candidates)
        plan = described(self.search, formulation, leaf.point)
        if not self.branching or self.search.best is None:
            self.plans.offer(plan, len(leaf.chain))
        worst = worst_instants(self.search, plan, self.pressures)
        both = joined.from_iterable(zip_longest(worst, leaf.candidates))
        return list(dict.fromkeys(at for at in both if at is not None))

    def _inserted(self, leaf: Leaf) -> list[Leaf] | None:
        """A leaf's chain with one more instant although it raises no relaxed bound; None if none of the first few can be added.

        Another one may raise it then. None too, before it branches, where the last ones were added in vain.
        """
        if not self.branching:
            if self.vain == _VAIN:
                return None
            if not self.vain:
                self._before = [*self.tree.leaves, leaf]
            self.vain += 1
        instants = leaf.candidates if leaf.worst is None else (leaf.worst, *leaf.candidates)
        tries = (self.tree.inserted(leaf, at) for at in islice(dict.fromkeys(instants), FAILURES + len(leaf.chain)))
        return next(filter(None, tries), None)

    def _solved(self, leaf: Leaf) -> list[Leaf] | None:
        """A leaf solved with integers, briefly: its plan is often of another kind than those of divided solutions."""
        return None if leaf.checked else self._with_integers(leaf, _CHECKS)

    def _solved_further(self, leaf: Leaf) -> list[Leaf] | None:
        """A leaf solved with integers, to the end if that is near."""
        return self._with_integers(leaf, _MOST_CHECKS)

    def _with_integers(self, leaf: Leaf, most: int) -> list[Leaf] | None:
        """A leaf solved with integers in at most so many checks.

        None if that is likely to take too much (each check as much as the relaxation from nothing, unless checks were counted),
        or if it was done.
        """
        each = leaf.each or max(1, leaf.iterations**2 // 3)
        checks = min(most, int(_SOLVED * self.tree.left / each))
        few = checks < _FEWEST or checks <= leaf.checked or leaf.ended
        if few or leaf.decisions or (formulation := self.bounds.of(leaf)) is None:
            return None
        answer = solve_mixed(formulation.linear, checks=checks, dives=False, clock=self.search.clock)
        self.tree.spent += answer.effort
        if answer.infeasible:
            self._closed = IMPOSSIBLE
            return [evolve(leaf, bound=IMPOSSIBLE)]  # no schedule has this order
        worst = leaf.worst
        if answer.point is not None:
            plan = described(self.search, formulation, answer.point)
            self.plans.offer(plan, len(leaf.chain))
            worst = worst_instant(self.search, plan, leaf.chain)
        bound = max(leaf.bound, answer.bound)
        self._closed = bound - leaf.bound
        each = answer.effort / checks
        return [evolve(leaf, bound=bound, checked=checks, ended=answer.finished, each=each, worst=worst)]

    def _prove(self) -> None:
        """The least bound of all leaves holds for every schedule."""
        search, chains = self.search, self.tree.chains
        instants = tuple(sorted(set(joined.from_iterable(chains))))
        names = ", ".join(search.problem.graph.computes[at].name for at in instants)
        orders = f"{names}; {len(chains)} orders" if chains else "no order has a schedule"
        how = f"instants in any order ({orders}; integers, less the tolerance)"
        # certificates know a set of instants in all its orders
        whole = all(len(chain) == len(instants) for chain in chains)
        search.prove(self.tree.bound + search.arrays.base_time, how, claim=instants if whole else ())

    def relaxed(self, chain: Chain, together: frozenset[Stage], effort: float, leaf: Leaf | None) -> Answer:
        """A relaxed bound of a chain, for at most an effort; 0 where the formulation is too large or there is no time."""
        answer = self.bounds.relaxed(chain, together, effort, leaf)
        self._draw(self.bounds.of_chain(chain, together), (answer,))
        return answer

    def _draw(self, formulation: Chained | None, answers: Iterable[Answer]) -> None:
        """A plan from the solution of each answer, as long as that takes little beside the solves."""
        for answer in answers:
            if self.plans.drawn > _DRAWN * self.settings.effort / EFFORT_RATE or formulation is None:
                return
            if answer.point is not None:
                self.plans.draw(described(self.search, formulation, answer.point), len(formulation.instants))

    def branched(self, leaf: Leaf, effort: float) -> tuple[Kids, int]:
        """The decision at an instant of a leaf that raises its bound most, and its opposite."""
        kids, spent = self.bounds.branched(leaf, effort, self.tree.target)
        self._draw(self.bounds.of(leaf), (answer for _, answer in kids))
        return kids, spent

    def _branched(self, leaf: Leaf) -> list[Leaf]:
        """A leaf with a decision and with its opposite; the plan of the solution that was divided settles, if few have."""
        kids = self.tree.branched(leaf)
        formulation = self.bounds.of(leaf) if kids else None
        if formulation is None or leaf.point is None:
            return kids
        near = self.search.best is None or self.search.best_time <= (1 + _NEAR) * self.search.lower
        if near and self.plans.settled < _SETTLED * self.tree.spent / EFFORT_RATE:
            self.plans.settle(described(self.search, formulation, leaf.point), len(leaf.chain))
        return kids

    def _completed(self, leaf: Leaf) -> list[Leaf] | None:
        """A leaf whose relaxation was cut off, solved to its end; None if it is, or that would take too much."""
        if leaf.finished:
            return None
        if (again := self.bounds.solved(leaf, self.tree.left)) is None:
            return None
        answer, basis = again
        self.tree.spent += answer.effort
        if answer.infeasible:
            return [evolve(leaf, bound=IMPOSSIBLE)]
        if not answer.finished:
            return None
        bound = max(leaf.bound, answer.bound)
        ended = evolve(leaf, finished=True, point=answer.point, basis=basis, iterations=answer.iterations)
        return [evolve(ended, relaxed=answer.bound, bound=bound)]
