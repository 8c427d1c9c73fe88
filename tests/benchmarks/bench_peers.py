"""`make bench-peers`: other ways to make a training step smaller, and ours at the same peak, side by side in one run.

    python -m tests.benchmarks.bench_peers [--only gpt2 …] [--rounds 30] [--seconds 10] [--keep] [--inductor]

Each model is a process of its own. Its rows: bare; `torch.utils.checkpoint` per layer; selective checkpointing (products and
convolutions kept); AOTAutograd's partition at three values of `activation_memory_budget`; ours, planned for the peak of per-layer
checkpointing, for that of selective checkpointing, and for half of the first (where that has no plan: for the smallest
budget found, with the budget below which none exists).

peak: the allocator's, above what was there when the step began, gradients None before. time: over bare, medians of interleaved
rounds, thread CPU time of one thread. step: three AdamW steps against the bare module's: "exact" to the last bit; else by the
first step: "draws" (another loss, of other random numbers: most models have dropout), "rounding" (the same loss, gradients
within a hundredth of the largest entry), or how far off. buffers: whether BatchNorm's statistics are as bare training leaves
them.

With `--inductor` the rows of `inductor_rows`, in build/bench/inductor.json: Inductor, Inductor with `activation_memory_budget`,
and at the peak of that ours by eager's kernels and by Inductor (`torch.compile(…, backend="remat")`).

The bar: at each peer's peak ours is no slower (3 % for noise) and exact, and within the budget. Writes build/bench/peers.json
after each model (`--keep`: with the rows of models that are there and not run now); exits 1 on a missed bar. Copied to
docs/benchmarks/peers.json, it is what `python -m tests.site.peers` makes the tables of the documentation from.
"""

from __future__ import annotations

import argparse
import copy
import importlib.metadata
import json
import math
import os
import platform
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import nn

import remat.exec
from remat.errors import Infeasible
from tests.benchmarks import inductor_rows
from tests.benchmarks.bench_exec import interleaved
from tests.benchmarks.paper_rows import dates
from tests.benchmarks.peers import CASES, Case, partitioned, per_layer, selective
from tests.models.exact import Leaf, Trace, differences, train
from tests.models.model import seed_all, seeded
from tests.models.operators import declare_torchvision_operators

OUT, INDUCTOR_OUT = Path("build/bench/peers.json"), Path("build/bench/inductor.json")
NOISE, SAME_LOSS, ROUNDING = 0.03, 1e-4, 1e-2
PARTITIONS = (0.5, 0.2, 0.0)
OURS = "remat"
HALVINGS = 3
"""How often the search for the smallest budget goes on."""


def build(case: Case) -> tuple[nn.Module, dict[str, Any]]:
    """The module and its call, the same each time."""
    with seeded(0):
        seed_all(0)
        return case.build().train(), case.call()


def step_of(case: Case, module: nn.Module, call: dict[str, Any]) -> Callable[[], int]:
    """One step, and the CPU time it took [ns]; gradients are None before."""

    def step() -> int:
        forget_gradients(module)
        start = time.thread_time_ns()
        case.loss(module(**call)).backward()
        return time.thread_time_ns() - start

    return step


def forget_gradients(module: nn.Module) -> None:
    """Set them to None."""
    for parameter in module.parameters():
        parameter.grad = None


def peak_of(step: Callable[[], int], module: nn.Module) -> int:
    """The allocator's peak of a step that has run before [B]; what is freed inside counts, so gradients are forgotten before."""
    step()
    step()
    forget_gradients(module)
    return int(remat.exec.measure_step(step).peak)


# -- rows --------------------------------------------------------------------------------------------------------------


def peers(case: Case) -> dict[str, Callable[[], nn.Module]]:
    """The modules of others, by name of the method."""
    methods: dict[str, Callable[[], nn.Module]] = {
        "bare": lambda: build(case)[0],
        "per layer": lambda: per_layer(build(case)[0], case.layers),
        "selective": lambda: selective(build(case)[0], case.layers),
    }
    for budget in PARTITIONS:
        methods[f"partition {budget:g}"] = lambda budget=budget: partitioned(build(case)[0], budget)
    return methods


def planned(case: Case, budget: int, seconds: float) -> tuple[nn.Module, dict[str, Any]]:
    """Ours for a budget, or for the smallest found where that has no plan."""
    facts: dict[str, Any] = {"asked": budget}
    try:
        wrapped = wrap(case, budget, seconds)
    except Infeasible as error:
        if error.smallest is None:
            raise
        wrapped, least = smallest(case, budget, error, seconds)
        facts |= {"floor": error.floor, "found": least}
    return wrapped, facts | planned_facts(wrapped)


def planned_facts(wrapped: nn.Module) -> dict[str, Any]:
    """What the plan that runs says; the first step may have made another one, with what a loss outside the module holds."""
    report = remat.exec.report(wrapped)
    return {"budget": report.budget, "predicted": report.predicted_peak, "gap": report.gap}


def wrap(case: Case, budget: int, seconds: float) -> nn.Module:
    """Ours within a budget."""
    module, call = build(case)
    return remat.exec.wrap(module, call, budget, seconds=seconds, on_uncapturable="raise")


def smallest(case: Case, asked: int, error: Infeasible, seconds: float) -> tuple[nn.Module, int]:
    """Ours within the smallest budget found, and that budget.

    The error's own comes from a search of about a second, of which a busy machine leaves little: where what was asked for is not
    impossible, the search goes on.
    """
    assert error.smallest is not None
    low, least = asked, error.smallest
    found = wrap(case, least, seconds)
    for _ in range(HALVINGS if asked >= error.floor else 0):
        middle = (low + least) // 2
        try:
            found, least = wrap(case, middle, seconds), middle
        except Infeasible:
            low = middle
    return found, least


def judged(expected: Trace, got: Trace) -> tuple[str, str]:
    """What three steps left: loss, gradients and parameters, and buffers."""
    expected, got = _plain(expected), _plain(got)
    first, after = expected[0], got[0]
    loss, grads = _off(first, after, "loss"), _off(first, after, "grad")
    if not [line for line in differences(expected, got) if not line.partition(": ")[2].startswith(("buffer", "out"))]:
        word = "exact"
    elif loss >= SAME_LOSS:
        word = "draws"
    else:  # by the first step: later ones add up what the optimizer makes of a rounding
        word = "rounding" if grads < ROUNDING else f"off {grads:.2g}"
    held = any(path.startswith("buffer.") for path in first)
    return word, "-" if not held else "right" if _off(first, after, "buffer") < ROUNDING else "WRONG"


def _plain(trace: Trace) -> Trace:
    """With the names of a module that is not compiled."""
    return tuple({path.replace("_orig_mod.", ""): leaf for path, leaf in step.items()} for step in trace)


def _off(before: dict[str, Leaf], after: dict[str, Leaf], kind: str) -> float:
    """The largest difference between tensors of a kind, in parts of their largest entry; infinite where one is missing."""
    gaps, largest = [0.0], 1e-30
    for path, leaf in before.items():
        counts = (path == kind or path.startswith(f"{kind}.")) and isinstance(leaf.value, torch.Tensor)
        if counts and leaf.value.numel():
            value, other = leaf.value.double(), after[path].value.double() if path in after else None
            largest = max(largest, float(value.abs().max()))
            gaps.append(math.inf if other is None else float((value - other).abs().max()))
    return max(gaps) / largest


def table_of(name: str, rounds: int, seconds: float) -> list[dict[str, Any]]:
    """All rows of a model."""
    case = CASES[name]
    call = build(case)[1]
    rows, steps = [], {}

    def add(method: str, make: Callable[[], tuple[nn.Module, dict[str, Any]]]) -> dict[str, Any]:
        row: dict[str, Any] = {"model": name, "method": method}
        rows.append(row)
        try:
            module, facts = make()
            row |= facts
            # trained apart, so that the module that is measured keeps its first weights; a copy of checkpointed layers would
            # call the layers that it was copied from
            trained = copy.deepcopy(module) if method.startswith(OURS) else make()[0]
            row["step"], row["buffers"] = judged(expected, train(trained, (), call, case.loss))
            steps[method] = step_of(case, module, call)
            row["peak"] = peak_of(steps[method], module)
            row |= planned_facts(module) if method.startswith(OURS) else {}
        except Exception as error:  # noqa: BLE001 - a method that does not take a model is a row of the table
            steps.pop(method, None)
            row["failed"] = "".join(traceback.format_exception_only(error)).splitlines()[0][:200]
        return row

    expected = train(build(case)[0], (), call, case.loss)
    found = {method: add(method, lambda make=make: (make(), {})) for method, make in peers(case).items()}
    layered, kept = found["per layer"].get("peak"), found["selective"].get("peak")
    targets = {"at per layer": layered, "at selective": kept, "at half": None if layered is None else layered // 2}
    for method, budget in targets.items():
        if budget is not None:
            add(f"{OURS} {method}", lambda budget=budget: planned(case, budget, seconds))
    times = interleaved(steps, rounds)
    bare = float(numpy.median(times["bare"]))
    for row in rows:
        if row["method"] in times:
            row["time"] = float(numpy.median(times[row["method"]])) / bare
    return rows


def inductor_table(name: str, rounds: int, seconds: float) -> list[dict[str, Any]]:
    """All rows of a model beside Inductor."""
    case = inductor_rows.CASES[name]
    call = build(case)[1]
    rows, steps, traces = [], {}, {}
    torch._dynamo.config.recompile_limit = 64  # each row compiles the same code for another module

    def add(method: str, module: nn.Module, reference: str, budget: int | None = None) -> int:
        row: dict[str, Any] = {"model": name, "method": method}
        rows.append(row)
        try:
            start = time.process_time()
            traces[method] = train(module, (), call, case.loss)
            row["first"] = time.process_time() - start
            row |= {} if budget is None else inductor_rows.facts_of_ours(budget)
            row["step"], row["buffers"] = judged(traces[reference], traces[method])
            steps[method] = step_of(case, module, call)
            row["peak"] = peak_of(steps[method], module)
        except Exception as error:  # noqa: BLE001 - a method that does not take a model is a row of the table
            steps.pop(method, None)
            row["failed"] = "".join(traceback.format_exception_only(error)).splitlines()[0][:400]
        return int(row.get("peak", 0))

    add("bare", build(case)[0], "bare")
    add(inductor_rows.WITHOUT, inductor_rows.by_inductor(build(case)[0]), inductor_rows.WITHOUT)
    for share in inductor_rows.BUDGETS:
        peak = add(f"Inductor {share:g}", inductor_rows.by_inductor(build(case)[0], share), inductor_rows.WITHOUT)
        for method, inner in ((f"remat at {share:g}", "aot_eager"), (f"{inductor_rows.OURS} at {share:g}", "inductor")):
            if peak:
                add(method, inductor_rows.ours(build(case)[0], peak, seconds, inner), "bare", peak)
    times = interleaved(steps, rounds)
    for row in rows:
        if row["method"] in times:
            row["time"] = float(numpy.median(times[row["method"]])) / float(numpy.median(times["bare"]))
    return rows


# -- the table ---------------------------------------------------------------------------------------------------------


def missed(rows: list[dict[str, Any]]) -> list[str]:
    """The bars that a model's rows miss."""
    by = {row["method"]: row for row in rows}
    lines = []
    for other in ("per layer", "selective"):
        ours, theirs = by.get(f"{OURS} at {other}"), by[other]
        if "time" not in theirs:
            continue
        if ours is None or "time" not in ours:
            lines.append(f"{rows[0]['model']}: no plan at the peak of {other}: {(ours or {}).get('failed')}")
        elif ours["time"] > theirs["time"] * (1 + NOISE) and ours["budget"] >= ours["asked"]:
            lines.append(f"{rows[0]['model']}: {ours['time']:.3f} of bare, {other} takes {theirs['time']:.3f}")
        elif ours["budget"] > ours["asked"]:
            lines.append(
                f"{rows[0]['model']}: the peak of {other} was not reached: {ours['budget']} B found, {ours['asked']} B asked"
            )
    for row in rows:
        if row["method"].startswith(OURS) and "peak" in row:
            if row["peak"] > row["budget"]:
                lines.append(f"{row['model']}, {row['method']}: {row['peak']} B of {row['budget']} B")
            if row["step"] != "exact" or row["buffers"] == "WRONG":
                lines.append(f"{row['model']}, {row['method']}: step {row['step']}, buffers {row['buffers']}")
    return lines


def line_of(row: dict[str, Any], bare: float) -> str:
    """A row of the table."""
    if "time" not in row:
        return f"{row['model']:16} {row['method']:20} failed: {row.get('failed')}"
    note = ""
    if row.get("budget", 0) > row.get("asked", 0) and "floor" in row:
        asked, found, floor = (f"{row[key] / 2**20:.2f}" for key in ("asked", "budget", "floor"))
        note = f"no plan at {asked} MiB; smallest found {found}, impossible below {floor}"
    return (
        f"{row['model']:16} {row['method']:20} {row['peak'] / 2**20:9.2f} {row['peak'] / bare:7.3f} {row['time']:7.3f} "
        f"{row['step']:>9} {row['buffers']:>8}  {note}"
    )


def kept(out: Path, again: list[str]) -> tuple[list[dict[str, Any]], str | None]:
    """The rows of an earlier run, of models that are not run again, and its date."""
    if not out.exists():
        return [], None
    stored = json.loads(out.read_text())
    rows = [row for row in stored["rows"] if row["model"] not in again]
    return rows, stored["date"] if rows else None


def inductor_missed(rows: list[dict[str, Any]]) -> list[str]:
    """The bars that a model's rows beside Inductor miss: ours is within the budget, and right."""
    lines = []
    for row in rows:
        if not row["method"].startswith(OURS):
            continue
        expected = "rounding" if row["method"].startswith(inductor_rows.OURS) else "exact"
        if "time" not in row:
            lines.append(f"{row['model']}, {row['method']}: {row.get('failed')}")
        elif row["peak"] > row["budget"] or row["step"] not in ("exact", expected) or row["buffers"] == "WRONG":
            held, word = f"{row['peak']} B of {row['budget']} B", f"step {row['step']}, buffers {row['buffers']}"
            lines.append(f"{row['model']}, {row['method']}: {held}, {word}")
    return lines


def write(rows: list[dict[str, Any]], seconds: float, since: str | None, *, inductor: bool) -> None:
    """Write the rows with what they were measured on and when, in the order of the models."""
    packages = ("torch", "transformers", "diffusers")
    facts = {
        "date": dates(since),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, one thread",
        "versions": {name: importlib.metadata.version(name).partition("+")[0] for name in packages},
        "python": platform.python_version(),
        "seconds": seconds,
    }
    order = list(inductor_rows.CASES if inductor else CASES)
    rows = sorted(rows, key=lambda row: order.index(row["model"]))
    by = {name: [row for row in rows if row["model"] == name] for name in order}
    judge, out = (inductor_missed, INDUCTOR_OUT) if inductor else (missed, OUT)
    lines = [line for found in by.values() if found for line in judge(found)]
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(facts | {"rows": rows, "missed": lines}, indent=1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices={**CASES, **inductor_rows.CASES})
    parser.add_argument("--inductor", action="store_true", help="the rows beside Inductor")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=10.0, help="of planning, at most")
    parser.add_argument("--keep", action="store_true", help="rows of other models that are in build/bench/peers.json")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.worker:
        torch.set_num_threads(1)
        declare_torchvision_operators()  # transformers and timm import only where they are known
        warnings.simplefilter("ignore")
        tables = inductor_table if chosen.inductor else table_of
        print(json.dumps(tables(chosen.worker, chosen.rounds, chosen.seconds)))
        return 0
    lines = run(chosen)
    print("\n".join(["", *(f"MISSED {line}" for line in lines)] if lines else ["", "all bars met"]))
    return 1 if lines else 0


def run(chosen: argparse.Namespace) -> list[str]:
    """Run each model in a process of its own; returns the bars that were missed."""
    print(f"torch {torch.__version__}, 1 thread, {chosen.rounds} rounds")
    print(f"{'model':16} {'method':20} {'peak MiB':>9} {'of bare':>7} {'time':>7} {'step':>9} {'buffers':>8}")
    names = chosen.only or list(inductor_rows.CASES if chosen.inductor else CASES)
    out, judge = (INDUCTOR_OUT, inductor_missed) if chosen.inductor else (OUT, missed)
    (rows, since), lines = kept(out, names) if chosen.keep else ([], None), []
    for name in names:
        command = [sys.executable, "-m", "tests.benchmarks.bench_peers", "--worker", name]
        command += ["--rounds", str(chosen.rounds), "--seconds", str(chosen.seconds)]
        command += ["--inductor"] if chosen.inductor else []
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(done.stderr[-2000:], file=sys.stderr)
            lines.append(f"{name}: its process ended with {done.returncode}")
            continue
        found = [
            row | {"rounds": chosen.rounds, "seconds": chosen.seconds}
            for row in json.loads(done.stdout.splitlines()[-1])
        ]
        bare = next(row["peak"] for row in found if row["method"] == "bare")
        print("\n".join(line_of(row, bare) for row in found), flush=True)
        rows += found
        lines += judge(found)
        write(rows, chosen.seconds, since, inductor=chosen.inductor)
    return lines


if __name__ == "__main__":
    sys.exit(main())
