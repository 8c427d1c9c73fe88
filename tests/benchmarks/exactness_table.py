"""The table of exactness and peaks: `python -m tests.benchmarks.exactness_table` writes docs/benchmarks/exactness.md.

Exactness: three training steps in float64, keep-all, at half of the memory and at the smallest budget a plan was found for;
loss, gradients, buffers and random state against the bare module. Peaks: float32 models of at least 16 MiB, predicted against
measured.
"""

import platform
import sys
from pathlib import Path

import torch

import remat.exec
from remat.algorithms._search.auto import quick
from remat.errors import Infeasible
from remat.units import format_bytes
from tests.exec.support import MEDIUM, SMALL, Rig, differences, train

OUT = Path("docs/benchmarks/exactness.md")
HOW = {"cost": "estimate", "solver": quick, "rehearse": False, "on_uncapturable": "raise"}


def budgets(case):
    module, sample = case.instantiate(torch.float64)
    try:
        remat.exec.wrap(module, sample, 1, **HOW)
    except Infeasible as refused:
        return {"keep all": "100%", "50 %": "50%", "smallest": refused.smallest}
    raise AssertionError("a budget of one byte cannot have a plan")


def exactness_rows():
    for name, case in SMALL.items():
        bare, sample = case.instantiate(torch.float64)
        expected = train(bare, sample)
        for label, budget in budgets(case).items():
            module, same = case.instantiate(torch.float64)
            wrapped = remat.exec.wrap(module, same, budget, **HOW)
            found = train(wrapped, same)
            wrong = differences(expected, found, case.tied)
            loose = [one for one in differences(expected, found) if one not in wrong]
            report = remat.exec.report(wrapped)
            share = report.predicted_peak / report.store_all_peak
            verdict = "to the last bit" if not loose else "to 1e-15 (tied weights), the rest to the last bit"
            yield (name, label, f"{share:.1%}", report.reruns, "; ".join(wrong) or verdict, not wrong)


def peak_rows():
    for name, case in MEDIUM.items():
        rig = Rig(*case.instantiate())
        bare = rig.measured(rig.bare_step).peak
        tried = {"keep all": rig.peak, "70 %": rig.peak * 7 // 10, "50 %": rig.peak // 2, "smallest": rig.smallest}
        for label, budget in tried.items():
            outcome = rig.plan(budget)
            measured = rig.measured(rig.step(outcome.schedule)).peak
            good = measured <= budget and abs(measured / outcome.cost.peak - 1) <= 0.01
            cells = (format_bytes(bare), format_bytes(budget), f"{outcome.cost.peak}", f"{measured}")
            yield (name, label, *cells, f"{measured / outcome.cost.peak:.6f}", good)


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(map(str, row[:-1])) + " |" for row in rows)])


def main():
    torch.set_num_threads(1)
    exact, peaks = list(exactness_rows()), list(peak_rows())
    first = table(
        ("model", "budget", "peak, of keep-all", "recomputed runs", "loss, gradients, buffers, random state"), exact
    )
    second = table(("model", "budget", "bare peak", "budget in bytes", "predicted [B]", "measured [B]", "ratio"), peaks)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(
        f"""# Exactness and peaks

Made by `python -m tests.benchmarks.exactness_table` with torch {torch.__version__} on {platform.machine()}, one thread. The
same checks run in `tests/exec` with every `make test`.

## The same numbers as the bare module

Three training steps (SGD between them) in float64 against the bare module from the same seed. *Smallest*: the smallest
budget that the quick planner found a plan for.

{first}

## The predicted peak is the measured one

Float32; measured: the allocator's events over one warmed step, gradients None before it.

{second}
"""
    )
    failed = [row for row in (*exact, *peaks) if not row[-1]]
    print(f"{len(exact) + len(peaks)} rows, {len(failed)} failed, written to {OUT}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
