"""What is printed: names from files and models may hold what moves a cursor or turns a line around, which is written out."""

from __future__ import annotations

import unicodedata

import typer

LONGEST_MESSAGE = 2000
"""Characters of an error's message that are printed."""

_HIDDEN = ("Cc", "Cf", "Co", "Cs", "Zl", "Zp")
"""Categories of characters that a terminal obeys or does not show: control, direction, private, surrogates, separators."""


def say(text: str, *, err: bool = False) -> None:
    """Print a line, or several, on the screen or the error stream."""
    typer.echo(plain(text), err=err)


def complain(error: Exception) -> None:
    """Print one message, of no more than `LONGEST_MESSAGE` characters."""
    text = plain(f"error: {error}")
    if len(text) > LONGEST_MESSAGE:
        text = f"{text[:LONGEST_MESSAGE]} … ({len(text)} characters)"
    typer.echo(text, err=True)


def plain(text: str) -> str:
    """Text with control and direction characters written as escapes; line ends and tabs stay."""
    return "".join(character if _shown(character) else _escaped(character) for character in text)


def _shown(character: str) -> bool:
    return character in "\n\t" or unicodedata.category(character) not in _HIDDEN


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


__all__ = ["LONGEST_MESSAGE", "complain", "plain", "say"]
