"""Slowdown against budget of steps under DTR, and what the runtime costs for each operation.

    python -m tests.benchmarks.bench_dtr_online [--models gpt2,experts] [--steps 3]       the table, build/bench/dtr-online.json

Budgets are shares of the step's own peak under DTR with room for everything. Times are medians over the steps, of CPU time of one
thread; slowdown is over plain torch, the peak is the allocator's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import remat.exec
from remat.errors import Infeasible
from remat.zoo import GPT2
from remat.zoo.dynamic import Experts, TreeLSTM

OUT = Path("build/bench/dtr-online.json")
SHARES = (100, 90, 80, 70, 60, 50, 40)


class Squared(nn.Module):
    """A module with the mean square of its output as loss."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, given: object) -> Tensor:
        out: Tensor = self.inner(given)
        return out.square().mean()


def gpt2() -> tuple[nn.Module, tuple[object, ...]]:
    words = torch.randint(256, (8, 129))
    return GPT2(layers=6, width=192, heads=6, context=128), (words[:, :-1], words[:, 1:])


def experts() -> tuple[nn.Module, tuple[object, ...]]:
    return Squared(Experts(layers=6, experts=4, width=128)), (torch.randn(2048, 128),)


def tree_lstm() -> tuple[nn.Module, tuple[object, ...]]:
    def tree(depth: int) -> object:
        return [tree(depth - 1), tree(depth - 1)] if depth else int(torch.randint(50, ()))

    return Squared(TreeLSTM(width=256)), (tree(5),)


MODELS = {"gpt2": gpt2, "experts": experts, "tree-lstm": tree_lstm}


def seconds(module: nn.Module, sample: tuple[object, ...], steps: int) -> float:
    """Median CPU seconds of a step."""
    taken = []
    for _ in range(steps + 1):
        module.zero_grad()
        began = time.thread_time()
        module(*sample).backward()
        taken.append(time.thread_time() - began)
    return statistics.median(taken[1:])


def rows_of(
    name: str, build: Callable[[], tuple[nn.Module, tuple[object, ...]]], steps: int
) -> list[dict[str, object]]:
    """The rows of a model, down to the smallest share that completes."""
    torch.manual_seed(0)
    model, sample = build()
    plain = seconds(model, sample, steps)
    whole = remat.exec.dtr(model, "1TiB")
    seconds(whole, sample, 1)
    peak = remat.exec.dtr_report(whole).peak
    rows: list[dict[str, object]] = []
    for share in SHARES:
        wrapped = remat.exec.dtr(model, peak * share // 100)
        try:
            taken = seconds(wrapped, sample, steps)
        except Infeasible as error:
            rows.append({"model": name, "share": share, "error": str(error)})
            break
        report = remat.exec.dtr_report(wrapped)
        model.zero_grad()
        measured = remat.exec.measure_step(lambda wrapped=wrapped: wrapped(*sample).backward()).peak  # type: ignore[misc]
        rows.append({
            "model": name, "share": share, "slowdown": taken / plain, "plain": plain, "budget": report.budget, "peak": measured,
            "rematerializations": report.rematerializations, "overhead": report.overhead, "runtime": report.runtime,
        })  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    rows = []
    for name in options.models.split(","):
        for row in rows_of(name, MODELS[name], options.steps):
            rows.append(row)
            print(
                " ".join(
                    f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()
                )
            )
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
