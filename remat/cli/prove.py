"""`remat prove GRAPH --budget B -o PROOF`: bound a graph, grow a proof of the bound, write it for others to check."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from remat.cli.arguments import not_a, read_budget, read_graph, read_link
from remat.cli.outputs import check_files
from remat.cli.words import say, say_trail
from remat.ir.json_document import write_whole

if TYPE_CHECKING:
    from remat.algorithms._core.outcome import Outcome
    from remat.ir import Graph
    from remat.proof.document import Proof


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("prove")(prove)


def prove(
    graph: Annotated[Path, typer.Argument(help="Graph: JSON, gzipped JSON or text.")],
    budget: Annotated[str, typer.Option(help='Most bytes live at once: "6GiB", or "40%" of the plain peak.')],
    output: Annotated[Path, typer.Option("--output", "-o", help="Write the proof here; gzipped for .gz.")],
    solver: Annotated[str, typer.Option(help="Expression of the algebra; its bounds are to be proved.")] = "auto",
    leaves: Annotated[int, typer.Option(min=1, help="Most leaves of the trees.")] = 1000,
    within: Annotated[float | None, typer.Option(help="Seconds of planning and proving.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the search.")] = 0,
    class_proof: Annotated[
        Path | None, typer.Option(help="Also write the proof of the largest bound of a class here.")
    ] = None,
    link: Annotated[str | None, typer.Option(help="Link for copies, as in `remat validate`.")] = None,
    vipr: Annotated[
        Path | None, typer.Option(help="Also write VIPR 1.0 texts here, NAME-2 and on for further orders.")
    ] = None,
) -> None:
    """Prove a lower bound for GRAPH: exit code 0 with a proof, 3 where the solver gives nothing to prove one from."""
    from remat.algorithms._core.problem import Problem
    from remat.algorithms._core.solver import Solver
    from remat.algorithms._plugins.expression import parse
    from remat.cli.solve import bound_lines

    check_files(output, class_proof, vipr, reads=[graph])
    nodes, chosen = read_graph(graph), parse(solver)
    if not isinstance(chosen, Solver):
        raise not_a(solver, "solver", chosen, "auto, or SingleInstant()")
    limit = read_budget(budget, nodes)
    over = None if link is None else read_link(link)
    problem = Problem(graph=nodes, budget=limit, link=over, deadline=within, proof_leaves=leaves)
    outcome = chosen.solve(problem, seed=seed)
    say_trail(outcome.trail)
    for line in bound_lines(outcome):
        say(line)
    if outcome.proof is None:
        raise typer.Exit(3)
    write_proof(outcome.proof, output, "proof")
    if vipr is not None:
        write_vipr(outcome.proof, nodes, vipr, others=(output, class_proof), reads=graph)
    if class_proof is not None:
        write_class_proof(outcome, class_proof)


def write_proof(proof: Proof, path: Path, word: str) -> None:
    """Write a proof, and say what was written."""
    proof.dump(path)
    say(f"{word:10} {path}: {proof.theorem}, {proof.leaves} leaves, {len(proof.text)} bytes")


def write_class_proof(outcome: Outcome, path: Path) -> None:
    """Write the proof of the largest certified bound of a class; exit code 3 where there is none."""
    proofs = [bound.proof for bound in outcome.class_bounds if bound.proof is not None]
    if not proofs:
        say("no bound of a class is certified", err=True)
        raise typer.Exit(3)
    write_proof(max(proofs, key=lambda proof: math.inf if proof.bound is None else proof.bound), path, "class")


def write_vipr(proof: Proof, graph: Graph, path: Path, *, others: Iterable[Path | None], reads: Path) -> None:
    """Write a text for each order of the instants; none where one of their names is that of another file of the command."""
    texts = proof.vipr(graph)
    parts = [path, *(path.with_stem(f"{path.stem}-{number}") for number in range(2, len(texts) + 1))]
    check_files(*parts, *others, reads=[reads])
    for part, text in zip(parts, texts, strict=False):
        write_whole(part, text.encode())
        say(f"vipr       {part}: {len(text)} bytes")
