"""What is known of a form of calls at several sizes: captures, their outlines, and the stencils that come of them."""

from __future__ import annotations

import logging
import operator
from collections import Counter
from collections.abc import Hashable
from typing import Any

from attrs import define, field
from torch import nn

from remat.exec._sizes.calls import Outline
from remat.exec._sizes.stencil import REFUSALS, Sample, Stencil, recorded, why_none
from remat.exec._trace.python_state import Snapshot

logger = logging.getLogger(__name__)

MOST_FORMS = 8
"""Forms of calls whose captures a module keeps; the least recently used is forgotten."""
MOST_SAMPLES = 6
"""Captures of a form that are kept, the latest."""
MOST_FAILURES = 12
"""After so many sizes in a row that had to be captured, further ones are not tried."""


@define(eq=False)
class Captures:
    """Captures of one form of calls.

    Attributes:
        samples: at most `MOST_SAMPLES`, the latest last.
        outlines: of each sample, or why it has none.
        stencils: of the samples, or why they have none, by the places of these; made anew when there is another sample.
        why: why the last new size was captured; empty: it was not.
        failures: how many sizes in a row were.
    """

    samples: list[Sample] = field(factory=list)
    outlines: dict[Sample, Outline | None] = field(factory=dict)
    stencils: list[Stencil] | None = None
    why: str = ""
    failures: int = 0
    _snapshot: Snapshot | None = None
    _watched: tuple[Any, ...] = ()

    def snapshot(self, module: nn.Module, watched: tuple[Any, ...]) -> Snapshot:
        """The state of Python now; where nothing was replaced since the last call, without a walk."""
        same = self._snapshot is not None and self._snapshot.root is module and len(watched) == len(self._watched)
        if (
            self._snapshot is not None
            and same
            and all(map(operator.is_, watched, self._watched))
            and self._snapshot.same()
        ):
            self._snapshot.refresh()
        else:
            self._snapshot, self._watched = Snapshot(module, watched), watched
        return self._snapshot

    @property
    def hopeless(self) -> bool:
        """Whether new sizes are no longer tried."""
        return self.failures >= MOST_FAILURES

    def learn(self, sample: Sample) -> None:
        """Take one more capture."""
        if reason := why_none(sample.captured):
            self.why = reason
            return
        self.samples = [other for other in self.samples if other.numbers != sample.numbers][1 - MOST_SAMPLES :]
        self.samples.append(sample)
        self.outlines = {other: outline for other, outline in self.outlines.items() if other in self.samples}
        self.stencils = None

    def patterns(self, before: Snapshot) -> list[Stencil]:
        """The stencils, of the latest captures first."""
        if self.stencils is None:
            groups: list[list[Sample]] = []
            kinds = {sample: tuple(op.target for op in sample.captured.program.ops) for sample in self.samples}
            counts = Counter(kinds.values())
            for sample in self.samples:
                if counts[kinds[sample]] < 2:
                    continue  # no other one can be alike
                self._outline(sample, before)
                group = next((group for group in groups if self._alike(group[-1], sample)), None)
                if group is None:
                    groups.append([sample])
                else:
                    group.append(sample)
            groups.sort(key=lambda group: self.samples.index(group[-1]), reverse=True)
            self.stencils = [stencil for group in groups for stencil in self._stencils(group, before)]
        return self.stencils

    def _stencils(self, group: list[Sample], before: Snapshot) -> list[Stencil]:
        """One stencil for as many captures as have one, the latest among them, and others for the rest."""
        if len(group) < 2:
            return []
        stencil = self._stencil(group, before)
        if stencil is not None:
            return [stencil]
        part, rest = group[-1:], list[Sample]()
        for sample in reversed(group[:-1]):
            (part if self._stencil([sample, *part], before) is not None else rest).insert(0, sample)
        groups = [group for group in (part, rest) if len(group) > 1]
        stencils = [self._stencil(group, before) for group in groups]
        return [stencil for stencil in stencils if stencil is not None]

    def _outline(self, sample: Sample, before: Snapshot) -> None:
        if sample not in self.outlines:
            try:
                self.outlines[sample] = recorded(sample, before)
            except Exception as error:  # noqa: BLE001 - the module's own code may raise anything where a tensor has no values
                self.failed(f"{type(error).__name__}: {error}")
                self.outlines[sample] = None

    def _alike(self, first: Sample, second: Sample) -> bool:
        """Whether two captures make the same calls, with equal state of Python."""
        ours, theirs = self.outlines[first], self.outlines[second]
        if ours is None or theirs is None or len(ours.calls) != len(theirs.calls):
            return False
        mine, other = (
            None if reads is None else reads.names for reads in (first.captured.reads, second.captured.reads)
        )
        same = first.captured.tokens == second.captured.tokens and mine == other
        return same and all(a.target is b.target for a, b in zip(ours.calls, theirs.calls, strict=True))

    def _stencil(self, group: list[Sample], before: Snapshot) -> Stencil | None:
        outlines = [outline for outline in map(self.outlines.get, group) if outline is not None]
        try:
            stencil = Stencil.of(group, outlines)
            stencil.calibrate(before)
            return stencil
        except REFUSALS as error:
            self.failed(str(error))
            return None

    def failed(self, why: str) -> None:
        """A size must be captured."""
        self.why = why
        logger.info("a new size is captured: %s", why)


@define(eq=False)
class Sizes:
    """The captures of a wrapped module by the form of its calls, the most recently used last."""

    by_form: dict[Hashable, Captures] = field(factory=dict)
    last: Captures | None = None

    def of(self, form: Hashable) -> Captures:
        """The captures of a form."""
        self.last = self.by_form[form] = self.by_form.pop(form, Captures())
        for old in list(self.by_form)[:-MOST_FORMS]:
            del self.by_form[old]
        return self.last
