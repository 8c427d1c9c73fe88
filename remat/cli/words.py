"""What is printed: names from files and models may hold what moves a cursor or turns a line around, which is written out."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import typer

from remat.errors import RematError
from remat.viz.escape import plain

LONGEST_MESSAGE = 2000
"""Characters of an error's message that are printed."""
LONGEST_LINE = 160
"""Characters of what a solver said that are printed."""


def say(text: str, *, err: bool = False) -> None:
    """Print a line, or several, on the screen or the error stream."""
    typer.echo(plain(text), err=err)


def say_trail(trail: Iterable[str]) -> None:
    """Print what solvers said of a problem on the error stream; long expressions lose their middle."""
    lines = (
        line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE // 2]} … {line[-LONGEST_LINE // 3 :]}"
        for line in trail
    )
    for line in dict.fromkeys(lines):
        say(line, err=True)


def print_exactly(text: str) -> None:
    """Print text as it is, for a file or another program; a terminal gets no control characters.

    A character that the encoding of the screen or file lacks is written as an escape.
    """
    shown = plain(text) if sys.stdout.isatty() else text
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    sys.stdout.write(shown.encode(encoding, "backslashreplace").decode(encoding))


def complain(error: Exception) -> None:
    """Print one message, of no more than `LONGEST_MESSAGE` characters."""
    text = plain(f"error: {error}")
    if len(text) > LONGEST_MESSAGE:
        text = f"{text[:LONGEST_MESSAGE]} … ({len(text)} characters)"
    typer.echo(text, err=True)


def of_system(error: OSError) -> RematError:
    """What the operating system refuses, as an error of this library: C-FILE."""
    name = "" if error.filename is None else f"{error.filename!s:.200}: "
    what = f"{name}{(error.strerror or str(error)).rstrip('.').lower()}."
    return RematError("C-FILE", what, fix="look at the name of the file, its rights, and the room left.")


__all__ = ["LONGEST_MESSAGE", "complain", "of_system", "plain", "print_exactly", "say", "say_trail"]
