"""Costs of a step: from this process, from disk, and measured where neither has them."""

from __future__ import annotations

from collections.abc import Mapping

from remat.exec._cost.cost import OpCost
from remat.exec._cost.cost_files import Entry, cost_file
from remat.exec._cost.measuring import BRIEF, FEWEST, ONE_ROUND, TWO_ROUNDS, measure, signatures_of
from remat.exec._program.program import Program


def measured(program: Program, cache: dict[str, OpCost] | None = None, *, brief: bool = False) -> Mapping[str, OpCost]:
    """Costs of every node of a step, by name; as `measure`, which is asked for what no process has measured.

    What is kept for other processes is measured in two rounds, so that one disturbance does not stay for ever; what was measured
    briefly serves brief requests alone.

    Args:
        program: the captured step.
        cache: costs by signature that this process has; what is used is added.
        brief: whether a few calls are enough: the bytes are as exact, the times less so.

    Raises:
        Uncapturable: X-MEASURE, when an operation does not run on inputs made for it.
    """
    file = cost_file(program.device)
    if file is None:
        return measure(program, cache, sampling=BRIEF if brief else ONE_ROUND)
    costs = {} if cache is None else cache
    lacking = [text for text in dict.fromkeys(signatures_of(program).values()) if text not in costs]
    sampling = BRIEF if brief else TWO_ROUNDS
    costs.update(file.costs_of(lacking, calls=1 if brief else FEWEST * sampling.rounds))
    calls: dict[str, int] = {}
    result = measure(program, costs, sampling=sampling, calls=calls)
    file.add({text: Entry(costs[text], count) for text, count in calls.items()})
    return result


__all__ = ["measured"]
