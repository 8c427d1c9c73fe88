"""Capture models without weights and write their graphs, for `bench_plan` and for a look by hand.

    python -m tests.benchmarks.capture_graphs [--into build/graphs] [--device-model v100] [--zoo all|large|wide] [NAME ...]

Without names: the large models of `remat.zoo.large` and the wide zoo of `tests.models.catalogue` (57 architectures; those of
transformers, diffusers and timm where the extra `models` is installed, else the table says what is left out). `--all` adds
GPT-400 (22 000 nodes, minutes). A graph that exists already is kept unless `--again` is given. Prints a table; memory is the
largest resident set of the process: no weights in it. Exits 1 when an architecture could not be captured.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from remat.errors import RematError, Uncapturable
from remat.exec.weightless import capture_without_weights
from remat.ir import Phase, Schedule, dump, validate
from remat.zoo import large
from tests.models.catalogue import WIDE, half_of, missing, wide_models
from tests.models.wide_entry import step_of

LARGE = {
    **{
        name: getattr(large, name) for name in ("gpt12", "gpt24", "gpt96", "encdec6", "encdec36", "resnet101", "regnet")
    },
    **{name: getattr(large, name) for name in ("mixer", "unet", "fno", "uno")},
    "gpt24b16": lambda: large.gpt24(batch=16),
}
SLOW = {"gpt400": large.gpt400}
GRAPHS = Path("build/graphs")


def wide() -> dict[str, Callable[[], Any]]:
    """The wide zoo: factories by name, of the packages that are installed."""
    return {model.name: partial(step_of, model) for model in wide_models()}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="of the large models or of the wide zoo")
    parser.add_argument("--zoo", choices=("all", "large", "wide"), default="all")
    parser.add_argument("--into", type=Path, default=GRAPHS)
    parser.add_argument("--device-model", default="v100")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--again", action="store_true")
    given = parser.parse_args(arguments)
    zoos = {"large": LARGE, "wide": {} if given.zoo == "large" and not given.names else wide()}
    known = {**LARGE, **SLOW, **zoos["wide"]}
    unknown = sorted(set(given.names) - set(known))
    if unknown:
        parser.error(f"no model is called {', '.join(unknown)}; known are {', '.join(known)}")
    asked = zoos["large"] | zoos["wide"] if given.zoo == "all" else zoos[given.zoo]
    names = given.names or list(asked | SLOW if given.all else asked)
    given.into.mkdir(parents=True, exist_ok=True)
    failed = [name for name in names if not captured(name, known[name], given)]
    left_out = [package for package in WIDE if package in missing()]
    if left_out:
        print(f"left out, not installed (`make models-venv`): the wide zoo's models of {', '.join(left_out)}")
    if failed:
        print(f"not captured: {', '.join(failed)}")
    return bool(failed)


def captured(name: str, factory: Callable[[], Any], given: argparse.Namespace) -> bool:
    """Write the graph of a model unless it exists; whether it is there in the end."""
    target = given.into / f"{name}.json.gz"
    if target.exists() and not given.again:
        print(f"{name:34} exists: {target}")
        return True
    try:
        write(name, factory, target, given.device_model)
    except (RematError, Uncapturable) as refusal:
        print(f"{name:34} not captured: {refusal}", flush=True)
        return False
    return True


def write(name: str, factory: Callable[[], Any], target: Path, device: str) -> None:
    """Capture a model, write its graph, print a row."""
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
    cells = [f"{name:34} {half_of(name):7} F/B {nodes:>11}, {data:6} data", f"peak {cost.peak / 1e9:7.3f} GB"]
    cells += [f"step {cost.time / 1e6:7.1f} ms", f"weights {weightless.parameters / 1e9:5.2f} GB"]
    cells += [f"{seconds:5.1f} s of CPU", f"{resident:5.0f} MiB resident"]
    print(", ".join(cells), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
