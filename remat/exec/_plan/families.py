"""Plans of steps of one structure, for steps of other sizes: a schedule keeps about its share of the peak over sizes.

For each structure there is a family: the run sequences of plans made so far, and the shares of the peak that plans were searched
for at, with what they recompute. A new size takes the fastest sequence that fits its budget, and a short search goes on from
it. Where nothing is known of a share nearby, or less was recomputed there, the size has a member made: a longer search, which
begins with all sequences.
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
"""Run sequences that a family keeps; likewise."""

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
        plans: run sequences by share of the peak [percent], the last one that was made.
        overheads: by share, what plans that were searched for there recompute, as a share of their step.
    """

    plans: dict[int, Runs] = field(factory=dict)
    overheads: dict[int, float] = field(factory=dict)

    def sequences(self) -> tuple[Runs, ...]:
        """All run sequences, each once."""
        return tuple(dict.fromkeys(self.plans.values()))

    def expected(self, share: int) -> float | None:
        """What a plan at a share [percent] recomputes, as the nearest one tells; None: there is none nearby."""
        near = [other for other in self.overheads if abs(other - share) <= NEAR]
        return self.overheads[min(near, key=lambda other: (abs(other - share), other))] if near else None

    def plan(
        self, graph: Graph, budget: Bytes, share: int, clock: Clock, seed: int, short: float
    ) -> tuple[Outcome, float]:
        """A plan, and the work of the search for it.

        Arguments as for `relation`, and the share that the budget is [percent], and the work of a short search.
        """
        expected, outcome = self.expected(share), Outcome()
        if expected is not None or clock.expired:
            outcome = _searched(graph, budget, self.sequences(), clock, seed, short)
            lean = outcome.cost is not None and expected is not None and _overhead(graph, outcome) <= expected + COARSE
            if lean or clock.expired or share in self.overheads:
                return outcome, short
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
        return Family(dict(self.plans), dict(self.overheads))


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
        with importing():
            from remat.algorithms._search.relatives import is_repaired
        short = FILLED_WORK if program.structure else WORK
        outcome, work = family.plan(graph, budget, 100 * budget // peak, clock, seed, short)
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
        structure = structure_digest(program)
        family = self.by_structure[structure] = self.by_structure.pop(structure, Family())
        if outcome.cost.reruns:
            share = 100 * outcome.cost.peak // store_all_peak(graph)
            family.keep(share, runs_of(graph, outcome))
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
    relatives = (Relatives(sequences, variants=1),) if sequences else ()
    return Polish((*relatives, *passes), stop=gap(DONE)).solve(
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
