"""From a plan to its functions, where it may make copies: how they are run, and whether the host has room for them."""

from __future__ import annotations

from remat.algorithms import Outcome
from remat.errors import RematError
from remat.exec._copy.offloading import Offloading
from remat.exec._plan.replaying import Replay
from remat.exec._program.program import Program
from remat.exec._run.copying import host_need
from remat.exec._run.lowering import Copying, Lowered, lower
from remat.ir import Graph
from remat.units import format_bytes


def lowered_plan(
    program: Program,
    graph: Graph,
    outcome: Outcome,
    offloading: Offloading | None = None,
    replay: Replay | None = None,
) -> Lowered | None:
    """The functions of a plan; None where there is no plan.

    Args:
        program: the captured step.
        graph: what was planned on.
        outcome: the plan and its cost, replayed with the link where it makes copies.
        offloading: where its copies go; None: it makes none.
        replay: the saved plan that it is.

    Raises:
        RematError: X-HOST, when its copies take more host memory than they may.
        StalePlan: X-FIT, when those of a saved plan do.
    """
    if outcome.schedule is None or outcome.cost is None:
        return None
    if offloading is None:
        return lower(program, outcome.schedule)
    copying = Copying.of(graph, outcome.schedule, outcome.cost, offloading.copier(program.device))
    if copying is not None:
        _check_host(graph, copying, offloading, replay)
    return lower(program, outcome.schedule, copying)


def _check_host(graph: Graph, copying: Copying, offloading: Offloading, replay: Replay | None) -> None:
    need, budget = host_need(graph, copying.actions), offloading.host_budget
    if budget is not None and need > budget:
        what = (
            f"the plan's copies take {format_bytes(need)} ({need} B) on the host, and host_budget is {format_bytes(budget)} "
            f"({budget} B)."
        )
        if replay is not None:
            raise replay.without_room(what, need)
        fix = f"give a host_budget of at least {need} bytes, a larger budget, or leave offload out."
        raise RematError("X-HOST", what, fix=fix)


__all__ = ["lowered_plan"]
