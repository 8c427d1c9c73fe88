"""A plan to start from: a short search over run sequences. The MILP solve then looks only for better plans, and proves the rest.

Good plans of a block are found in milliseconds; a MILP solver spends most of its time on finding them again and on proving that
nothing much better exists. With a plan as cutoff only the proof is left. The plan may run nodes in another order than the
formulation's class; the bound of the class stays what the MILP solve proves.
"""

from __future__ import annotations

from attrs import evolve

from remat.algorithms._core.clock import Clock
from remat.algorithms._core.outcome import Outcome
from remat.algorithms._core.problem import Problem
from remat.ir import Graph
from remat.units import Bytes, Ns

_SMALL = 60
"""Nodes below which a MILP solve proves bounds as fast as the bounds of single instants do."""


def starting_plan(problem: Problem, gap: float, clock: Clock, seed: int = 0, *, bound: Ns = 0) -> Outcome:
    """A plan and a bound of every schedule; neither, where run sequences cannot represent the graph.

    Args:
        problem: what to plan.
        gap: plan over bound, less one, at which to stop.
        clock: stops it early.
        seed: of its random choices.
        bound: holds for the formulation's class [ns]; a plan within the gap of it ends the search.
    """
    from remat.algorithms._search import stop
    from remat.algorithms._search.floor import Floor
    from remat.algorithms._search.lp_rounding import SavedSet
    from remat.algorithms._search.passes import MultiStart, RuinAndRecreate
    from remat.algorithms._search.pipeline import Polish
    from remat.algorithms._search.run_move import RunMove
    from remat.algorithms._search.single_instant import SingleInstant

    shaved: tuple[RunMove, ...] = (Floor(), MultiStart())
    near = stop.gap(gap)
    if bound:
        first = Polish(shaved, near).solve(problem, clock=clock, seed=seed)
        if first.upper <= bound * (1 + gap):
            return first
    more: tuple[RunMove, ...] = (RuinAndRecreate(work=5e5),)
    if len(problem.graph) >= _SMALL:
        more = (SingleInstant(mixed=0), SavedSet(instants=2), RuinAndRecreate(work=1e7))
    return Polish(shaved + more, near).solve(problem, clock=clock, seed=seed)


def narrowed(block: Graph, peak: Bytes, save: Bytes) -> Graph | None:
    """The block with so much workspace at its loss that a budget of `peak` leaves `save` for what is held across it.

    None where no workspace expresses that: kept sums that are started before the loss and completed after it.
    """
    loss = block.computes[block.loss]
    kept = [datum for datum in block.data if datum.keep and datum.writers]
    early = [datum for datum in kept if block.node_index[datum.writers[0]] <= block.loss]
    if len(loss.options) != 1 or any(block.node_index[datum.writers[-1]] > block.loss for datum in early):
        return None
    present = {*loss.reads, *loss.writes, *(datum.name for datum in early)}
    rest = peak - save - sum(datum.size for datum in block.data if datum.name in present and not datum.outside)
    option = loss.options[0]
    if rest <= option.workspace:
        return block
    wider = evolve(loss, options=(evolve(option, workspace=rest),))
    computes = tuple(wider if node is loss else node for node in block.computes)
    return Graph(name=block.name, computes=computes, data=block.data, layers=block.layers)
