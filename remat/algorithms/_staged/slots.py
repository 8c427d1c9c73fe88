"""Slots: the places of a staged schedule where a node may run, and the restrictions that thin them out.

Stage t ends with the first run of node t; slot (t, k), k <= t, is the place for a run of node k in it. Slots stand in
the order of a schedule: by stage, then by node. A staged schedule keeps the order of first runs and runs a node at
most once per stage.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from remat.algorithms._staged.memory_items import StagedGraph

Reruns = Literal["all", "backward-only", "backward-once", "none"]
RERUNS: Final = ("all", "backward-only", "backward-once", "none")


@frozen
class Slots:
    """The slots of one formulation.

    Attributes:
        stage, node: of each slot. at: slot of (stage, node), -1 without one. begin: first slot of each stage.
        column: first column of each slot; option o of its node is column + o. columns: all of them.
    """

    stage: NDArray[np.int64] = field(eq=False)
    node: NDArray[np.int64] = field(eq=False)
    at: NDArray[np.int64] = field(eq=False)
    begin: NDArray[np.int64] = field(eq=False)
    column: NDArray[np.int64] = field(eq=False)
    columns: int

    def __len__(self) -> int:
        return len(self.stage)

    def of(self, node: int) -> NDArray[Any]:
        """The slots of a node, in order."""
        column = self.at[:, node]
        return column[column >= 0]


def slots_of(stage: StagedGraph, reruns: Reruns = "all", window: int | None = None, every: bool = False) -> Slots:
    """The slots of a graph.

    Args:
        stage: the graph.
        reruns: `all`: every rerun that can matter; loses nothing against staged schedules. `backward-only`: none before the
            loss; equal to `all` in every pair measured, but without a proof: a forward pass that cannot keep its own values
            resident needs them. `backward-once`: also no rerun of backward nodes; loses up to 7 % inside one block at tight
            budgets, and plans. `none`: each node once; on a graph of layers, what is left is one option for each.
        window: also no rerun of backward nodes, and in the stage of a backward node only this many of its nearest ancestors
            may run again; slots grow linearly with the graph. Loses plans where a chain of reruns is longer than this.
        every: the whole triangle, as published, also where a rerun cannot matter.
    """
    graph, n, loss = stage.graph, len(stage.graph), stage.loss
    allowed = np.tril(np.ones((n, n), np.bool_))
    allowed &= np.arange(n)[:, None] <= np.array(stage.last_rerun)[None, :]
    if not every:
        allowed &= np.arange(n)[:, None] <= np.array(stage.last_use)[None, :]
    if reruns != "all" or window is not None:
        allowed[: loss + 1] &= np.eye(n, dtype=np.bool_)[: loss + 1]
    if reruns == "none":
        allowed &= np.eye(n, dtype=np.bool_)
    if reruns == "backward-once" or window is not None:
        allowed[:, loss + 1 :] &= np.eye(n, dtype=np.bool_)[:, loss + 1 :]
    if window is not None:
        for t in range(loss + 1, n):
            near = _nearest(stage, t, window, allowed[t])
            keep = np.zeros(n, np.bool_)
            keep[[t, *near]] = True
            allowed[t] &= keep
    np.fill_diagonal(allowed, True)
    where = np.argwhere(allowed)
    at = np.full((n, n), -1, np.int64)
    at[where[:, 0], where[:, 1]] = np.arange(len(where))
    width = np.array([len(node.options) for node in graph.computes], np.int64)[where[:, 1]]
    ends = np.cumsum(width)
    begin = np.searchsorted(where[:, 0], np.arange(n))
    return Slots(where[:, 0], where[:, 1], at, begin, ends - width, int(ends[-1]))


def _nearest(stage: StagedGraph, node: int, window: int, allowed: NDArray[np.bool_]) -> list[int]:
    """The ancestors of a node that may run again in its stage, nearest in the topological order first."""
    seen: set[int] = set()
    ahead = [node]
    while ahead:
        current = ahead.pop()
        for cell in stage.by_node[current][1]:
            for writer, _ in stage.cells[cell].writers:
                if writer not in seen and allowed[writer]:
                    seen.add(writer)
                    ahead.append(writer)
    return sorted(seen, reverse=True)[:window]
