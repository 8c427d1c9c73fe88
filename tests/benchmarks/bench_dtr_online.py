"""`make bench-dtr_online`: steps under DTR while they run: exactness, slowdown, cost of the runtime, and growth.

    python -m tests.benchmarks.bench_dtr_online [--only slowdown,plans,operators,growth] [--models gpt2,detector] [--steps 3]

The tables, build/bench/dtr-online.json, and exit 1 where a row breaks what is promised.

* `slowdown`: budgets as shares of the step's own peak under DTR with room for everything, then the smallest that completes, to a
  percent. Loss, gradients and buffers are those of plain torch, bit for bit, and the allocator's peak is within the budget.
* `plans`: GPT-2 under DTR and under the plans of `wrap`, within the same budgets: shares of the peak of plain torch.
* `operators`: what the runtime adds to an operation, by the size of its tensors, and the time of an operation from which on that
  is below 5 %.
* `growth`: 1,000 steps of varying shapes: storages, bytes of the ledger, resident memory of the process.

Times are medians of CPU time of one thread; of steps and of chains, plain torch and DTR take turns.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

import remat.exec
from remat.algorithms._dtr.values import Stored
from remat.errors import Infeasible
from remat.zoo import GPT2
from remat.zoo.dynamic import Detector, Experts, TreeLSTM

OUT = Path("build/bench/dtr-online.json")
SHARES = (100, 90, 80, 70, 60, 50, 40, 30, 20)
PLAN_SHARES = (100, 80, 60, 50, 40, 30)
SIZES = (1 << 4, 1 << 12, 1 << 15, 1 << 17, 1 << 18, 1 << 19, 1 << 20)
CHAIN, BELOW = 40, 0.05
GROWTH_STEPS, WARM, MOST_GROWTH = 1000, 100, 0.05
"""Steps; those after which growth counts; the share of the process's memory that it may grow by, tables of shapes included."""

Row = dict[str, object]
Sample = tuple[object, ...]
Build = Callable[[], tuple[nn.Module, Callable[[], Sample]]]


class Squared(nn.Module):
    """A module with the mean square of its output as loss."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, given: object) -> Tensor:
        out: Tensor = self.inner(given)
        return out.square().mean()


def gpt2() -> tuple[nn.Module, Callable[[], Sample]]:
    def sample() -> Sample:
        words = torch.randint(256, (8, 129))
        return words[:, :-1], words[:, 1:]

    return GPT2(layers=6, width=192, heads=6, context=128, dropout=0.1), sample


def experts() -> tuple[nn.Module, Callable[[], Sample]]:
    return Squared(Experts(layers=6, experts=4, width=128)), lambda: (torch.randn(2048, 128),)


def tree_lstm() -> tuple[nn.Module, Callable[[], Sample]]:
    def tree(depth: int) -> object:
        deep = depth > 0 and (depth > 3 or torch.rand(()).item() < 0.8)
        return [tree(depth - 1), tree(depth - 1)] if deep else int(torch.randint(50, ()))

    return Squared(TreeLSTM(width=256)), lambda: (tree(5),)


def detector() -> tuple[nn.Module, Callable[[], Sample]]:
    return Detector(width=32), lambda: (torch.randn(8, 3, 96, 96), torch.randint(5, (8,)))


MODELS: dict[str, Build] = {"gpt2": gpt2, "experts": experts, "tree-lstm": tree_lstm, "detector": detector}


# -- one step ------------------------------------------------------------------------------------------------------------


def trace(module: nn.Module, sample: Sample) -> tuple[list[Tensor], float]:
    """Loss, gradients and buffers of a step, and its CPU seconds."""
    module.zero_grad()
    torch.manual_seed(1)
    began = time.thread_time()
    loss = module(*sample)
    loss.backward()
    seconds = time.thread_time() - began
    gradients = (parameter.grad for parameter in module.parameters())
    kept = [loss, *(gradient for gradient in gradients if gradient is not None), *module.buffers()]
    return [tensor.detach().clone() for tensor in kept], seconds


def compared(model: nn.Module, wrapped: nn.Module, sample: Sample, steps: int) -> tuple[bool, float, float]:
    """Whether steps of both are the same bits; their median CPU seconds, the first step apart. They take turns."""
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    same, bare, taken = True, [], []
    for _ in range(steps + 1):
        model.load_state_dict(state)
        expected, seconds = trace(model, sample)
        bare.append(seconds)
        model.load_state_dict(state)
        traced, seconds = trace(wrapped, sample)
        taken.append(seconds)
        same = same and all(map(torch.equal, traced, expected))
    model.load_state_dict(state)
    return same, statistics.median(bare[1:]), statistics.median(taken[1:])


def peak_of(module: nn.Module, sample: Sample) -> int:
    """The allocator's peak of a step."""
    module.zero_grad()
    return remat.exec.measure_step(lambda: module(*sample).backward()).peak


def under(model: nn.Module, sample: Sample, budget: int, steps: int) -> Row:
    """A row of steps under DTR within a budget, or the error."""
    wrapped = remat.exec.dtr(model, budget)
    try:
        same, bare, taken = compared(model, wrapped, sample, steps)
        peak = peak_of(wrapped, sample)
    except Infeasible as error:
        model.zero_grad()
        return {"budget": budget, "error": f"{error.rule}: {str(error)[:120]}"}
    report = remat.exec.dtr_report(wrapped)
    return {
        "budget": budget, "same": same, "peak": peak, "slowdown": taken / bare, "bare": bare,
        "rematerializations": report.rematerializations, "operations": report.operations, "overhead": report.overhead,
        "runtime": report.runtime, "kept": same and peak <= budget,
    }  # fmt: skip


# -- the tables ----------------------------------------------------------------------------------------------------------


def slowdown(models: list[str], steps: int) -> Iterator[Row]:
    """Rows of each model, down to the smallest budget that completes."""
    for name in models:
        torch.manual_seed(0)
        model, draw = MODELS[name]()
        sample = draw()
        whole = remat.exec.dtr(model, "1TiB")
        trace(whole, sample)
        peak = remat.exec.dtr_report(whole).peak
        low, high = 0, 0
        for share in SHARES:
            row = under(model, sample, peak * share // 100, steps)
            yield {"table": "slowdown", "model": name, "share": share, **row}
            if "error" in row:
                low = share
                break
            high = share
        smallest: Row = {}
        while high - low > 1:
            share = (low + high) // 2
            row = under(model, sample, peak * share // 100, 1)
            low, high, smallest = (share, high, smallest) if "error" in row else (low, share, row)
        if smallest:
            yield {"table": "slowdown", "model": name, "share": high, "smallest": True, **smallest}


def plans(steps: int) -> Iterator[Row]:
    """GPT-2 under DTR beside its plans."""
    torch.manual_seed(0)
    model, draw = gpt2()
    sample = draw()
    trace(model, sample)
    peak = peak_of(model, sample)
    for share in PLAN_SHARES:
        budget = peak * share // 100
        yield {"table": "plans", "share": share, "by": "dtr", **under(model, sample, budget, steps)}
        try:
            wrapped = remat.exec.wrap(model, sample, budget, rehearse=False, on_uncapturable="raise")
        except Infeasible as error:
            yield {"table": "plans", "share": share, "by": "plan", "budget": budget, "error": str(error)[:120]}
            continue
        same, bare, taken = compared(model, wrapped, sample, steps)
        measured = peak_of(wrapped, sample)
        report = remat.exec.report(wrapped)
        yield {
            "table": "plans", "share": share, "by": "plan", "budget": budget, "same": same, "peak": measured, "bare": bare,
            "slowdown": taken / bare, "rematerializations": report.reruns, "kept": same and measured <= budget,
            "overhead": report.predicted_time / report.store_all_time,
        }  # fmt: skip


class Chain(nn.Module):
    """A chain of sines."""

    def forward(self, given: Tensor) -> Tensor:
        for _ in range(CHAIN):
            given = torch.sin(given)
        return given.sum()


def operators(steps: int) -> Iterator[Row]:
    """What DTR adds to an operation, by size; forward and backward operations alike."""
    large: list[Row] = []
    for size in SIZES:
        given = (torch.randn(size).requires_grad_(),)
        wrapped = remat.exec.dtr(Chain(), "1TiB")
        _, bare, taken = compared(Chain(), wrapped, given, 2 * steps + 1)
        count = remat.exec.dtr_report(wrapped).operations
        row: Row = {
            "table": "operators", "bytes": 4 * size, "operations": count, "operation": bare / count * 1e6,
            "added": (taken - bare) / count * 1e6, "share": taken / bare - 1,
        }  # fmt: skip
        yield row
        large.append(row)
    added = statistics.median(float(str(row["added"])) for row in large[:3])
    below = next((row["bytes"] for row in large if float(str(row["share"])) < BELOW), None)
    yield {
        "table": "operators", "added to an operation of small tensors [us]": added,
        "time of an operation from which it is below 5 % [us]": added / BELOW, "measured below 5 % from bytes": below,
    }  # fmt: skip


def resident() -> int:
    """Bytes of the process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def growth() -> Iterator[Row]:
    """Many steps of a small detector, whose number of boxes differs in each."""
    torch.manual_seed(0)
    model = Detector()
    wrapped = remat.exec.dtr(model, 900_000)
    rows: list[Row] = []
    for number in range(1, GROWTH_STEPS + 1):
        model.zero_grad()  # and no step of an optimizer: trained, it soon lets all boxes through
        wrapped(torch.randn(3, 3, 40, 40), torch.randint(5, (3,))).backward()
        if number in (WARM, GROWTH_STEPS):
            gc.collect()
            storages = sum(type(thing) is Stored for thing in gc.get_objects())
            runtime = wrapped._remat.runtime  # type: ignore[union-attr]
            rows.append({
                "table": "growth", "step": number, "storages": storages, "ledger": runtime.core.memory,
                "signatures": len(runtime.needs.table), "resident": resident(),
            })  # fmt: skip
            yield rows[-1]
    first, last = rows
    share = int(str(last["resident"])) / int(str(first["resident"])) - 1
    same = (first["storages"], first["ledger"]) == (last["storages"], last["ledger"])
    yield {"table": "growth", "from": WARM, "to": GROWTH_STEPS, "share": share, "kept": same and share <= MOST_GROWTH}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="slowdown,plans,operators,growth")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    tables: dict[str, Callable[[], Iterator[Row]]] = {
        "slowdown": lambda: slowdown(options.models.split(","), options.steps),
        "plans": lambda: plans(options.steps),
        "operators": lambda: operators(options.steps),
        "growth": growth,
    }
    rows: list[Row] = []
    for name in options.only.split(","):
        for row in tables[name]():
            rows.append(row)
            cells = (
                f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()
            )
            print("  ".join(cells), flush=True)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(rows, indent=1) + "\n")
    return int(any(row.get("kept") is False for row in rows))


if __name__ == "__main__":
    sys.exit(main())
