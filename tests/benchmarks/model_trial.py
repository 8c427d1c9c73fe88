"""One model of the catalogue under `wrap`, in a process of its own: `python -m tests.benchmarks.model_trial NAME OUT.json`.

Three trials: float64 at 70 %, float32 at 70 % and at 50 % of what the step holds if it keeps everything. Each wraps a fresh
module and compares three optimizer steps with a deep copy of the bare one; a fourth step is measured. Where no plan is found at a
share, the trial goes on at the smallest budget that the error states. A refusal must leave the module as it was.
"""

from __future__ import annotations

import copy
import json
import os
import re
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from attrs import asdict, define, field
from torch import nn

import remat.exec
from remat.errors import Infeasible, Uncapturable
from tests.models.catalogue import model_named
from tests.models.exact import differences, train
from tests.models.model import Built, Model

TRIALS = ((torch.float64, "70%"), (torch.float32, "70%"), (torch.float32, "50%"))
SECONDS = 3.0
"""The deadline of each planning [s]."""
ATTEMPTS = 3
"""Budgets tried of a share: itself, the smallest found, and once more where the first steps show that the loss needs more."""
LINES_KEPT = 12
"""Differences written down of a wrong trial; all are counted."""


@define
class Trial:
    """What came of a model in a type at a share of its peak.

    Attributes:
        dtype, share: what was tried.
        status: "captured"; "refused"; "infeasible" (not at the smallest budget that the error states either); "error".
        message: of the refusal or error, whole; of the first `Infeasible` where there was one.
        gaps: what the message of a refusal lacks.
        trace: the end of an error's traceback.
        asked: bytes that the share is [B].
        budget: bytes that were planned for, the smallest found where the share had no plan [B].
        floor: no plan can exist below, proved [B].
        predicted, measured: peak of a whole step, forward, loss and backward [B].
        guards: how many conditions are checked at each call; None where the report has none.
        reruns: recomputed runs of the plan.
        wrong: differences from the bare module, the first few.
        wrong_count: how many there are.
        unsteady: whether two bare runs differ from each other, so that nothing can be said.
        seconds: by stage, as reported; `wrap` and `steps` as seen from outside; wall time [s].
    """

    dtype: str
    share: str
    status: str = ""
    message: str = ""
    gaps: list[str] = field(factory=list)
    trace: str = ""
    asked: int | None = None
    budget: int | None = None
    floor: int | None = None
    predicted: int | None = None
    measured: int | None = None
    guards: int | None = None
    reruns: int | None = None
    wrong: list[str] = field(factory=list)
    wrong_count: int = 0
    unsteady: bool = False
    seconds: dict[str, float] = field(factory=dict)


class Case:
    """A built model, its call in the form that `wrap` takes as a sample, and what three bare steps leave."""

    def __init__(self, model: Model, dtype: torch.dtype) -> None:
        built: Built = model.build(dtype)
        self.module, self.loss = built.module, built.loss
        self.args, self.kwargs = built.args, built.kwargs
        if self.args and self.kwargs:
            self.args, self.kwargs = (), built.named()
        twins = [copy.deepcopy(self.module) for _ in range(2)]
        self.expected, again = (self.train(twin) for twin in twins)
        self.unsteady = differences(self.expected, again)

    @property
    def sample(self) -> Any:
        """The call."""
        return self.kwargs or self.args

    def train(self, module: nn.Module) -> Any:
        """Three steps."""
        return train(module, self.args, self.kwargs, self.loss)

    def step(self, module: nn.Module) -> None:
        """A step as training loops write it: the output lives until the backward has ended."""
        out = module(*self.args, **self.kwargs)
        self.loss(out).backward()


def run(model: Model, dtype: torch.dtype, share: str) -> Trial:
    """A trial at a share, or at the smallest budget that was found where that has no plan (a step may be planned anew later)."""
    trial = Trial(dtype=str(dtype).removeprefix("torch."), share=share)
    budget: int | str | None = share
    for _ in range(ATTEMPTS):
        case = Case(model, dtype)
        trial.unsteady = bool(case.unsteady)
        try:
            attempt(case, budget, trial)
        except Infeasible as error:
            if trial.asked is None:
                trial.asked, trial.floor, trial.message = error.budget, error.floor, str(error)
            trial.status, budget = "infeasible", error.smallest
            if budget is None:
                break
        else:
            break
    return trial


def attempt(case: Case, budget: int | str | None, trial: Trial) -> None:
    """Wrap, compare and measure at a budget.

    Raises:
        Infeasible: no plan was found for it.
    """
    try:
        wrapped = timed(trial, "wrap", lambda: wrap(case, budget))
        compare(case, wrapped, trial)
        measure(case, wrapped, trial)
        read_report(wrapped, trial)
        trial.status = "captured"
    except Infeasible:
        raise
    except Uncapturable as refusal:
        refused(case, refusal, trial)
    except Exception as error:  # noqa: BLE001 - whatever else is raised is what the benchmark is to tell
        trial.status, trial.message = "error", f"{type(error).__name__}: {error}"
        trial.trace = "".join(traceback.format_exception(error)[-6:])


def wrap(case: Case, budget: int | str | None) -> nn.Module:
    """The case's module with a budget."""
    return remat.exec.wrap(case.module, case.sample, budget, on_uncapturable="raise", seconds=SECONDS)


def timed(trial: Trial, stage: str, work: Callable[[], Any]) -> Any:
    """What the work returns; its wall time is added to a stage's."""
    start = time.perf_counter()
    try:
        return work()
    finally:
        trial.seconds[stage] = trial.seconds.get(stage, 0.0) + time.perf_counter() - start


def compare(case: Case, wrapped: nn.Module, trial: Trial) -> None:
    """Three steps against the bare module's."""
    got = timed(trial, "steps", lambda: case.train(wrapped))
    note_wrong(differences(case.expected, got), trial)


def note_wrong(lines: list[str], trial: Trial) -> None:
    """Keep the first few differences, count all."""
    trial.wrong, trial.wrong_count = lines[:LINES_KEPT], len(lines)


def measure(case: Case, wrapped: nn.Module, trial: Trial) -> None:
    """The allocator's peak over a step with no gradients before it."""
    for parameter in wrapped.parameters():
        parameter.grad = None
    trial.measured = remat.exec.measure_step(lambda: case.step(wrapped)).peak


def read_report(wrapped: nn.Module, trial: Trial) -> None:
    """What the report says of the last call; it raises where the module ran bare."""
    report = remat.exec.report(wrapped)
    guards = getattr(report, "guards", None)
    trial.guards = guards if guards is None or isinstance(guards, int) else len(guards)
    trial.budget, trial.predicted, trial.reruns = report.budget, report.predicted_peak, report.reruns
    trial.seconds = {**report.seconds, **trial.seconds}


def refused(case: Case, refusal: Uncapturable, trial: Trial) -> None:
    """What the message lacks, and whether the module still trains as before."""
    trial.status, trial.message = "refused", str(refusal)
    trial.gaps = gaps(trial.message, refusal.fix, case.module)
    try:
        lines = differences(case.expected, case.train(case.module))
    except Exception as error:  # noqa: BLE001 - the module trained before, so this too is what wrap has left behind
        lines = [f"training bare raises {type(error).__name__}: {error}"]
    note_wrong(lines, trial)


def gaps(message: str, fix: str, module: nn.Module) -> list[str]:
    """Which of module, line and way out a refusal does not name."""
    paths = [path for path, _ in module.named_modules() if path]
    classes = {type(inner).__name__ for inner in module.modules()}
    names_module = any(re.search(rf"(?<![\w.]){re.escape(name)}(?![\w])", message) for name in (*paths, *classes))
    lacking = {
        "module": not names_module,
        "line": re.search(r"\.py:\d+|\bline \d+", message) is None,
        "way out": not fix,
    }
    return [part for part, lacks in lacking.items() if lacks]


def main() -> int:
    """Run the three trials and write what came of them."""
    name, out = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    model = model_named(name)
    trials = [run(model, dtype, share) for dtype, share in TRIALS if dtype in model.types]
    row = {"name": name, "tags": sorted(model.tags), "trials": [asdict(trial) for trial in trials]}
    part = out.with_suffix(".part")
    part.write_text(json.dumps(row, indent=1))
    os.replace(part, out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
