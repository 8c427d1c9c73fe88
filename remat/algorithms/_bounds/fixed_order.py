"""The saved-set formulation at several instants at once: which data are resident at each, what runs again between them.

Instants cut the captured order into stages. Per instant k and datum d: s = d is resident; per stage and node: y = the
node runs again in the stage. For a node that runs in a stage, the data that it reads are resident at the start of the stage
or are recomputed in it; a datum is resident at an instant if it was resident at the previous one or was made since.
Reruns are counted once per stage and those of the first stage are free, so the optimum bounds every schedule whose
first runs keep the captured order; this assumption is reported together with the bound. With one stage per node this is
Checkmate's formulation (Jain et al., 2020); a few hard instants keep it small.
"""

from __future__ import annotations

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from remat.algorithms._arrays.graph_arrays import Flat
from remat.algorithms._milp.linear import Builder, Linear


@frozen
class Stages:
    """The formulation over the stages that begin at `instants`; columns of s by instant and datum, of y by stage and node."""

    instants: tuple[int, ...]
    linear: Linear
    resident: NDArray[np.int32]
    again: NDArray[np.int32]
    impossible: bool = False


def staged_formulation(flat: Flat, instants: tuple[int, ...], budget: int) -> Stages:
    """The formulation; `instants` are node indices, ascending, none before the loss. Integral: s."""
    build = _Build(flat, instants)
    impossible = False
    for k in range(len(instants)):
        impossible |= build.memory_row(k, budget)
        build.stage_rows(k)
    return Stages(
        instants=instants,
        linear=build.builder.build(),
        resident=build.resident,
        again=build.again,
        impossible=impossible,
    )


class _Build:
    """Numbers the variables and collects the rows."""

    def __init__(self, flat: Flat, instants: tuple[int, ...]) -> None:
        self.flat, self.instants = flat, instants
        nodes, data = flat.time.size, flat.size.size
        self.builder = Builder()
        self.permanent = flat.keep & (flat.contributions == 1)
        self.resident = np.full((len(instants), data), -1, np.int32)
        self.again = np.full((len(instants), nodes), -1, np.int32)
        last = self._last_use()
        for k, at in enumerate(instants):
            for v in range(at):
                if flat.replay[v]:
                    self.again[k, v] = self.builder.new(1, cost=int(flat.time[v]))
            for d in range(data):
                p = flat.producer[d]
                if 0 <= p < at and not self.permanent[d] and last[d] >= 0:
                    self.resident[k, d] = self.builder.new(1, integral=True)

    def _last_use(self) -> list[int]:
        flat = self.flat
        ends = flat.use_ptr[1:]
        return [int(flat.use_idx[ends[d] - 1]) if ends[d] > flat.use_ptr[d] else -1 for d in range(flat.size.size)]

    def memory_row(self, k: int, budget: int) -> bool:
        """Resident data, kept data and the working set of the instant fit; returns whether that is impossible."""
        flat, at = self.flat, self.instants[k]
        room = budget - int(flat.charge[at])
        terms: list[tuple[int, int]] = []
        reads = set(flat.read_idx[flat.read_ptr[at] : flat.read_ptr[at + 1]].tolist())
        for d in range(flat.size.size):
            p, column = int(flat.producer[d]), int(self.resident[k, d])
            if p < 0 or p >= at:
                continue
            if self.permanent[d]:
                room -= int(flat.size[d])
            elif d in reads:
                room -= int(flat.size[d])
                self.builder.row([(column, -1)], -1)
            elif column >= 0:
                terms.append((column, int(flat.size[d])))
        self.builder.row(terms, room)
        return room < 0

    def stage_rows(self, k: int) -> None:
        """Nodes that run in stage k have their reads; data resident at the next instant were resident or are made."""
        last = k + 1 == len(self.instants)
        for v in range(self.flat.time.size if last else self.instants[k + 1]):
            if v >= self.instants[k] or self.again[k, v] >= 0:
                self._read_rows(k, v)
        if not last:
            self._resident_rows(k)

    def _read_rows(self, k: int, v: int) -> None:
        """A run of v in stage k needs the data of earlier stages that it reads; in the stage of its first run it always runs."""
        flat, at = self.flat, self.instants[k]
        rerun = [] if v >= at else [(int(self.again[k, v]), 1)]
        for d in flat.read_idx[flat.read_ptr[v] : flat.read_ptr[v + 1]].tolist():
            p = int(flat.producer[d])
            if not self.permanent[d] and p < at:
                self.builder.row([*self._supply(k, d, p), *rerun], 0 if rerun else -1)

    def _resident_rows(self, k: int) -> None:
        """Data resident at instant k + 1 were resident at instant k, or are made in stage k."""
        for d in range(self.flat.size.size):
            p, column = int(self.flat.producer[d]), int(self.resident[k + 1, d])
            if column >= 0 and p < self.instants[k]:
                self.builder.row([(column, 1), *self._supply(k, d, p)], 0)

    def _supply(self, k: int, d: int, p: int) -> list[tuple[int, int]]:
        terms = []
        if self.resident[k, d] >= 0:
            terms.append((int(self.resident[k, d]), -1))
        if self.again[k, p] >= 0:
            terms.append((int(self.again[k, p]), -1))
        return terms
