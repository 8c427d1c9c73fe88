"""PyTorch's partitions of one architecture, in a process of its own.

    python -m tests.benchmarks.partition_row GRAPH.json.gz OUT.json

Captures the architecture that the file is named after again, for the operations and their shapes, and writes peak and time of
every partition as the validator replays them on the file's graph, in parts of the peak and of the time without recomputation.
What is there is written after each, so that a limit of time leaves those before it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from remat.algorithms._whole.baselines import store_all_peak
from remat.exec._cost.devices import device_model
from remat.exec.weightless import capture_without_weights
from remat.ir import load
from tests.benchmarks.capture_graphs import LARGE, wide
from tests.benchmarks.torch_partitions import partitions

DEVICE = "v100"


def main(path: str, out: str) -> int:
    """Write the partitions of a graph that `capture_graphs` wrote."""
    graph, name = load(Path(path)), Path(path).name.removesuffix(".json.gz")
    factory = (LARGE | wide())[name]
    if capture_without_weights(factory).graph(DEVICE) != graph:
        raise SystemExit(f"{path} is not what {name} is captured as now: `make graphs` with --again.")
    captured = capture_without_weights(factory, fold_sums="none").captured
    program = device_model(DEVICE).resized(captured.program)
    start, peak, rows = time.process_time(), store_all_peak(graph), []
    for partition in partitions(program, graph):
        rows.append([partition.solver, partition.budget, partition.peak / peak, partition.time / graph.time])
        content: dict[str, Any] = {"partitions": rows, "seconds": time.process_time() - start}
        part = Path(out).with_suffix(".part")
        part.write_text(json.dumps(content, indent=1))
        os.replace(part, out)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
