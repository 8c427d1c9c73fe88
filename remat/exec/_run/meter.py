"""What real steps take: the time of every step, and what a loss outside the module held in the first one."""

from __future__ import annotations

import statistics
import time
from collections import deque

import torch
from attrs import define, field

from remat.exec._run import outside
from remat.exec._run.outside import LossAudit, Token, Watch
from remat.units import Ns

KEPT_TIMES = 50


@define(eq=False)
class StepMeter:
    """Times steps, and audits a loss outside the module once.

    Attributes:
        device: where the step runs.
        wanted: whether a loss outside is still to be audited.
        audit: what it held, once that was measured.
        times: of the last steps, forward and backward without what lies between [ns].
    """

    device: torch.device
    wanted: bool = False
    audit: LossAudit | None = None
    times: deque[Ns] = field(factory=lambda: deque(maxlen=KEPT_TIMES))
    _watch: Watch | None = None
    _start: Ns = 0
    _forward: Ns = 0
    _paused: Ns = 0

    def forward_begins(self) -> None:
        """Note the time; a watch of an earlier step ends."""
        outside.passed_by(self)
        outside.end()
        self.settle()
        self._start = self._now()

    def forward_ended(self, *, part: bool) -> Token | None:
        """Note the time, and begin to audit if this is the step for it.

        Args:
            part: whether the inputs come out of trained operations, so that the module is a part of a larger net.

        Returns:
            What the step's graph is to hold as long as it lives.
        """
        self._forward = self._now() - self._start
        self.wanted = self.wanted and not part
        self._watch = outside.begin(self, self.device) if self.wanted else None
        return None if self._watch is None else self._watch.token()

    def backward_begins(self, token: Token | None) -> None:
        """Note the time and that the loss is over.

        Args:
            token: what `forward_ended` returned for this step.
        """
        outside.passed_by(self)
        if token is not None:
            token.watch.backward_begins()
        self._start = self._now()

    def backward_pauses(self) -> None:
        """Note the time; what autograd does until `backward_resumes` is none of the step's."""
        self._paused = self._now()

    def backward_resumes(self) -> None:
        """Leave out the time since the pause."""
        self._start += self._now() - self._paused

    def backward_ended(self) -> None:
        """Add up the step."""
        if self._forward and self._watch is None:
            self.times.append(self._forward + self._now() - self._start)
        self._forward = 0

    def settle(self) -> None:
        """Take the result of an audit, once it can be ended."""
        if self._watch is None:
            return
        self._watch.end()
        if self._watch.over:
            self.audit = self._watch.audit
            self.wanted = self.audit is None and not self._watch.part
            self._watch = None

    def _now(self) -> Ns:
        # CUDA runs behind the host: the first steps wait for it, and later ones are not kept.
        if self.device.type == "cuda" and len(self.times) < 5:
            torch.cuda.synchronize(self.device)
        return time.perf_counter_ns()

    @property
    def time(self) -> Ns | None:
        """Median time of a step [ns]; on CUDA of the first five, which wait for the device."""
        times = list(self.times)[:5] if self.device.type == "cuda" else list(self.times)
        return int(statistics.median(times)) if times else None
