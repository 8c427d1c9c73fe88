"""`remat capture MODULE:FACTORY -o GRAPH`: the graph of a model's training step, without memory for weights or activations."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from remat.cli.factories import DIFFERENTIABLE, FACTORY, SETTINGS, factory_of
from remat.cli.outputs import check_files
from remat.cli.words import say
from remat.ir import Graph, Phase, Schedule, dump, validate
from remat.units import format_bytes, format_ns


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("capture")(capture)


def capture(
    factory: FACTORY,
    output: Annotated[Path, typer.Option("--output", "-o", help="Write the graph here; gzipped when it ends in .gz.")],
    device_model: Annotated[str, typer.Option(help="Device whose cost model gives times and workspaces.")] = "v100",
    setting: SETTINGS = None,
    differentiable: DIFFERENTIABLE = "auto",
) -> None:
    """Capture one training step of the model that FACTORY makes; nothing is allocated and nothing runs."""
    from remat.exec._cost.devices import device_model as named
    from remat.exec.weightless import capture_without_weights

    check_files(output)
    device = named(device_model)
    make = factory_of(factory, setting)
    start = time.perf_counter()
    weightless = capture_without_weights(make, differentiable=differentiable)
    graph = weightless.graph(device)
    seconds = time.perf_counter() - start
    dump(graph, output)
    for line in summary(graph):
        say(line)
    say(f"weights    {format_bytes(weightless.parameters)}, outside every budget, not allocated here")
    say(f"captured   in {seconds:.1f} s, costed as {device.name}, written to {output}")


def summary(graph: Graph) -> list[str]:
    """A captured graph in a few lines."""
    phases = [node.phase for node in graph.computes]
    cost = validate(graph, Schedule.from_runs(graph, range(len(graph))))
    kept_bytes = sum(datum.size for datum in graph.data if datum.keep)
    return [
        f"graph      {graph.name}: {phases.count(Phase.FORWARD)} forward and {phases.count(Phase.BACKWARD)} backward nodes",
        f"peak       {cost.peak} B ({format_bytes(cost.peak)}) when everything is kept, "
        f"{format_bytes(kept_bytes)} of it to the end",
        f"time       {cost.time} ns ({format_ns(cost.time)})",
    ]
