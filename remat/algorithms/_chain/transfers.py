"""Whole transfers for a run sequence: which cells stay offloaded across the loss, when their copies start, and the fluid time.

Every cell offloaded here leaves before the loss and comes back after it, once: POFO's first assumption. `place` writes the
steps; the copies of the backward are placed by running it in reversed time, where a prefetch is an offload. `fluid` is the
makespan under POFO's third assumption, continuous transfers that free and take memory byte by byte; what a replay takes
beyond it is the price of whole transfers.

Reference: POFO (Beaumont, Eyraud-Dubois, Shilova, 2021), section 3.2 and Lemma 1, applied to a whole sequence at once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

from attrs import frozen

from remat.ir import Drop, Graph, Link, Offload, Phase, Prefetch, Run, Schedule, Step
from remat.units import Bytes, Ns

_SECOND = 10**9


@frozen
class Stay:
    """A cell (datum or phantom) that is resident across the loss.

    Attributes:
        cell: its name. size: its bytes. maker: the run that made it.
        leaves: the last run before the loss that makes or reads it; a copy out may start after it.
        wanted: the first run after the loss that reads it; a copy in must have ended before it.
    """

    cell: str
    size: Bytes
    maker: int
    leaves: int
    wanted: int


@frozen(kw_only=True)
class Trace:
    """A run sequence with its drops, as `Schedule.from_runs` places them.

    Attributes:
        runs: the runs. drops: cells dropped after each run. charges: bytes live in each run, its outputs and workspace included.
        loss: index of the loss. stays: cells that could be offloaded across the loss, in the order in which
            they are made, the larger first.
    """

    graph: Graph
    runs: tuple[Run, ...]
    drops: tuple[tuple[str, ...], ...]
    charges: tuple[Bytes, ...]
    loss: int
    stays: tuple[Stay, ...]

    def times(self) -> list[Ns]:
        """Time of each run [ns]."""
        return [self.graph.node(run.node).options[run.option].time for run in self.runs]

    def without(self, cells: Collection[str]) -> list[Bytes]:
        """Bytes live in each run when `cells` are offloaded as long as possible."""
        charges = list(self.charges)
        for stay in self.stays:
            if stay.cell in cells:
                for k in range(stay.leaves + 1, stay.wanted):
                    charges[k] -= stay.size
        return charges


def trace(graph: Graph, runs: Sequence[Run]) -> Trace:
    """The residencies of a run sequence (of a flat graph or of one with layers)."""
    schedule = Schedule.from_runs(graph, runs)
    account = _Residencies(graph)
    for step in schedule.steps:
        if isinstance(step, Drop):
            account.drop(step.datum)
        else:
            assert isinstance(step, Run)
            account.run(step)
    stays = sorted(account.stays, key=lambda stay: (stay.maker, -stay.size, stay.cell))
    return Trace(
        graph=graph,
        runs=schedule.runs,
        drops=tuple(tuple(names) for names in account.drops),
        charges=tuple(account.charges),
        loss=account.loss,
        stays=tuple(stays),
    )


class _Residencies:
    """What is resident while a schedule runs, and what was resident across the loss.

    Attributes:
        drops: per run, the cells dropped right after it.
        charges: bytes charged at each run.
        stays: ended residencies that were used before and after the loss. loss: its place; -1 before it.
        growing: resident sums that are added to after the loss: only whole sums are copied.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.kept_names = {datum.name for datum in graph.data if datum.keep}
        self.outside = {datum.name for datum in graph.data if datum.outside}
        self.resident: dict[str, tuple[int, Bytes, list[int]]] = {}
        self.growing: set[str] = set()
        self.live, self.loss = 0, -1
        self.drops: list[list[str]] = []
        self.charges: list[Bytes] = []
        self.stays: list[Stay] = []

    def drop(self, cell: str) -> None:
        maker, size, touched = self.resident.pop(cell)
        self.live -= size
        self.drops[-1].append(cell)
        before, after = [k for k in touched if k <= self.loss], [k for k in touched if k > self.loss]
        if before and after and cell not in self.kept_names | self.growing:
            self.stays.append(Stay(cell, size, maker, before[-1], after[0]))
        self.growing.discard(cell)

    def run(self, run: Run) -> None:
        node, k = self.graph.node(run.node), len(self.charges)
        reads, writes = self.graph.touched(run)
        self.loss = k if node.phase is Phase.LOSS else self.loss
        self.charges.append(self.live + sum(writes.values()) + node.options[run.option].workspace)
        self.drops.append([])
        for name in reads:
            if name not in self.outside:
                self.resident[name][2].append(k)
        for name, size in writes.items():
            if name in self.resident:
                self.resident[name][2].append(k)
                if k > self.loss >= 0:
                    self.growing.add(name)
            else:
                self.resident[name] = (k, size, [k])
                self.live += size


def place(traced: Trace, cells: Collection[str], budget: Bytes, link: Link) -> Schedule | None:
    """The schedule of a run sequence whose `cells` are offloaded across the loss; None when some run does not fit even so."""
    away = [stay for stay in traced.stays if stay.cell in cells]
    if max(traced.without({stay.cell for stay in away})) > budget:
        return None
    steps: list[list[Step]] = [[run, *map(Drop, cells)] for run, cells in zip(traced.runs, traced.drops, strict=True)]
    for stay in away:
        steps[stay.leaves].append(Offload(stay.cell))
    for cell, k in reversed(_issues(traced, away, budget, link)):
        steps[k].insert(0, Prefetch(cell))
    return Schedule(tuple(step for row in steps for step in row))


def _issues(traced: Trace, away: Sequence[Stay], budget: Bytes, link: Link) -> list[tuple[str, int]]:
    """For each prefetch, in the order of need, the run before which it starts: the backward phase in reversed time.

    A copy may begin (in reversed time) once the run that wants the cell is done; a run waits until enough of the copies under
    way have ended to fit. The copy is issued before the earliest run, in true time, during which it is under way.
    """
    times, charges = traced.times(), traced.without({stay.cell for stay in away})
    wanted: dict[int, list[Stay]] = {}
    for stay in sorted(away, key=lambda stay: (stay.wanted, stay.maker)):
        wanted.setdefault(stay.wanted, []).append(stay)
    now = lane = 0
    under_way: list[tuple[Ns, Stay]] = []  # (end in reversed time, cell), in the order of the lane
    begun: list[tuple[int, Ns]] = []  # (run, its start in reversed time)
    issued: list[tuple[Ns, Stay]] = []
    for k in range(len(traced.runs) - 1, traced.loss, -1):
        pending = [(end, stay) for end, stay in under_way if end > now]
        while pending and charges[k] + sum(stay.size for _, stay in pending) > budget:
            now = pending.pop(0)[0]
        under_way = pending
        begun.append((k, now))
        now += times[k]
        for stay in reversed(wanted.get(k, ())):
            lane = max(now, lane) + link.prefetch_time(stay.size)
            under_way.append((lane, stay))
            issued.append((lane, stay))
    return [(stay.cell, _first_run_of_copy(begun, end, stay)) for end, stay in reversed(issued)]


def _first_run_of_copy(begun: Sequence[tuple[int, Ns]], end: Ns, stay: Stay) -> int:
    """The earliest run during which a copy that ends (in reversed time) at `end` is under way."""
    return min((k for k, start in begun if start < end and k < stay.wanted), default=stay.wanted)


def fluid(
    traced: Trace, cells: Mapping[str, int], budget: Bytes, link: Link | None, *, apart: bool = False
) -> tuple[Fraction, Fraction] | None:
    """Makespan [ns] with continuous transfers, and the part of it that waits at the loss for copies out; None: it does not fit.

    Args:
        traced: the run sequence.
        budget: bytes.
        link: latencies are not modelled here; None: nothing is copied.
        cells: what leaves, each with the run from which on its copy out may be under way. While that run is on, the cell is
            wholly resident. After the loss a cell is wholly resident when the first run that reads any cell of its group
            begins; a group is what is offloaded at one run (POFO's a-bar: a phantom and an output).
        apart: every cell is a group of its own: no replay of the same runs and cells is faster, but for the second number.
    """
    away = [stay for stay in traced.stays if stay.cell in cells]
    if away and link is None:
        return None
    wanted = _first_wanted(away, {} if apart else cells)
    charges, times = list(traced.charges), traced.times()
    out: Counter[int] = Counter()
    home: Counter[int] = Counter()
    for stay in away:
        first, last = cells[stay.cell], wanted[stay.cell]
        out[first] += stay.size
        home[last] += stay.size
        for k in range(first + 1, last):
            charges[k] -= stay.size
    rates = (None, None) if link is None else (link.to_host, link.to_device)
    ahead = _phase(range(traced.loss + 1), charges, times, _Copies(out, rates[0], fresh=True), budget)
    if ahead is None:
        return None
    behind = range(len(traced.runs) - 1, traced.loss, -1)
    after = _phase(behind, charges, times, _Copies(home, rates[1], fresh=False), budget)
    return None if after is None else (ahead[0] + ahead[1] + after[0] + after[1], ahead[1])


def _first_wanted(away: Sequence[Stay], group: Mapping[str, int]) -> dict[str, int]:
    """For each cell the first run after the loss that reads any cell of its group; without a group it is a group of its own."""
    first: dict[int | str, int] = {}
    for stay in away:
        key = group.get(stay.cell, stay.cell)
        first[key] = min(stay.wanted, first.get(key, stay.wanted))
    return {stay.cell: first[group.get(stay.cell, stay.cell)] for stay in away}


class _Copies(NamedTuple):
    """The copies of one phase: bytes by the run they start at, and the bandwidth of the link they use [bytes/s]; None: no link.

    `fresh`: a cell may move while the run it starts at is on (before the loss); else only once that run is done.
    """

    starts: Mapping[int, Bytes]
    bandwidth: int | None
    fresh: bool


def _phase(
    order: Sequence[int], charges: Sequence[Bytes], times: Sequence[Ns], copies: _Copies, budget: Bytes
) -> tuple[Fraction, Fraction] | None:
    """(time of the runs and their waiting, time to empty the link after them); backwards in time for the second phase."""
    per_byte = Fraction(0) if copies.bandwidth is None else Fraction(_SECOND, copies.bandwidth)
    queue, clock = Fraction(0), Fraction(0)
    for k in order:
        over = charges[k] + queue - budget
        if charges[k] > budget:
            return None
        wait = max(over, Fraction(0)) * per_byte
        spent = wait + times[k]
        new = copies.starts.get(k, 0)
        if per_byte == 0:
            queue = Fraction(0)
        elif copies.fresh:
            queue = max(queue + new - spent / per_byte, Fraction(0))
        else:
            queue = max(queue - spent / per_byte, Fraction(0)) + new
        clock += spent
    return clock, queue * per_byte


def rounded(value: Fraction) -> Ns:
    """A fluid makespan as whole nanoseconds, downwards."""
    return math.floor(value)
