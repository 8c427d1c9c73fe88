"""Rows over "node k runs again in stage t or later", which lift the relaxation of the production form.

The flow rows let a rerun be spread thinly over many stages, each part of it with as little of its inputs. But what is not
resident when a stage begins must run again in it or later: for the first run of a reader that is still to come, and for any
rerun of one that has run. `again[t, k]` says that as one variable, whatever the stage: at each boundary the rows are those of
the saved-set bound of one instant (`SingleInstant`), and all instants share the reruns. Integral points are the same with and
without; a point's `again` follows from its runs, so that it is integral with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from remat.algorithms._milp.linear import Builder
from remat.algorithms._staged.memory_items import Cell, StagedGraph
from remat.algorithms._staged.slots import Slots

if TYPE_CHECKING:
    from collections.abc import Mapping


class Flow(Protocol):
    """The residency variables of a cell; see `form_events`."""

    def before(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """The column of the gap that covers the time just before each slot; -1: no gap does."""


def again_rows(
    stage: StagedGraph, slots: Slots, b: Builder, flows: Mapping[int, Flow]
) -> Mapping[tuple[int, int], int]:
    """Add the columns and rows to a formulation whose runs and residencies stand already; the columns by stage and node."""
    rows = _Again(stage, slots, b)
    for at, flow in flows.items():
        rows.cell(stage.cells[at], flow)
    return rows.again


class _Again:
    def __init__(self, stage: StagedGraph, slots: Slots, b: Builder) -> None:
        self.stage, self.slots, self.b = stage, slots, b
        self.again: dict[tuple[int, int], int] = {}
        for node in range(len(stage.graph)):
            self._node(node)

    def _node(self, node: int) -> None:
        """again[t] = run[t] or again[t + 1], from the last stage back; a stage without a slot shares the next one's."""
        b, later = self.b, -1
        options = len(self.stage.graph.computes[node].options)
        for t in range(len(self.stage.graph) - 1, node, -1):
            slot = int(self.slots.at[t, node])
            if slot >= 0:
                column = b.new(1, implied=True)
                first = int(self.slots.column[slot])
                run = [(first + o, 1) for o in range(options)]
                b.row([(column, -1), *run])
                rest = [] if later < 0 else [(later, -1)]
                b.row([(column, 1), *((part, -1) for part, _ in run), *rest])
                if later >= 0:
                    b.row([(later, 1), (column, -1)])
                later = column
            if later >= 0:
                self.again[t, node] = later

    def _whole(self, node: int, options: tuple[int, ...]) -> bool:
        """Whether a node reads or writes the cell under every option."""
        return len(options) == len(self.stage.graph.computes[node].options)

    def cell(self, cell: Cell, flow: Flow) -> None:
        """Rows for the readers and later writers of what the writers made: resident at the boundary, or recomputed after it."""
        last = cell.writers[-1][0] if cell.keep else len(self.stage.graph) - 1
        seen: set[tuple[int, int, int]] = set()
        for place, (writer, makes) in enumerate(cell.writers):
            if not self._whole(writer, makes):
                continue
            users = [node for node, does in (*cell.readers, *cell.writers[place + 1 :]) if self._whole(node, does)]
            for t in range(writer + 1, last + 1):
                resident = int(flow.before(np.array(self.slots.begin[t])))
                again = self.again.get((t, writer), -1)
                supply = [(column, -1) for column in (resident, again) if column >= 0]
                if any(user >= t for user in users):
                    self._row(seen, resident, again, -1, supply)
                    continue
                for user in users:
                    if (t, user) in self.again:
                        self._row(seen, resident, again, self.again[t, user], supply)

    def _row(
        self, seen: set[tuple[int, int, int]], resident: int, again: int, user: int, supply: list[tuple[int, int]]
    ) -> None:
        """The user's run (-1: a first run, which always happens) is at most the supply; each such row once."""
        if (resident, again, user) in seen:
            return
        seen.add((resident, again, user))
        if user < 0:
            self.b.row(supply, -1)
        else:
            self.b.row([*supply, (user, 1)])
