"""The problem that a solver solves."""

from __future__ import annotations

from attrs import field, frozen

from remat.ir import Graph, Link
from remat.ir.checks import at_least
from remat.settings import SECONDS, instance, optional, whole
from remat.units import Bytes


@frozen(kw_only=True)
class Problem:
    """A graph, the bytes its schedule may hold, and optionally a link to the host and a deadline.

    Attributes:
        graph: the training step.
        budget: most bytes live in any step, inputs and buffers not counted.
        link: the link to the host; None: schedules may hold no copies.
        host_budget: most bytes that copies may hold on the host; None: no limit. Only with a link.
        deadline: seconds of planning; None: no limit.
        proof_leaves: most leaves of the branch trees of a proof; 0: no trees are grown for a proof.
    """

    graph: Graph = field(validator=instance(Graph, "a captured one"))
    budget: Bytes = field(validator=at_least(0, "bytes"))
    link: Link | None = field(default=None, validator=optional(instance(Link, "Link.symmetric(gb_per_s=12)")))
    host_budget: Bytes | None = field(default=None, validator=optional(whole(0, "bytes")))
    deadline: float | None = field(default=None, validator=optional(SECONDS))
    proof_leaves: int = field(default=0, validator=whole(0, "leaves"))
