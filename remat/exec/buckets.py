"""Batches of a few lengths: `BucketCollator` pads what is named to the next of given lengths, `bucket_lengths` chooses these."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from attrs import define, field
from torch import Tensor
from torch.utils.data import default_collate

from remat.errors import BadArgument
from remat.settings import MANY, takes

Name = str | int
"""The key of a tensor in a batch that is a mapping, its position in one that is a tuple or a list."""


LONGEST = 2**31
"""So long may a sample be; sums over samples are 64-bit words."""


@takes(rule="X-ARG", lengths=MANY)
def bucket_lengths(lengths: Iterable[int], count: int) -> tuple[int, ...]:
    """The lengths to which batches are padded with the fewest added positions.

    Exact, by dynamic programming over the distinct lengths: time grows with `count` times the square of their number.

    Args:
        lengths: of the samples, or of a part of them that represents all; at least 1 each.
        count: most lengths to return, at least 1.

    Returns:
        Ascending; the last is the largest of `lengths`.

    Raises:
        BadArgument: X-ARG, there are no lengths, or one of them or `count` is no int of at least 1 and at most `LONGEST`.
    """
    often = Counter(lengths)
    for value in (count, *often):
        _check(
            isinstance(value, int) and 1 <= value <= LONGEST,
            f"{value!r:.40} is no int of at least 1 and at most 2^31.",
            "give lengths and a count.",
        )
    _check(bool(often), "there are no lengths.", "give those of the samples.")
    distinct = np.array(sorted(often), np.int64)
    samples = np.cumsum([0, *(often[length] for length in distinct.tolist())])
    # least[j]: fewest positions in all, after padding, of the samples of the first j distinct lengths
    least = np.array([0, *(distinct * samples[1:]).tolist()])
    choices = []
    for _ in range(min(count, len(distinct)) - 1):
        last = np.zeros(len(least), np.int64)
        shorter = least.copy()
        for j in range(1, len(least)):
            totals = least[:j] + distinct[j - 1] * (samples[j] - samples[:j])
            last[j] = totals.argmin()
            shorter[j] = totals[last[j]]
        choices.append(last)
        least = shorter
    chosen, j = [], len(distinct)
    for last in [*reversed(choices), np.zeros(len(least), np.int64)]:
        if j > 0:
            chosen.append(int(distinct[j - 1]))
            j = int(last[j])
    return tuple(reversed(chosen))


def _ascending(lengths: Iterable[int]) -> tuple[int, ...]:
    MANY.check(lengths, "BucketCollator: lengths", rule="X-ARG")
    return tuple(sorted(set(lengths)))


@define(kw_only=True)
class BucketCollator:
    """A `collate_fn` that pads each batch to the next of a few lengths, so that a training meets few shapes.

    Nothing is padded that is not named, and nothing is left as it is without being named: every tensor of a batch that has the
    first padded dimension stands in `pad` or in `leave`.

    Attributes:
        lengths: to which batches are padded.
        pad: the value that fills each padded tensor, by its name.
        leave: names of tensors of other dimensions.
        dims: the dimensions that are the length, by the name of a tensor, where it is not the second one alone: (1, 2) of a mask
            over pairs.
        collate: makes a batch of samples; None: `torch.utils.data.default_collate`.
        given, added: positions of padded tensors so far in this process, counted along the first of `dims`.
    """

    lengths: Sequence[int] = field(converter=_ascending)
    pad: Mapping[Name, float]
    leave: Sequence[Name] = ()
    dims: Mapping[Name, tuple[int, ...]] = field(factory=dict)
    collate: Callable[[list[Any]], Any] | None = None
    given: int = field(default=0, init=False)
    added: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        """Refuse settings under which no batch can be padded."""
        positive = bool(self.lengths) and all(isinstance(length, int) and length >= 1 for length in self.lengths)
        _check(positive, f"lengths={self.lengths!r:.80}.", "give ints of at least 1.")
        _check(bool(self.pad), "nothing is to be padded.", "name a tensor and its value in `pad`.")
        both = set(self.pad) & set(self.leave)
        _check(not both, f"{sorted(map(str, both))} is to be padded and to be left.", "name it once.")
        unknown = set(self.dims) - set(self.pad)
        _check(not unknown, f"{sorted(map(str, unknown))} has `dims` and is not padded.", "give its value in `pad`.")

    @property
    def share(self) -> float:
        """Added positions over all, from 0 to 1; 0 before the first batch."""
        return self.added / max(1, self.given + self.added)

    def __call__(self, samples: list[Any]) -> Any:
        """The batch of some samples, padded; of the class of the batch as collated.

        Raises:
            BadArgument: X-ARG: a tensor is named nowhere, or missing; lengths differ; the batch is longer than all `lengths`.
        """
        batch = (default_collate if self.collate is None else self.collate)(samples)
        by_name = (
            batch if isinstance(batch, Mapping) else dict(enumerate(batch)) if isinstance(batch, (tuple, list)) else {}
        )
        length = self._length(by_name)
        target = next((bucket for bucket in self.lengths if bucket >= length), None)
        if target is None:
            what = f"a batch of length {length} is longer than {self.lengths[-1]}."
            raise BadArgument("X-ARG", what, fix="add a length, or truncate the samples.")
        padded = {name: self._padded(name, by_name[name], target) for name in self.pad}
        self.given += length
        self.added += target - length
        if isinstance(batch, Mapping):
            entries = {name: padded.get(name, value) for name, value in batch.items()}
            return entries if type(batch) is dict else type(batch)(entries)  # type: ignore[call-arg]
        return type(batch)([padded.get(name, value) for name, value in by_name.items()])

    def _dims(self, name: Name) -> tuple[int, ...]:
        return tuple(self.dims.get(name, (1,)))

    def _length(self, by_name: Mapping[Any, Any]) -> int:
        """The common length of what is to be padded."""
        missing = [name for name in self.pad if not isinstance(by_name.get(name), Tensor)]
        _check(
            not missing,
            f"a batch has no tensor {missing!r:.80}.",
            f"name tensors of the batch: {list(by_name)!r:.200}.",
        )
        first = min(dim for name in self.pad for dim in self._dims(name))
        unnamed = [
            name
            for name, value in by_name.items()
            if isinstance(value, Tensor) and value.dim() > first and name not in self.pad and name not in self.leave
        ]
        _check(
            not unnamed, f"{unnamed!r:.80} may have the padded length.", "name it in `pad` with a value, or in `leave`."
        )
        short = [name for name in self.pad if by_name[name].dim() <= max(self._dims(name))]
        _check(not short, f"{short!r:.80} has too few dimensions.", "give its `dims`.")
        lengths = {name: by_name[name].shape[dim] for name in self.pad for dim in self._dims(name)}
        _check(len(set(lengths.values())) == 1, f"lengths differ: {lengths!r:.200}.", "collate to one length a batch.")
        return int(next(iter(lengths.values())))

    def _padded(self, name: Name, value: Tensor, target: int) -> Tensor:
        shape = [target if dim in self._dims(name) else size for dim, size in enumerate(value.shape)]
        if list(value.shape) == shape:
            return value
        filled = torch.full(shape, self.pad[name], dtype=value.dtype, device=value.device)
        filled[tuple(slice(size) for size in value.shape)] = value
        return filled


def _check(holds: bool, what: str, fix: str) -> None:
    if not holds:
        raise BadArgument("X-ARG", what, fix=fix)
