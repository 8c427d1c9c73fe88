"""`remat check GRAPH PROOF`: what a proof proves of a graph, by the checker that stands alone (`remat/proof/check.py`)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from remat.cli.arguments import read_budget, read_graph
from remat.cli.words import say
from remat.errors import ProofRefused
from remat.proof.document import Proof
from remat.units import format_bytes, format_ns


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("check")(check)


def check(
    graph: Annotated[Path, typer.Argument(help="Graph: JSON, gzipped JSON or text.")],
    proof: Annotated[Path, typer.Argument(help="Proof: JSON, gzipped or not.")],
    budget: Annotated[str | None, typer.Option(help="Refuse a proof that does not hold for this budget.")] = None,
) -> None:
    """Check PROOF: exit code 0 and what it proves of GRAPH, or 1 and the place where it does not."""
    nodes, given = read_graph(graph), Proof.load(proof)
    verdict = given.check(nodes)
    if budget is not None and read_budget(budget, nodes) > verdict.budget:
        what = f"it holds up to {verdict.budget} B, not for {read_budget(budget, nodes)} B."
        raise ProofRefused("T-BUDGET", what, where="proof.budget", fix="prove the bound for the larger budget.")
    say(f"graph      {nodes.name}, sha-256 {given.document['graph']}")
    say(f"budget     {verdict.budget} B ({format_bytes(verdict.budget)}), and less")
    if verdict.bound is None:
        say("proved     there is no schedule")
    else:
        say(f"proved     no schedule takes less than {verdict.bound} ns ({format_ns(verdict.bound)})")
    if verdict.assumes:
        say(f"class      schedules with {verdict.assumes}")
    if given.link is not None:
        say(f"link       {given.link}")
    say(f"assumes    {', '.join(given.document['rules'])}")
    say(f"theorem    {given.theorem}, {given.leaves} {'sets' if given.theorem == 'floor' else 'leaves'}")
