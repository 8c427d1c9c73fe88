"""`remat show FILE`: a graph, a schedule or plans as text, as a Graphviz file, or its memory over time as a picture."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from remat.cli.arguments import kind_of, plan_at, read, read_budget, read_graph, read_link
from remat.cli.outputs import check_files, check_pictures
from remat.cli.words import plain, say
from remat.errors import BadArgument
from remat.ir import Graph, PlanFile, Schedule, print_text, validate
from remat.units import format_bytes
from remat.viz.text import plan_lines, summary


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("show")(show)


def show(
    file: Annotated[Path, typer.Argument(help="Graph, schedule or plans.")],
    graph: Annotated[Path | None, typer.Option(help="The graph of a schedule, for --memory and --gantt.")] = None,
    dot: Annotated[Path | None, typer.Option(help="Write a Graphviz file.")] = None,
    memory: Annotated[Path | None, typer.Option(help="Draw memory over time (PNG, SVG, PDF).")] = None,
    gantt: Annotated[Path | None, typer.Option(help="Draw computations and copies over time.")] = None,
    link: Annotated[str | None, typer.Option(help="Link for copies, as in `remat validate`.")] = None,
    text: Annotated[bool, typer.Option(help="Print the whole text form (of plans: the schedule).")] = False,
    plan: Annotated[int, typer.Option(help="Which of the plans of a file, from 0.")] = 0,
    budget: Annotated[
        str | None, typer.Option(help='Say whether it is kept, and draw it: "6GiB", or "40%" of the plain peak.')
    ] = None,
) -> None:
    """Show FILE: a summary, the text form, or pictures."""
    check_files(dot, memory, gantt)
    check_pictures(memory, gantt)
    content = read(file)
    saved = plan_at(content, plan) if isinstance(content, PlanFile) else None
    lines = plan_lines(content) if isinstance(content, PlanFile) else summary(content)
    if text:
        _print_exactly(print_text(content.plans[plan].schedule if isinstance(content, PlanFile) else content))
    else:
        for line in lines:
            say(line)
    if dot is not None:
        _write_dot(file, content if saved is None else saved.graph, dot)
    if memory is None and gantt is None and budget is None:
        return
    from remat.viz.pictures import draw_gantt, draw_memory

    nodes, schedule = _both(file, content, graph) if saved is None else (saved.graph, saved.schedule)
    cost = validate(nodes, schedule, None, None if link is None else read_link(link))
    limit = None if budget is None else read_budget(budget, nodes)
    if limit is not None:
        over = f"passed by {cost.peak - limit} B" if cost.peak > limit else "kept"
        say(f"budget     {limit} B ({format_bytes(limit)}), {over}: the peak is {cost.peak} B")
    if memory is not None:
        draw_memory(cost, memory, budget=limit)
    if gantt is not None:
        draw_gantt(cost, gantt)


def _print_exactly(text: str) -> None:
    """The text form as it is, for a file or another program; a terminal gets no control characters."""
    sys.stdout.write(plain(text) if sys.stdout.isatty() else text)


def _both(file: Path, content: Graph | Schedule | PlanFile, graph: Path | None) -> tuple[Graph, Schedule]:
    """A graph is drawn in its captured order; a schedule needs its graph."""
    if isinstance(content, Graph):
        return content, Schedule.from_runs(content, range(len(content)))
    if graph is None or isinstance(content, PlanFile):
        raise BadArgument("C-GRAPH", f"{file} is a schedule, and its graph is not named.", fix="add --graph FILE.")
    return read_graph(graph), content


def _write_dot(file: Path, content: Graph | Schedule | PlanFile, dot: Path) -> None:
    """Write the Graphviz text of the graph that a file holds."""
    from remat.viz.dot import graph_dot

    if not isinstance(content, Graph):
        raise BadArgument("C-KIND", f"{file} holds {kind_of(content)}; --dot draws graphs.", fix="give a graph.")
    dot.write_text(graph_dot(content), encoding="utf-8")
