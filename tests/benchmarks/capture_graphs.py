"""Capture the large models of the zoo without weights and write their graphs, for `bench_plan` and for a look by hand.

    python -m tests.benchmarks.capture_graphs [--into build/graphs] [--device-model v100] [NAME ...]

Without names: the graphs of the planner's benchmark. `--all` adds GPT-400 (22 000 nodes, minutes). A graph that is there already
is kept unless `--again` is given. Prints a table; memory is the largest resident set of the process: no weights in it.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from pathlib import Path

from remat.exec.weightless import capture_without_weights
from remat.ir import Phase, Schedule, dump, validate
from remat.zoo import large

NAMES = {
    **{
        name: getattr(large, name) for name in ("gpt12", "gpt24", "gpt96", "encdec6", "encdec36", "resnet101", "regnet")
    },
    **{name: getattr(large, name) for name in ("mixer", "unet", "fno", "uno")},
    "gpt24b16": lambda: large.gpt24(batch=16),
}
SLOW = {"gpt400": large.gpt400}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join([*NAMES, *SLOW]))
    parser.add_argument("--into", type=Path, default=Path("build/graphs"))
    parser.add_argument("--device-model", default="v100")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--again", action="store_true")
    given = parser.parse_args(arguments)
    known = {**NAMES, **SLOW}
    unknown = sorted(set(given.names) - set(known))
    if unknown:
        parser.error(f"no model is called {', '.join(unknown)}; there are {', '.join(known)}")
    names = given.names or list(known if given.all else NAMES)
    given.into.mkdir(parents=True, exist_ok=True)
    print(
        f"{'graph':10} {'F / B':>13} {'data':>6} {'peak GB':>8} {'step ms':>8} {'weights GB':>10} {'CPU s':>6} {'RSS MiB':>8}"
    )
    for name in names:
        target = given.into / f"{name}.json.gz"
        if target.exists() and not given.again:
            print(f"{name:10} is there: {target}")
            continue
        write(name, known[name], target, given.device_model)
    return 0


def write(name: str, factory, target: Path, device: str) -> None:
    start = time.process_time()
    weightless = capture_without_weights(factory)
    graph = weightless.graph(device)
    seconds = time.process_time() - start
    dump(graph, target)
    cost = validate(graph, Schedule.from_runs(graph, range(len(graph))))
    phases = [node.phase for node in graph.computes]
    nodes = f"{phases.count(Phase.FORWARD)}/{phases.count(Phase.BACKWARD)}"
    data = sum(not datum.outside for datum in graph.data)
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{name:10} {nodes:>13} {data:6} {cost.peak / 1e9:8.3f} {cost.time / 1e6:8.1f} {weightless.parameters / 1e9:10.2f} "
        f"{seconds:6.1f} {resident:8.0f}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
