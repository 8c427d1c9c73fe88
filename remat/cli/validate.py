"""`remat validate GRAPH SCHEDULE`: replay a schedule from anywhere, and print its cost or the rule it breaks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from remat.cli.arguments import read_budget, read_graph, read_link, read_schedule
from remat.ir import validate
from remat.viz.text import cost_lines


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("validate")(validate_files)


def validate_files(
    graph: Annotated[Path, typer.Argument(help="Graph: JSON, gzipped JSON or text.")],
    schedule: Annotated[Path, typer.Argument(help="Schedule of that graph.")],
    budget: Annotated[
        str | None, typer.Option(help='Most bytes live at once: "6GiB", or "40%" of the plain peak.')
    ] = None,
    link: Annotated[
        str | None, typer.Option(help='Link for copies: "12GB/s,10us", or to the host:to the device.')
    ] = None,
) -> None:
    """Replay SCHEDULE on GRAPH: exit code 0 and its cost, or 1 and the broken rule."""
    nodes = read_graph(graph)
    limit = None if budget is None else read_budget(budget, nodes)
    cost = validate(nodes, read_schedule(schedule), limit, None if link is None else read_link(link))
    for line in cost_lines(nodes, cost):
        typer.echo(line)
