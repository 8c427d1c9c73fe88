"""`make bench-dtr_figures`: figures 2, 3 and 12 of DTR's paper in kind, on logs of real steps.

    python -m tests.benchmarks.bench_dtr_figures [--models resnet,lstm] [--solvers-seconds 60]     all of it in build/dtr

* `NAME.log`: the step of each model of `remat.zoo.dynamic`, logged from PyTorch; costs are bytes, so that runs repeat.
* `figure2_12.csv`, `.png`: overhead (figure 2) and storage accesses (figure 12) of six heuristics over budgets.
* `figure3_NAME.csv`, `.png`: DTR's rule beside static plans on one captured graph, for the models that can be captured.

Prints the smallest budget, the mean overhead and the accesses of each heuristic; exit 1 where the paper's findings do not hold on
a log: no heuristic that looks at storages alone (h_local, LRU, size) fits within less than h_DTR or h_DTR_eq; h_DTR looks at more
storages than h_DTR_eq, and that at more than h_local.
"""

from __future__ import annotations

import argparse
import csv
import functools
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from remat.cli import main as remat
from remat.exec.weightless import graph_without_weights
from remat.ir import dump
from remat.zoo import GPT2
from remat.zoo.dynamic import STEPS, DenseNet
from remat.zoo.resnet import ResNet
from remat.zoo.unet import UNet

OUT = Path("build/dtr")
BUDGETS = ",".join(str(percent) for percent in range(100, 5, -5))
HEURISTICS = ("h_dtr", "h_dtr_eq", "h_local", "lru", "msps", "size")
SCALES = {
    "resnet": 16,
    "densenet": 4,
    "unet": 8,
    "lstm": 4,
    "transformer": 16,
    "adversarial": 16,
    "experts": 8,
}
"""Factors of the batches: weights and their gradients are then a small part of the peak, as in the paper."""
SOLVERS = ("Dtr('h_eq')", "Dtr('h_lru')", "chen", "checkmate", "auto")
Sample = tuple[nn.Module, tuple[torch.Tensor, ...]]


class Classified(nn.Module):
    """A model of logits with its loss."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, pictures: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.inner(pictures), labels)


def transformer() -> Sample:
    words = torch.randint(100, (2, 33))
    return GPT2(layers=2, width=64, heads=4, vocabulary=100, context=32), (words[:, :-1], words[:, 1:])


STATIC: dict[str, Callable[[], Sample]] = {
    "resnet": lambda: (ResNet(blocks=(2, 2), width=8), (torch.randn(2, 3, 32, 32), torch.randint(10, (2,)))),
    "densenet": lambda: (Classified(DenseNet(layers=6)), (torch.randn(2, 3, 16, 16), torch.randint(10, (2,)))),
    "unet": lambda: (UNet(levels=3, channels=8), (torch.randn(2, 3, 32, 32), torch.randn(2, 1, 32, 32))),
    "transformer": transformer,
}
"""Small steps for figure 3: formulations of Checkmate for larger ones take hours."""


def run(*command: str) -> None:
    """A command of the library."""
    if code := remat([*command]):
        raise SystemExit(f"remat {' '.join(command)}: exit code {code}")


def replayed(models: list[str]) -> list[dict[str, str]]:
    """Logs, then figures 2 and 12."""
    for name in models:
        run("dtr", "log", name, "--cost", "bytes", "--scale", str(SCALES.get(name, 1)), "-o", str(OUT / f"{name}.log"))
    table = OUT / "figure2_12.csv"
    heuristics = [word for name in HEURISTICS for word in ("--heuristic", name)]
    logs = [str(OUT / f"{name}.log") for name in models]
    run(
        "dtr",
        "curves",
        *logs,
        *heuristics,
        "--budgets",
        BUDGETS,
        "-o",
        str(table),
        "--draw",
        str(table.with_suffix(".png")),
    )
    with table.open(newline="") as file:
        return list(csv.DictReader(file))


def planned(models: list[str], seconds: float) -> None:
    """Figure 3."""
    for name in models:
        if name not in STATIC:
            continue
        graph = OUT / f"{name}.json.gz"
        dump(graph_without_weights(functools.partial(STATIC[name])), graph)
        table = OUT / f"figure3_{name}.csv"
        solvers = [word for solver in SOLVERS for word in ("--solver", solver)]
        budgets = ("--budgets", "90%:20%:8", "--within", str(seconds))
        run("sweep", str(graph), *solvers, *budgets, "-o", str(table), "--draw", str(table.with_suffix(".png")))


def findings(rows: list[dict[str, str]]) -> list[str]:
    """Print the table of each log; what does not hold of the paper's findings."""
    by_log: dict[str, dict[str, list[dict[str, str]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        by_log[row["log"]][row["heuristic"]].append(row)
    wrong: list[str] = []
    for log, lines in by_log.items():
        ended = {name: {row["percent"]: row for row in line if row["status"] == "ok"} for name, line in lines.items()}
        common = set.intersection(*(set(marks) for name, marks in ended.items() if name.startswith("h_")))
        least = {name: min(map(float, marks), default=float("inf")) for name, marks in ended.items()}
        accesses = {
            name: sum(int(ended[name][share]["accesses"]) for share in common if share in ended[name]) for name in ended
        }
        for name, marks in ended.items():
            mean = sum(float(row["overhead"]) for row in marks.values()) / max(1, len(marks))
            print(
                f"{log:12} {name:9} down to {least[name]:3.0f} %  mean overhead {mean:.3f}  accesses {accesses[name]:10d}"
            )
        if max(least["h_dtr"], least["h_dtr_eq"]) > min(least[name] for name in ("h_local", "lru", "size")):
            wrong.append(f"{log}: smallest budgets {least}")
        if not accesses["h_dtr"] > accesses["h_dtr_eq"] > accesses["h_local"]:
            wrong.append(f"{log}: accesses {accesses}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", default=",".join(STEPS))
    parser.add_argument("--solvers-seconds", type=float, default=60.0, help="of planning, for each solver and graph")
    options = parser.parse_args()
    models = options.models.split(",")
    OUT.mkdir(parents=True, exist_ok=True)
    wrong = findings(replayed(models))
    for line in wrong:
        print(line)
    planned(models, options.solvers_seconds)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
