"""Rows of the evidence pages: stored one by one under `docs/benchmarks`, so that a run that was stopped goes on.

A row is measured once, and has the CPU seconds that it took; what it was measured on stands beside the rows.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from attrs import evolve

from remat.algorithms import Clock, Outcome, Problem, Solver, store_all_peak
from remat.algorithms._hierarchy.fold_run_once import FoldRunOnce
from remat.exec.weightless import capture_without_weights
from remat.ir import Compute, Graph, Kind
from remat.ir.json_document import write_whole
from remat.zoo import large

DATA = Path(__file__).parents[2] / "docs" / "benchmarks"
PACKAGES = ("torch", "highspy", "numba", "numpy")

Row = dict[str, Any]


class Rows:
    """The rows of one page.

    Args:
        name: of the file, without its ending.
        fresh: forget stored rows.
        only: measure only rows whose key begins so.
        packages: whose versions are stored.
    """

    def __init__(self, name: str, *, fresh: bool = False, only: str = "", packages: Sequence[str] = PACKAGES) -> None:
        self.path, self.only, self.packages = DATA / f"{name}.json", only, packages
        stored = {} if fresh or not self.path.exists() else json.loads(self.path.read_text())
        self.since: str | None = stored.get("date")
        self.rows: dict[str, Row] = stored.get("rows", {})

    def add(self, key: str, measure: Callable[[], Row]) -> None:
        """Measure a row unless it is stored, store it, and print it."""
        if key in self.rows or not key.startswith(self.only):
            return
        start = time.process_time()
        row = measure()
        self.rows[key] = _rounded(row | {"cpu": time.process_time() - start})
        facts = {
            "date": dates(self.since),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, one thread",
            "versions": {name: importlib.metadata.version(name).partition("+")[0] for name in self.packages},
        }
        write_whole(self.path, (_lines(facts | {"rows": self.rows})).encode())
        print(key, json.dumps(self.rows[key])[:300], flush=True)


def dates(stored: str | None) -> str:
    """The days of a run that goes on: of its first rows, and today."""
    today = datetime.date.today().isoformat()
    first = today if stored is None else stored.partition(" ")[0]
    return today if first == today else f"{first} to {today}"


def told(missed: list[str]) -> int:
    """Print the bars that were missed; the exit code of the benchmark."""
    print("\n".join(f"MISSED {line}" for line in missed) or "all bars held")
    return int(bool(missed))


def flags(description: str | None) -> argparse.ArgumentParser:
    """The options that every evidence page's benchmark has."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows whose key begins so")
    parser.add_argument("--fresh", action="store_true", help="forget the stored rows")
    return parser


def _lines(document: dict[str, Any]) -> str:
    """JSON with a line for each row."""
    facts = {key: value for key, value in document.items() if key != "rows"}
    rows = ",\n".join(f"  {json.dumps(key)}: {json.dumps(row)}" for key, row in document["rows"].items())
    return json.dumps(facts, indent=1)[:-2] + f',\n "rows": {{\n{rows}\n }}\n}}\n'


def _rounded(value: Any) -> Any:
    """The same with five digits after the point."""
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in value.items()}
    return round(value, 5) if isinstance(value, float) else value


MODELS: dict[str, Callable[[], Any]] = {
    **{name: getattr(large, name) for name in ("gpt24", "gpt96", "encdec6", "encdec36", "resnet101", "regnet")},
    **{name: getattr(large, name) for name in ("mixer", "unet", "fno", "uno")},
    **{f"gpt{layers}": lambda layers=layers: large.gpt(layers) for layers in (2, 4, 6, 8, 10)},
    "gpt2-medium 2 x 1024": lambda: large.gpt(24, batch=2, time=1024),
    "gpt2-large 2 x 512": lambda: large.gpt(36, width=1280, batch=2),
    "gpt2-large 4 x 256": lambda: large.gpt(36, width=1280, batch=4, time=256),
    "encdec2": lambda: large.encdec(2),
    "encdec8": lambda: large.encdec(8),
}
"""Factories of the models of both papers, or of what is nearest to them in the zoo."""


@cache
def graph_of(name: str) -> Graph:
    """A training step, captured without weights, with times by the model of a V100."""
    return capture_without_weights(MODELS[name]).graph()


@cache
def as_published(name: str) -> Graph:
    """Its graph as the papers have it: without saves of random states and updates of buffers, no gradients of parameters."""
    graph = _into_gradients(graph_of(name))
    return FoldRunOnce(share=1.0).apply(Problem(graph=graph, budget=store_all_peak(graph))).problem.graph


def _into_gradients(graph: Graph) -> Graph:
    """A step that adds to gradients that exist: that of one parameter is a workspace of the node that makes it."""
    size = {datum.name: datum.size for datum in graph.data if datum.kind is Kind.PARAM_GRAD}

    def adding(node: Compute) -> Compute:
        extra = sum(size.get(name, 0) for name in node.writes)
        return evolve(
            node, options=tuple(evolve(option, workspace=option.workspace + extra) for option in node.options)
        )

    data = tuple(evolve(datum, size=0) if datum.name in size else datum for datum in graph.data)
    return Graph(name=graph.name, computes=tuple(map(adding, graph.computes)), data=data)


def cpu_clock() -> Clock:
    """A clock of CPU time, so that deadlines mean the same on a busy machine."""
    return Clock(now=time.process_time)


def solved(solver: Solver, graph: Graph, budget: int) -> Row:
    """A plan: its time over that of the step, its peak over that of keeping everything, CPU seconds.

    Where there is none because the graph was refused, the row has the words of the refusal.
    """
    start = time.process_time()
    outcome: Outcome = solver.solve(Problem(graph=graph, budget=budget), clock=cpu_clock())
    seconds = round(time.process_time() - start, 2)
    if outcome.cost is None:
        refusals = [line.partition(" refused: ")[2] for line in outcome.trail if " refused: " in line]
        return {"time": None, "peak": None, "seconds": seconds} | ({"refused": "; ".join(refusals)} if refusals else {})
    peak = outcome.cost.peak / store_all_peak(graph)
    return {"time": outcome.cost.time / graph.time, "peak": peak, "seconds": seconds}
