"""Exactness, peak, step time and waiting for copies on a CUDA device: `make test-cuda`.

Prints a table and writes build/bench/cuda.json and build/bench/cuda.md; exits 1 when a bar is missed. Without a device it says so
and counts as nothing.

Bars: three steps in float64 equal to the bare module's (where two bare runs differ from each other, no further off than ten times
that); peak of the allocator at most the budget, and what was asked of it within 1 % of the prediction; where all that can be
copied is, and the step waits, the step within 5 % of the prediction, and idle time within 20 % of its own or 2 % of the step;
other step times are stated.
"""

import argparse
import json
import os
import statistics
import sys
from pathlib import Path

import torch
from torch import nn

import remat.exec
from remat.algorithms._search.auto import quick
from remat.errors import Infeasible
from remat.units import MiB, format_bytes
from remat.zoo import GPT2, ResNet, UNet, cases
from tests.exec.copying import CopyAll

OUT = Path("build/bench")
TURNS, ROW = 5, 5
BUDGETS = (("100%", False), ("60%", False), ("40%", False), ("16%", False), ("40%", True), ("16%", True))
"""Of the step times, and whether data may be copied to the host."""


def steps(module, sample, count=3):
    """Losses, gradients and buffers of a few steps, flat."""
    torch.manual_seed(0)
    found = []
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.01)
    for _ in range(count):
        optimizer.zero_grad()
        out = module(*sample)
        loss = out[0] if isinstance(out, tuple) else out
        loss.backward()
        grads = [p.grad.clone() for p in module.parameters() if p.grad is not None]
        found += [loss.detach().clone(), *grads, *(b.clone() for b in module.buffers()), torch.cuda.get_rng_state()]
        optimizer.step()
    return found


def furthest(one, two):
    """The largest difference relative to the largest entry; 0.0: equal to the last bit."""
    worst = 0.0
    for x, y in zip(one, two, strict=True):
        if not torch.equal(x, y):
            x, y = x.double(), y.double()
            worst = max(worst, float((x - y).abs().max() / x.abs().max().clamp_min(1e-300)))
    return worst


def exactness(case, budget):
    runs = [steps(*case.instantiate(torch.float64, "cuda")) for _ in range(2)]
    module, sample = case.instantiate(torch.float64, "cuda")
    wrapped = remat.exec.wrap(module, sample, budget, solver=quick, on_uncapturable="raise")
    noise, off = furthest(*runs), furthest(runs[0], steps(wrapped, sample))
    tied = 1e-15 if case.tied else 0.0
    return {"suite": "exactness", "model": case.name, "budget": budget, "off": off, "bare against bare": noise,
            "good": off <= max(10 * noise, tied)}  # fmt: skip


def step(module, sample):
    for parameter in module.parameters():
        parameter.grad = None
    loss = module(*sample)
    loss = loss[0] if isinstance(loss, tuple) else loss
    loss.backward()
    return loss


def peak(case, budget):
    module, sample = case.instantiate(torch.float32, "cuda")
    wrapped = remat.exec.wrap(module, sample, budget, solver=quick, on_uncapturable="raise")
    for _ in range(3):
        step(wrapped, sample)
    for tensor in (*module.parameters(), *sample):
        tensor.grad = None
    measured = remat.exec.measure_step(lambda: step(wrapped, sample), device="cuda")
    report = remat.exec.report(wrapped)
    ratio = measured.requested / report.predicted_peak  # blocks may be given that are larger
    return {"suite": "peak", "model": case.name, "budget": report.budget, "predicted": report.predicted_peak,
            "measured": measured.peak, "requested": measured.requested,
            "reserved": measured.reserved, "ratio": ratio, "fitted": report.fitted,
            "good": measured.peak <= report.budget and abs(ratio - 1) <= 0.01}  # fmt: skip


class Tanhs(nn.Module):
    """Linear layers and tanh on a large batch."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(*(part for _ in range(8) for part in (nn.Linear(512, 512), nn.Tanh())))

    def forward(self, x):
        return self.body(x).square().mean()


def waiting(name, module, sample):
    """A plan that copies all that can be, over a link that is slower than the nodes: how long the step waits."""
    wrapped = remat.exec.wrap(module, sample, "60%", offload=True, solver=CopyAll(), on_uncapturable="raise")
    took = medians({"wrapped": wrapped}, sample)["wrapped"]
    report = remat.exec.report(wrapped)
    idle, predicted = report.copied.idle, report.cost.idle
    return {"suite": "idle", "model": name, "step ms": took, "predicted ms": report.predicted_time / 1e6,
            "idle ms": idle / 1e6, "idle predicted ms": predicted / 1e6, "overlap": report.copied.overlap,
            "copying ms": report.copied.busy / 1e6,
            "good": abs(idle - predicted) <= max(0.2 * predicted, 0.02 * took * 1e6)
            and abs(took * 1e6 / report.predicted_time - 1) <= 0.05}  # fmt: skip


def row(module, sample):
    """The time of a step in a row of steps, as loops of training give them: the host is ahead of the device [ms]."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    step(module, sample)
    torch.cuda.synchronize()
    step(module, sample)
    start.record()
    for _ in range(ROW):
        step(module, sample)
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / ROW


def medians(modules, sample):
    """The median time of a step of each module, whose rows of steps are run in turns [ms]."""
    times = {label: [] for label in modules}
    for _ in range(TURNS):
        for label, module in modules.items():
            times[label].append(row(module, sample))
    return {label: statistics.median(taken) for label, taken in times.items()}


def step_times(name, build, sample):
    """A step within each budget beside the bare one, with what was predicted of both: times, and the peak."""
    torch.manual_seed(0)
    bare = build().cuda()
    weights = bare.state_dict()
    for budget, offload in BUDGETS:
        module = build().cuda()
        module.load_state_dict(weights)
        try:
            wrapped = remat.exec.wrap(module, sample, budget, offload=offload, on_uncapturable="raise")
        except Infeasible as error:
            yield {"suite": "time", "model": name, "budget": budget, "refused": error.what, "good": True}
            continue
        for _ in range(3):
            step(wrapped, sample)
        for parameter in module.parameters():
            parameter.grad = None
        measured = remat.exec.measure_step(lambda wrapped=wrapped: step(wrapped, sample), device="cuda")
        found = medians({"bare": bare, "wrapped": wrapped}, sample)
        report = remat.exec.report(wrapped)
        yield {"suite": "time", "model": name, "budget": budget, "copies": report.copied is not None,
               "bare ms": found["bare"], "wrapped ms": found["wrapped"], "predicted ms": report.predicted_time / 1e6,
               "copied": report.copied and report.copied.copies,
               "idle ms": report.copied and report.copied.idle / 1e6, "idle predicted ms": report.cost.idle / 1e6,
               "keeping all, predicted ms": report.store_all_time / 1e6, "reruns": report.reruns, "gap": report.gap,
               "budget bytes": report.budget, "peak": measured.peak, "fitted": report.fitted, "seconds": report.seconds,
               "good": measured.peak <= report.budget}  # fmt: skip


def rows(suites):
    if "exactness" in suites:
        for case in cases("small"):
            for budget in ("100%", "70%"):
                yield attempt(exactness, case, budget)
    if "peak" in suites:
        for case in cases("medium"):
            for budget in ("100%", "80%", "65%"):
                yield attempt(peak, case, budget)
    if "idle" in suites:
        yield from waits()
    if "time" in suites:
        yield from times()


def waits():
    torch.manual_seed(0)
    yield waiting("linear", Tanhs().cuda(), (torch.randn(1 << 17, 512, device="cuda"),))
    pictures, labels = torch.randn(64, 3, 224, 224, device="cuda"), torch.randint(100, (64,), device="cuda")
    yield waiting("convolutions", ResNet(blocks=(2, 2, 2, 2)).cuda(), (pictures, labels))


def times():
    tokens = torch.randint(256, (2, 8, 512), device="cuda")
    pictures = torch.randn(32, 3, 224, 224, device="cuda")
    labels = torch.randint(100, (32,), device="cuda")
    masks = torch.randn(32, 1, 224, 224, device="cuda")
    yield from step_times("gpt2 12x768", lambda: GPT2(width=768, heads=12, context=512), (tokens[0], tokens[1]))
    yield from step_times("resnet50", ResNet, (pictures, labels))
    yield from step_times("unet", lambda: UNet(channels=32), (pictures, masks))


def attempt(suite, case, budget):
    try:
        return suite(case, budget)
    except Infeasible as error:
        return {"suite": suite.__name__, "model": case.name, "budget": budget, "refused": error.what, "good": True}


def repeatable():
    """Have CUDA's libraries choose algorithms that repeat to the last bit."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suites", default="exactness,peak,idle,time", type=lambda text: text.split(","))
    suites = parser.parse_args().suites
    if not torch.cuda.is_available():
        print("no CUDA device: nothing was tested")
        return 0
    repeatable()
    facts = {
        "device": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda,
        "memory": format_bytes(torch.cuda.get_device_properties(0).total_memory // MiB * MiB),
    }  # fmt: skip
    print(", ".join(f"{key} {value}" for key, value in facts.items()))
    found = []
    for row in rows(suites):
        found.append(row)
        print("  ".join(f"{key}={value}" for key, value in row.items()), flush=True)
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "cuda.json").write_text(json.dumps({**facts, "rows": found}, indent=1))
    lines = [
        f"{', '.join(f'{key} {value}' for key, value in facts.items())}",
        "",
        "| suite | model | found | bar |",
        "|---|---|---|---|",
    ]
    for row in found:
        rest = ", ".join(f"{key} {value}" for key, value in row.items() if key not in ("suite", "model", "good"))
        lines.append(f"| {row['suite']} | {row['model']} | {rest} | {'met' if row['good'] else 'MISSED'} |")
    (OUT / "cuda.md").write_text("\n".join(lines) + "\n")
    failed = sum(not row["good"] for row in found)
    print(f"{len(found)} rows, {failed} missed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
