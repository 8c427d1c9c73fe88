"""Periodic checkpointing of chains (Chen et al., 2016): hold the inputs of some stages, replay each gap once.

Two ways to place the held inputs: every k-th stage (sqrt(n) by default), or greedily, closing a segment when what its stages
save exceeds a bound, with a search over the bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from attrs import field, frozen

from remat.algorithms._chain.rotor import keep_all
from remat.algorithms._core.clock import Clock
from remat.algorithms._core.outcome import Plan
from remat.algorithms._core.problem import Problem
from remat.algorithms._core.solver import Solver
from remat.ir import Graph, Run, Schedule, validate
from remat.ir.chain import Chain, why_no_chain
from remat.settings import FLAG, optional, whole
from remat.units import Bytes, Ns

_BOUNDS = 24
"""How many bounds the greedy variant tries, evenly spaced in their logarithm."""


@frozen
class Periodic(Solver):
    """Hold the input of every k-th stage and replay each segment once. Chains only; proves nothing; O(n).

    Attributes:
        every: stages in a segment; None: isqrt of the number of stages.
        balanced: close segments by the bytes they save instead, the bound searched for the fastest schedule that fits.
    """

    every: int | None = field(default=None, validator=optional(whole(1, "stages")))
    balanced: bool = field(default=False, validator=FLAG, kw_only=True)

    def refuses(self, graph: Graph) -> str | None:
        """Why a graph is refused: it is not a chain."""
        reason = why_no_chain(graph)
        return None if reason is None else f"not a chain ({reason}); write Linearise() >> {self!r}"

    def plan(self, problem: Problem, clock: Clock, seed: int) -> Plan:
        """The schedule of the segments; of the balanced ones, the fastest that fits."""
        chain = Chain(problem.graph)
        options = keep_all(chain)
        if not self.balanced:
            k = self.every or max(1, math.isqrt(len(chain)))
            starts = list(range(0, len(chain), k))
            return Plan(schedule=segmented(chain, starts), trail=(f"{self!r}: {len(starts)} segments of {k} stages",))
        saves = [stage.saves(o) for stage, (o,) in zip(chain.stages, options, strict=True)]
        bounds = _bounds_between(max(1, min(saves)), max(1, sum(saves)))
        fitting: list[tuple[Ns, Bytes, Schedule]] = []
        for placed in dict.fromkeys(tuple(balanced_starts(saves, bound)) for bound in bounds):
            schedule = segmented(chain, placed)
            cost = validate(chain.graph, schedule)
            if cost.peak <= problem.budget:
                fitting.append((cost.time, cost.peak, schedule))
                if clock.expired:
                    break
        best = min(fitting, key=lambda plan: plan[:2], default=(0, 0, None))
        return Plan(schedule=best[2], trail=(f"{self!r}: {len(bounds)} bounds tried",))


def _bounds_between(low: Bytes, high: Bytes) -> list[Bytes]:
    """Bounds from `high` down to `low`, evenly spaced in their logarithm."""
    return sorted({round(low * (high / low) ** (i / (_BOUNDS - 1))) for i in range(_BOUNDS)}, reverse=True)


def balanced_starts(saves: Sequence[Bytes], bound: Bytes) -> list[int]:
    """First stages of segments, each closed before it saves more than `bound` (Chen et al., algorithm 3)."""
    starts, total = [0], 0
    for i, size in enumerate(saves):
        if total and total + size > bound:
            starts.append(i)
            total = 0
        total += size
    return starts


def segmented(chain: Chain, starts: Sequence[int]) -> Schedule:
    """The schedule that holds the inputs of the stages in `starts`, and saves all in the last segment at once."""
    options, length = keep_all(chain), len(chain)
    ends = [*starts[1:], length]
    runs = [Run(stage.forward, len(stage.options)) for stage in chain.stages[: starts[-1]]]
    for start, end in reversed(list(zip(starts, ends, strict=True))):
        runs += [Run(chain.stages[i].forward, options[i][0]) for i in range(start, end)]
        if end == length:
            runs.append(Run(chain.loss, chain.loss_option))
        runs += [Run(chain.stages[i].backward, options[i][0]) for i in reversed(range(start, end))]
    return Schedule.from_runs(chain.graph, runs)
