"""The stages of planning a step: the seconds of each, and where they are shown: a log, and a terminal or a function.

Seconds of imports and of compiling kernels are counted apart from the stage they fall into.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from attrs import evolve, frozen

from remat.algorithms import Progress
from remat.algorithms._core.startup import compile_seconds, import_seconds, importing, planning_time
from remat.units import Bytes, Ns, format_ns

if TYPE_CHECKING:
    from rich.console import Console

logger = logging.getLogger(__name__)
"""Logs every stage with its seconds and bytes (INFO), and every better plan or bound (DEBUG)."""

STAGES = ("capture", "cost", "plan", "lower", "rehearsal")
"""In order; the table of seconds has `import` and `compile` too, and `bound`, which is a part of `plan`."""


@frozen(kw_only=True)
class StageProgress:
    """How far the planning of a step is.

    Attributes:
        model: class of the module.
        stage: one of `STAGES`.
        ended: whether the stage is over; else it has begun, or goes on.
        elapsed: seconds of all stages so far, without imports and compilation.
        done, total: passes of the planner that are done, and how many there are; a total of 0: not known.
        best: time of the best plan so far, as the solver reports it [ns]; None: there is none yet.
        bound: best bound so far, certified or claimed [ns].
        base: time of a step that keeps everything [ns]; 0: not known yet.
    """

    model: str
    stage: str
    ended: bool = False
    elapsed: float = 0.0
    done: int = 0
    total: int = 0
    best: Ns | None = None
    bound: Ns | float = 0
    base: Ns = 0

    @property
    def gap(self) -> float | None:
        """Gap between the best plan and the bound, as a fraction of the bound, when there are both."""
        return Progress(who="", elapsed=0, best=self.best, bound=self.bound).gap

    def __str__(self) -> str:
        text = f"{self.model}: {self.stage}"
        if self.stage == "plan" and self.best is not None:
            extra = f" ({self.best / self.base - 1:+.1%} over keeping everything)" if self.base else ""
            gap = "no bound yet" if self.gap is None else f"gap {self.gap:.2%}"
            text += f", best plan {format_ns(self.best)}{extra}, {gap}"
        return f"{text}, {self.elapsed:.1f} s"


Listener = Callable[[StageProgress], None]

_SHOWN = 0.005
"""Seconds of imports and compilation from which they are shown."""


class Stages:
    """Times the stages of planning one step, and reports how far it is.

    Args:
        model: class of the module, for messages.
        listener: called when a stage begins, goes on and ends; None: stages are only logged.

    Attributes:
        seconds: of each stage so far, of `import` and of `compile`.
        bytes: of stages that report any: the peak of a step that keeps everything (cost), of the plan, of the rehearsal.
        base: time of a step that keeps everything [ns], once it is known.
    """

    def __init__(self, model: str = "step", listener: Listener | None = None) -> None:
        self.listener = listener
        self.seconds: dict[str, float] = {}
        self.bytes: dict[str, Bytes] = {}
        self.base: Ns = 0
        self._progress = StageProgress(model=model, stage=STAGES[0])
        self._start = planning_time()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """The block is a stage."""
        self._report(evolve(self._progress, stage=name, ended=False, base=self.base))
        start = (planning_time(), import_seconds(), compile_seconds())
        try:
            yield
        finally:
            self._add(name, planning_time() - start[0])
            for once, now, then in (("import", import_seconds(), start[1]), ("compile", compile_seconds(), start[2])):
                if now > then:
                    self._add(once, now - then)
            peak = f", {self.bytes[name]} B" if name in self.bytes else ""
            logger.info("%s: %s took %.2f s%s", self._progress.model, name, self.seconds[name], peak)
            self._report(evolve(self._progress, ended=True))

    def _add(self, name: str, seconds: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def hear(self, progress: Progress) -> None:
        """Report progress of a solver, a better plan or a better bound; the listener of its clock."""
        best = min((time for time in (progress.best, self._progress.best) if time is not None), default=None)
        bound = max(self._progress.bound, progress.bound)
        logger.debug("%s: %s ns, bound %s ns: %s", self._progress.model, best, bound, progress.note)
        done, total = progress.done, progress.total
        self._report(evolve(self._progress, best=best, bound=bound, base=self.base, done=done, total=total))

    def _report(self, progress: StageProgress) -> None:
        self._progress = evolve(progress, elapsed=planning_time() - self._start)
        if self.listener is not None:
            self.listener(self._progress)


@contextmanager
def stages_of(
    model: str, progress: bool | Listener | None = None, *, console: Console | None = None
) -> Iterator[Stages]:
    """Stages that are shown while the block runs.

    Args:
        model: class of the module, for messages.
        progress: None: on the error stream when that is a terminal; True: there in any case; False: nowhere; or a function that
            is called with each `StageProgress`. Stages are logged in any case.
        console: in place of the error stream.
    """
    if callable(progress):
        yield Stages(model, progress)
    elif progress is False or (progress is None and console is None and not sys.stderr.isatty()):
        yield Stages(model)
    else:
        with _shown(model, console) as stages:
            yield stages


@contextmanager
def _shown(model: str, console: Any) -> Iterator[Stages]:
    """On a terminal a line that changes, and one that stays when the step is planned; elsewhere a line for each stage."""
    with importing():
        from rich.console import Console  # takes a tenth of a second, and is only needed where progress is shown

    console = Console(stderr=True) if console is None else console

    def line(text: str) -> None:
        console.print(f"remat: {text}", highlight=False, markup=False, soft_wrap=True)

    if not console.is_terminal:
        yield Stages(model, lambda progress: line(str(progress)) if progress.ended else None)
        return
    with console.status(f"remat: {model}") as status:
        stages = Stages(model, lambda progress: status.update(f"remat: {progress}"))
        yield stages
    line(f"{model} is planned ({seconds_by_stage(stages.seconds)})")


def seconds_by_stage(seconds: dict[str, float]) -> str:
    """A table of seconds as one line: `capture 0.51 s, cost 0.20 s, plan 1.10 s (bounds 0.62 s), …`."""
    parts = []
    for name in ("import", *STAGES, "compile"):
        if name not in seconds or (name in ("import", "compile") and seconds[name] < _SHOWN):
            continue
        bound = f" (bounds {seconds['bound']:.2f} s)" if name == "plan" and "bound" in seconds else ""
        parts.append(f"{name} {seconds[name]:.2f} s{bound}")
    return ", ".join(parts)


def progress_bar(what: str, *, shown: bool | None) -> Any:
    """A bar of `rich` on the error stream, where that is a terminal if `shown` does not say; it goes when it is done."""
    with importing():
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn(what), BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    console = Console(stderr=True)
    return Progress(
        *columns, console=console, transient=True, disable=not (console.is_terminal if shown is None else shown)
    )


__all__ = ["STAGES", "Listener", "StageProgress", "Stages", "progress_bar", "seconds_by_stage", "stages_of"]
