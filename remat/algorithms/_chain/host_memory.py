"""What copies of the chain planners hold on the host, and how they keep a limit of it.

The papers offload to a host without a limit. Every cell offloaded by these planners leaves before the loss and comes back after
it, so the host holds all of them at the loss.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from attrs import evolve

from remat.algorithms._chain.transfers import Trace
from remat.algorithms._core.problem import Problem
from remat.ir import Link, Phase
from remat.units import LARGEST, Bytes

_SECOND = 10**9
_UNLIMITED: Bytes = 1 << 62


def host_room(problem: Problem) -> Bytes:
    """What copies may hold on the host [bytes]; without a limit, more than any graph has."""
    return _UNLIMITED if problem.host_budget is None else problem.host_budget


def held_on_host(traced: Trace, cells: Collection[str]) -> Bytes:
    """What the copies of `cells` hold on the host at the loss, when all have left and none has come back [bytes]."""
    return sum(stay.size for stay in traced.stays if stay.cell in cells)


def within_host(problem: Problem, traced: Trace, away: Mapping[str, int]) -> dict[str, int]:
    """The copies without groups that the device has room for, the first to start first, until the host has room for the rest."""
    gone = dict(away)
    for start in dict.fromkeys(away.values()):
        if held_on_host(traced, gone) <= host_room(problem):
            break
        fewer = {cell: at for cell, at in gone.items() if at != start}
        if max(traced.without(fewer)) <= problem.budget:
            gone = fewer
    return gone


def slower_links(problem: Problem) -> list[Link | None]:
    """Links whose lane to the host carries during the forward about what the host may hold, and less; at last no link.

    The search knows no limit of the host. With a slower lane it offloads less and recomputes more.
    """
    if problem.link is None or problem.host_budget is None:
        return []
    nodes = problem.graph.computes
    forward = sum(min(option.time for option in node.options) for node in nodes if node.phase is not Phase.BACKWARD)
    rate = problem.host_budget * _SECOND // max(1, forward)
    rates = [part for part in (rate, rate // 2, rate // 4) if 0 < part < (problem.link.to_host or LARGEST)]
    return [*(evolve(problem.link, to_host=part) for part in rates), None]


def those_with_room(traced: Trace, away: set[str], room: Bytes) -> set[str]:
    """The cells of a set that are offloaded before the host is full; the others stay on the device."""
    fitting: set[str] = set()
    for stay in sorted(traced.stays, key=lambda stay: (stay.leaves, stay.maker)):
        if stay.cell in away and stay.size <= room:
            fitting.add(stay.cell)
            room -= stay.size
    return fitting
