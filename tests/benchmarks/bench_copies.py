"""`make bench-copies`: executed plans with copies on a CPU, step time and idle time as predicted and as measured.

    python -m tests.benchmarks.bench_copies [--only NAMES] [--slowness 1,4,16]

Everything that can be copied is, on links that are so slow that the step waits: a slowness of 4 means that the copies of a lane
take four times as long as the nodes. The host stands in for a device, so it is to behave as one: the C library keeps what it
was given, as a device's allocator does, and copies take as long as the link that is imitated. Steps take a second or more, so
that what a core needs to wake up is small beside them. A machine is faster at one time than at another, so each round measures
the nodes, each alone, predicts the step from that, and runs it; the round with the median ratio is shown. Writes
build/bench/copies.json. Exits 1 where the step is not within 5 % of the prediction, or its idle time is off by more than 20 %
and by more than 2 % of the step. Wall time: nothing else may compute.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn

import remat.exec
from remat.exec._copy.copies import Copier
from remat.exec._copy.cpu import CpuDevice
from remat.ir import Link, Offload, validate
from tests.exec.copying import CopyRig, copied

OUT = Path("build/bench/copies.json")
ROUNDS = 5
BUDGET = 0.6
"""Of the peak without copies."""

STEP_BAR, IDLE_BAR, IDLE_SHARE = 0.05, 0.2, 0.02


class Wide(nn.Module):
    """Linear layers and tanh on a large batch."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(*(part for _ in range(6) for part in (nn.Linear(256, 256), nn.Tanh())))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The mean square of the last layer."""
        return self.body(x).square().mean()


class Convolutions(nn.Module):
    """Convolutions with batch norm."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 16, 16, 32, 32)
        layers = [
            part for a, b in pairwise(widths) for part in (nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU())
        ]
        self.body = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The mean square of the last feature map."""
        return self.body(x).square().mean()


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (Wide, (16384, 256)),
    "convolutions": (Convolutions, (96, 3, 48, 48)),
}

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


def keep_memory() -> None:
    """Have the C library (glibc) keep what is freed: fresh pages cost a step time, and a node that runs alone has none."""
    mallopt = ctypes.CDLL(None).mallopt
    assert mallopt(M_MMAP_THRESHOLD, 1 << 30) and mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)


def row(name: str, rig: CopyRig, slowness: float) -> dict[str, object]:
    """One plan, predicted and run."""
    schedule = copied(rig.graph, least=1 << 16)
    out = sum(rig.graph.datum(step.datum).size for step in schedule.steps if isinstance(step, Offload))
    link = Link.symmetric(gb_per_s=out / (slowness * rig.graph.time))
    rig.link, rig.copier = link, Copier.on(CpuDevice(throttle=link))
    budget = int(BUDGET * rig.peak)
    lowered = rig.lowered(schedule, budget)
    rig.lowered = lambda _: lowered  # type: ignore[method-assign]
    step = rig.step(schedule)
    rounds = []
    for at in range(ROUNDS + 1):
        costs = remat.exec.measure(rig.program)
        graph = remat.exec.build_graph(rig.program, costs)
        cost = validate(graph, schedule, budget, link)
        rig.clear()
        start = time.perf_counter_ns()
        step()
        taken = time.perf_counter_ns() - start
        assert rig.copier.last is not None
        entry = {
            "nodes": graph.time,
            "predicted": cost.time,
            "measured": taken,
            "idle_predicted": cost.idle,
            "idle_measured": rig.copier.last.idle,
        }
        rounds += [entry] if at else []  # the first one makes the host's buffers
    del rig.lowered
    rounds.sort(key=lambda entry: entry["measured"] / entry["predicted"])
    ends = {"least": rounds[0], "most": rounds[-1]}
    ratios = {name: entry["measured"] / entry["predicted"] for name, entry in ends.items()}
    return {"model": name, "slowness": slowness, **rounds[ROUNDS // 2], **ratios}


def missed(entry: dict[str, float]) -> list[str]:
    """The bars that a row misses."""
    step, idle = entry["predicted"], entry["idle_predicted"]
    off, off_idle = abs(entry["measured"] - step), abs(entry["idle_measured"] - idle)
    wrong = ["step"] if off > STEP_BAR * step else []
    return wrong + (["idle"] if off_idle > max(IDLE_BAR * idle, IDLE_SHARE * step) else [])


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only")
    parser.add_argument("--slowness", type=lambda text: tuple(map(float, text.split(","))), default=(1, 4, 16))
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()
    rows = []
    print(
        "model slowness | nodes ms | step ms predicted, measured | ratio, of all rounds | idle ms predicted, measured | missed"
    )
    for name, (module, shape) in MODELS.items():
        if args.only and name not in args.only.split(","):
            continue
        torch.manual_seed(0)
        rig = CopyRig(module(), (torch.randn(shape, requires_grad=True),))
        for slowness in args.slowness:
            entry = row(name, rig, slowness)
            rows.append(entry)
            nodes, predicted, measured, idle, waited = (
                f"{float(entry[what]) / 1e6:.1f}"  # type: ignore[arg-type]
                for what in ("nodes", "predicted", "measured", "idle_predicted", "idle_measured")
            )
            ratio = float(entry["measured"]) / float(entry["predicted"])  # type: ignore[arg-type]
            print(
                f"{name} {slowness:g} | {nodes} | {predicted}, {measured} "
                f"| {ratio:.3f}, {entry['least']:.3f} to {entry['most']:.3f} | {idle}, {waited} "
                f"| {', '.join(missed(entry)) or '-'}",  # type: ignore[arg-type]
                flush=True,
            )
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps({"rows": rows}, indent=1))
    return any(missed(entry) for entry in rows)  # type: ignore[arg-type]


if __name__ == "__main__":
    raise SystemExit(main())
