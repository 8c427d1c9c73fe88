"""A captured step with what its operations cost, and what a loss outside the module holds."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from remat.algorithms import store_all_peak
from remat.exec._capture.capturing import Captured
from remat.exec._cost.cost import OpCost, estimate, resized
from remat.exec._cost.shared import measured
from remat.exec._plan.build import build_graph, recosted
from remat.exec._plan.settings import Settings
from remat.exec._program.program import Program
from remat.ir import Graph, Link
from remat.units import Bytes

SCALARS: Bytes = 4096
"""Scalars that a loss outside the module is assumed to hold while the backward runs."""


@frozen
class Outside:
    """What a loss outside the module holds: at its peak, and while the backward runs; measured or assumed.

    `excess` is the part of `retained` that gradients take which arrive in another layout than the trace's.
    """

    reserve: Bytes
    retained: Bytes
    measured: bool = False
    excess: Bytes = 0


@frozen(kw_only=True, eq=False)
class Costed:
    """A captured step with what its operations cost.

    Attributes:
        program: with sizes as measured.
        graph: to plan on.
        loss: what a loss outside the module holds.
        peak: of a step that keeps everything [bytes].
        link: that copies go over, as given or measured; None: there are none.
    """

    program: Program
    graph: Graph
    loss: Outside
    peak: Bytes
    link: Link | None = None


@frozen
class Alike:
    """A graph that differs from another one in costs alone, and the signatures of the other one's nodes, by name."""

    graph: Graph
    signatures: Mapping[str, str]


def cost_step(
    captured: Captured,
    settings: Settings,
    known_costs: dict[str, OpCost] | None,
    outside: Outside | None = None,
    *,
    brief: bool = False,
) -> Costed:
    """Cost a captured step; arguments as for `plan_step`, and whether a few calls of each operation are enough."""
    program = captured.program
    costs = estimate(program) if settings.cost == "estimate" else measured(program, known_costs, brief=brief)
    return with_costs(captured, settings, costs, outside=outside)


def with_costs(
    captured: Captured,
    settings: Settings,
    costs: Mapping[str, OpCost],
    *,
    outside: Outside | None = None,
    alike: Alike | None = None,
) -> Costed:
    """A captured step with costs of its nodes; `alike`: a graph of the same structure, and the signatures of the nodes."""
    program = resized(captured.program, costs)
    loss = outside or outside_of(program, captured, settings)
    reserves = {"loss_reserve": loss.reserve, "loss_retained": loss.retained}
    if alike is None:
        graph = build_graph(program, costs, **reserves)
    else:
        graph = recosted(alike.graph, program, costs, alike.signatures, **reserves)
    link = settings.link(program.device)
    return Costed(program=program, graph=graph, loss=loss, peak=store_all_peak(graph), link=link)


def outside_of(program: Program, captured: Captured, settings: Settings) -> Outside:
    """Nothing for a loss inside; else `loss_reserve`, else twice the outputs that the loss reads: a copy and one gradient.

    A few scalars (the loss, the gradient it starts with) stay until the backward has ended.
    """
    if settings.loss_reserve is not None:
        return Outside(max(0, settings.loss_reserve - SCALARS), min(SCALARS, settings.loss_reserve))
    if is_loss_inside(captured):
        return Outside(0, 0)
    got = [program.storage_of(program.outputs[at]).size for at in captured.differentiable]
    return Outside(2 * sum(got), SCALARS)


def is_loss_inside(captured: Captured) -> bool:
    """Whether gradients come back through one 0-dim output, which the caller only calls backward on."""
    if len(captured.differentiable) != 1:
        return False
    output = captured.program.outputs[captured.differentiable[0]]
    return captured.program.values[output].spec.shape == ()
