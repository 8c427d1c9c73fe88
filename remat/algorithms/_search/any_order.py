"""`AnyOrder`: a bound for every schedule from several instants, over all orders of the instants; and plans from its solutions.

A tree of orders (`order_tree`) begins with the hardest instant and refines the order of the least bound: one more instant is
inserted wherever dependencies allow, or the formulation is solved with integers. Instants come from where the plan of a solution
exceeds the budget, from heavy working sets, and from the positions of most memory of the best plan. Stages taken together
have rows of their own (see `fixed_order`), so that another instant cannot lower a relaxed bound. A solution, with integers or
relaxed, also gives the stage in which each node first runs, so its plan may leave the captured order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain as joined
from itertools import islice, zip_longest

from attrs import evolve, field, frozen

from remat.algorithms._core.outcome import IMPOSSIBLE
from remat.algorithms._milp.answer import EFFORT_RATE, Answer
from remat.algorithms._milp.direct import solve_mixed
from remat.algorithms._search.chain_bounds import ChainBounds
from remat.algorithms._search.instant_choice import candidates, worst_instant, worst_instants
from remat.algorithms._search.lp_rounding import hardest_instants
from remat.algorithms._search.order_tree import FAILURES, THOROUGHLY, Kids, Leaf, Limits, OrderTree, Stage
from remat.algorithms._search.precedence import Chain, Precedence
from remat.algorithms._search.pressure import Pressures
from remat.algorithms._search.run_move import RunMove
from remat.algorithms._search.solution_starts import SolutionPlans, described
from remat.algorithms._search.state import Search
from remat.settings import number, whole

_FULL = 1500  # variables up to which a formulation gets all branch-and-bound nodes
_LARGE = 6000  # rows above which a thorough solve has no rows for stages taken together
_BRIEF = 30  # checks of the first solve of a chain, a third of a second to one: what follows takes ten times as long for less
_CHECKS = 100  # of the second, where another instant brings nothing
_FEWEST = 5  # checks, fewer of which bring little
_LATE = 0.5  # share of the effort after which one step that brings nothing is the last, if the gap is
_CLOSE = (0.005, 0.02)  # in this range; below it nothing branches
_IDLE = 0.5  # share of the effort of branching that may bring nothing
_STEP = 100_000  # effort of a step at least: on small graphs calls take longer than iterations
_NEAR = 0.05  # gap of a plan above which divided solutions do not settle: the searches that follow bring more for their work
_SETTLED = 0.3  # seconds of work in which divided solutions settle, per second of all solves
_CHOICE = 0.1  # of the effort, for the choice of instants to try


@frozen
class AnyOrder(RunMove):
    """A bound for every schedule from the saved-set formulation at several instants; and plans from its solutions.

    Attributes:
        rounds: largest number of instants in an order.
        nodes: branch-and-bound nodes of a formulation; with more than 1500 variables fewer, in inverse proportion to the square
            of their number.
        largest: largest number of variables of a formulation, without those of stages taken together; larger ones are not built.
        effort: limit on the effort of all solves (see `Answer`); what is likely to exceed it is not solved. 1e7: about a second.
        orders: largest number of orders that are bounded, each with instants of its own; the least of their bounds counts.
        scanned: number of heavy working sets among the instants that are tried, and of positions of most memory in the best plan.
        variants: how many preferences of shaving are tried on the sequence that each solution describes.
        settling: seconds of work of the search from the sequence that each solution describes.
        patience: number of consecutive steps without a better bound or plan after which it stops.
        accuracy: relative gap at which a formulation counts as solved.
    """

    rounds: int = field(default=10, validator=whole(1, "instants"))
    nodes: int = field(default=60, validator=whole(1, "nodes"))
    largest: int = field(default=10_000, validator=whole(1, "variables"))
    effort: float = field(default=6e7, validator=number(0))
    orders: int = field(default=24, validator=whole(1, "orders"))
    scanned: int = field(default=36, validator=whole(1, "instants"))
    variants: int = field(default=4, validator=whole(1, "variants"))
    settling: float = field(default=0.2, validator=number(0))
    patience: int = field(default=6, validator=whole(1, "steps"))
    accuracy: float = field(default=0.002, validator=number(0))

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
    """A tree of orders that grows from an instant: by instants and solves with integers, or by decisions."""

    def __init__(self, settings: AnyOrder, search: Search, at: int) -> None:
        self.settings, self.search = settings, search
        self.precedence = Precedence(search.flat)
        limits = Limits(settings.rounds, settings.orders, settings.effort)
        self.bounds = ChainBounds(search, self.precedence.dependencies, settings.largest)
        self.pressures = Pressures(search.flat, self.precedence.dependencies, search.budget)
        self.plans = SolutionPlans(search, f"the formulation of {settings!r}", settings.variants, settings.settling)
        self.branching = False
        tried = candidates(search, settings.scanned, _CHOICE * settings.effort)
        solved = THOROUGHLY if at in search.bounds.integral else 0
        self.tree = OrderTree((at,), tried, self.precedence, limits, self, solved=solved)

    def run(self) -> None:
        """Step by step, until nothing is left to do or too many steps in a row brought nothing: late, a single one."""
        search, idle = self.search, 0
        while idle < (1 if self._late else self.settings.patience) and not search.over:
            before = (search.lower, search.best_time)
            if not self._step(self._ways):
                return
            idle = 0 if (search.lower, search.best_time) != before else idle + 1

    @property
    def _late(self) -> bool:
        """Whether branching is likely to bring more than further instants; where the plan is far off, they bring plans."""
        near, far = ((1 + gap) * self.search.lower for gap in _CLOSE)
        return near < self.search.best_time <= far and self.tree.spent > _LATE * self.settings.effort

    def branch(self, effort: float) -> None:
        """Branch on decisions, for at most an effort, until nothing is left to do or much of it brought nothing.

        Where none raises a bound, at a leaf whose solution is integral or nearly so, another instant may.
        """
        search, tree = self.search, self.tree
        tree.allow(effort)
        gained, self.branching, tree.integers = tree.spent, True, False
        while not search.over and tree.spent - gained < _IDLE * effort:
            lower, spent = search.lower, tree.spent
            if not self._step(lambda _: (self._completed, self._branched, tree.split, self._inserted)):
                return
            tree.spent = max(tree.spent, spent + _STEP)
            if search.lower > lower:
                gained = tree.spent

    def _step(self, ways: Callable[[Leaf], Iterable[Refine]]) -> bool:
        """Refine the leaf of the least bound in the first way that can, and prove that of all; whether there was any."""
        search, tree = self.search, self.tree
        tree.target = search.best_time - search.arrays.base_time
        if tree.bound >= tree.target:
            self._prove()
        if tree.left <= 0 or tree.bound >= tree.target:
            return False
        leaf = tree.pop()
        refined = next(filter(None, (way(leaf) for way in ways(leaf))), None)
        for refinement in refined or [leaf]:
            tree.push(refinement)
        if refined is not None:
            self._prove()
        return refined is not None

    def _ways(self, leaf: Leaf) -> Iterator[Refine]:
        """An instant that raises the relaxed bound; else solved briefly, then with one more instant, then thoroughly."""
        yield self.tree.split
        if not leaf.solved or self.tree.left > 4 * _CHECKS * leaf.weight:
            yield self._solved
        if leaf.solved:
            yield self._inserted
        yield self._solved

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

        Another one may raise it then, and integers may. The one where the plan of the leaf's solution is worst comes first.
        """
        instants = leaf.candidates if leaf.worst is None else (leaf.worst, *leaf.candidates)
        tries = (self.tree.inserted(leaf, at) for at in islice(dict.fromkeys(instants), FAILURES + len(leaf.chain)))
        return next(filter(None, tries), None)

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
        return self.bounds.relaxed(chain, together, effort, leaf)

    def branched(self, leaf: Leaf, effort: float) -> tuple[Kids, int]:
        """The decision at an instant of a leaf that raises its bound most, and its opposite."""
        return self.bounds.branched(leaf, effort, self.tree.target)

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
        return [evolve(ended, relaxed=answer.bound, bound=bound, weight=answer.effort)]

    def _solved(self, leaf: Leaf) -> list[Leaf] | None:
        """A leaf solved with integers, offering plans; None if that is likely to take too much, or there is nothing to gain.

        Briefly at first, with rows for stages taken together; thoroughly without them where the formulation would be large.
        """
        search, tree = self.search, self.tree
        checks = min(_CHECKS if leaf.solved else _BRIEF, int(tree.left / max(1, leaf.weight)))
        if search.clock.expired or leaf.solved == THOROUGHLY or checks < _FEWEST:
            return None
        formulation = self.bounds.of_chain(leaf.chain, leaf.together)
        if leaf.solved and (formulation is None or len(formulation.linear.rhs) > _LARGE):
            formulation = self.bounds.of_chain(leaf.chain, None)
        if formulation is None:
            return None
        share = min(1.0, _FULL / max(1, formulation.variables))
        nodes = max(1, int(self.settings.nodes * share**2))
        linear, dives = formulation.linear, bool(leaf.solved)
        answer = solve_mixed(linear, self.settings.accuracy, nodes, checks=checks, dives=dives, clock=search.clock)
        tree.spent += answer.effort
        if answer.infeasible:
            return [evolve(leaf, bound=IMPOSSIBLE)]  # no schedule has this order
        plan = None if answer.point is None else described(search, formulation, answer.point)
        worst = None if plan is None else worst_instant(search, plan, leaf.chain)
        if plan is not None:
            self.plans.offer(plan, len(leaf.chain))
        solved = THOROUGHLY if answer.finished else leaf.solved + 1
        weight = max(leaf.weight, answer.effort // checks)
        bound = max(leaf.bound, answer.bound)
        return [evolve(leaf, bound=bound, weight=weight, solved=solved, worst=worst)]
