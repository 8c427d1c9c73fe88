"""Revolve: optimal checkpointing of homogeneous chains in closed form (Griewank and Walther, 2000, algorithm 799).

With c checkpoints, the chain's own input included, n stages take r n - beta(c + 1, r - 1) forward runs in addition to the n
that are taped for their backward, where beta(c, r) = binomial(c + r, c) and r is the least with n <= beta(c, r).
"""

from __future__ import annotations

from math import comb

from attrs import frozen

from remat.algorithms._chain.quantise import checkpoints
from remat.algorithms._chain.rotor import keep_all
from remat.algorithms._core.clock import Clock
from remat.algorithms._core.outcome import ClassBound, Plan
from remat.algorithms._core.problem import Problem
from remat.algorithms._core.solver import Solver
from remat.ir import Graph, Run, Schedule
from remat.ir.chain import Chain, why_no_chain
from remat.settings import takes, whole

CLASS = "schedules of a homogeneous chain that tape one stage at a time"


def repetition(stages: int, checkpoint_count: int) -> int:
    """The least r with stages <= binomial(c + r, c): how often a stage runs at most, not counting its taped run."""
    r = 0
    while comb(checkpoint_count + r, checkpoint_count) < stages:
        r += 1
    return r


@takes(stages=whole(0), checkpoint_count=whole(0))
def extra_runs(stages: int, checkpoint_count: int) -> int:
    """Forward runs that are not taped, of an optimal schedule; `checkpoint_count` >= 1 unless there is one stage.

    Raises:
        BadArgument: A-SETTING, when several stages have no checkpoint.
    """
    if stages > 1:
        whole(1).check(checkpoint_count, "extra_runs: checkpoint_count")
    r = repetition(stages, checkpoint_count) if stages > 1 else 0
    return r * stages - comb(checkpoint_count + r, r - 1) if r else 0


def split(stages: int, checkpoint_count: int) -> int:
    """How many stages to advance before the next checkpoint: the least optimal number, found by bisection.

    The cost of advancing k is k + extra(k, c) + extra(n - k, c - 1), convex in k; its slope from k to k + 1 is
    1 + r(k + 1, c) - r(n - k, c - 1).
    """
    if checkpoint_count == 1:
        return stages - 1
    low, high = 1, stages - 1
    while low < high:
        k = (low + high) // 2
        if 1 + repetition(k + 1, checkpoint_count) >= repetition(stages - k, checkpoint_count - 1):
            high = k
        else:
            low = k + 1
    return low


@frozen
class Revolve(Solver):
    """The binomial schedule of a homogeneous chain: all outputs of one size, all forwards of one time. O(n r) runs."""

    def refuses(self, graph: Graph) -> str | None:
        """Why a graph is refused: it is not a chain, or its stages differ."""
        reason = why_no_chain(graph)
        if reason is not None:
            return f"not a chain ({reason}); write Linearise() >> UnitCost() >> Revolve()"
        chain = Chain(graph)
        if len({(stage.output_size, stage.no_save.time) for stage in chain.stages}) > 1:
            return "the stages differ in size or time; write UnitCost() >> Revolve()"
        return None

    def plan(self, problem: Problem, clock: Clock, seed: int) -> Plan:
        """The optimum of the class; what it claims holds under the slot convention of `checkpoints`."""
        chain = Chain(problem.graph)
        count = checkpoints(chain, problem.budget)
        if count is None or (count == 0 and len(chain) > 1):
            return Plan(trail=(f"{self!r}: the budget holds no checkpoint on top of the most memory-demanding step",))
        extra = extra_runs(len(chain), count)
        options = keep_all(chain)
        taped = sum(s.options[o].forward + s.options[o].backward for s, (o,) in zip(chain.stages, options, strict=True))
        time = taped + chain.loss_time + extra * chain.stages[0].no_save.time
        return Plan(
            schedule=Schedule.from_runs(chain.graph, _runs(chain, count)),
            trail=(f"{self!r}: {count} checkpoints, {extra} extra runs, optimal among {CLASS}",),
            class_bounds=(ClassBound(value=time, assumes=f"{CLASS}, {count} checkpoints"),),
        )


def _runs(chain: Chain, count: int) -> list[Run]:
    length, options = len(chain), keep_all(chain)
    runs: list[Run] = []
    todo: list[tuple[int, int, int]] = [(0, length, count)]
    while todo:
        s, stages, left = todo.pop()
        if stages == 1:
            stage, option = chain.stages[s], options[s][0]
            runs.append(Run(stage.forward, option))
            if s == length - 1:
                runs.append(Run(chain.loss, chain.loss_option))
            runs.append(Run(stage.backward, option))
            continue
        ahead = split(stages, left)
        runs.extend(Run(stage_ahead.forward, len(stage_ahead.options)) for stage_ahead in chain.stages[s : s + ahead])
        todo.append((s, ahead, left))
        todo.append((s + ahead, stages - ahead, left - 1))
    return runs
