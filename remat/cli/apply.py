"""`remat apply TRANSFORM GRAPH -o OUT`: the graph that a transform makes, to look at or to plan on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from remat.cli.arguments import not_a, read_budget, read_graph, read_link
from remat.cli.outputs import check_files
from remat.cli.words import say
from remat.ir import dump
from remat.viz.text import summary


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("apply")(apply)


def apply(
    transform: Annotated[str, typer.Argument(help='Expression of the algebra, as "Linearise() >> Quantise(500)".')],
    graph: Annotated[Path, typer.Argument(help="Graph: JSON, gzipped JSON or text.")],
    budget: Annotated[str, typer.Option(help="Budget of the problem: some transforms divide it into slots.")] = "100%",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the transformed graph here; gzipped for .gz.")
    ] = None,
    link: Annotated[str | None, typer.Option(help="Link for copies, as in `remat validate`.")] = None,
    within: Annotated[float | None, typer.Option(help="Seconds for solvers that it asks on the way.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of what is random on the way.")] = 0,
) -> None:
    """Apply TRANSFORM to GRAPH: exit code 0, or 3 where it refuses the graph."""
    from remat.algorithms import Clock, Problem, Transform, parse

    check_files(output, reads=[graph])
    nodes, chosen = read_graph(graph), parse(transform)
    if not isinstance(chosen, Transform):
        raise not_a(transform, "transform", chosen, "Linearise(), or OneOutputPerOp()")
    reason = chosen.refuses(nodes)
    if reason is not None:
        say(f"refused    {reason}", err=True)
        raise typer.Exit(3)
    way = None if link is None else read_link(link)
    problem = Problem(graph=nodes, budget=read_budget(budget, nodes), link=way, deadline=within)
    applied = chosen.apply(problem, clock=Clock(within), seed=seed)
    for line in summary(applied.problem.graph):
        say(line)
    say(f"budget     {problem.budget} B becomes {applied.problem.budget} B")
    say(f"proofs     {'kept' if chosen.keeps_proofs else 'not kept: a bound of this graph is none of the first'}")
    if applied.note:
        say(f"note       {applied.note}")
    if output is not None:
        dump(applied.problem.graph, output)
