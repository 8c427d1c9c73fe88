"""`remat show FILE`: a graph or schedule as text, as a Graphviz file, or its memory over time as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from remat.cli.arguments import read, read_graph, read_link
from remat.errors import BadArgument
from remat.ir import Graph, Schedule, print_text, validate
from remat.viz.text import summary


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("show")(show)


def show(
    file: Annotated[Path, typer.Argument(help="Graph or schedule.")],
    graph: Annotated[Path | None, typer.Option(help="The graph of a schedule, for --memory and --gantt.")] = None,
    dot: Annotated[Path | None, typer.Option(help="Write a Graphviz file.")] = None,
    memory: Annotated[Path | None, typer.Option(help="Draw memory over time (PNG, SVG, PDF).")] = None,
    gantt: Annotated[Path | None, typer.Option(help="Draw computations and copies over time.")] = None,
    link: Annotated[str | None, typer.Option(help="Link for copies, as in `remat validate`.")] = None,
    text: Annotated[bool, typer.Option(help="Print the whole text form.")] = False,
) -> None:
    """Show FILE: a summary, the text form, or pictures."""
    loaded = read(file)
    if text:
        typer.echo(print_text(loaded), nl=False)
    else:
        for line in summary(loaded):
            typer.echo(line)
    if dot is not None:
        from remat.viz.dot import graph_dot

        if not isinstance(loaded, Graph):
            raise BadArgument("C-KIND", f"{file} holds a schedule; --dot draws graphs.", fix="give a graph.")
        dot.write_text(graph_dot(loaded), encoding="utf-8")
    if memory is None and gantt is None:
        return
    from remat.viz.pictures import draw_gantt, draw_memory

    nodes, schedule = _both(file, loaded, graph)
    cost = validate(nodes, schedule, None, None if link is None else read_link(link))
    if memory is not None:
        draw_memory(cost, memory)
    if gantt is not None:
        draw_gantt(cost, gantt)


def _both(file: Path, loaded: Graph | Schedule, graph: Path | None) -> tuple[Graph, Schedule]:
    """A graph is drawn in its captured order; a schedule needs its graph."""
    if isinstance(loaded, Graph):
        return loaded, Schedule.from_runs(loaded, range(len(loaded)))
    if graph is None:
        raise BadArgument("C-GRAPH", f"{file} is a schedule, and its graph is not named.", fix="add --graph FILE.")
    return read_graph(graph), loaded
