"""The largest batch that fits, from few sizes that are tried: memory grows almost as a straight line with the batch."""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

from remat.errors import BadArgument
from remat.units import Bytes

PRECISION = 34
"""The answer fits, and a batch that is larger by the 34th part, which is less than 3 %, and by one at least, does not."""
LARGEST_BATCH = 1 << 24


@frozen(kw_only=True)
class LargestBatch:
    """The largest batch that fits, or that was tried; 0: not even one sample.

    Attributes:
        batch: number of samples.
        need: memory with it [bytes].
        next_batch, next_need: the smallest number tried that does not fit, and memory with it [bytes]; None: all fit.
        tried: memory by number of samples, of all that were tried [bytes].
    """

    batch: int
    need: Bytes
    next_batch: int | None
    next_need: Bytes | None
    tried: dict[int, Bytes]


def largest_batch(need: Callable[[int], Bytes], capacity: Bytes, start: int = 1) -> LargestBatch:
    """Find the largest batch that fits, where `need` does not fall with the batch.

    Args:
        need: memory for a number of samples [bytes].
        capacity: what there is [bytes].
        start: the number that is tried first.

    Raises:
        BadArgument: X-BATCH, when memory does not grow with the number.
    """
    tried: dict[int, Bytes] = {}
    batch = start
    while True:
        tried[batch] = need(batch)
        fits = max((size for size, bytes_ in tried.items() if bytes_ <= capacity), default=0)
        fails = min((size for size, bytes_ in tried.items() if bytes_ > capacity), default=None)
        if fails is not None and fails <= fits + max(1, fits // PRECISION):
            return LargestBatch(
                batch=fits,
                need=tried.get(fits, 0),
                next_batch=fails,
                next_need=tried[fails],
                tried=dict(sorted(tried.items())),
            )
        if fits >= LARGEST_BATCH:
            if len(tried) > 1 and tried[fits] == min(tried.values()):
                what = f"{fits} samples take {tried[fits]} B, as many as one does."
                raise BadArgument(
                    "X-BATCH", what, fix="name the argument of the factory that sets the number of samples."
                )
            return LargestBatch(
                batch=fits, need=tried[fits], next_batch=None, next_need=None, tried=dict(sorted(tried.items()))
            )
        batch = _next(tried, fits, fails, capacity)


def _next(tried: dict[int, Bytes], fits: int, fails: int | None, capacity: Bytes) -> int:
    """Where the line through two sizes meets the capacity; a little beyond what fits where that is known to be near."""
    step = max(1, fits // PRECISION)
    if fails is None:
        below = max((size for size in tried if size < fits), default=None)
        if below is None or tried[fits] <= tried[below]:
            return 2 * fits
        guess = fits + (capacity - tried[fits]) * (fits - below) // (tried[fits] - tried[below])
        return min(max(guess, fits + step), 16 * fits, LARGEST_BATCH)
    if fits == 0:
        return max(1, fails // 2)
    if len(tried) > 12:
        return (fits + fails) // 2
    guess = fits + (capacity - tried[fits]) * (fails - fits) // (tried[fails] - tried[fits])
    return min(max(guess, fits + step), fails - 1)


__all__ = ["LARGEST_BATCH", "LargestBatch", "largest_batch"]
