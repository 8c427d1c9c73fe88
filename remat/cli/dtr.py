"""`remat dtr replay LOG --budget B`: what dynamic tensor rematerialization does with a program."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from remat.budget import Share, parse_budget
from remat.units import format_bytes

if TYPE_CHECKING:
    from remat.algorithms.dynamic import Program, Replay

group = typer.Typer(help="Dynamic tensor rematerialization (DTR): replay logs of programs.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.add_typer(group, name="dtr")


@group.callback()
def _dtr() -> None:
    """Dynamic tensor rematerialization (DTR): replay logs of programs."""


@group.command("replay")
def replay(
    log: Annotated[Path, typer.Argument(help="Log in the format of DTR's public simulator: one JSON object a line.")],
    budget: Annotated[str, typer.Option(help='Bytes, "6GiB", or "50%" of the peak without a budget.')],
    heuristic: Annotated[
        str, typer.Option(help="h_dtr, h_dtr_eq, h_local, lru, size, msps, random, h'(yes, no, eq), or one of a package.")
    ] = "h_dtr_eq",
    dealloc: Annotated[str, typer.Option(help="What is let go of: eager, ignore or banish.")] = "eager",
    limit: Annotated[float, typer.Option(help="Stop when the run costs this many times the program.")] = 1000.0,
    seed: Annotated[int, typer.Option(help="Seed of the heuristic random.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Replay LOG under a budget. Running out of memory and thrashing are results too: the exit code is 0."""
    from remat.algorithms.dynamic import load_program, simulate

    program = load_program(log)
    allowed = read_budget(budget, program)
    done = simulate(program, allowed, heuristic, dealloc=dealloc, limit=limit, seed=seed)
    if as_json:
        typer.echo(json.dumps(record(done) | {"heuristic": heuristic, "dealloc": dealloc, "operators": program.calls}))
        return
    typer.echo(f"status     {done.status.value}")
    typer.echo(f"clock      {done.clock}")
    typer.echo(f"remat cost {done.remat_cost} ({done.overhead:.3f} times the program's {done.compute})")
    typer.echo(f"evictions  {done.evictions}")
    typer.echo(f"remats     {done.remats}")
    typer.echo(f"peak       {done.peak} ({format_bytes(done.peak)} of {format_bytes(allowed)})")
    typer.echo(f"accesses   {done.accesses}")


def read_budget(text: str, program: Program) -> int:
    """A budget in bytes; a share is of the peak without a budget, what is let go of being evicted."""
    from remat.algorithms.dynamic import program_peak

    parsed = parse_budget(text)
    return parsed.bytes(program_peak(program)) if isinstance(parsed, Share) else parsed


def record(done: Replay) -> dict[str, object]:
    """A replay as JSON has it."""
    return {
        "status": done.status.value,
        "clock": done.clock,
        "remat_cost": done.remat_cost,
        "evictions": done.evictions,
        "remats": done.remats,
        "peak": done.peak,
        "accesses": done.accesses,
        "compute": done.compute,
        "overhead": done.overhead,
        "budget": done.budget,
        "scored": done.scored,
    }
