"""The problem that a solver solves."""

from __future__ import annotations

from attrs import field, frozen

from remat.errors import IllFormed
from remat.ir import Graph, Link
from remat.ir.checks import at_least
from remat.settings import SECONDS, instance, optional, whole
from remat.units import LARGEST, Bytes, Ns


@frozen(kw_only=True)
class Problem:
    """A graph, the bytes its schedule may hold, and optionally a link to the host and a deadline.

    Attributes:
        graph: the training step.
        budget: most bytes live in any step, inputs and buffers not counted.
        link: the link to the host; None: schedules may hold no copies.
        host_budget: most bytes that copies may hold on the host; None: no limit. Without a link it limits nothing: no schedule
            holds copies then.
        deadline: seconds of planning; None: no limit.
        proof_leaves: most leaves of the branch trees of a proof; 0: no trees are grown for a proof.

    Raises:
        BadArgument: a value that is none of these; G-RANGE, when copying all data both ways takes longer than 2^63 - 1 ns.
    """

    graph: Graph = field(validator=instance(Graph, "a captured one"))
    budget: Bytes = field(validator=at_least(0, "bytes"))
    link: Link | None = field(default=None, validator=optional(instance(Link, "Link.symmetric(gb_per_s=12)")))
    host_budget: Bytes | None = field(default=None, validator=optional(whole(0, "bytes")))
    deadline: float | None = field(default=None, validator=optional(SECONDS))
    proof_leaves: int = field(default=0, validator=whole(0, "leaves"))

    def __attrs_post_init__(self) -> None:
        if self.link is not None and _copying(self.graph, self.link) > LARGEST - self.graph.time:
            what = f"copying the data of {self.graph!r} over {self.link!r} takes longer than 2^63 - 1 ns."
            raise IllFormed("G-RANGE", f"Problem: {what}", fix="give a faster link, or none.")


def _copying(graph: Graph, link: Link) -> Ns:
    """At most so long do copies of all data and phantoms take, once each way [ns]."""
    largest = [max(option.phantom for option in layer.options) for layer in graph.layers]
    sizes = [datum.size for datum in graph.data if not datum.outside] + largest
    latencies = link.to_host_latency + link.to_device_latency
    return link.offload_time(sum(sizes)) + link.prefetch_time(sum(sizes)) + len(sizes) * (latencies + 2)
