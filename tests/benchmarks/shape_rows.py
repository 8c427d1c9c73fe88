"""New shapes of one wrapped module, one after the other: what each costs before its first step, and what its plan loses."""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Callable, Iterator

import torch
from attrs import define, field

import remat.exec
from remat.exec._module import plans
from remat.ir import Schedule, validate
from tests.benchmarks.shape_models import Case

LONGEST, SHORTEST, ROWS = 512, 16, 3
"""Lengths, and the size of a batch; the last batch has one row less."""
LOSS_BAR = 0.02
"""Recomputation that a plan from other sizes may have beyond one of its own, as a share of the step."""
PAUSE_BAR, CAPTURES_BAR = 0.1, 1.5
"""What the first step of a new shape takes beyond the bare one: median [CPU s], and the worst in captures."""


@define
class Pauses:
    """CPU seconds of what wrapped modules do when there is no plan for a call: fill in or capture, cost, plan, generate code."""

    seconds: list[float] = field(factory=list)
    original: Callable[..., object] = plans.making.captured_and_planned

    def __enter__(self):

        def timed(*args):
            start = time.process_time()
            try:
                return self.original(*args)
            finally:
                self.seconds.append(time.process_time() - start)

        plans.making.captured_and_planned = timed
        return self

    def __exit__(self, *_error):
        plans.making.captured_and_planned = self.original


def step_of(model, call, seed):
    """CPU seconds of one step, and its loss and gradients."""
    args, kwargs = call
    model.zero_grad(set_to_none=True)
    torch.manual_seed(seed)
    start = time.process_time()
    output = model(*args, **kwargs)
    loss = output if isinstance(output, torch.Tensor) else output.loss
    loss.backward()
    seconds = time.process_time() - start
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return seconds, [loss.detach(), *gradients, *(buffer.clone() for buffer in model.buffers())]


def measured_peak(model, call):
    """Of a step that begins without gradients [bytes]."""
    model.zero_grad(set_to_none=True)
    return remat.exec.measure_step(lambda: step_of(model, call, 0)).peak


def random_lengths(count: int) -> list[tuple[int, int]]:
    """The longest, for the plan; so many others at random; and two with a smaller batch."""
    order = torch.randperm(LONGEST - SHORTEST, generator=torch.Generator().manual_seed(0)) + SHORTEST
    lengths = order[:count].tolist()
    return [(LONGEST, ROWS), *((length, ROWS) for length in lengths), (lengths[-1], ROWS - 1), (lengths[0], ROWS - 1)]


def rows_of(name: str, case: Case, sizes: list[tuple[int, ...]], share: str, every: int) -> Iterator[dict[str, object]]:
    """A row for each size but the first, which is wrapped; every so many that recompute are compared with plans of their own."""

    def fresh():
        torch.manual_seed(0)
        return case.make()

    bare, (sample, *others), recomputing = fresh(), sizes, 0
    first_call = case.call_at(*sample)
    capture = captured_in(fresh(), [first_call, *(case.call_at(*size) for size in others[3:6])])
    with Pauses() as pauses:
        model = wrapped(fresh(), first_call, share)
        budget = remat.exec.report(model).budget
        for at, size in enumerate(others):
            call, before = case.call_at(*size), len(pauses.seconds)
            bare.load_state_dict(model.state_dict())
            seconds, expected = step_of(bare, call, at)
            first, results = step_of(model, call, at)
            pause, report = sum(pauses.seconds[before:]), remat.exec.report(model)
            row = {
                "case": name,
                "share": share,
                "size": size,
                "step": seconds,
                "pause": pause,
                "beyond": first - seconds,
            }
            row["exact"] = len(results) == len(expected) and all(map(torch.equal, results, expected))
            row["peak"] = measured_peak(model, call) / budget
            row |= {"provenance": report.provenance, "captured": report.unfilled, "capture": capture}
            row["recomputes"] = report.store_all_peak > budget
            recomputing += row["recomputes"]
            if row["recomputes"] and recomputing % every == 0:
                row["loss"] = points_lost(fresh(), call, report)
            print(line_of(row), flush=True)
            yield row


def wrapped(module, call, budget):
    """A module with a plan for a call."""
    args, kwargs = call
    return remat.exec.wrap(module, args or kwargs, budget, progress=False, rehearse=False)


def captured_in(module, calls):
    """CPU seconds of a capture at a size that was not captured before: the median; the first capture loads what captures need."""
    seconds = []
    for args, kwargs in calls:
        fresh = copy.deepcopy(module)
        start = time.process_time()
        remat.exec.capture(fresh, args, kwargs)
        seconds.append(time.process_time() - start)
    return statistics.median(seconds[1:])


def points_lost(module, call, report):
    """Recomputation beyond a plan made for this shape alone, both replayed on one graph, as a share of the step."""
    own = remat.exec.report(wrapped(module, call, report.budget))
    assert own.graph.names == report.graph.names
    replayed = validate(own.graph, Schedule.from_runs(own.graph, [run.node for run in report.schedule.runs]))
    return (replayed.time - own.cost.time) / own.graph.time


def line_of(row):
    """A row as it is printed."""
    size = " x ".join(map(str, row["size"]))
    right = "ok" if row["exact"] and row["peak"] <= 1 else "WRONG"
    lost = 100 * row.get("loss", math.nan)
    return (
        f"{row['case']:18} {row['share']:5} {size:>9} {row['step']:7.3f} {row['pause']:7.3f} {row['beyond']:7.3f} "
        f"peak {row['peak']:6.1%} {row['provenance']:10} {lost:+6.2f} {right} {row['captured'][:60]}"
    )


def summary(rows):
    """What rows of a case and share say together."""
    pauses, lost = sorted(row["pause"] for row in rows), [row["loss"] for row in rows if "loss" in row]
    beyond = sorted(row["beyond"] for row in rows)
    return {
        "case": rows[0]["case"],
        "share": rows[0]["share"],
        "shapes": len(rows),
        "median": statistics.median(pauses),
        "nine of ten": pauses[9 * len(pauses) // 10],
        "worst": pauses[-1],
        "beyond": statistics.median(beyond),
        "capture": rows[0]["capture"],
        "captured": sum(bool(row["captured"]) for row in rows),
        "over": sum(row["beyond"] > CAPTURES_BAR * row["capture"] for row in rows),
        "worst beyond": beyond[-1],
        "compared": len(lost),
        "close": sum(loss <= LOSS_BAR for loss in lost),
        "most lost": max(lost, default=0.0),
        "peak": max(row["peak"] for row in rows),
        "wrong": sum(not row["exact"] or row["peak"] > 1 for row in rows),
    }


def line_of_summary(facts):
    """A summary in a line."""
    return (
        f"{facts['case']} {facts['share']}: {facts['shapes']} shapes, pause median {facts['median']:.3f}, nine of ten "
        f"{facts['nine of ten']:.3f}, worst {facts['worst']:.3f} CPU s, a capture {facts['capture']:.3f}; {facts['over']} above "
        f"{CAPTURES_BAR} captures; beyond the bare step {facts['beyond']:.3f}, "
        f"worst {facts['worst beyond']:.3f}; {facts['close']} of {facts['compared']} within 2 "
        f"points, most lost {100 * facts['most lost']:.2f}; largest peak {facts['peak']:.1%}; {facts['wrong']} wrong"
    )
