"""What is printed: names from files and models may hold what moves a cursor or turns a line around, which is written out."""

from __future__ import annotations

import typer

from remat.viz.escape import plain

LONGEST_MESSAGE = 2000
"""Characters of an error's message that are printed."""


def say(text: str, *, err: bool = False) -> None:
    """Print a line, or several, on the screen or the error stream."""
    typer.echo(plain(text), err=err)


def complain(error: Exception) -> None:
    """Print one message, of no more than `LONGEST_MESSAGE` characters."""
    text = plain(f"error: {error}")
    if len(text) > LONGEST_MESSAGE:
        text = f"{text[:LONGEST_MESSAGE]} … ({len(text)} characters)"
    typer.echo(text, err=True)


__all__ = ["LONGEST_MESSAGE", "complain", "plain", "say"]
