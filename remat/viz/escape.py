"""Names from files and models may hold what moves a cursor or turns a line around; what is shown has it written out."""

from __future__ import annotations

import unicodedata

_HIDDEN = ("Cc", "Cf", "Co", "Cs", "Zl", "Zp")
"""Categories of characters that a screen obeys or does not show: control, direction, private, surrogates, separators."""


def plain(text: str) -> str:
    """Text with control and direction characters written as escapes; line ends and tabs stay."""
    return "".join(character if _shown(character) else _escaped(character) for character in text)


def _shown(character: str) -> bool:
    return character in "\n\t" or unicodedata.category(character) not in _HIDDEN


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def short(name: str, most: int = 32) -> str:
    """A name on one line, of no more characters than this; what is cut is in its middle."""
    line = plain(name).replace("\n", "\\n").replace("\t", "\\t")
    half = (most - 1) // 2
    return line if len(line) <= most else f"{line[:half]}…{line[-half:]}"


__all__ = ["plain", "short"]
