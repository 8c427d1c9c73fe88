"""`remat capture MODULE:FACTORY -o GRAPH`: the graph of a model's training step, without memory for weights or activations."""

from __future__ import annotations

import ast
import functools
import importlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from remat.cli.outputs import check_files
from remat.cli.words import say
from remat.errors import BadArgument
from remat.ir import Graph, Phase, Schedule, dump, validate
from remat.units import format_bytes, format_ns

FACTORY = Annotated[
    str,
    typer.Argument(metavar="MODULE:FACTORY", help="Function that returns (module, args) or (module, args, kwargs)."),
]
"""The first argument of every command that makes a model."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("capture")(capture)


def capture(
    factory: FACTORY,
    output: Annotated[Path, typer.Option("--output", "-o", help="Write the graph here; gzipped when it ends in .gz.")],
    device_model: Annotated[str, typer.Option(help="Device whose cost model gives times and workspaces.")] = "v100",
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Argument of the factory, as a Python literal."),
    ] = None,
    differentiable: Annotated[
        str, typer.Option(help="Outputs that gradients come back through: auto, loss or all.")
    ] = "auto",
) -> None:
    """Capture one training step of the model that FACTORY makes; nothing is allocated and nothing runs."""
    from remat.exec._cost.devices import device_model as named
    from remat.exec.weightless import capture_without_weights

    check_files(output)
    device = named(device_model)
    make = functools.partial(find(factory), **dict(map(read_setting, setting or [])))
    start = time.perf_counter()
    weightless = capture_without_weights(make, differentiable=differentiable)
    graph = weightless.graph(device)
    seconds = time.perf_counter() - start
    dump(graph, output)
    for line in summary(graph):
        say(line)
    say(f"weights    {format_bytes(weightless.parameters)}, outside every budget, not allocated here")
    say(f"captured   in {seconds:.1f} s, costed as {device.name}, written to {output}")


def find(text: str) -> Callable[..., Any]:
    """The function `package.module:name`; modules of the current directory count too.

    Raises:
        BadArgument: C-FACTORY, when there is none.
    """
    module, _, name = text.partition(":")
    if not module or not name:
        raise _not_a_factory(f"{text!r} is not of the form MODULE:FACTORY.")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        target: Any = importlib.import_module(module)
        for part in name.split("."):
            target = getattr(target, part)
    except ModuleNotFoundError as error:
        raise _not_a_factory(f"there is no module {error.name!r}.") from error
    except AttributeError as error:
        raise _not_a_factory(f"{error}.") from error
    if not callable(target):
        raise _not_a_factory(f"{text} is a {type(target).__name__}, not a function.")
    return target  # type: ignore[no-any-return]


def _not_a_factory(what: str) -> BadArgument:
    return BadArgument("C-FACTORY", what, fix="give it like remat.zoo.large:gpt24.")


def read_setting(text: str) -> tuple[str, Any]:
    """Name and value of `layers=400`.

    Raises:
        BadArgument: C-SETTING, when the text is not one.
    """
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise BadArgument("C-SETTING", f"{text!r} is not a setting.", fix="write it like layers=400.")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


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
