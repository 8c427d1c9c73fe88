"""What checks of laws share: how examples are tried, what a broken law says, and the laws that hold for all parts alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from remat.algorithms._plugins.expression import parse
from remat.errors import RematError
from remat.testing.report import LawBroken, Tally

if TYPE_CHECKING:
    from hypothesis import settings

    from remat.ir import Graph


class Refuses(Protocol):
    """A part that may refuse a graph."""

    def refuses(self, graph: Graph) -> str | None:
        """Why not this graph; None: it is accepted."""


def settings_for(examples: int, shrink: bool) -> settings:
    """Hypothesis settings of a check: the same examples each time, and nothing kept between runs."""
    from hypothesis import HealthCheck, Phase, settings

    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        phases=[one for one in Phase if shrink or one is Phase.generate],
    )


def check_repr(subject: object, tally: Tally) -> None:
    """L-REPR: the text of a part reads back as the part."""
    if not tally.tries("L-REPR"):
        return
    try:
        again = parse(repr(subject), words={type(subject).__name__: type(subject)})
    except RematError as error:
        raise LawBroken("L-REPR", f"{subject!r} cannot be read back: {error}") from error
    if again != subject:
        raise LawBroken("L-REPR", f"{subject!r} reads back as {again!r}.")


class Trial:
    """One example tried under the laws of a kind of part.

    Attributes:
        part: what is checked. graph: what it is tried on. example: that in words, for the message of a broken law.
        laws: what each law says. tally: counts, and asks whether a law is to be tried.
    """

    def __init__(self, part: Refuses, graph: Graph, example: str, laws: Mapping[str, str], tally: Tally) -> None:
        self.part, self.graph, self.example, self.laws, self.tally = part, graph, example, laws, tally

    def refused(self) -> bool:
        """Whether the part refuses the graph, which is counted; L-REFUSE."""
        self.tally.examples += 1
        first, second = (self.part.refuses(self.graph) for _ in range(2))
        if self.tally.tries("L-REFUSE"):
            fine = first is None or (isinstance(first, str) and bool(first.strip()))
            self.expect("L-REFUSE", fine and first == second, f"`refuses` answers {first!r}, then {second!r}.")
        self.tally.refused += first is not None
        return first is not None

    def expect(self, law: str, holds: bool, what: str) -> None:
        """Say that a law is broken unless it holds."""
        if not holds:
            raise self.broken(law, what)

    def broken(self, law: str, what: str) -> LawBroken:
        """The error of a broken law."""
        return LawBroken(law, f"{self.part!r}: {what} ({self.laws[law]})", example=self.example)
