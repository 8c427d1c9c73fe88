"""The layer option that a schedule of a block is for the level above; all of its numbers come from the replay.

A *block* is a flat graph whose loss node stands for the rest of the network: it reads the outputs of the block and writes the
gradients that come back; kept data of the backward go out. `remat.ir.part` makes the block of a cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

from attrs import frozen

from remat.errors import IllFormed
from remat.ir.arguments import A_GRAPH, A_SCHEDULE
from remat.ir.graph import Graph
from remat.ir.node import Kind, Phase
from remat.ir.option import LayerOption, Moment
from remat.ir.schedule import Schedule
from remat.ir.step import Drop, Run, Step
from remat.ir.validation import validate
from remat.settings import takes
from remat.units import Bytes


@takes(block=A_GRAPH, schedule=A_SCHEDULE)
def option_of(block: Graph, schedule: Schedule) -> LayerOption:
    """The layer option that a schedule of a block is.

    The phantom is what the schedule holds of the block's interior while the loss node runs; outputs and inputs that the
    backward reads from the level above become its `backward_reads`.

    Args:
        block: a flat graph, its loss node in place of the rest of the network.
        schedule: a valid schedule of it without copies. Its drops are placed again, each at the last read.

    Raises:
        InvalidSchedule: when the schedule breaks a rule of the block.
        IllFormed: G-OPT, when the block is not flat.
    """
    if not block.flat:
        raise IllFormed(
            "G-OPT", f"{block!r} has layers or options.", fix="expand the schedule to the flat graph first."
        )
    validate(block, schedule)
    return _Account(block, Schedule.from_runs(block, schedule.runs)).option()


@frozen
class _Borders:
    """What crosses the border of a block."""

    block: Graph

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Data of the level above that the forward or the backward reads, except those outside the step."""
        return tuple(datum.name for datum in self.block.data if datum.kind is Kind.INPUT)

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Data of the forward that the rest of the network reads, or that are kept."""
        loss = set(self.block.computes[self.block.loss].reads)
        written = [datum for datum in self.block.data if self._phase(datum.writers) is Phase.FORWARD]
        return tuple(datum.name for datum in written if datum.keep or datum.name in loss)

    @cached_property
    def incoming(self) -> tuple[str, ...]:
        return self.block.computes[self.block.loss].writes

    @cached_property
    def outgoing(self) -> tuple[str, ...]:
        written = [datum for datum in self.block.data if self._phase(datum.writers) is Phase.BACKWARD]
        return tuple(datum.name for datum in written if datum.keep)

    def _phase(self, writers: Sequence[str]) -> Phase | None:
        return self.block.node(writers[0]).phase if writers else None


class _Account:
    """What is resident at each step of a schedule of a block, and what reads it last."""

    def __init__(self, block: Graph, schedule: Schedule) -> None:
        self.block = block
        self.schedule = schedule
        self.borders = _Borders(block)
        self.timeline = validate(block, schedule).timeline
        loss = block.computes[block.loss].name
        self.border = next(i for i, step in enumerate(schedule.steps) if isinstance(step, Run) and step.node == loss)
        self.size = {datum.name: datum.size for datum in block.data}
        self.resident: list[frozenset[str]] = []  # before each step
        self.last_read: tuple[dict[str, int], dict[str, int]] = ({}, {})  # in the forward half, in the backward half
        now: set[str] = set()
        for at, step in enumerate(schedule.steps):
            self.resident.append(frozenset(now))
            if isinstance(step, Run):
                now.update(block.node(step.node).writes)
                self.last_read[at > self.border].update(dict.fromkeys(block.node(step.node).reads, at))
            elif isinstance(step, Drop):
                now.discard(step.datum)
        self.resident.append(frozenset(now))

    def option(self) -> LayerOption:
        """The numbers. Workspaces cover every step with all outputs, the phantom and all border data above present."""
        steps, borders = self.schedule.steps, self.borders
        end = next((i for i in range(self.border + 1, len(steps)) if not isinstance(steps[i], Drop)), len(steps))
        resident = self.resident[end] - set(borders.incoming)
        phantom = self.sum(resident - set(borders.outputs))
        reads = self.reads_of_above([step.node for step in steps[end:] if isinstance(step, Run)])
        above = (*borders.incoming, *(name for name in borders.outputs if name in resident))
        forward, backward = self.runs_of(0, self.border), self.runs_of(end, len(steps))
        forward_peak = self.peak(forward, ())
        backward_peak = self.peak(backward, above)
        inputs = [name for name in reads if name in set(borders.inputs)]
        return LayerOption(
            forward=self.time(steps[: self.border]),
            backward=self.time(steps[end:]),
            phantom=phantom,
            forward_workspace=max(0, forward_peak - self.sum(borders.outputs) - phantom),
            backward_workspace=max(0, backward_peak - phantom - self.sum(above) - self.sum(borders.outgoing)),
            backward_reads=reads,
            forward_profile=_lean(self.moment(i, borders.inputs, borders.outputs) for i in forward),
            backward_profile=_lean(self.moment(i, inputs, (*above, *borders.outgoing)) for i in backward),
            forward_steps=steps[: self.border],
            backward_steps=steps[end:],
        )

    def peak(self, steps: Iterable[int], above: Iterable[str]) -> Bytes:
        """Most bytes at some of the steps, with the border data that the level above may hold."""
        names = tuple(above)
        return max((self.timeline[i] + self.gone(i, names) for i in steps), default=0)

    def runs_of(self, start: int, end: int) -> list[int]:
        """Places of the runs among the steps from `start` up to `end`."""
        return [i for i in range(start, end) if isinstance(self.schedule.steps[i], Run)]

    def time(self, steps: Sequence[Step]) -> int:
        return sum(self.block.node(step.node).option.time for step in steps if isinstance(step, Run))

    def sum(self, names: Iterable[str]) -> Bytes:
        return sum(self.size[name] for name in names)

    def gone(self, step: int, names: Iterable[str]) -> Bytes:
        """Bytes of border data that the schedule does not hold before a step, and the level above may."""
        return sum(self.size[name] for name in names if name not in self.resident[step])

    def reads_of_above(self, runs: Sequence[str]) -> tuple[str, ...]:
        """Inputs and outputs that the backward half reads before it makes them itself."""
        produced: set[str] = set()
        reads: dict[str, None] = {}
        border = {*self.borders.outputs, *self.borders.inputs}
        for name in runs:
            node = self.block.node(name)
            reads.update(dict.fromkeys(read for read in node.reads if read in border and read not in produced))
            produced.update(node.writes)
        return tuple(reads)

    def moment(self, step: int, inputs: Iterable[str], others: Iterable[str]) -> Moment:
        """One run: inputs count until their last read in this half, other border data while the schedule holds them.

        Inputs that this half never reads are none of its reads, and left out.
        """
        last = self.last_read[step > self.border]
        needed = [name for name in inputs if last.get(name, -1) >= step]
        absent = [name for name in inputs if 0 <= last.get(name, -1) < step]
        absent += [name for name in others if name not in self.resident[step]]
        return Moment(live=self.timeline[step] + self.sum(needed), absent=tuple(absent))


def _lean(moments: Iterable[Moment]) -> tuple[Moment, ...]:
    """One moment for each set of absent data: the largest (HiRemate, end of App. B.4)."""
    largest: dict[tuple[str, ...], Bytes] = {}
    for moment in moments:
        largest[moment.absent] = max(moment.live, largest.get(moment.absent, 0))
    return tuple(Moment(live=live, absent=absent) for absent, live in largest.items())
