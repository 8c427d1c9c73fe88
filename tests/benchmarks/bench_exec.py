"""Step time with nothing recomputed: the wrapped module against the bare one (`make bench-exec`).

Each round runs, in shuffled order, the bare model, its twin (the control: bare against bare) and the wrapped model, forward
and backward, gradients None before. The ratio is wrapped over the geometric mean of the two bare medians; its interval is a
bootstrap over rounds. Clock: CPU time of this thread, on one thread, so that other work on the machine counts little
(`--clock wall` for wall time). The bar: upper end at most 1.03 on GPT-2 and ResNet-50; the U-Net is stated.

    python -m tests.benchmarks.bench_exec [--rounds 200] [--only gpt2 resnet50 unet] [--clock cpu|wall]
"""

import argparse
import copy
import json
import platform
import random
import sys
import time
from pathlib import Path

import numpy
import torch

import remat.exec
from remat.zoo import GPT2, ResNet, UNet

BAR = 1.03
OUT = Path("build/bench/exec.json")


def gpt2():
    tokens = torch.randint(256, (2, 4, 128))
    return GPT2(layers=12, width=256, heads=8, context=128), (tokens[0], tokens[1])


def resnet50():
    return ResNet(width=64), (torch.randn(4, 3, 96, 96), torch.randint(100, (4,)))


def unet():
    return UNet(channels=16), (torch.randn(4, 3, 96, 96), torch.randn(4, 1, 96, 96))


MODELS = {"gpt2": (gpt2, True), "resnet50": (resnet50, True), "unet": (unet, False)}


def step_time(model, sample, clock):
    for parameter in model.parameters():
        parameter.grad = None
    start = clock()
    model(*sample).backward()
    return clock() - start


def run(name, rounds, clock):
    build, barred = MODELS[name]
    torch.manual_seed(0)
    model, sample = build()
    twin, third = copy.deepcopy(model), copy.deepcopy(model)
    wrapped = remat.exec.wrap(third, sample, "100%", rehearse=False)
    models = {"bare": model, "control": twin, "wrapped": wrapped}
    for one in models.values():
        for _ in range(3):
            step_time(one, sample, clock)
    order, times = list(models), {label: [] for label in models}
    draw = random.Random(0)
    for _ in range(rounds):
        draw.shuffle(order)
        for label in order:
            times[label].append(step_time(models[label], sample, clock))
    table = numpy.array([times["bare"], times["control"], times["wrapped"]], dtype=float)
    ratio, control = statistic(table)
    rng = numpy.random.default_rng(0)
    draws = [statistic(table[:, rng.integers(rounds, size=rounds)]) for _ in range(2000)]
    low, high = numpy.percentile([one[0] for one in draws], [2.5, 97.5])
    control_low, control_high = numpy.percentile([one[1] for one in draws], [2.5, 97.5])
    return {
        "model": name, "rounds": rounds, "bare_ms": float(numpy.median(table[0])) / 1e6, "ratio": ratio, "low": low, "high": high,
        "control": control, "control_low": control_low, "control_high": control_high, "bar": BAR if barred else None,
        "met": bool(high <= BAR) if barred else None,
    }  # fmt: skip


def statistic(table):
    bare, control, wrapped = (float(numpy.median(row)) for row in table)
    return wrapped / (bare * control) ** 0.5, control / bare


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--only", nargs="*", choices=MODELS, default=list(MODELS))
    parser.add_argument("--clock", choices=("cpu", "wall"), default="cpu")
    parser.add_argument("--out", type=Path, default=OUT)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    clock = time.thread_time_ns if chosen.clock == "cpu" else time.perf_counter_ns
    print(f"torch {torch.__version__}, 1 thread, {chosen.clock} clock, {chosen.rounds} rounds")
    print(f"{'model':10} {'bare ms':>8} {'wrapped/bare':>13} {'95 %':>17} {'control':>9} {'95 %':>17}  bar")
    rows = []
    for name in chosen.only:
        row = run(name, chosen.rounds, clock)
        rows.append(row)
        verdict = "stated" if row["met"] is None else ("met" if row["met"] else "MISSED")
        print(
            f"{name:10} {row['bare_ms']:8.1f} {row['ratio']:13.4f} [{row['low']:.4f}, {row['high']:.4f}]"
            f" {row['control']:9.4f} [{row['control_low']:.4f}, {row['control_high']:.4f}]  {verdict}",
            flush=True,
        )
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    facts = {"torch": torch.__version__, "python": platform.python_version(), "clock": chosen.clock, "rows": rows}
    chosen.out.write_text(json.dumps(facts, indent=1))
    return 0 if all(row["met"] is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
