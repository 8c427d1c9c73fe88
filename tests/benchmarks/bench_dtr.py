"""`make bench-dtr`: the simulator of DTR against its bars.

    python -m tests.benchmarks.bench_dtr            the table, build/bench/dtr.json, exit 1 when a bar is missed

CPU seconds of one thread, compilation apart; half of the peak without a budget, eager eviction. Two logs of each size: a unit
chain with its backward, and layers as a transformer has them (a residual stream, two saved values for each backward operator).
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from remat.algorithms._dtr.adversary import operator, unit_chain_log
from remat.algorithms.dynamic import (
    Constant,
    Instruction,
    Memory,
    Program,
    Release,
    program_peak,
    read_program,
    simulate,
    write_instructions,
)

OUT = Path("build/bench/dtr.json")
BARS = {3_000: 0.3, 100_000: 15.0}
TIMES = 30.0
"""h_dtr may take this many times the bar of h_dtr_eq."""


def layered_log(layers: int, seed: int = 0) -> Iterator[Instruction]:
    """About 27 operators a layer: twelve forward, as many backward, gradients of four weights."""
    draw, forward, current = random.Random(seed), [], "x"
    yield from (Constant("x"), Memory("x", 4096))
    for layer in range(layers):
        for k in range(4):
            yield from (Constant(f"w{layer}_{k}"), Memory(f"w{layer}_{k}", 1 << 16))
    for layer in range(layers):
        stream = current
        for k in range(12):
            name, args = f"a{layer}_{k}", (current,)
            if k % 3 == 0:
                args = (current, f"w{layer}_{k % 4}")
            if k in (6, 11):
                args = (current, stream)
            size = draw.choice([1 << 18, 1 << 20, 1 << 22])
            yield from operator(name, args, time=draw.randrange(20_000, 900_000), size=size)
            forward.append((name, args))
            current = name
            stream = name if k == 6 else stream
    gradient = "g"
    yield from operator(gradient, (current,), time=1000, size=1 << 20)
    for name, args in reversed(forward):
        yield from operator(f"d{name}", (gradient, args[0], name), time=draw.randrange(20_000, 900_000), size=1 << 20)
        for weight in args[1:]:
            if weight.startswith("w"):
                time = draw.randrange(20_000, 900_000)
                yield from operator(f"g{weight}{name}", (gradient, args[0]), time=time, size=1 << 16)
        yield from (Release(gradient), Release(name))
        gradient = f"d{name}"


def program(kind: str, operators: int) -> Program:
    log = unit_chain_log(operators // 2) if kind == "chain" else layered_log(operators // 27)
    return read_program(write_instructions(log))


def measured(kind: str, operators: int, score: str) -> dict[str, object]:
    began = time.process_time()
    loaded = program(kind, operators)
    read = time.process_time() - began
    budget = program_peak(loaded) // 2
    began = time.process_time()
    done = simulate(loaded, budget, score)
    seconds = time.process_time() - began
    bar = BARS[operators] * (1.0 if score == "h_dtr_eq" else TIMES)
    return {"log": kind, "operators": loaded.calls, "score": score, "read": read, "seconds": seconds, "bar": bar,
            "overhead": done.overhead, "status": done.status.value, "accesses": done.accesses}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--large-exact", action="store_true", help="h_dtr on 100,000 operators too (minutes, gigabytes)"
    )
    options = parser.parse_args()
    simulate(program("chain", 3_000), 1_500)  # compile
    rows = []
    for operators in BARS:
        for kind in ("chain", "layers"):
            for score in ("h_dtr_eq", "h_dtr"):
                if operators == 3_000 or score == "h_dtr_eq" or options.large_exact:
                    row = measured(kind, operators, score)
                    rows.append(row)
                    print(f"{kind:7} {row['operators']:7} {score:9} {row['seconds']:8.3f} s  bar {row['bar']:g} s  "
                          f"read {row['read']:.2f} s  overhead {row['overhead']:.3f}")  # fmt: skip
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(rows, indent=1) + "\n")
    return int(any(row["seconds"] > row["bar"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
