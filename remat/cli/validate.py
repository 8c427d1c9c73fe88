"""`remat validate GRAPH SCHEDULE`, or `remat validate PLANS`: replay, and say what it costs or which rule it breaks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from remat.cli.arguments import kind_of, read, read_budget, read_link, read_schedule
from remat.cli.words import say
from remat.errors import BadArgument
from remat.ir import Graph, Link, PlanFile, validate
from remat.viz.text import cost_lines


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("validate")(validate_files)


def validate_files(
    graph: Annotated[Path, typer.Argument(help="Graph (JSON, gzipped JSON or text), or plans, which have theirs.")],
    schedule: Annotated[Path | None, typer.Argument(help="Schedule of that graph.")] = None,
    budget: Annotated[
        str | None, typer.Option(help='Most bytes live at once: "6GiB", or "40%" of the plain peak.')
    ] = None,
    link: Annotated[
        str | None, typer.Option(help='Link for copies: "12GB/s,10us", or to the host:to the device.')
    ] = None,
) -> None:
    """Replay SCHEDULE on GRAPH, or the plans of a file: exit code 0 and the cost, or 1 and the broken rule."""
    content = read(graph)
    if isinstance(content, PlanFile):
        if schedule is not None:
            raise BadArgument("C-KIND", f"{graph} holds plans, which have a schedule each.", fix="give it alone.")
        _validate_plans(content, budget, None if link is None else read_link(link))
        return
    if not isinstance(content, Graph):
        raise BadArgument("C-KIND", f"{graph} holds {kind_of(content)}, not a graph.", fix="give the graph first.")
    if schedule is None:
        raise BadArgument(
            "C-KIND", f"{graph} holds a graph, and no schedule is given.", fix="give its schedule second."
        )
    limit = None if budget is None else read_budget(budget, content)
    cost = validate(content, read_schedule(schedule), limit, None if link is None else read_link(link))
    for line in cost_lines(content, cost):
        say(line)


def _validate_plans(plans: PlanFile, budget: str | None, link: Link | None) -> None:
    """Replay each plan on its own graph, within its own budget and over its own link, or those that are given."""
    for place, plan in enumerate(plans.plans):
        limit = plan.budget if budget is None else read_budget(budget, plan.graph)
        cost = validate(plan.graph, plan.schedule, max(0, limit - plan.overhead), link or plan.link)
        if len(plans.plans) > 1:
            say(f"plan {place}")
        for line in cost_lines(plan.graph, cost):
            say(line)
