"""Step times on this machine (`make bench-exec`), in two sections.

keep-all: the wrapped module with nothing recomputed against the bare one. Each round runs, in shuffled order, the bare model,
its twin (the control: bare against bare) and the wrapped model, forward and backward, gradients None before. The ratio is
wrapped over the geometric mean of the two bare medians. The bar: upper end at most 1.03 on GPT-2 and ResNet-50.

recompute: what a plan costs against what was predicted. Each model is captured and measured once and planned by `auto` at three
budgets (the smallest with a plan stands for those without). Each round runs, in shuffled order, two instances of the step that
keeps everything (one is the control) and one step of each plan. Predicted: time of the plan over time of the step that keeps
everything, as replayed; measured: the ratio of medians. The bar: within 5 % of predicted, with the whole interval.

Intervals are bootstraps over rounds. Clock: CPU time of this thread, on one thread, so that other work on the machine counts
little (`--clock wall` for wall time).

    python -m tests.benchmarks.bench_exec [--sections keep-all recompute] [--rounds 200] [--only gpt2 …] [--clock cpu|wall]
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
from remat.algorithms import Problem, StoreAll
from remat.algorithms._curves.budget_sweep import quick_lowest_budget
from remat.algorithms._search.auto import auto, quick
from remat.zoo import GPT2, EncoderDecoder, ResNet, UNet
from tests.benchmarks.call_checks import checks
from tests.exec.support import Rig

BAR = 1.03
WITHIN = 0.05
"""How far the measured ratio of a plan may be from the predicted one."""
SHARES = (0.7, 0.5, 0.35)
SECTIONS = ("keep-all", "recompute", "checks")
OUT = Path("build/bench/exec.json")


def gpt2():
    tokens = torch.randint(256, (2, 4, 128))
    return GPT2(layers=12, width=256, heads=8, context=128), (tokens[0], tokens[1])


def resnet50():
    return ResNet(width=64), (torch.randn(4, 3, 96, 96), torch.randint(100, (4,)))


def unet():
    return UNet(channels=16), (torch.randn(4, 3, 96, 96), torch.randn(4, 1, 96, 96))


def encdec():
    return EncoderDecoder(layers=3, width=128, heads=4, vocabulary=256), tuple(torch.randint(256, (3, 8, 64)))


MODELS = {"gpt2": (gpt2, True), "resnet50": (resnet50, True), "unet": (unet, False), "encdec": (encdec, False)}


def step_time(model, sample, clock):
    for parameter in model.parameters():
        parameter.grad = None
    start = clock()
    model(*sample).backward()
    return clock() - start


def interleaved(steps, rounds):
    """Times of each step by label, in rounds of shuffled order, after three to warm up."""
    order, times = list(steps), {label: [] for label in steps}
    draw = random.Random(0)
    for at in range(3 + rounds):
        draw.shuffle(order)
        for label in order:
            took = steps[label]()
            if at >= 3:
                times[label].append(took)
    return {label: numpy.array(row, dtype=float) for label, row in times.items()}


def with_interval(statistic, *rows):
    """A statistic of rows of times with its 95 % interval over rounds."""
    rng, rounds = numpy.random.default_rng(0), len(rows[0])
    table = numpy.array(rows)
    draws = [statistic(table[:, rng.integers(rounds, size=rounds)]) for _ in range(2000)]
    return (statistic(table), *map(float, numpy.percentile(draws, [2.5, 97.5])))


def over_twins(table):
    """The last row's median over the geometric mean of those of the first two."""
    one, two, last = (float(numpy.median(row)) for row in table)
    return last / (one * two) ** 0.5


def second_over_first(table):
    """The control."""
    return float(numpy.median(table[1]) / numpy.median(table[0]))


def keep_all(name, rounds, clock):
    """One row: the wrapped module with nothing recomputed against the bare one."""
    build, barred = MODELS[name]
    torch.manual_seed(0)
    model, sample = build()
    twin, third = copy.deepcopy(model), copy.deepcopy(model)
    wrapped = remat.exec.wrap(third, sample, "100%", rehearse=False)
    models = {"bare": model, "control": twin, "wrapped": wrapped}
    times = interleaved(
        {label: (lambda one=one: step_time(one, sample, clock)) for label, one in models.items()}, rounds
    )
    ratio, low, high = with_interval(over_twins, times["bare"], times["control"], times["wrapped"])
    control, control_low, control_high = with_interval(second_over_first, times["bare"], times["control"])
    row = {
        "model": name, "rounds": rounds, "bare_ms": float(numpy.median(times["bare"])) / 1e6, "ratio": ratio, "low": low,
        "high": high, "control": control, "control_low": control_low, "control_high": control_high,
        "bar": BAR if barred else None, "met": bool(high <= BAR) if barred else None,
    }  # fmt: skip
    print(
        f"{name:10} {row['bare_ms']:8.1f} {ratio:13.4f} [{low:.4f}, {high:.4f}]"
        f" {control:9.4f} [{control_low:.4f}, {control_high:.4f}]  {verdict(row)}",
        flush=True,
    )
    return [row]


def plans_of(rig):
    """Plans by name of their budget: three shares of the peak, and the smallest budget in place of those without a plan."""
    found = {}
    for share in SHARES:
        outcome = auto.solve(Problem(graph=rig.graph, budget=int(rig.peak * share)))
        if outcome.schedule is not None:
            found[f"{share:.0%}"] = outcome
    if len(found) < len(SHARES):
        smallest = quick_lowest_budget(rig.graph, quick).point.budget
        outcome = auto.solve(Problem(graph=rig.graph, budget=smallest))
        assert outcome.schedule is not None, "the planner misses a budget that its quick form meets"
        found[f"{smallest / rig.peak:.1%}"] = outcome
    return found


def recompute(name, rounds, clock):
    """One row per budget: measured time of a plan over that of keeping everything, against the predicted ratio."""
    torch.manual_seed(0)
    rig = Rig(*MODELS[name][0]())
    everything = StoreAll().solve(Problem(graph=rig.graph, budget=rig.peak))
    plans = plans_of(rig)
    schedules = {"all": everything.schedule, "control": everything.schedule}
    schedules |= {label: outcome.schedule for label, outcome in plans.items()}

    def timed(schedule):
        step = rig.step(schedule)

        def once():
            rig.clear()
            start = clock()
            step()
            return clock() - start

        return once

    times = interleaved({label: timed(schedule) for label, schedule in schedules.items()}, rounds)
    control, control_low, control_high = with_interval(second_over_first, times["all"], times["control"])
    rows = []
    for label, outcome in plans.items():
        predicted = outcome.cost.time / everything.cost.time
        measured, low, high = with_interval(over_twins, times["all"], times["control"], times[label])
        row = {
            "model": name, "rounds": rounds, "budget": label, "reruns": outcome.cost.reruns, "predicted": predicted,
            "measured": measured, "low": low, "high": high, "off": measured / predicted - 1, "control": control,
            "control_low": control_low, "control_high": control_high, "predicted_ms": outcome.cost.time / 1e6,
            "measured_ms": float(numpy.median(times[label])) / 1e6, "bar": WITHIN,
            "met": bool(low >= predicted * (1 - WITHIN) and high <= predicted * (1 + WITHIN)),
        }  # fmt: skip
        rows.append(row)
        print(
            f"{name:10} {label:>7} {row['reruns']:6} {predicted:10.4f} {measured:9.4f} [{low:.4f}, {high:.4f}]"
            f" {row['off']:+8.2%} {control:9.4f} [{control_low:.4f}, {control_high:.4f}]  {verdict(row)}",
            flush=True,
        )
    return rows


def verdict(row):
    """The row's last word."""
    return "stated" if row["met"] is None else ("met" if row["met"] else "MISSED")


HEADS = {
    "keep-all": f"{'model':10} {'bare ms':>8} {'wrapped/bare':>13} {'95 %':>17} {'control':>9} {'95 %':>17}  bar",
    "recompute": f"{'model':10} {'budget':>7} {'reruns':>6} {'predicted':>10} {'measured':>9} {'95 %':>17} {'off':>8}"
    f" {'control':>9} {'95 %':>17}  bar",
}
RUNS = {"keep-all": keep_all, "recompute": recompute}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sections", nargs="*", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--only", nargs="*", choices=MODELS, default=list(MODELS))
    parser.add_argument("--clock", choices=("cpu", "wall"), default="cpu")
    parser.add_argument("--out", type=Path, default=OUT)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    clock = time.thread_time_ns if chosen.clock == "cpu" else time.perf_counter_ns
    print(f"torch {torch.__version__}, 1 thread, {chosen.clock} clock, {chosen.rounds} rounds")
    facts = {"torch": torch.__version__, "python": platform.python_version(), "clock": chosen.clock}
    for section in chosen.sections:
        if section == "checks":
            print("\nchecks of a call before its plan runs, wall clock")
            facts[section] = checks(chosen.rounds)
            continue
        print(f"\n{section}\n{HEADS[section]}")
        facts[section] = [row for name in chosen.only for row in RUNS[section](name, chosen.rounds, clock)]
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps(facts, indent=1))
    return 0 if all(row["met"] is not False for section in chosen.sections for row in facts[section]) else 1


if __name__ == "__main__":
    sys.exit(main())
