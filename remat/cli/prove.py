"""`remat prove GRAPH --budget B -o PROOF`: bound a graph, grow a proof of the bound, write it for others to check."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from remat.cli.arguments import read_budget, read_graph
from remat.cli.outputs import check_files
from remat.cli.words import say
from remat.errors import BadArgument


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("prove")(prove)


def prove(
    graph: Annotated[Path, typer.Argument(help="Graph: JSON, gzipped JSON or text.")],
    budget: Annotated[str, typer.Option(help='Most bytes live at once: "6GiB", or "40%" of the plain peak.')],
    output: Annotated[Path, typer.Option("--output", "-o", help="Write the proof here; gzipped for .gz.")],
    solver: Annotated[str, typer.Option(help="Expression of the algebra; its bounds are proved.")] = "auto",
    leaves: Annotated[int, typer.Option(min=1, help="Most leaves of the trees.")] = 1000,
    within: Annotated[float | None, typer.Option(help="Seconds of planning and proving.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the search.")] = 0,
) -> None:
    """Prove a lower bound for GRAPH: exit code 0 with a proof, 3 where the solver gives nothing to prove one from."""
    from remat.algorithms._core.problem import Problem
    from remat.algorithms._core.solver import Solver
    from remat.algorithms._plugins.expression import parse
    from remat.cli.solve import bound_lines

    check_files(output)
    nodes, chosen = read_graph(graph), parse(solver)
    if not isinstance(chosen, Solver):
        raise BadArgument(
            "A-EXPR", f"{solver!r} is not a solver but {chosen!r:.80}.", fix="write e.g. auto, or SingleInstant()."
        )
    limit = read_budget(budget, nodes)
    problem = Problem(graph=nodes, budget=limit, deadline=within, proof_leaves=leaves)
    outcome = chosen.solve(problem, seed=seed)
    for line in outcome.trail:
        say(line, err=True)
    for line in bound_lines(outcome):
        say(line)
    proof = outcome.proof
    if proof is None:
        raise typer.Exit(3)
    proof.dump(output)
    say(f"proof      {output}: {proof.theorem}, {proof.leaves} leaves, {len(proof.text)} bytes")
