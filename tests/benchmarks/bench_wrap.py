"""From nothing to a step that can run, each in a process of its own: where the seconds of `wrap` go (`make bench-wrap`).

readme: the README's example (GPT-2 of 2 layers, 50 %), from the start of the interpreter to the end of its third step; first
on an empty kernel cache, then on the one that left. gpt2: GPT-2 of 12 layers and width 256, batch 8, 50 %, on an empty cache and
then in a second process, which saves its plan, and in a third that loads it.

A table by stage: import (of torch, remat, and the solvers' libraries), capture, cost, plan, lower, rehearsal, compile (numba, or
loading what it cached), other (what `wrap` does besides), wall and CPU of the whole process. Bars, in wall seconds of a machine
that does nothing else: readme on an empty cache at most 20; gpt2 in the second process at most 3 for `wrap` less capture and
rehearsal; with the saved plan at most 1 for `wrap` and the first step, less capture and a step as it is later on.

    python -m tests.benchmarks.bench_wrap [--only readme gpt2] [--out build/bench/wrap.json]
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COLD_BAR, WARM_BAR, SAVED_BAR = 20.0, 3.0, 1.0
COLUMNS = ("import", "capture", "cost", "plan", "lower", "rehearsal", "compile", "other")
OUT = Path("build/bench/wrap.json")
CASES = ("readme", "gpt2")
PROCESSES = {"readme": ("empty cache", "second"), "gpt2": ("empty cache", "second", "saved plan")}


def child(name, process, plan):
    """Runs in the process that is timed; prints one line of JSON."""
    start = time.perf_counter()
    import torch

    from remat.exec import report, save_plan, wrap
    from remat.zoo import GPT2

    imported = time.perf_counter() - start
    if name == "readme":
        model, tokens = GPT2(layers=2, width=64, heads=4, context=32), torch.randint(256, (4, 32))
    else:
        model, tokens = GPT2(layers=12, width=256, heads=8, context=128), torch.randint(256, (8, 128))
    start = time.perf_counter()
    how = {"plan": plan} if process == "saved plan" else {"budget": "50%"}
    wrapped = wrap(model, (tokens, tokens), **how)
    took = time.perf_counter() - start
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    steps = []
    for _ in range(3):
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        wrapped(tokens, tokens).backward()
        optimizer.step()
        steps.append(time.perf_counter() - start)
    if process == "second":
        save_plan(wrapped, plan)
    told = report(wrapped)
    said = {"imported": imported, "wrap": took, "steps": steps, "seconds": told.seconds, "gap": told.gap}
    print(json.dumps(said))


def measured(name, process, cache):
    """One process: seconds by stage, of `wrap`, and of all."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache), "REMAT_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1"}
    told = [name, process, str(Path(cache, "plan.json"))]
    command = [sys.executable, "-m", "tests.benchmarks.bench_wrap", "--child", *told]
    start, before = time.perf_counter(), os.times()
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    wall, after = time.perf_counter() - start, os.times()
    said = json.loads(done.stdout.splitlines()[-1])
    stages = {column: said["seconds"].get(column, 0.0) for column in COLUMNS[:-1]}
    other = said["wrap"] - sum(stages.values())
    stages["import"] += said["imported"]
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return {
        **stages,
        "other": other,
        "wrap": said["wrap"],
        "steps": said["steps"],
        "wall": wall,
        "cpu": cpu,
        "gap": said["gap"],
    }


def bar_of(name, process, row):
    """(seconds judged, bar), or None."""
    if (name, process) == ("readme", "empty cache"):
        return row["wall"], COLD_BAR
    if (name, process) == ("gpt2", "second"):
        return row["wrap"] - row["capture"] - row["rehearsal"], WARM_BAR
    if process == "saved plan":
        first, later = row["steps"][0], min(row["steps"][1:])
        return row["wrap"] - row["capture"] + first - later, SAVED_BAR
    return None


def rows_of(name):
    """Two processes that share a cache, empty at first."""
    rows = []
    with tempfile.TemporaryDirectory() as cache:
        for process in PROCESSES[name]:
            row = {"case": name, "process": process, **measured(name, process, cache)}
            judged = bar_of(name, process, row)
            row["judged"], row["bar"] = judged or (None, None)
            row["met"] = None if judged is None else judged[0] <= judged[1]
            rows.append(row)
            verdict = (
                "stated"
                if judged is None
                else f"{judged[0]:.1f} of {judged[1]:g} s: {'met' if row['met'] else 'MISSED'}"
            )
            numbers = " ".join(f"{row[column]:9.2f}" for column in (*COLUMNS, "wall", "cpu"))
            print(f"{name:7} {process:12} {numbers}  {verdict}", flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child is not None:
        child(*chosen.child)
        return 0
    print(f"{'case':7} {'process':12} {' '.join(f'{column:>9}' for column in (*COLUMNS, 'wall', 'cpu'))}  bar")
    rows = [row for name in chosen.only for row in rows_of(name)]
    load = os.getloadavg()[0]
    facts = {"python": platform.python_version(), "cores": os.cpu_count(), "load": load, "rows": rows}
    print(f"seconds; {os.cpu_count()} cores, load {load:.1f} at the end")
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps(facts, indent=1))
    return 0 if all(row["met"] is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
