"""Plans of steps of one structure, for steps of other sizes: a schedule keeps about its share of the peak over sizes.

For each structure there is a family: run sequences for a grid of shares of the peak, each made when a size first needs it, on the
largest step seen until then; and the sequences of the plans made so far. A new size takes the fastest that fits its budget,
and a short search goes on from it. Where its program was filled in from others and no time is to be lost, there is no grid: where
the family knows no share nearby, or recomputes less there, the size has a member made for itself.
"""

from __future__ import annotations

import logging
import math

from attrs import define, field, frozen

from remat.algorithms import Clock, Outcome, Problem, store_all_peak
from remat.algorithms._core.startup import importing
from remat.exec._program.digest import structure_digest
from remat.exec._program.program import Program
from remat.ir import Graph
from remat.units import Bytes

logger = logging.getLogger(__name__)

STEP = 5
"""Percent of the peak between two members of the grid."""
AROUND = (0, -1, 1)
"""Members that a size has made, in steps from the share it needs: the first, and the others where nothing fits then, since a
sequence takes a few percent more or less at other sizes."""
WORK = 1e6
"""Of the search at a new size, as `RuinAndRecreate` counts it: some hundredths of a second on hundreds of nodes."""
FILLED_WORK = 2e5
"""Likewise, where the program was filled in from others and no time is to be lost."""
MEMBER_STARTS, MEMBER_WORK = 4, 2e6
"""Of the search for a member: less than a tenth of a second on hundreds of nodes; five times as much gains 0 to .3 points."""
NEAR = 2
"""Percent of the peak between a share and those that tell what a plan there recomputes."""
COARSE = 0.01
"""Recomputation, as a share of the step, by which a plan may exceed what is known nearby; beyond it, a size has a member made."""
DONE = 0.0005
"""Overhead at which the search at a new size stops."""
NODES = 300
"""Larger graphs are searched for longer in proportion."""
LEAST_SCALE = 1 / 3
"""Of the search for a member: on smaller graphs it is shorter in proportion, down to this."""
MOST_FAMILIES = 8
"""Structures whose families a module keeps; the least recently used is forgotten."""
MOST_PLANS = 24
"""Plans of single sizes that a family keeps besides the grid; likewise."""

SINGLE, UNRELATED, FAMILY, REPAIRED = "own", "unrelated", "family", "repaired"
"""Where a plan comes from: made for its step; likewise, and no earlier step has its operations; a sequence of the family,
improved; one that did not fit, shaved and improved."""
ALONE = (SINGLE, UNRELATED)

Runs = tuple[int, ...]


@frozen
class Relation:
    """A plan by way of the family: the outcome, and "family" or "repaired"."""

    outcome: Outcome
    provenance: str
    work: float = WORK

    @property
    def planner(self) -> str:
        """Who made it, for reports."""
        return f"plans of other sizes, RuinAndRecreate(work={self.work:g})"


@define(eq=False)
class Family:
    """What is known of the plans of one structure.

    Attributes:
        largest: the step of the largest peak so far.
        peak: of it, when everything is kept [bytes].
        grid: run sequences by share of the peak [percent]; None: no plan was found for it.
        plans: those of single sizes, by share of their own peak in half steps.
        overheads: by share, what plans that were searched for there recompute, as a share of their step.
    """

    largest: Graph
    peak: Bytes
    grid: dict[int, Runs | None] = field(factory=dict)
    plans: dict[int, Runs] = field(factory=dict)
    overheads: dict[int, float] = field(factory=dict)

    def sequences(self) -> tuple[Runs, ...]:
        """All run sequences, each once."""
        return tuple(dict.fromkeys(runs for runs in (*self.grid.values(), *self.plans.values()) if runs is not None))

    def take(self, graph: Graph, peak: Bytes) -> None:
        """Have members be made on this step from now on, if it is larger."""
        if peak > self.peak:
            self.largest, self.peak = graph, peak

    def fill(self, share: int, clock: Clock, seed: int, around: tuple[int, ...] = AROUND) -> None:
        """Make the members around a share [percent] that the grid lacks."""
        nearest = share // STEP * STEP
        for steps in around:
            at = nearest + steps * STEP
            if 0 < at < 100 and at not in self.grid and not clock.expired:
                outcome = _member(self.largest, at * self.peak // 100, clock, seed)
                if outcome.schedule is not None:
                    self.grid[at] = runs_of(self.largest, outcome)
                    self.overheads[at] = _overhead(self.largest, outcome)
                elif not clock.expired:
                    self.grid[at] = None

    def expected(self, share: int) -> float | None:
        """What a plan at a share [percent] recomputes, as the nearest one tells; None: there is none nearby."""
        near = [known for known in self.overheads if abs(known - share) <= NEAR]
        return self.overheads[min(near, key=lambda known: (abs(known - share), known))] if near else None

    def at_once(self, graph: Graph, budget: Bytes, share: int, clock: Clock, seed: int) -> tuple[Outcome, float]:
        """A plan for a step that was filled in, and the work of the search for it.

        Arguments as for `relation`, and the share [percent] that the budget is.
        """
        expected, outcome = self.expected(share), Outcome()
        if expected is not None or clock.expired:
            outcome = _searched(graph, budget, self.sequences(), clock, seed, FILLED_WORK)
            lean = outcome.cost is not None and expected is not None and _overhead(graph, outcome) <= expected + COARSE
            if lean or clock.expired or share in self.overheads:
                return outcome, FILLED_WORK
        outcome = outcome.merge(_member(graph, budget, clock, seed, self.sequences()))
        if not clock.expired:
            self.overheads[share] = math.inf if outcome.cost is None else _overhead(graph, outcome)
        if outcome.schedule is not None:
            self.keep(share, runs_of(graph, outcome))
        return outcome, MEMBER_WORK

    def keep(self, share: int, runs: Runs) -> None:
        """Keep the plan of a single size."""
        self.plans.pop(share, None)
        self.plans[share] = runs
        for old in list(self.plans)[:-MOST_PLANS]:
            del self.plans[old]

    def copied(self) -> Family:
        """The same for a copy of the module."""
        return Family(self.largest, self.peak, dict(self.grid), dict(self.plans), dict(self.overheads))


@define(eq=False)
class Families:
    """The families of a wrapped module, by structure, the most recently used last."""

    by_structure: dict[str, Family] = field(factory=dict)

    def has(self, program: Program) -> bool:
        """Whether a step of this structure was planned before."""
        return structure_digest(program) in self.by_structure

    def relation(
        self, program: Program, graph: Graph, budget: Bytes, *, peak: Bytes, clock: Clock, seed: int
    ) -> Relation | None:
        """A plan within the budget from those of other sizes; None: there is no family, or nothing of it can be made to fit.

        Args:
            program: the captured step.
            graph: of it.
            budget: what the plan may hold [bytes]; less than the peak.
            peak: of a step that keeps everything [bytes].
            clock: its deadline.
            seed: of the searches.

        Raises:
            KeyboardInterrupt: it was interrupted, and there is no plan yet; else the best so far is kept.
        """
        structure = structure_digest(program)
        family = self.by_structure.pop(structure, None)
        if family is None:
            return None
        self.by_structure[structure] = family
        family.take(graph, peak)
        with importing():
            from remat.algorithms._search.relatives import is_repaired
        share = 100 * budget // peak
        if program.structure:  # it was filled in
            outcome, work = family.at_once(graph, budget, share, clock, seed)
        else:
            outcome, work = Outcome(), WORK
            for around in (AROUND[:1], AROUND[1:]):
                family.fill(share, clock, seed, around)
                outcome = _searched(graph, budget, family.sequences(), clock, seed, WORK)
                if outcome.schedule is not None and not is_repaired(outcome.trail):
                    break
        if clock.stopped and outcome.schedule is None:
            raise KeyboardInterrupt
        if outcome.schedule is None:
            return None
        provenance = REPAIRED if is_repaired(outcome.trail) else FAMILY
        logger.info("%s: %d sequences, %s", graph.name, len(family.sequences()), provenance)
        return Relation(outcome, provenance, work)

    def learn(self, program: Program, graph: Graph, outcome: Outcome) -> None:
        """Take a plan into the family of its structure, which begins with it."""
        if outcome.schedule is None or outcome.cost is None or not graph.flat:
            return
        structure, peak = structure_digest(program), store_all_peak(graph)
        family = self.by_structure.pop(structure, None) or Family(graph, peak)
        self.by_structure[structure] = family
        family.take(graph, peak)
        if outcome.cost.reruns:
            half = max(1, STEP // 2)
            share = 100 * outcome.cost.peak // peak
            family.keep(share // half * half, runs_of(graph, outcome))
            family.overheads.setdefault(share, _overhead(graph, outcome))
        for old in list(self.by_structure)[:-MOST_FAMILIES]:
            del self.by_structure[old]

    def copied(self) -> Families:
        """The same for a copy of the module."""
        return Families({structure: family.copied() for structure, family in self.by_structure.items()})


def runs_of(graph: Graph, outcome: Outcome) -> Runs:
    """The run sequence of a plan, as numbers of nodes."""
    assert outcome.schedule is not None
    return tuple(graph.node_index[run.node] for run in outcome.schedule.runs)


def _scale(graph: Graph, least: float = 1.0) -> float:
    """How much more work a search on a graph has than on one of some hundred nodes."""
    return max(least, len(graph.computes) / NODES)


def _overhead(graph: Graph, outcome: Outcome) -> float:
    """What a plan recomputes, as a share of the step."""
    assert outcome.cost is not None
    return outcome.cost.time / graph.time - 1


def _member(graph: Graph, budget: Bytes, clock: Clock, seed: int, sequences: tuple[Runs, ...] = ()) -> Outcome:
    """A plan that others are measured by; the search for it begins with these sequences too."""
    with importing():
        from remat.algorithms import MultiStart, Polish, RuinAndRecreate, gap
        from remat.algorithms._search.relatives import Relatives
    passes = (MultiStart(starts=MEMBER_STARTS), RuinAndRecreate(work=MEMBER_WORK * _scale(graph, LEAST_SCALE)))
    known = (Relatives(sequences, variants=1),) if sequences else ()
    return Polish((*known, *passes), stop=gap(DONE)).solve(
        Problem(graph=graph, budget=budget), clock=clock.nested(), seed=seed
    )


def _searched(
    graph: Graph, budget: Bytes, sequences: tuple[Runs, ...], clock: Clock, seed: int, work: float
) -> Outcome:
    """The fastest of the sequences that fits, or the nearest shaved, after a short search; without any sequence, nothing."""
    if not sequences:
        return Outcome()
    with importing():
        from remat.algorithms import Polish, RuinAndRecreate, gap
        from remat.algorithms._search.relatives import Relatives
    relatives = Relatives(sequences)  # alone it offers its sequences even when the time is over
    solver = (
        relatives if clock.expired else Polish((relatives, RuinAndRecreate(work=work * _scale(graph))), stop=gap(DONE))
    )
    return solver.solve(Problem(graph=graph, budget=budget), clock=clock.nested(), seed=seed)


__all__ = ["ALONE", "FAMILY", "REPAIRED", "SINGLE", "UNRELATED", "Families", "Family", "Relation", "runs_of"]
