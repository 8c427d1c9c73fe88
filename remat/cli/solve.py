"""`remat solve GRAPH --budget B --solver EXPRESSION`: plan a graph, print its cost and bound, write the schedule."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from remat.cli.arguments import read_budget, read_graph, read_host_budget, read_link, read_solver
from remat.cli.outputs import check_files
from remat.cli.words import say, say_trail
from remat.ir import dump
from remat.units import format_bytes, format_ns

if TYPE_CHECKING:
    from remat.algorithms._core.outcome import Outcome


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("solve")(solve)


def solve(
    graph: Annotated[Path, typer.Argument(help="Graph: JSON, gzipped JSON or text.")],
    budget: Annotated[str, typer.Option(help='Most bytes live at once: "6GiB", or "40%" of the plain peak.')],
    solver: Annotated[str, typer.Option(help="Expression of the algebra.")] = "auto",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the schedule here.")] = None,
    link: Annotated[str | None, typer.Option(help="Link for copies, as in `remat validate`.")] = None,
    host_budget: Annotated[
        str | None, typer.Option(help='With a link: most bytes of copies on the host, as "6GiB".')
    ] = None,
    within: Annotated[float | None, typer.Option(help="Seconds of planning.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the search.")] = 0,
    explain: Annotated[bool, typer.Option("--explain", help="Only print what the solver would do.")] = False,
    proof: Annotated[Path | None, typer.Option(help="Prove the bound and write the proof here.")] = None,
) -> None:
    """Plan GRAPH under a budget: exit code 0 with a schedule, 3 without."""
    from remat.algorithms._core.problem import Problem

    check_files(output, proof, reads=[graph])
    nodes = read_graph(graph)
    chosen = read_solver(solver)
    if explain:
        say("\n".join(chosen.outline(nodes)))
        return
    limit = read_budget(budget, nodes)
    over, host = None if link is None else read_link(link), read_host_budget(host_budget, link)
    problem = Problem(graph=nodes, budget=limit, link=over, host_budget=host, deadline=within)
    outcome = chosen.solve(problem, seed=seed, proof=proof is not None)
    say_trail(outcome.trail)
    say(f"status     {outcome.status.value}")
    say(f"budget     {limit} B ({format_bytes(limit)})")
    if outcome.cost is not None:
        cost = outcome.cost
        say(f"time       {cost.time} ns ({format_ns(cost.time)}), of which {cost.recomputation} ns recomputed")
        say(f"peak       {cost.peak} B ({format_bytes(cost.peak)})")
        if over is not None:
            say(f"host       {cost.host_peak} B ({format_bytes(cost.host_peak)}) of copies at once")
    for line in bound_lines(outcome):
        say(line)
    if outcome.gap is not None:
        say(f"gap        {outcome.gap:.4%}")
    if proof is not None:
        if outcome.proof is None:
            say(f"{proof} is not written: nothing is certified, for which there would be a proof", err=True)
        else:
            outcome.proof.dump(proof)
    if outcome.schedule is None:
        raise typer.Exit(3)
    if output is not None:
        dump(outcome.schedule, output)


def bound_lines(outcome: Outcome) -> list[str]:
    """The bound in words: certified, with what is certified where that is less."""
    from remat.algorithms._core.outcome import IMPOSSIBLE

    lower, certified = outcome.lower, outcome.certified
    shown = "no schedule fits" if lower == IMPOSSIBLE else f"{lower} ns"
    lines = [f"bound      {shown} ({outcome.word})" if lower or certified is not None else "bound      none"]
    if outcome.word == "claimed" and certified is not None:
        lines.append(f"certified  {certified} ns (proved, exact)")
    for bound in outcome.class_bounds:
        value = "none fits" if bound.value == IMPOSSIBLE else f"{bound.value} ns"
        lines.append(f"class      {value} ({bound.word}), of this class: {bound.assumes}")
    return lines
