"""A chain as the kernels take it: arrays of 64-bit words, memory in slots of one unit, times in nanoseconds.

The unit is the greatest common divisor of all sizes that count, so that nothing is rounded here; `Quantise` makes it large.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from remat.ir.chain import Chain, Stage
from remat.units import Bytes, Ns

Ints = npt.NDArray[np.int64]

NEVER = 1 << 61
"""The value of a sub-chain that does not fit: two of them and any finite value still add up in 64 bits."""


class ChainArrays(NamedTuple):
    """A chain of L stages in slots and nanoseconds; see `remat.ir.chain.Stage` for the quantities.

    Attributes:
        unit: bytes of a slot. slots: slots of the budget, capped where more memory changes nothing.
        option_start: first option of each stage in the arrays of options, length L + 1.
        option_index: the option's index in its stage. time: forward + backward.
        saves, forward, backward: see `Stage`; the first and the last less what the option frees of its input.
        no_save_time, no_save_needs: of the no-save forward. input_size: of the input of each stage and of the loss, length L + 1.
        after, before: `Chain.after` and `Chain.kept_before`. loss_time, loss_needs: of the loss.
    """

    unit: Bytes
    slots: int
    option_start: Ints
    option_index: Ints
    time: Ints
    saves: Ints
    forward: Ints
    backward: Ints
    forward_time: Ints
    backward_time: Ints
    no_save_time: Ints
    no_save_needs: Ints
    input_size: Ints
    after: Ints
    before: Ints
    loss_time: Ns
    loss_needs: int

    @property
    def stages(self) -> int:
        """Number of stages."""
        return len(self.no_save_time)


def too_long(chain: Chain) -> str | None:
    """Why the times of the chain do not fit the kernels' words; None when they do."""
    slowest = chain.loss_time + sum(
        max(option.forward + option.backward for option in stage.options) + stage.no_save.time for stage in chain.stages
    )
    if slowest * (len(chain) + 1) < NEVER:
        return None
    return f"times of {slowest} ns over {len(chain)} stages exceed 64-bit words; state times in a coarser unit"


def arrays_of(
    chain: Chain, budget: Bytes, choice: Sequence[Sequence[int]] | None = None, *, freeing: bool = True
) -> ChainArrays:
    """The arrays of a chain under a budget.

    Args:
        chain: the chain.
        budget: bytes.
        choice: for each stage, the options to consider; None: all of them.
        freeing: whether an input is freed where it is not read again; without, it stays until the stage's backward.
    """
    stages = chain.stages
    picked = _options(stages, choice)
    pairs = [*itertools.chain.from_iterable(picked)]
    memory = _memory(chain, pairs, freeing)
    unit = math.gcd(*itertools.chain.from_iterable(memory.values()), chain.loss_needs) or 1
    # More memory than this changes nothing: everything saved, and the most memory-demanding step on top.
    enough = (
        sum(memory["saves"])
        + sum(memory["input_size"])
        + max(*memory["forward"], *memory["backward"], *memory["no_save_needs"], chain.loss_needs)
        + max(*memory["after"], *memory["before"])
    )
    options = [stage.options[o] for stage, o in pairs]
    forward, backward = _words([o.forward for o in options]), _words([o.backward for o in options])
    return ChainArrays(
        unit=unit,
        slots=min(budget, enough) // unit,
        option_start=_words([0, *itertools.accumulate(map(len, picked))]),
        option_index=_words([o for _, o in pairs]),
        time=forward + backward,
        forward_time=forward,
        backward_time=backward,
        no_save_time=_words([stage.no_save.time for stage in stages]),
        loss_time=chain.loss_time,
        loss_needs=chain.loss_needs // unit,
        **{name: _words([size // unit for size in sizes]) for name, sizes in memory.items()},
    )


def _options(stages: Sequence[Stage], choice: Sequence[Sequence[int]] | None) -> list[list[tuple[Stage, int]]]:
    """For each stage, itself with each option to consider."""
    picked = [range(len(stage.options)) for stage in stages] if choice is None else choice
    return [[(stage, o) for o in options] for stage, options in zip(stages, picked, strict=True)]


def _memory(chain: Chain, pairs: Sequence[tuple[Stage, int]], freeing: bool) -> dict[str, list[Bytes]]:
    """The fields of `ChainArrays` that are memory, in bytes; `pairs` are the stages with the options to consider."""
    # memory is counted without the input; where that is freed, its bytes are available to the rest and to the backward
    freed = [stage.freed(o) if freeing else 0 for stage, o in pairs]
    return {
        "saves": [stage.saves(o) - back for (stage, o), back in zip(pairs, freed, strict=True)],
        "forward": [stage.forward_needs(o) for stage, o in pairs],
        "backward": [stage.backward_needs(o) - back for (stage, o), back in zip(pairs, freed, strict=True)],
        "no_save_needs": [stage.forward_needs(len(stage.options)) for stage in chain.stages],
        "input_size": [0, *(stage.output_size for stage in chain.stages)],
        "after": list(chain.after),
        "before": list(chain.kept_before),
    }


def _words(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64)
