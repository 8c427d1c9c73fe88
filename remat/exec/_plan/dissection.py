"""What a captured step consists of: nodes, kinds of operations, what the forward leaves for the backward, guards."""

from __future__ import annotations

import re
from collections import Counter

from attrs import frozen

from remat.exec._capture.capturing import Captured
from remat.exec._plan.residents import makers, pattern
from remat.ir import Data, Graph, Kind, Phase
from remat.units import Bytes

_COUNTED = re.compile(r"_[0-9]+$")


@frozen(kw_only=True)
class Saved:
    """Data of one size that like operations of like modules leave for the backward.

    Attributes:
        module: path with its numbers left open, `blocks.*.feed.0`; empty: the model itself.
        operation: what makes it, as `addmm`.
        size: of each [bytes].
        count: how many there are.
        only_backward: whether nothing but the backward reads it.
    """

    module: str
    operation: str
    size: Bytes
    count: int
    only_backward: bool

    @property
    def total(self) -> Bytes:
        """All of them [bytes]."""
        return self.size * self.count


@frozen(kw_only=True)
class Anatomy:
    """A captured step in numbers.

    Attributes:
        forward, backward: number of nodes.
        signatures: number of different operations: the same code on the same shapes counts once.
        commonest: the most frequent of them: the name of its first node, and how many there are.
        draws, run_once: nodes that draw random numbers, and that may not be run again.
        saved: what the forward leaves for the backward, the largest sums first.
        guards: what each call is compared with, as text with the line that asks.
    """

    forward: int
    backward: int
    signatures: int
    commonest: tuple[str, int]
    draws: int
    run_once: int
    saved: tuple[Saved, ...]
    guards: tuple[str, ...]


def anatomy(captured: Captured, graph: Graph) -> Anatomy:
    """Look at a captured step and its graph."""
    phases = Counter(node.phase for node in graph.computes)
    signatures = Counter(node.signature for node in graph.computes if node.phase is not Phase.LOSS)
    text, count = signatures.most_common(1)[0] if signatures else ("", 0)
    reads = dict.fromkeys((*captured.guards.reads, *captured.late))
    return Anatomy(
        forward=phases[Phase.FORWARD],
        backward=phases[Phase.BACKWARD],
        signatures=len(signatures),
        commonest=(next((node.name for node in graph.computes if node.signature == text), ""), count),
        draws=sum(node.draws for node in graph.computes),
        run_once=sum(node.run_once for node in graph.computes),
        saved=_saved(graph),
        guards=tuple(f"{read.value!r} is read at {read.place}" for read in reads),
    )


def _saved(graph: Graph) -> tuple[Saved, ...]:
    """Activations that a backward node reads, in groups."""
    writers = {name: node for node in reversed(graph.computes) for name in node.writes}
    paths = makers(graph)
    readers: dict[str, set[Phase]] = {}
    for node in graph.computes:
        for name in node.reads:
            readers.setdefault(name, set()).add(node.phase)

    def group(datum: Data) -> tuple[str, str, Bytes, bool]:
        operation = _COUNTED.sub("", writers[datum.name].name)
        return pattern(paths[datum.name]), operation, datum.size, datum.kind is Kind.PHANTOM

    counts = Counter(
        group(datum)
        for datum in graph.data
        if datum.kind in (Kind.ACTIVATION, Kind.PHANTOM) and Phase.BACKWARD in readers.get(datum.name, ())
    )
    groups = [
        Saved(module=module, operation=operation, size=size, count=count, only_backward=only)
        for (module, operation, size, only), count in counts.items()
    ]
    return tuple(sorted(groups, key=lambda saved: (-saved.total, saved.module, saved.operation)))


__all__ = ["Anatomy", "Saved", "anatomy"]
