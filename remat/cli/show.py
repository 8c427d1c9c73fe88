"""`remat show FILE`: a graph, a schedule or plans as text, as pictures, as an interactive page, and in forms of other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from remat.cli.arguments import kind_of, plan_at, read, read_budget, read_graph, read_link
from remat.cli.outputs import check_files, check_pictures
from remat.cli.words import print_exactly, say
from remat.errors import BadArgument
from remat.ir import Graph, PlanFile, Schedule, print_text, validate
from remat.ir.json_document import write_whole
from remat.units import Bytes, format_bytes
from remat.viz.residency import Residency, residency
from remat.viz.text import plan_lines, summary


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("show")(show)


def show(
    file: Annotated[Path, typer.Argument(help="Graph, schedule or plans.")],
    graph: Annotated[Path | None, typer.Option(help="The graph of a schedule, for what shows it in time.")] = None,
    dot: Annotated[Path | None, typer.Option(help="Write a Graphviz file.")] = None,
    memory: Annotated[Path | None, typer.Option(help="Draw memory over time (PNG, SVG, PDF).")] = None,
    gantt: Annotated[Path | None, typer.Option(help="Draw runs and copies in lanes over time.")] = None,
    fronts: Annotated[Path | None, typer.Option(help="Draw the options of a graph's layers.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write one interactive page of HTML.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Write a trace for Perfetto or chrome://tracing.")] = None,
    snapshot: Annotated[Path | None, typer.Option(help="Write a memory snapshot for torch's memory_viz.")] = None,
    link: Annotated[str | None, typer.Option(help="Link for copies, as in `remat validate`.")] = None,
    text: Annotated[bool, typer.Option(help="Print the whole text form (of plans: the schedule).")] = False,
    plan: Annotated[int, typer.Option(help="Which of the plans of a file, from 0.")] = 0,
    budget: Annotated[
        str | None, typer.Option(help='Say whether it is kept, and draw it: "6GiB", or "40%" of the plain peak.')
    ] = None,
) -> None:
    """Show FILE: a summary, the text form, pictures, a page, or files for other tools."""
    check_files(dot, memory, gantt, fronts, html, trace, snapshot, reads=[file, graph])
    check_pictures(memory, gantt, fronts)
    content = read(file)
    saved = plan_at(content, plan) if isinstance(content, PlanFile) else None
    if text:
        print_exactly(print_text(content.plans[plan].schedule if isinstance(content, PlanFile) else content))
    else:
        for line in plan_lines(content) if isinstance(content, PlanFile) else summary(content):
            say(line)
    if dot is not None:
        _write_dot(file, content if saved is None else saved.graph, dot)
    if fronts is not None:
        _draw_fronts(file, content if saved is None else saved.graph, fronts)
    if budget is None and all(path is None for path in (memory, gantt, html, trace, snapshot)):
        return
    nodes, schedule = _both(file, content, graph) if saved is None else (saved.graph, saved.schedule)
    planned_for = None if saved is None else saved.link
    cost = validate(nodes, schedule, None, planned_for if link is None else read_link(link))
    limit = None if budget is None else read_budget(budget, nodes)
    if limit is not None:
        over = f"passed by {cost.peak - limit} B" if cost.peak > limit else "kept"
        say(f"budget     {limit} B ({format_bytes(limit)}), {over}: the peak is {cost.peak} B")
    replayed = residency(nodes, schedule, cost)
    outputs = ((memory, _memory), (gantt, _lanes), (html, _page), (trace, _trace), (snapshot, _snapshot))
    for path, write in outputs:
        if path is not None:
            write(replayed, path, limit)


def _memory(replayed: Residency, path: Path, limit: Bytes | None) -> None:
    from remat.viz.pictures import draw_memory

    draw_memory(replayed, path, budget=limit, title=f"{replayed.graph.name}: memory of a step")


def _lanes(replayed: Residency, path: Path, limit: Bytes | None) -> None:
    from remat.viz.lanes import draw_lanes

    draw_lanes(replayed, path, title=f"{replayed.graph.name}: runs of a step")


def _page(replayed: Residency, path: Path, limit: Bytes | None) -> None:
    from remat.viz.page import print_page

    write_whole(path, print_page(replayed, budget=limit).encode())


def _trace(replayed: Residency, path: Path, limit: Bytes | None) -> None:
    from remat.viz.trace import print_trace

    write_whole(path, print_trace(replayed).encode())


def _snapshot(replayed: Residency, path: Path, limit: Bytes | None) -> None:
    from remat.viz.snapshot import pickle_snapshot

    write_whole(path, pickle_snapshot(replayed))


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
    write_whole(dot, graph_dot(content).encode())


def _draw_fronts(file: Path, content: Graph | Schedule | PlanFile, fronts: Path) -> None:
    """Draw the options of the graph that a file holds."""
    from remat.viz.fronts import draw_fronts

    if not isinstance(content, Graph):
        raise BadArgument("C-KIND", f"{file} holds {kind_of(content)}; --fronts draws graphs.", fix="give a graph.")
    draw_fronts(content, fronts, title=f"{content.name}: options of its layers")
