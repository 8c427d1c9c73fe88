"""One budget for several blocks that run one after another: which option each block takes.

A block's option is a plan of its own step: how long it takes, what it holds at most, and what it leaves from its forward to its
backward. While block i runs backward, the blocks before it hold what they left.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import field, frozen

from remat.exec._plan.planned import Planned
from remat.ir import Kind, Phase, Run
from remat.units import Bytes, Ns

SLOTS = 500
"""Steps in which what the blocks hold together is counted, rounded up."""


@frozen(kw_only=True)
class BlockOption:
    """One plan of a block.

    Attributes:
        time: of its forward and backward [ns].
        peak: most bytes it holds.
        saved: bytes between its forward and its backward.
        planned: the plan; None where only the figures count.
    """

    time: Ns
    peak: Bytes
    saved: Bytes
    planned: Planned | None = field(default=None, repr=False, eq=False)


def option_of(planned: Planned) -> BlockOption:
    """The figures of a plan by replay; what comes with the gradients of the outputs is not left by the forward."""
    cost, schedule = planned.outcome.cost, planned.outcome.schedule
    assert cost is not None and schedule is not None
    losses = {node.name for node in planned.graph.computes if node.phase is Phase.LOSS}
    at = next(i for i, step in enumerate(schedule.steps) if isinstance(step, Run) and step.node in losses)
    tangents = sum(datum.size for datum in planned.graph.data if datum.kind is Kind.TANGENT)
    overhead = planned.captured.overhead
    saved = max(0, cost.timeline[at] - tangents) + overhead
    return BlockOption(time=cost.time, peak=cost.peak + overhead, saved=saved, planned=planned)


def undominated(options: Sequence[BlockOption]) -> tuple[BlockOption, ...]:
    """Options that no other is at least as good as in all figures, the smallest peak first."""
    best: list[BlockOption] = []
    for option in sorted(options, key=lambda option: (option.peak, option.saved, option.time)):
        if not any(other.saved <= option.saved and other.time <= option.time for other in best):
            best.append(option)
    return tuple(best)


def peak_of(chosen: Sequence[BlockOption]) -> Bytes:
    """Most bytes that blocks hold which run forward in this order and backward in the other."""
    resident = most = 0
    for option in chosen:
        most = max(most, resident + option.peak)
        resident += option.saved
    return max(most, resident)


def divide(blocks: Sequence[Sequence[BlockOption]], budget: Bytes) -> tuple[BlockOption, ...] | None:
    """The options of least total time whose peak is within the budget, by a dynamic program over what is held before each block.

    What is held is rounded up to a slot of the budget: the result is within the budget, and of least time up to this rounding.
    None: there is none. Takes O(blocks · slots · options).
    """
    slot = max(1, -(-budget // SLOTS))
    best: dict[int, tuple[Ns, tuple[int, ...]]] = {0: (0, ())}
    for options in blocks:
        following: dict[int, tuple[Ns, tuple[int, ...]]] = {}
        for slots, (time, chosen) in best.items():
            for index, option in enumerate(options):
                after = slots + -(-option.saved // slot)
                if slots * slot + option.peak > budget or after * slot > budget:
                    continue
                candidate = (time + option.time, (*chosen, index))
                if after not in following or candidate < following[after]:
                    following[after] = candidate
        best = following
    if not best:
        return None
    _, chosen = min(best.values())
    return tuple(options[index] for options, index in zip(blocks, chosen, strict=True))


__all__ = ["BlockOption", "divide", "option_of", "peak_of", "undominated"]
