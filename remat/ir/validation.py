"""The validator: replays a schedule step by step in exact integers and returns its cost, or names the rule it breaks.

It shares no code with any solver. The rules and their ids are those of `docs/reference/rules.md`.
"""

from __future__ import annotations

from numbers import Integral

from remat.errors import IllFormed
from remat.ir.arguments import A_GRAPH, A_LINK, A_SCHEDULE
from remat.ir.cost import Cost
from remat.ir.graph import Graph
from remat.ir.link import Link
from remat.ir.replay import Replay
from remat.ir.schedule import Schedule
from remat.ir.step import Offload, Prefetch
from remat.ir.transfer import LinkReplay
from remat.settings import takes
from remat.units import Bytes

SCHEDULE_RULES = {
    "S-NAME": "a step names a node, option or datum of the graph",
    "S-READ": "what a step reads is resident and complete; a backward layer finds the phantom of its own option",
    "S-PHASE": "the loss runs exactly once; every forward node first runs before it; no backward node runs before it",
    "S-ORDER": "first runs of nodes that draw random numbers keep the graph's order",
    "S-ONCE": "run-once nodes are never replayed; each contribution comes once per residency, in order",
    "S-KEEP": "a complete kept datum is never dropped or offloaded",
    "S-DROP": "only what is resident is dropped or offloaded, only what was offloaded is prefetched",
    "S-END": "every kept datum is resident and complete at the end",
    "S-MEM": "resident bytes, all outputs of the running node and its workspace fit the budget at every step",
    "S-LINK": "a copy has a link, uses its direction alone, and its bytes count until it has ended",
}


@takes(graph=A_GRAPH, schedule=A_SCHEDULE, link=A_LINK)
def validate(graph: Graph, schedule: Schedule, budget: Bytes | None = None, link: Link | None = None) -> Cost:
    """Replay `schedule` on `graph`.

    Args:
        graph: the training step.
        schedule: steps, named by the graph's names.
        budget: most bytes that may be live at any moment; None: no limit.
        link: the link that copies go over; None: the schedule may hold no copies.

    Returns:
        The cost, in exact integers.

    Raises:
        IllFormed: G-INT, when the budget is not an int.
        InvalidSchedule: the subclass of the broken rule, with rule, step, place and numbers as attributes.
    """
    if budget is not None and (isinstance(budget, bool) or not isinstance(budget, Integral)):
        raise IllFormed(
            "G-INT", f"validate: the budget is {budget!r:.80}, not an int.", fix="give whole bytes as an int."
        )
    if link is not None and any(isinstance(step, (Offload, Prefetch)) for step in schedule.steps):
        return LinkReplay(graph, schedule, budget, link).play()
    return Replay(graph, schedule, budget).play()
