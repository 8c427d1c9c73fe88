"""The common base of all checks: calls of a part, errors of broken laws, and the laws that hold for all kinds of parts."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from remat.algorithms._core.solver import is_interruption
from remat.algorithms._plugins.expression import parse
from remat.errors import RematError
from remat.ir import Graph
from remat.testing.guard import Overrun
from remat.testing.report import LawBroken, Tally

T = TypeVar("T")


class Refuses(Protocol):
    """A part that may refuse a graph."""

    def refuses(self, graph: Graph) -> str | None:
        """Why it refuses this graph; None if it accepts it."""


def check_repr(subject: object, tally: Tally, words: Mapping[str, Any] | None = None) -> None:
    """L-REPR: the repr of a part is parsed to an equal part.

    Args:
        subject: the part.
        tally: counts the examples.
        words: values of the names in its repr that are in no registry, except its class.
    """
    if not tally.tries("L-REPR"):
        return
    try:
        again = parse(repr(subject), words={type(subject).__name__: type(subject), **(words or {})})
    except RematError as error:
        fix = " Names that are in no registry are given as words={…}." if error.rule == "P-NAME" else ""
        raise LawBroken("L-REPR", f"{subject!r} cannot be read back: {error}{fix}") from error
    if again != subject:
        raise LawBroken("L-REPR", f"{subject!r} reads back as {again!r}.")


class Trial:
    """One example tested under the laws of a kind of part.

    Attributes:
        part: under check. graph: on which it is tested. example: the graph as text, for the message of a broken law.
        laws: text of each law. tally: counts, and decides whether a law is tested.
    """

    def __init__(self, part: Refuses, graph: Graph, example: str, laws: Mapping[str, str], tally: Tally) -> None:
        self.part, self.graph, self.example, self.laws, self.tally = part, graph, example, laws, tally

    def refused(self) -> bool:
        """Whether the part refuses the graph, which is counted; tests L-REFUSE."""
        self.tally.examples += 1
        first, second = (self.asked("`refuses`", lambda: self.part.refuses(self.graph)) for _ in range(2))
        if self.tally.tries("L-REFUSE"):
            fine = first is None or (isinstance(first, str) and bool(first.strip()))
            self.expect("L-REFUSE", fine and first == second, f"`refuses` returns {first!r}, then {second!r}.")
        self.tally.refused += first is not None
        return first is not None

    def asked(self, what: str, question: Callable[[], T]) -> T:
        """The answer of the part; tests L-RAISE."""
        try:
            return question()
        except LawBroken:
            raise
        except Exception as error:
            if isinstance(error, SystemError) and is_interruption(error):  # Ctrl-C at the end of a kernel
                raise KeyboardInterrupt from error
            if _has_overrun(error):
                raise Overrun from error
            self.tally.tries("L-RAISE")
            raise self.broken("L-RAISE", f"{what} raised {described(error)}") from error

    def expect(self, law: str, holds: bool, what: str) -> None:
        """Raise the error of a law unless it holds."""
        if not holds:
            raise self.broken(law, what)

    def broken(self, law: str, what: str) -> LawBroken:
        """The error of a broken law."""
        return LawBroken(law, f"{self.part!r}: {what} ({self.laws[law]})", example=self.example)


def _has_overrun(error: BaseException) -> bool:
    """Whether the error was caused by an overrun, for example inside a compiled kernel."""
    return any(isinstance(part, Overrun) for part in (error.__cause__, error.__context__))


def described(error: BaseException) -> str:
    """An exception as text, with the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f", at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {error}{place}."
