"""Passes over plans with copies: copies alone, shaving with two moves, the plan of another solver replaced, ruin and recreate."""

from __future__ import annotations

import itertools

import numpy as np
from attrs import field, frozen

from remat.algorithms._arrays.graph_arrays import Flags, Floats, Ints, Longs, Seed
from remat.algorithms._arrays.postponing import postponed_order
from remat.algorithms._arrays.rng import fraction, fractions
from remat.algorithms._copies.copy_moves import BOTH, COPIES, Prices
from remat.algorithms._copies.copy_order import reordered_plan
from remat.algorithms._copies.copy_search import CopyMove, CopyPlan, CopySearch
from remat.algorithms._core.problem import Problem
from remat.settings import number, tuple_of, whole
from remat.units import LARGEST, Ns

_LANE_PRICES = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 2.5)
_CHEAP = 0.02  # price of lane time up to a capacity
_CAPACITIES = (0.0, 0.15, 0.3, 0.6, 1.2)  # of the time without recomputation; the first and the last are not tried
_FACTORS = (1.05, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.75)
_NEAR = 1.03  # plans that are slower by more before they are polished are not polished
_FAR = 1.25  # plans that are slower by more stay behind the best one: polishing saves a tenth at most
_AROUND = 150  # visits a node, by which what an iteration does outside its kernels counts as work
_PASSES = 2  # of a polish, at most; of one within a search, one pass


def shaved_plan(search: CopySearch, seq: Ints, prices: Prices) -> list[CopyPlan]:
    """The plan of one shaving of a sequence without copies, if there is time for it and it fits."""
    if search.clock.expired:
        return []
    added = search.shaved(seq, search.bare(seq), prices, search.streams.spawn("copies"))
    plan = None if added is None else search.replayed(*added)
    return [] if plan is None or not plan.fits else [plan]


def offer_polished(search: CopySearch, distinct: dict[Ns, CopyPlan], most: int, how: str) -> None:
    """Polish the fastest of some plans and offer them; the best of them is another start of `RuinCopies`."""
    polished: list[CopyPlan] = []
    for _, plan in sorted(distinct.items())[:most]:
        if search.clock.expired and (polished or search.best is not None):
            break
        polished.append(search.polished(plan.seq, plan.mask, whole_span(plan.seq), _PASSES))
    polished.sort(key=lambda plan: plan.time)
    for plan in polished:
        search.offer(plan, how)
    search.other_starts += polished[:1]


def whole_span(seq: Ints) -> tuple[int, int]:
    """All positions of a sequence."""
    return 0, len(seq)


@frozen
class CopiesAlone(CopyMove):
    """Shaving by copies alone, for links fast enough to do without recomputation."""

    def improve(self, search: CopySearch) -> None:
        """One shaving, polished if the link is fast; else only where `ReplaceReruns` finds it near the best plan."""
        prices = Prices(search.time_prices, 1.0, 1.0, 0.0, 0.0, COPIES)
        added = search.shaved(search.start, search.bare(search.start), prices, search.streams.spawn("copies"))
        if added is None:
            return
        plan = search.replayed(*added)
        if plan.fits and plan.time <= _FAR * search.base_time:
            plan = search.polished(*added, whole_span(added[0]), _PASSES)
        search.offer(plan, repr(self))


@frozen
class ReplaceReruns(CopyMove):
    """Delete the reruns of the best plans, or copy what they make, most expensive first; then clear copies."""

    def improve(self, search: CopySearch) -> None:
        """Polish the plans of the pool, but those that polishing leaves as they are, or far behind."""
        for plan in tuple(search.pool):
            behind = search.best is not None and plan.time > _FAR * search.best.time
            if not (plan.settled or behind or search.clock.expired):
                search.settle(plan)
                search.offer(search.polished(plan.seq, plan.mask, whole_span(plan.seq), 2 * _PASSES), repr(self))


@frozen
class ShaveBoth(CopyMove):
    """Shaving with reruns and copies, for many prices of lane time; the best plans are polished.

    With one price for all lane time, either nearly all gaps of a regular graph are closed by copies or nearly none. So lane time
    is also tried as cheap up to a capacity and dear beyond; the steps between capacities are halved around the best.

    Attributes:
        lane_prices: prices of a nanosecond of lane time without a capacity, in nanoseconds of compute time; not tried on
            graphs of more than 2,000 nodes.
        exponents: weights of the price in the score; the smaller, the more large data are preferred to many small ones.
            Capacities are tried with the first, on graphs of more than 2,000 nodes with the last.
        best: how many of the plans are polished; a third of them on graphs of more than 2,000 nodes.
        halvings: of the steps between capacities.
    """

    lane_prices: tuple[float, ...] = field(default=_LANE_PRICES, validator=tuple_of(number(0)))
    exponents: tuple[float, ...] = field(default=(1.0, 0.7), validator=tuple_of(number(0)))
    best: int = field(default=6, validator=whole(1, "plans"))
    halvings: int = field(default=2, validator=whole(0, "halvings"))

    def improve(self, search: CopySearch) -> None:
        """Shave for each pair and for the capacities, polish the fastest of distinct times."""
        large = search.large
        plans = [self._filled(search, self.exponents[-1] if large else self.exponents[0])]
        if not large:
            plans += [self._shaved(search, lane, exp) for exp in self.exponents for lane in self.lane_prices]
        distinct = {plan.time: plan for plan in itertools.chain.from_iterable(plans)}
        for time in sorted(distinct)[: self.best // 3 if large else self.best]:
            if search.clock.expired and search.best is not None:
                return
            plan = distinct[time]
            search.offer(search.polished(plan.seq, plan.mask, whole_span(plan.seq), _PASSES), repr(self))

    def _filled(self, search: CopySearch, exponent: float) -> list[CopyPlan]:
        """Plans for capacities: those between, then on both sides of the best, at half the distance, `halvings` times."""
        tried: dict[float, CopyPlan | None] = {_CAPACITIES[0]: None, _CAPACITIES[-1]: None}
        wanted = list(_CAPACITIES[1:-1])
        for _ in range(1 + self.halvings):
            for capacity in wanted:
                tried[capacity] = next(iter(self._shaved(search, _CHEAP, exponent, capacity)), None)
            fitting = {capacity: plan.time for capacity, plan in tried.items() if plan is not None}
            if not fitting or search.clock.expired:
                break
            best, ordered = min(fitting, key=lambda capacity: fitting[capacity]), sorted(tried)
            at = ordered.index(best)
            wanted = [(best + ordered[at - 1]) / 2, (best + ordered[at + 1]) / 2]
        return [plan for plan in tried.values() if plan is not None]

    @staticmethod
    def _shaved(search: CopySearch, lane: float, exponent: float, capacity: float = np.inf) -> list[CopyPlan]:
        """The plan of one shaving, if it fits; `capacity` in parts of the time without recomputation."""
        prices = Prices(search.time_prices, lane, exponent, 0.0, 0.0, BOTH, capacity * search.base_time)
        return shaved_plan(search, search.start, prices)


@frozen
class ShavePostponed(CopyMove):
    """Shavings of orders with room beside their heavy nodes, where there is no plan without copies.

    What is kept from its first run on cannot be copied away. Where a heavy node and what is kept by then just fit, everything
    else is away while it runs, and waited for; in an order in which more is made after it, less is.

    Attributes:
        reserves: shares of the budget that each heavy node must leave free; one order for each, unless it is like an earlier one.
        lane_prices: prices of a nanosecond of lane time. exponent: weight of the price in the score.
        best: how many of the plans are polished.
    """

    reserves: tuple[float, ...] = field(default=(0.1, 0.2, 0.3, 0.5), validator=tuple_of(number(0, 1)))
    lane_prices: tuple[float, ...] = field(default=(0.1, 0.8, 2.5), validator=tuple_of(number(0)))
    exponent: float = field(default=0.7, validator=number(0))
    best: int = field(default=4, validator=whole(1, "plans"))

    def improve(self, search: CopySearch) -> None:
        """Shave each order for each price, polish the fastest; the best of them is a start of `RuinCopies` too."""
        if search.plain_gap != float("inf") or search.within(search.close):
            return
        tried, distinct = [search.start], dict[Ns, CopyPlan]()
        for reserve in self.reserves:
            room = min(search.problem.budget, int(search.problem.budget * (1 - reserve)))
            order = postponed_order(search.flat, search.base, room)
            if any(np.array_equal(order, other) for other in tried):
                continue
            tried.append(order)
            for lane in self.lane_prices:
                prices = Prices(search.time_prices, lane, self.exponent, 0.0, 0.0, BOTH)
                distinct |= {plan.time: plan for plan in shaved_plan(search, order, prices)}
        offer_polished(search, distinct, self.best, repr(self))


@frozen
class BoundMarks(CopyMove):
    """Copy what the bound's relaxed solution has on the host at the hardest instants, and shave the rest.

    Left out on graphs of more than 2,000 nodes, where it takes as long as dozens of iterations of `RuinCopies`.

    Attributes:
        instants: how many of them.
        lane_prices: prices of lane time of the shaving.
    """

    instants: int = field(default=2, validator=whole(1, "instants"))
    lane_prices: tuple[float, ...] = field(default=(0.1, 0.4, 1.3), validator=tuple_of(number(0)))

    def improve(self, search: CopySearch) -> None:
        """Shave from the marks of each instant; the best plan is a start of `RuinCopies` too."""
        if search.large or search.within(search.close):
            return
        plans = []
        for _, mask in sorted(search.marks_of_bound, key=lambda entry: -entry[0])[: self.instants]:
            for lane in self.lane_prices:
                if search.clock.expired:
                    return
                prices = Prices(search.time_prices, lane, 1.0, 0.0, 0.0, BOTH)
                added = search.shaved(search.start, mask, prices, search.streams.spawn("copies"))
                if added is not None:
                    plans.append(search.polished(*added, whole_span(added[0]), 1))
        fitting = [plan for plan in plans if plan.fits]
        if fitting:
            best = min(fitting, key=lambda plan: plan.time)
            search.other_starts.append(best)
            search.offer(best, repr(self))


@frozen
class LargerBudgets(CopyMove):
    """Plan without copies for larger budgets, roughly, and shave these plans with copies down to the budget.

    Copies serve what a budget somewhat larger leaves to be saved; which reruns to keep then is another question than which are
    best without copies. Shaving alone, with both moves at once, decides it gap by gap.

    Attributes:
        factors: of the budget, increasing; the last that counts is the first at which nothing is recomputed.
        lane_prices: prices of a nanosecond of lane time of the shavings.
        best: how many of the plans are polished.
        plain: least gap of the plan without copies for which it runs, unless that took two seconds of effort. Where that one is
            proved at once, so long a pass would take many times its time.
    """

    factors: tuple[float, ...] = field(default=_FACTORS, validator=tuple_of(number(1)))
    lane_prices: tuple[float, ...] = field(default=(0.02, 0.3, 1.0), validator=tuple_of(number(0)))
    best: int = field(default=3, validator=whole(1, "plans"))
    plain: float = field(default=0.0015, validator=number(0))

    def improve(self, search: CopySearch) -> None:
        """Shave the plan of each budget for each price; the best plan is a start of `RuinCopies` too."""
        if search.rough is None or search.at_once(self.plain) or search.within(search.close):
            return
        distinct: dict[Ns, CopyPlan] = {}
        for seq in self._starts(search):
            for lane in self.lane_prices:
                prices = Prices(search.time_prices, lane, 1.0, 0.0, 0.0, BOTH)
                distinct |= {plan.time: plan for plan in shaved_plan(search, seq, prices)}
        offer_polished(search, distinct, self.best, repr(self))

    def _starts(self, search: CopySearch) -> list[Ints]:
        """The plans without copies, by increasing budget.

        The largest budget is planned first: where none is found for one, the search for others below it would only take longer.
        """
        starts: list[Ints] = []
        for factor in reversed(self.factors):
            seq = self._rough(search, factor)
            if seq is None:
                break
            if len(seq) == len(search.base):
                starts.clear()  # nothing is recomputed: `ShaveBoth` began with that, if in another order
            else:
                starts.append(seq)
        return starts[::-1]

    @staticmethod
    def _rough(search: CopySearch, factor: float) -> Ints | None:
        """The runs of a plan without copies for a larger budget, if there is one, with heavy nodes relieved for this one."""
        if search.rough is None or search.clock.expired:
            return None
        larger = Problem(graph=search.problem.graph, budget=min(LARGEST, int(search.problem.budget * factor)))
        aside = search.clock.aside()
        outcome = search.rough.solve(larger, clock=aside, seed=search.seed)
        search.rough_effort += aside.effort
        if outcome.schedule is None:
            return None
        return postponed_order(search.flat, search.runs_of(outcome.schedule)[0], search.problem.budget)


@frozen
class RuinCopies(CopyMove):
    """Large-neighborhood search: remove reruns, copies or both from a window, shave it again, polish it, keep what is not worse.

    Some iterations also change the order of runs, which take their copies along.

    A quarter of the work starts from the second best plan, and another from that of `BoundMarks`. All searches together take no
    more than a few times the effort of the plan without copies, where there is one.

    Attributes:
        work: amount of work of a search, independent of the size of the graph. most: iterations of one, at most.
        temperature: relative worsening accepted at the beginning; falls to zero.
        unless: the search is left out when the best plan is within this gap of the bound.
        searches: how many, one after the other, each unless the best plan is within the gap by then.
        disorder, undone, gathering: shares of the iterations that change the order of runs, as in `RuinAndRecreate`.
    """

    work: float = field(default=4.5e6, validator=number(0))
    temperature: float = field(default=0.005, validator=number(0))
    unless: float = field(default=0.0, validator=number(0))
    disorder: float = field(default=0.0, validator=number(0, 1))
    undone: float = field(default=0.5, validator=number(0, 1))
    gathering: float = field(default=0.0, validator=number(0, 1))
    most: int = field(default=2000, validator=whole(1, "iterations"))
    searches: int = field(default=1, validator=whole(1, "searches"))

    def improve(self, search: CopySearch) -> None:
        """Search from several plans, from the best one last, as often as that may bring more."""
        for _ in range(self.searches):
            self._search(search)

    def _search(self, search: CopySearch) -> None:
        if search.best is None or search.within(self.unless):
            return
        nodes, left = len(search.base), search.effort_left
        total = min(self.most, 40 * nodes, int(self.work / nodes**1.5))
        others = [*search.pool[1:2], *search.other_starts[-1:]] if total >= 40 else []
        number_ = search.next_search()
        for rank, plan in enumerate(others, 1):
            self._descend(
                search, plan, (total // 4, left / 4), search.streams.spawn("ruined copies", 3 * number_ + rank)
            )
        rest = total - len(others) * (total // 4)
        self._descend(
            search, search.best, (rest, search.effort_left), search.streams.spawn("ruined copies", 3 * number_)
        )

    def _descend(self, search: CopySearch, current: CopyPlan, most: tuple[int, float], rng: Seed) -> None:
        """Improve a plan in so many iterations at most, and so many seconds of effort."""
        (iterations, effort), began, done = most, search.effort, 0
        while done < iterations and search.effort < began + effort:
            if search.clock.expired or search.within(search.close):
                return
            progress = max(done / iterations, (search.effort - began) / effort)
            slack = self.temperature * (1 - progress) * fraction(rng)
            trial = self._iterate(search, current, int(current.time * (1 + slack)), rng)
            if trial is not None:
                current = trial
                if search.best is None or current.time < search.best.time:
                    search.offer(current, repr(self))
            done += 1

    def _iterate(self, search: CopySearch, current: CopyPlan, limit: Ns, rng: Seed) -> CopyPlan | None:
        """A changed plan of at most `limit` ns, or None."""
        n = len(current.seq)
        search.flat.work[0] += _AROUND * n
        width = max(6, int(n * (0.02 + 0.3 * fraction(rng) ** 2)))
        lo = int(fraction(rng) * (n + width)) - width
        lo, hi = max(0, lo), min(n, lo + width)
        kept, mask = ruined(search, current, (lo, hi), rng)
        seq, mask, span = current.seq[kept], mask[kept], (lo, lo + int(kept[lo:hi].sum()))
        if self.disorder or self.gathering:
            changes = float(self.disorder), float(self.undone), float(self.gathering)
            seq, mask, span = reordered_plan(search.flat, (seq, mask), span, changes, rng)
        added = search.shaved(seq, mask, distorted(search, rng), rng)
        if added is None:
            return None
        longer = len(added[0]) - len(seq)
        plan = search.polished(*added, (span[0], span[1] + longer), 1, most=int(current.time * _NEAR))
        return plan if plan.fits and plan.time <= limit else None


def ruined(search: CopySearch, plan: CopyPlan, span: tuple[int, int], rng: Seed) -> tuple[Flags, Longs]:
    """(runs that stay, masks) of a plan without the reruns, the copies, or both, in a span of positions."""
    n, (lo, hi) = len(plan.seq), span
    kind, chance = int(fraction(rng) * 3), 1.0 if fraction(rng) < 0.5 else fraction(rng)
    chosen = np.zeros(n, np.bool_)
    chosen[lo:hi] = fractions(rng, hi - lo) < chance
    mask = np.where(chosen, 0, plan.mask) if kind != 0 else plan.mask.copy()
    kept = np.ones(n, np.bool_)
    if kind != 1:
        first = np.zeros(n, np.bool_)
        first[np.unique(plan.seq, return_index=True)[1]] = True
        kept = first | ~search.flat.rerun[plan.seq] | ~chosen
    return kept, mask


def distorted(search: CopySearch, rng: Seed) -> Prices:
    """Random preferences: prices of nodes and of lane time, exponent, noise, share, capacity."""
    price: Floats = search.time_prices
    if fraction(rng) < 0.5:
        spread = 0.5 * fraction(rng)
        price = price * (1.0 + spread * (2 * fractions(rng, len(price)) - 1))
    lane = 0.01 * 250.0 ** fraction(rng)
    share = 0.3 * fraction(rng) if fraction(rng) < 0.3 else 0.0
    exponent, noise = 0.6 + 0.8 * fraction(rng), 0.6 * fraction(rng)
    capacity = 0.2 * search.base_time * fraction(rng) ** 2 if fraction(rng) < 0.5 else np.inf
    return Prices(price, lane if capacity == np.inf else _CHEAP, exponent, noise, share, BOTH, capacity)
