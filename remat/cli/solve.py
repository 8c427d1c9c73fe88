"""`remat solve GRAPH --budget B --solver EXPRESSION`: plan a graph, print what is proved, write the schedule."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from remat.cli.arguments import read_budget, read_graph, read_link, read_solver
from remat.ir import dump
from remat.units import format_bytes, format_ns


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("solve")(solve)


def solve(
    graph: Annotated[Path, typer.Argument(help="Graph: JSON, gzipped JSON or text.")],
    budget: Annotated[str, typer.Option(help='Most bytes live at once: "6GiB", or "40%" of the plain peak.')],
    solver: Annotated[str, typer.Option(help="Expression of the algebra.")] = "auto",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the schedule here.")] = None,
    link: Annotated[str | None, typer.Option(help="Link for copies, as in `remat validate`.")] = None,
    within: Annotated[float | None, typer.Option(help="Seconds of planning.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the search.")] = 0,
    explain: Annotated[bool, typer.Option("--explain", help="Only print what the solver would do.")] = False,
) -> None:
    """Plan GRAPH under a budget: exit code 0 with a schedule, 3 without."""
    from remat.algorithms._core.outcome import IMPOSSIBLE
    from remat.algorithms._core.problem import Problem

    nodes = read_graph(graph)
    chosen = read_solver(solver)
    if explain:
        typer.echo("\n".join(chosen.outline(nodes)))
        return
    limit = read_budget(budget, nodes)
    problem = Problem(graph=nodes, budget=limit, link=None if link is None else read_link(link), deadline=within)
    outcome = chosen.solve(problem, seed=seed)
    for line in outcome.trail:
        typer.echo(line, err=True)
    typer.echo(f"status     {outcome.status.value}")
    typer.echo(f"budget     {limit} B ({format_bytes(limit)})")
    if outcome.cost is not None:
        cost = outcome.cost
        typer.echo(f"time       {cost.time} ns ({format_ns(cost.time)}), of which {cost.recomputation} ns recomputed")
        typer.echo(f"peak       {cost.peak} B ({format_bytes(cost.peak)})")
    bound = "no schedule fits (proved)" if outcome.lower == IMPOSSIBLE else f"{outcome.lower} ns"
    typer.echo(f"bound      {bound}")
    if outcome.gap is not None:
        typer.echo(f"gap        {outcome.gap:.4%}")
    if outcome.schedule is None:
        raise typer.Exit(3)
    if output is not None:
        dump(outcome.schedule, output)
