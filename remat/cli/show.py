"""`remat show FILE`: a graph, a schedule or plans as text, as pictures, as an interactive page, and in forms of other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from remat.cli.arguments import kind_of, plan_at, read, read_budget, read_graph, read_link
from remat.cli.outputs import check_files, check_pictures
from remat.cli.words import print_exactly, say
from remat.errors import BadArgument
from remat.ir import Cost, Graph, Link, PlanFile, Schedule, print_text, validate
from remat.ir.json_document import write_whole
from remat.units import Bytes, format_bytes
from remat.viz.canvas import picture
from remat.viz.dot import graph_dot
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
    nodes, schedule, way = _step(file, content, plan, graph)
    if text:
        print_exactly(print_text(schedule if isinstance(content, PlanFile) else content))
    else:
        for line in plan_lines(content) if isinstance(content, PlanFile) else summary(content):
            say(line)
    ready: dict[Path, bytes] = {}  # nothing is written before all can be
    if dot is not None:
        ready[dot] = graph_dot(_graph_of(file, content, nodes, "--dot")).encode()
    if fronts is not None:
        ready[fronts] = _fronts(_graph_of(file, content, nodes, "--fronts"), fronts)
    outputs = {memory: _memory, gantt: _lanes, html: _page, trace: _trace, snapshot: _snapshot}
    asked = {path: make for path, make in outputs.items() if path is not None}
    if asked or budget is not None:
        if nodes is None:
            raise BadArgument("C-GRAPH", f"{file} is a schedule, and its graph is not named.", fix="add --graph FILE.")
        cost = validate(nodes, schedule, None, way if link is None else read_link(link))
        limit = None if budget is None else _limit(budget, nodes, cost)
        replayed = residency(nodes, schedule, cost)
        ready |= {path: make(replayed, path, limit) for path, make in asked.items()}
    for path, raw in ready.items():
        write_whole(path, raw)


def _step(
    file: Path, content: Graph | Schedule | PlanFile, plan: int, graph: Path | None
) -> tuple[Graph | None, Schedule, Link | None]:
    """The graph, the schedule and the link of what a file holds: a graph runs in its captured order, a schedule needs its graph.

    Raises:
        BadArgument: C-GRAPH, when a graph is named for what brings one; C-KIND; C-PLAN.
    """
    if isinstance(content, Schedule):
        return None if graph is None else read_graph(graph), content, None
    if graph is not None:
        what = f"{file} holds {kind_of(content)}, and --graph names the graph of a schedule."
        raise BadArgument("C-GRAPH", what, fix="leave --graph out, or give the schedule first.")
    if isinstance(content, Graph):
        return content, Schedule.from_runs(content, range(len(content))), None
    saved = plan_at(content, plan)
    return saved.graph, saved.schedule, saved.link


def _limit(budget: str, graph: Graph, cost: Cost) -> Bytes:
    """The budget in bytes; it is said whether it is kept."""
    limit = read_budget(budget, graph)
    over = f"passed by {cost.peak - limit} B" if cost.peak > limit else "kept"
    say(f"budget     {limit} B ({format_bytes(limit)}), {over}: the peak is {cost.peak} B")
    return limit


def _memory(replayed: Residency, path: Path, limit: Bytes | None) -> bytes:
    from remat.viz.pictures import draw_memory

    return picture(draw_memory(replayed, budget=limit, title=f"{replayed.graph.name}: memory of a step"), path)


def _lanes(replayed: Residency, path: Path, limit: Bytes | None) -> bytes:
    from remat.viz.lanes import draw_lanes

    return picture(draw_lanes(replayed, title=f"{replayed.graph.name}: runs of a step"), path)


def _page(replayed: Residency, path: Path, limit: Bytes | None) -> bytes:
    from remat.viz.page import print_page

    return print_page(replayed, budget=limit).encode()


def _trace(replayed: Residency, path: Path, limit: Bytes | None) -> bytes:
    from remat.viz.trace import print_trace

    return print_trace(replayed).encode()


def _snapshot(replayed: Residency, path: Path, limit: Bytes | None) -> bytes:
    from remat.viz.snapshot import pickle_snapshot

    return pickle_snapshot(replayed)


def _graph_of(file: Path, content: Graph | Schedule | PlanFile, nodes: Graph | None, option: str) -> Graph:
    """The graph that a file holds itself, for what draws graphs."""
    if nodes is None or isinstance(content, Schedule):
        raise BadArgument("C-KIND", f"{file} holds {kind_of(content)}; {option} draws graphs.", fix="give a graph.")
    return nodes


def _fronts(graph: Graph, path: Path) -> bytes:
    from remat.viz.fronts import draw_fronts

    return picture(draw_fronts(graph, title=f"{graph.name}: options of its layers"), path)
