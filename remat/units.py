"""Units: bytes and nanoseconds, always integers. `MiB` and `GiB` to write budgets; reading and printing of sizes and times."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from numbers import Integral, Real
from typing import TypeAlias

from remat.errors import BadArgument, shown

Bytes: TypeAlias = int
Ns: TypeAlias = int

KiB: Bytes = 1 << 10
MiB: Bytes = 1 << 20
GiB: Bytes = 1 << 30

LARGEST = (1 << 63) - 1
"""The largest size or time a graph may state: one signed 64-bit word, so that compiled solvers can hold it."""

LONGEST_TEXT = 100
"""Characters of a size or budget in words; longer texts are none."""

_UNITS = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": KiB, "mib": MiB, "gib": GiB, "tib": 1 << 40,
}  # fmt: skip
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")


def parse_bytes(text: str | int) -> Bytes:
    """Read a size: `6GiB`, `1.5 MB`, `4096`, or a whole number of any class. Fractions of a byte are cut off.

    Raises:
        BadArgument: U-SIZE, when the text is not a size, or the size is below zero or above `LARGEST`.
    """
    if isinstance(text, bool) or not isinstance(text, (Integral, str)):
        raise BadArgument(
            "U-SIZE", f"{shown(text)} is not a size.", fix='write bytes as an int, or text such as "6GiB".'
        )
    if isinstance(text, Integral):
        if text < 0:
            raise BadArgument("U-SIZE", f"{text} B is negative.", fix="give a size of at least 0 bytes.")
        return _at_most_largest(int(text))
    match = _SIZE.fullmatch(text) if len(text) <= LONGEST_TEXT else None
    if match is None or match.group(2).lower() not in _UNITS:
        raise BadArgument(
            "U-SIZE", f"{shown(text)} is not a size.", fix='write it like "6GiB", "512MiB", "1.5GB" or "4096".'
        )
    number = Fraction(match.group(1))
    if not match.group(2) and number.denominator > 1:
        fix = f'write "{match.group(1)}GB", or bytes as a whole number.'
        raise BadArgument("U-SIZE", f"{text!r} has no unit, and there are no fractions of a byte.", fix=fix)
    return _at_most_largest(int(number * _UNITS[match.group(2).lower()]))


def _at_most_largest(size: Bytes) -> Bytes:
    """The size, where a graph may state it.

    Raises:
        BadArgument: U-SIZE.
    """
    if size > LARGEST:
        fix = "give a size that a machine may have."
        raise BadArgument("U-SIZE", f"{size} B is more than 2^63 - 1 bytes, the largest size.", fix=fix)
    return size


def _printable(value: object, what: str) -> None:
    """Refuse what is no number.

    Raises:
        BadArgument: U-SIZE.
    """
    if not isinstance(value, Real) or isinstance(value, bool):
        raise BadArgument("U-SIZE", f"{what} is {shown(value)}.", fix="give a number, e.g. 4096.")


def ratio(part: float, whole: int) -> float:
    """`part` over `whole`, of bytes or times, which may be nothing: nothing of nothing is all of it, more is infinitely much."""
    if whole:
        return part / whole
    return 1.0 if not part else math.inf


def format_bytes(size: Bytes) -> str:
    """A size as readable text: `17 B`, `1.50 MiB`.

    Raises:
        BadArgument: U-SIZE, of what is no number.
    """
    _printable(size, "format_bytes: size")
    for name, unit in (("GiB", GiB), ("MiB", MiB), ("KiB", KiB)):
        if abs(size) >= unit:
            return f"{size / unit:.2f} {name}"
    return f"{size} B"


def format_ns(time: Ns) -> str:
    """A time as readable text: `250 ns`, `1.20 ms`, `3.40 s`.

    Raises:
        BadArgument: U-SIZE, of what is no number.
    """
    _printable(time, "format_ns: time")
    for name, unit in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if abs(time) >= unit:
            return f"{time / unit:.2f} {name}"
    return f"{time} ns"
