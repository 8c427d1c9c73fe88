"""How checks try examples: one after another until one breaks a law, then smaller ones for a while; the smallest is reported.

An example is a graph and a seed, which determine everything else (budget, link, schedules, when the clock expires): a smaller
graph with the same seed is a similar example. A part whose answers vary from call to call is reported as such.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from random import Random
from typing import TYPE_CHECKING, Any, Final

from attrs import field, frozen

from remat.errors import RematError
from remat.ir import Graph
from remat.ir.arguments import A_GRAPH
from remat.settings import each_of
from remat.testing.families import FAMILIES, Family
from remat.testing.reducing import smaller
from remat.testing.report import LawBroken, Tally

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

SHRINKING: Final = 1.0
"""Seconds of process time for reducing an example."""

LASTING: Final = frozenset({"L-TIME", "L-THREAD", "L-GLOBAL"})
"""Laws whose violation takes long or outlasts the call: examples are not reduced."""

ANYWHERE: Final = frozenset({"L-RAISE", "L-INT"})
"""Laws that any call of a part may break: all laws are tested again."""

Judge = Callable[[Graph, int], None]


@frozen(kw_only=True)
class Examples:
    """The graphs of a check.

    Attributes:
        graphs: a hypothesis strategy of graphs; None: draw from the families in turn.
        count: number of examples.
        shrink: whether to look for a smaller example of a broken law.
        families: used if there is no strategy.
    """

    graphs: SearchStrategy[Graph] | None
    count: int
    shrink: bool
    families: tuple[Family, ...] = field(default=FAMILIES)

    def __iter__(self) -> Iterator[tuple[Graph, int]]:
        """Graphs and seeds, the same at each call."""
        if self.graphs is not None:
            drawn = each_of(collect(self.graphs, self.count), A_GRAPH, "graphs")
            yield from ((drawn[seed % len(drawn)], seed) for seed in range(self.count if drawn else 0))
            return
        for seed in range(self.count):
            yield self.families[seed % len(self.families)](Random(seed).randint), seed


def try_examples(judge: Judge, examples: Examples, tally: Tally) -> None:
    """Judge examples until one breaks a law.

    Args:
        judge: raises `LawBroken` for an example that breaks a law; `tally` tells it which laws to test.
        examples: the examples.
        tally: counts; while an example is reduced, it admits only the broken law.

    Raises:
        LawBroken: of the smallest example that was seen; L-REPEAT if an example broke a law once, and then did not.
    """
    for graph, seed in examples:
        broken = _broken_by(judge, copy.deepcopy(graph), seed)  # a part that changes its input changes a copy
        if broken is None:
            continue
        if examples.shrink and broken.law not in LASTING:
            tally.only = None if broken.law in ANYWHERE else broken.law
            try:
                broken = _smallest(judge, graph, seed, broken, tally, structure=examples.graphs is None)
            finally:
                tally.only = None
        raise broken


def _broken_by(judge: Judge, graph: Graph, seed: int) -> LawBroken | None:
    try:
        judge(graph, seed)
    except LawBroken as broken:
        return broken
    return None


def _smallest(judge: Judge, graph: Graph, seed: int, broken: LawBroken, tally: Tally, *, structure: bool) -> LawBroken:
    """Reduce the graph while it breaks the law, until no smaller graph does or the time is over."""
    if _broken_by(judge, copy.deepcopy(graph), seed) is None:
        if "L-REPEAT" in tally.excluded:
            return broken
        what = (
            f"{tally.subject} broke {broken.law} once, but not in a second call: its answers differ from call to call, "
        )
        return LawBroken(
            "L-REPEAT", what + f"at random or because of state that it keeps. The first error was:\n{broken}"
        )
    end = time.process_time() + SHRINKING
    shrunk = True
    while shrunk:
        shrunk = False
        for candidate in smaller(graph, structure=structure):
            if time.process_time() > end:
                return broken
            other = _of_smaller(judge, candidate, seed)
            if other is not None and other.law == broken.law:
                graph, broken, shrunk = candidate, other, True
                break
    return broken


def _of_smaller(judge: Judge, graph: Graph, seed: int) -> LawBroken | None:
    """The law that a smaller graph breaks; None if it breaks none, or if the check cannot use the graph."""
    try:
        return _broken_by(judge, copy.deepcopy(graph), seed)
    except RematError:
        return None


def collect(strategy: SearchStrategy[Any], count: int) -> list[Any]:
    """`count` examples of a hypothesis strategy, the same at each call."""
    from hypothesis import HealthCheck, Phase, given, settings

    drawn: list[Any] = []

    @settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(strategy)
    def keep(example: Any) -> None:
        drawn.append(example)

    keep()
    return drawn
