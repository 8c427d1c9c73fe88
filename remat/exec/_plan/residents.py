"""What a schedule holds at its peak: data by name, with the module that made each."""

from __future__ import annotations

import re
from collections.abc import Iterable

from attrs import frozen

from remat.ir import Drop, Graph, Run, Schedule, validate
from remat.units import Bytes

_NUMBER = re.compile(r"(?<![^.])[0-9]+(?![^.])")
"""A part of a module's path that is a number."""


@frozen(kw_only=True)
class Residents:
    """What is held at the peak of a schedule without copies, of a flat graph.

    Attributes:
        peak: [bytes].
        node: what runs there.
        data: names of what is resident, with what the node writes, in the order of the graph.
        workspace: the rest of the peak: what the node takes beyond its outputs, and what is held twice for a moment [bytes].
    """

    peak: Bytes
    node: str
    data: tuple[str, ...]
    workspace: Bytes


def residents_at_peak(graph: Graph, schedule: Schedule) -> Residents:
    """Walk to the first step that reaches the peak; errors as of `validate`."""
    cost = validate(graph, schedule)
    resident: set[str] = set()
    node = ""
    for step in schedule.steps[: cost.peak_step + 1]:
        if isinstance(step, Run):
            resident.update(graph.node(step.node).writes)
            node = step.node
        elif isinstance(step, Drop):
            resident.discard(step.datum)
    data = tuple(datum.name for datum in graph.data if datum.name in resident)
    workspace = cost.peak - sum(graph.datum(name).size for name in data)
    return Residents(peak=cost.peak, node=node, data=data, workspace=workspace)


def makers(graph: Graph) -> dict[str, str]:
    """The path of the module that makes each datum; of what the loss makes or nobody, the empty path."""
    scopes: dict[str, str] = {}
    for node in graph.computes:
        for name in node.writes:
            scopes.setdefault(name, node.scope)
    return {datum.name: scopes.get(datum.name, "") for datum in graph.data}


def shortened(path: str, depth: int) -> str:
    """The first `depth` parts of a module's path, and the number that follows them: `blocks.3` of `blocks.3.feed.0` for 1."""
    parts = path.split(".")
    count = depth
    while count < len(parts) and parts[count].isdigit():
        count += 1
    return ".".join(parts[:count])


def pattern(path: str) -> str:
    """A path with its numbers left open: `blocks.*.feed.*` of `blocks.3.feed.0`."""
    return _NUMBER.sub("*", path)


def span(paths: Iterable[str]) -> str:
    """Paths of one pattern as a text: `blocks.0 … blocks.11`; one path as it is."""
    ordered = list(paths)
    return ordered[0] if len(ordered) == 1 else f"{ordered[0]} … {ordered[-1]}"


__all__ = ["Residents", "makers", "pattern", "residents_at_peak", "shortened", "span"]
