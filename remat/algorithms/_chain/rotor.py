"""Rotor and rk-Rotor: optimal persistent schedules of chains, by dynamic programming over (first stage, last stage, memory).

Persistent: the input of a sub-chain stays until the first stage's backward has run, and what a stage saved for its backward
stays until then with nothing before the stage running meanwhile (POFO, section 3.2; Rockmate, section 3.4).
Time O(L^2 M (L + B)), memory O(L^2 M) for L stages, M slots, B options per stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from attrs import field, frozen

from remat.algorithms._chain.chain_arrays import NEVER, ChainArrays, Ints, arrays_of, too_long
from remat.algorithms._chain.rotor_kernels import rotor_table, row_of
from remat.algorithms._core.clock import Clock
from remat.algorithms._core.outcome import IMPOSSIBLE, ClassBound, Plan
from remat.algorithms._core.problem import Problem
from remat.algorithms._core.solver import Solver
from remat.ir import Graph, Run, Schedule
from remat.ir.chain import Chain, why_no_chain
from remat.settings import MANY, Setting, instance, takes, tuple_of, whole
from remat.units import Bytes, GiB, Ns, format_bytes

CLASS = "persistent schedules of the chain: a stage's input stays until its backward, nothing before it runs meanwhile"


@frozen(eq=False)
class RotorTable:
    """The values of every sub-chain under every budget up to the one it was made for.

    Attributes:
        chain: the chain. arrays: the chain in slots.
        values: rows of sub-chains by slots [ns]. lowest: first slot of each row that holds a value.
    """

    chain: Chain
    arrays: ChainArrays
    values: Ints
    lowest: Ints

    def _slots(self, budget: Bytes) -> int:
        return min(budget // self.arrays.unit, self.arrays.slots)

    @property
    def floor(self) -> Bytes | None:
        """The smallest budget with a schedule; None when even the budget of the table has none."""
        slot = int(self.lowest[row_of(0, len(self.chain), len(self.chain))])
        return slot * self.arrays.unit if slot <= self.arrays.slots else None

    def value(self, budget: Bytes) -> Ns | None:
        """The least time of a persistent schedule under a budget [ns], or None."""
        if budget < 0:
            return None
        value = int(self.values[row_of(0, len(self.chain), len(self.chain)), self._slots(budget)])
        return None if value >= NEVER else value

    def runs(self, budget: Bytes) -> tuple[Run, ...] | None:
        """The runs of an optimal persistent schedule under a budget, or None."""
        if self.value(budget) is None:
            return None
        return tuple(self._runs((0, len(self.chain), self._slots(budget))))

    def part(self, first: int, last: int, budget: Bytes) -> tuple[Run, ...] | None:
        """The runs of stages `first` to `last` alone, after the loss, with `budget` on top of the input of the first; or None."""
        if budget < 0 or self.values[row_of(first, last, len(self.chain)), self._slots(budget)] >= NEVER:
            return None
        return tuple(self._runs((first, last, self._slots(budget))))

    def schedule(self, budget: Bytes) -> Schedule | None:
        """An optimal persistent schedule under a budget, or None."""
        runs = self.runs(budget)
        return None if runs is None else Schedule.from_runs(self.chain.graph, runs)

    def _runs(self, part: tuple[int, int, int]) -> list[Run]:
        """Rockmate's Algorithm 3 with a stack of its own: chains may be longer than Python's."""
        chain, arrays = self.chain, self.arrays
        length = len(chain)
        runs: list[Run] = []
        todo: list[Run | tuple[int, int, int]] = [part]
        while todo:
            item = todo.pop()
            if isinstance(item, Run):
                runs.append(item)
                continue
            s, t, m = item
            if s == length:
                runs.append(Run(chain.loss, chain.loss_option))
                continue
            option, split = self._decision(s, t, m)
            stage = chain.stages[s]
            if option is not None:
                index = int(arrays.option_index[option])
                runs.append(Run(stage.forward, index))
                todo.append(Run(stage.backward, index))
                if t > s:
                    todo.append((s + 1, t, min(m - int(arrays.saves[option]), arrays.slots)))
            else:
                runs.extend(Run(chain.stages[k].forward, len(chain.stages[k].options)) for k in range(s, split))
                todo.append((s, split - 1, m))
                todo.append((split, t, m - int(arrays.input_size[split])))
        return runs

    def _decision(self, s: int, t: int, m: int) -> tuple[int | None, int]:
        """What attains the value of a sub-chain: an option of the first stage, or the next stage whose input is held."""
        arrays, values = self.arrays, self.values
        length = len(self.chain)
        value = int(values[row_of(s, t, length), m])
        fixed = int(arrays.before[s] if t == length else arrays.after[t])
        for o in range(arrays.option_start[s], arrays.option_start[s + 1]):
            if m < max(arrays.forward[o] + fixed, arrays.backward[o] + arrays.after[s]):
                continue
            rest = 0
            if t > s:
                left = min(m - int(arrays.saves[o]), arrays.slots)
                rest = int(values[row_of(s + 1, t, length), left]) if left >= 0 else NEVER
            if rest + int(arrays.time[o]) == value:
                return o, 0
        return None, self._next_checkpoint(s, t, m)

    def _next_checkpoint(self, s: int, t: int, m: int) -> int:
        """The next stage whose input is held, where the first stage runs without saving anything."""
        arrays, values = self.arrays, self.values
        length = len(self.chain)
        value = int(values[row_of(s, t, length), m])
        cost, first = 0, int(arrays.no_save_needs[s]) + int(arrays.before[s] if t == length else arrays.after[t])
        for i in range(s + 1, t + 1):
            k = i - 1
            cost += int(arrays.no_save_time[k])
            if k > s:
                fixed_before = int(arrays.before[k] if t == length else arrays.after[t])
                first = max(first, int(arrays.input_size[k] + arrays.no_save_needs[k]) + fixed_before)
            left = m - int(arrays.input_size[i])
            if m < first or left < 0:
                continue
            if cost + int(values[row_of(i, t, length), left]) + int(values[row_of(s, k, length), m]) == value:
                return i
        raise AssertionError(f"no decision attains the value of sub-chain ({s}, {t}) with {m} slots")


def table_bytes(stages: int, slots: int) -> Bytes:
    """Bytes of the table of a chain: a triangle of rows of 64-bit words."""
    return 8 * (slots + 1) * (stages + 1) * (stages + 2) // 2


@takes(chain=instance(Chain, "Chain(linearised(graph).graph)"), budget=whole(0, "bytes"))
def rotor_values(chain: Chain, budget: Bytes, choice: Sequence[Sequence[int]] | None = None) -> RotorTable:
    """The table of a chain for a budget and every smaller one; `choice`: the options of each stage to consider.

    Raises:
        BadArgument: A-SETTING, where `choice` does not give each stage one or more of its options.
    """
    arrays = arrays_of(chain, budget, None if choice is None else _checked_choice(chain, choice))
    length = len(chain)
    values = np.full(((length + 1) * (length + 2) // 2, arrays.slots + 1), NEVER, dtype=np.int64)
    lowest = np.zeros(len(values), dtype=np.int64)
    rotor_table(arrays, values, lowest)
    return RotorTable(chain, arrays, values, lowest)


def _checked_choice(chain: Chain, choice: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Its rows: for each stage one or more numbers of its options."""
    rows: Any = [tuple(row) if MANY.accepts(row) else row for row in choice] if MANY.accepts(choice) else choice
    whole_choice = Setting(
        f"a list with a row of numbers of options for each of the {len(chain)} stages",
        lambda rows: isinstance(rows, list) and len(rows) == len(chain),
    )
    whole_choice.check(rows, "rotor_values: choice")
    for k, (stage, row) in enumerate(zip(chain.stages, rows, strict=True)):
        tuple_of(_up_to(len(stage.options) - 1)).check(row, f"rotor_values: choice of stage {k}")
    return list(rows)


def _up_to(last: int) -> Setting:
    return Setting(f"an int from 0 to {last}", lambda value: type(value) is int and 0 <= value <= last)


def keep_all(chain: Chain) -> tuple[tuple[int], ...]:
    """For each stage its fastest option (ties: the smaller phantom): what Rotor calls F_all."""
    picked = []
    for stage in chain.stages:
        order = [(option.forward + option.backward, option.phantom, i) for i, option in enumerate(stage.options)]
        picked.append((min(order)[2],))
    return tuple(picked)


@frozen
class RkRotor(Solver):
    """Optimal persistent schedule of a chain with options per stage (Rockmate, App. C, Algorithms 2 and 3).

    Attributes:
        table_limit: most bytes of the table; a finer budget is refused with the remedy.
    """

    table_limit: Bytes = field(default=4 * GiB, validator=whole(0, "bytes"), kw_only=True)

    def refuses(self, graph: Graph) -> str | None:
        """Why a graph is refused: it is not a chain, or its times exceed 64-bit words."""
        return chain_refusal(graph)

    def plan(self, problem: Problem, clock: Clock, seed: int) -> Plan:
        """The optimum of the class, stated in `class_bounds`."""
        return self._plan(problem, None)

    def _plan(self, problem: Problem, choice: Sequence[Sequence[int]] | None) -> Plan:
        chain = Chain(problem.graph)
        arrays = arrays_of(chain, problem.budget, choice)
        size = table_bytes(len(chain), arrays.slots)
        if size > self.table_limit:
            what = (
                f"{len(chain)} stages and {arrays.slots} slots of {arrays.unit} B need a table of {format_bytes(size)}"
            )
            return Plan(trail=(f"{self!r} refused: {what}; write Quantise(slots=…) >> {self!r}",))
        table = rotor_values(chain, problem.budget, choice)
        value = table.value(problem.budget)
        if value is None:
            bound = ClassBound(value=IMPOSSIBLE, assumes=CLASS)
            return Plan(trail=(f"{self!r}: no persistent schedule fits",), class_bounds=(bound,))
        return Plan(
            schedule=table.schedule(problem.budget),
            trail=(f"{self!r}: {value} ns, optimal among {CLASS}",),
            class_bounds=(ClassBound(value=value, assumes=CLASS),),
        )


@frozen
class Rotor(RkRotor):
    """Optimal persistent schedule of a chain by F_all, F_ck and F_none (Beaumont et al., 2019): one option per stage.

    The option is the stage's fastest, which saves all its backward wants; `RkRotor` chooses among options.
    """

    def plan(self, problem: Problem, clock: Clock, seed: int) -> Plan:
        """The optimum of the class, stated in `class_bounds`."""
        return self._plan(problem, keep_all(Chain(problem.graph)))


def chain_refusal(graph: Graph) -> str | None:
    """Why the chain solvers refuse a graph; None when they accept it."""
    reason = why_no_chain(graph)
    if reason is not None:
        return f"not a chain ({reason}); write Linearise() >> …"
    return too_long(Chain(graph))
