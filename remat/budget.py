"""The text of a budget: bytes, `"6GiB"`, or `"40%"` of the peak of a step that keeps everything."""

from __future__ import annotations

import re
from fractions import Fraction

from attrs import frozen

from remat.errors import BadArgument
from remat.units import LONGEST_TEXT, Bytes, parse_bytes

_FRACTION = re.compile(r"0?\.[0-9]{1,20}")
_PERCENT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*%\s*")


@frozen
class Share:
    """A budget as a part of the peak that `StoreAll` replays to."""

    of_peak: Fraction

    def bytes(self, peak: Bytes) -> Bytes:
        """The budget, fractions of a byte cut off."""
        return int(peak * self.of_peak)


def parse_budget(budget: int | str) -> Bytes | Share:
    """Read a budget: an int, `"6GiB"` or `"40%"`.

    Raises:
        BadArgument: U-SIZE, when it is none of these.
    """
    _refuse_fraction(budget)
    if not isinstance(budget, str) or "%" not in budget:
        return parse_bytes(budget)
    match = _PERCENT.fullmatch(budget) if len(budget) <= LONGEST_TEXT else None
    share = Fraction(match.group(1)) / 100 if match else Fraction(0)
    if share == 0:
        raise BadArgument("U-SIZE", f"{budget!r:.80} is not a share of the peak.", fix='write it like "40%", above 0.')
    return Share(share)


def _refuse_fraction(budget: object) -> None:
    """Say how a share is written to whoever writes 0.6 or "0.6".

    Raises:
        BadArgument: U-SIZE.
    """
    number = str(budget).strip() if isinstance(budget, (str, float)) else ""
    if _FRACTION.fullmatch(number) and float(number):
        fix = f'write "{float(number) * 100:g}%" for a share of the peak, or "{number}GB" for a size.'
        raise BadArgument("U-SIZE", f"{budget!r} has no unit: it is neither a share nor a size.", fix=fix)


def budget_bytes(budget: int | str, peak: Bytes) -> Bytes:
    """A budget in bytes, where the peak it may be a share of is known; errors as of `parse_budget`."""
    parsed = parse_budget(budget)
    return parsed.bytes(peak) if isinstance(parsed, Share) else parsed
