"""Passes that prove with a link: the floor that copies leave, and the bound at the hardest instants."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from attrs import field, frozen

from remat.algorithms._arrays.graph_arrays import FORWARD, Floats, Longs, row_of
from remat.algorithms._arrays.liveness import memory_profile
from remat.algorithms._bounds.floor import first_run_floor
from remat.algorithms._copies.copy_search import CopyMove, CopySearch
from remat.algorithms._copies.link_bound import LinkInstant, Reach, instants_of, link_formulation
from remat.algorithms._core.outcome import IMPOSSIBLE
from remat.algorithms._milp.basis import Basis
from remat.algorithms._milp.direct import solve_relaxed
from remat.algorithms._proving.evidence import AtInstant
from remat.settings import tuple_of, whole


@frozen
class LinkFloor(CopyMove):
    """Proves that no schedule exists where the first run of one node, with what is kept, exceeds the budget. Plans nothing."""

    purpose: ClassVar[str] = "bound"

    def improve(self, search: CopySearch) -> None:
        """Compare the budget with the part of the floor that holds with copies."""
        floor, node = first_run_floor(search.flat)
        if search.problem.budget < floor:
            place = "the end of the step" if node < 0 else search.problem.graph.computes[node].name
            evidence = None
            if node >= 0 and search.flat.phase[node] != FORWARD:  # instants are of the loss and after it
                evidence = AtInstant(search.problem, IMPOSSIBLE, at=node, facts=[["mem", 0]], multipliers=np.ones(1))
            search.prove(IMPOSSIBLE, f"the floor of {floor} B at {place}", evidence)


@frozen
class LinkInstants(CopyMove):
    """The largest bound of the saved-set formulation with copies over some instants; exact from duals. Plans nothing.

    Attributes:
        after_loss: which backward nodes after the loss are examined, from 0, without those that may be postponed past most of
            the backward; the loss is too.
        heaviest: how many positions of most memory.
        patience: number of consecutive instants without a better bound after which it stops, on graphs of more than 2,000 nodes.
    """

    purpose: ClassVar[str] = "bound"

    after_loss: tuple[int, ...] = field(default=(1, 2, 3, 4, 5, 6, 7, 8, 10), validator=tuple_of(whole(0, "nodes")))
    heaviest: int = field(default=2, validator=whole(0, "instants"))
    patience: int = field(default=3, validator=whole(1, "instants"))

    def improve(self, search: CopySearch) -> None:
        """Solve the relaxations and keep what their solutions have on the host."""
        flat = search.flat
        profile, charged = np.zeros(flat.time.size, np.int64), np.zeros(len(search.base), np.int64)
        memory_profile(flat, search.base, len(search.base), charged)
        profile[search.base] = charged
        reach, idle, basis = Reach(flat), 0, None
        for at in instants_of(flat, reach.dependencies, profile, self.after_loss, self.heaviest):
            if search.clock.expired or search.within(search.close) or (search.large and idle == self.patience):
                return
            before = search.lower
            basis = _prove_at(search, reach, at, basis)
            idle = 0 if search.lower > before else idle + 1


def _prove_at(search: CopySearch, reach: Reach, at: int, before: Basis | None) -> Basis | None:
    """The bound at one instant, for schedules up to the best plan; without a plan, for those that wait for every copy.

    Begins where the instant before it ended, and returns where it ended itself.
    """
    flat, lanes = search.flat, search.lanes
    everything = search.base_time + int(lanes.out.sum() + lanes.back.sum())
    most = everything if search.overhead is None else search.overhead
    formulation = link_formulation(flat, lanes, reach, at, most)
    name = search.problem.graph.computes[at].name
    if formulation.instant.impossible:
        evidence = AtInstant(search.problem, IMPOSSIBLE, at=at, facts=[["mem", 0]], multipliers=np.ones(1))
        search.prove(IMPOSSIBLE, f"the single instant at {name}", evidence)
        return before
    basis = Basis(formulation.column_names, formulation.row_names, before)
    answer = solve_relaxed(formulation.linear, start=basis, clock=search.clock)
    if answer.infeasible:  # with a plan this says that none is faster
        bound = IMPOSSIBLE if search.best is None else search.base_time + most
    else:
        bound = search.base_time + min(answer.bound, most)
    duals, facts = answer.duals, formulation.facts
    written = None if duals is None else AtInstant(search.problem, bound, at=at, facts=facts, multipliers=duals)
    search.prove(bound, f"the single instant at {name} (relaxed, exact)", written)
    if answer.point is not None:
        search.marks_of_bound.append((answer.bound, _marks(search, formulation, answer.point)))
    return basis


def _marks(search: CopySearch, formulation: LinkInstant, point: Floats) -> Longs:
    """The order that shavings begin with, with copies, across the instant, of what the solution has on the host."""
    flat, order = search.flat, search.start
    mask = search.bare(order)
    away = np.zeros(flat.size.size, np.bool_)
    columns = formulation.off >= 0
    away[columns] = point[formulation.off[columns]] >= 0.5
    away &= search.lanes.movable
    here = int(np.flatnonzero(order == formulation.instant.at)[0])
    for i in range(here + 1, len(order)):
        for k, d in enumerate(row_of(flat.reads, order[i]).tolist()):
            if away[d]:
                mask[i] |= 1 << k
                away[d] = False
    return mask
