"""A training stack: its smallest honest script, run bare and within a budget, and what the two are judged by."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from attrs import define, field, frozen
from torch import nn

import remat.exec
from remat.exec._module import making
from remat.exec._torch.recording import Event, Recording
from remat.units import format_bytes

TYPES = ("float32", "bf16")


@define
class Run:
    """One training: what the script is told, and what it leaves.

    Attributes:
        budget: None: bare.
        type: "float32", or "bf16": the mixed precision of the stack.
        folder: an empty one.
        model: what was trained, as the stack leaves it.
        planned: the module that has the plans.
        losses: of each step.
        peaks: of the steps that were measured, as the allocator saw them [bytes].
        plannings: how many steps were planned.
    """

    budget: str | None
    type: str
    folder: Path
    model: nn.Module | None = None
    planned: nn.Module | None = None
    losses: list[float] = field(factory=list)
    peaks: list[int] = field(factory=list)
    plannings: int = 0
    _recording: Recording | None = None

    @property
    def bf16(self) -> bool:
        """Whether the stack's mixed precision is on."""
        return self.type == "bf16"

    def start(self) -> None:
        """Measure from here on."""
        self._recording = Recording()
        self._recording.start()

    def stop(self) -> None:
        """A measured step has ended."""
        if self._recording is not None:
            events: list[Event] = self._recording.stop()
            self.peaks.append(max((0, *accumulate(event.size for event in events if event.size))))
            self._recording = None

    def measure(self, owner: Any, name: str, at: int) -> None:
        """Measure one call of a method."""
        method, calls = getattr(owner, name), iter(range(10**9))

        @functools.wraps(method)
        def measured(*args: Any, **kwargs: Any) -> Any:
            if next(calls) != at:
                return method(*args, **kwargs)
            self.start()
            try:
                return method(*args, **kwargs)
            finally:
                self.stop()

        setattr(owner, name, measured)


@frozen(kw_only=True)
class Stack:
    """A stack.

    Attributes:
        name: of the row.
        script: trains; fills in the run.
        packages: what it needs besides torch.
        plannings: how many steps it has to plan: one for each combination of shapes.
        types: which of `TYPES` it has.
        budget: what it is run within.
        ranks: how many processes train together.
    """

    name: str
    script: Callable[[Run], None]
    packages: tuple[str, ...] = ()
    plannings: int = 1
    types: tuple[str, ...] = TYPES
    budget: str = "70%"
    ranks: int = 1

    @property
    def missing(self) -> list[str]:
        """Packages that are not installed."""
        return [name for name in self.packages if importlib.util.find_spec(name) is None]


@frozen(kw_only=True)
class Row:
    """What a stack came to.

    Attributes:
        planned: whether plans ran, and recomputed something.
        exact: whether weights and losses are equal to the bare run's to the last bit.
        within: whether the measured peak is within the budget.
        plannings: how many steps were planned.
        expected: how many should have been.
        words: the figures.
    """

    planned: bool
    exact: bool
    within: bool
    plannings: int
    expected: int
    words: str

    @property
    def good(self) -> bool:
        """All of it."""
        return self.planned and self.exact and self.within and self.plannings == self.expected


def judged(stack: Stack, kind: str, folder: Path) -> Row:
    """Run a stack bare and within a budget."""
    runs = [Run(None, kind, folder / "bare"), Run(stack.budget, kind, folder / "planned")]
    for run in runs:
        run.folder.mkdir(parents=True)
        with _counted(run):
            stack.script(run)
    bare, planned = runs
    assert planned.planned is not None and bare.plannings == 0
    report = remat.exec.report(planned.planned)
    peak = max(planned.peaks, default=None)
    differs = _differences(bare, planned)
    words = f"peak {format_bytes(peak or 0)} of {format_bytes(report.budget or 0)}, {report.reruns} reruns"
    return Row(
        planned=report.ran == "plan" and report.reruns > 0,
        exact=not differs,
        within=peak is not None and report.budget is not None and peak <= report.budget,
        plannings=planned.plannings,
        expected=stack.plannings,
        words="; ".join([words, *differs[:3]]),
    )


def _differences(bare: Run, planned: Run) -> list[str]:
    assert bare.model is not None and planned.model is not None and bare.losses
    one, two = bare.model.state_dict(), planned.model.state_dict()
    differs = [] if one.keys() == two.keys() else ["other keys of state_dict"]
    differs += [name for name in one.keys() & two.keys() if not torch.equal(one[name], two[name])]
    return differs + (["losses"] if bare.losses != planned.losses else [])


@contextlib.contextmanager
def _counted(run: Run) -> Iterator[None]:
    """Count the plannings of a run."""
    plan = making.plan_captured

    def counted(*args: Any, **kwargs: Any) -> Any:
        run.plannings += 1
        return plan(*args, **kwargs)

    making.plan_captured = counted
    try:
        yield
    finally:
        making.plan_captured = plan
