"""Text that combinators share: lines of an outline, and the repr of an operand."""

from __future__ import annotations


def indented(head: str, *parts: tuple[str, ...]) -> tuple[str, ...]:
    """Lines of an outline under a head."""
    return (head, *(f"  {line}" for lines in parts for line in lines))


def operand(part: object) -> str:
    """The repr of a part before a method call, in parentheses where the part is an operation itself (`t >> s`)."""
    text = repr(part)
    depth = 0
    for i, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if not depth and text.startswith((" >> ", " | "), i):
            return f"({text})"
    return text
