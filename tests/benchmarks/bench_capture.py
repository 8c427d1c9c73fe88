"""Capture by the log against capture by torch's joint export, in turns within one process (`make bench-capture`).

GPT-2 of 12 layers (width 64, batch 2, 32 tokens), each tracer in turn after a capture of each that is not counted; all captures
must be equal programs. Then GPT-2 of 12 and of 96 layers, by the log, in turns. Process CPU seconds, medians; garbage is
collected before each capture, so that none pays for another's. Bars: log / export at most .45; 96 layers at most 9 times 12.

    python -m tests.benchmarks.bench_capture [--turns 5] [--out build/bench/capture.json]
"""

import argparse
import gc
import json
import platform
import statistics
import sys
import time
from pathlib import Path

import torch

from remat.exec import capture
from remat.exec._program.digest import program_digest
from remat.zoo import GPT2

RATIO_BAR, GROWTH_BAR = 0.45, 9.0
OUT = Path("build/bench/capture.json")


def step(layers):
    tokens = torch.randint(256, (2, 32), generator=torch.Generator().manual_seed(0))
    return GPT2(layers=layers, width=64, heads=4, context=32), (tokens, tokens)


def captured(module, sample, tracer):
    """A capture and the CPU seconds it took."""
    gc.collect()
    start = time.process_time()
    result = capture(module, sample, tracer=tracer)
    return result, time.process_time() - start


def ratios(turns):
    """CPU seconds of both tracers at 12 layers; whether all programs are equal."""
    module, sample = step(12)
    seconds, digests = {"log": [], "joint": []}, set()
    for turn in range(turns + 1):
        for tracer in seconds if turn % 2 else reversed(seconds):
            result, took = captured(module, sample, tracer)
            digests.add(program_digest(result.program))
            if turn:
                seconds[tracer].append(took)
    return seconds, len(digests) == 1


def growth(turns):
    """CPU seconds of the log at 12 and at 96 layers."""
    steps = {layers: step(layers) for layers in (12, 96)}
    seconds = {layers: [] for layers in steps}
    for turn in range(turns + 1):
        for layers, (module, sample) in steps.items():
            if turn or layers == 12:
                seconds[layers].append(captured(module, sample, "log")[1])
    return {layers: took[-turns:] for layers, took in seconds.items()}


def row(name, took, bar=""):
    print(f"| {name:24} | {statistics.median(took):8.2f} | {min(took):6.2f} | {max(took):6.2f} | {bar:30} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--out", type=Path, default=OUT)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    seconds, equal = ratios(chosen.turns)
    grown = growth(max(2, chosen.turns // 2))
    pairs = [log / joint for log, joint in zip(seconds["log"], seconds["joint"], strict=True)]
    ratio = statistics.median(pairs)
    times = statistics.median(grown[96]) / statistics.median(grown[12])
    print(f"| {'capture':24} | {'CPU s':>8} | {'least':>6} | {'most':>6} | {'':30} |")
    print("|---|---|---|---|---|")
    row("12 layers, export", seconds["joint"])
    row("12 layers, log", seconds["log"], f"{ratio:.3f} of the export (≤ {RATIO_BAR})")
    row("12 layers, log, again", grown[12])
    row("96 layers, log", grown[96], f"{times:.2f} times 12 layers (≤ {GROWTH_BAR:g})")
    print(f"programs of both tracers: {'equal' if equal else 'DIFFERENT'}")
    facts = {
        "seconds": seconds, "growth": grown, "ratio": ratio, "ratios": pairs, "times": times, "equal": equal,
        "torch": torch.__version__, "python": platform.python_version(),
    }  # fmt: skip
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps(facts, indent=1))
    missed = ratio > RATIO_BAR or times > GROWTH_BAR or not equal
    if missed:
        print("MISSED")
    sys.exit(missed)


if __name__ == "__main__":
    main()
