"""`remat dtr replay LOG --budget B`: what dynamic tensor rematerialization does with a program."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from remat.budget import Share, parse_budget
from remat.cli.outputs import check_files, check_pictures
from remat.cli.sweep import MOST_BUDGETS, write_table
from remat.cli.words import say
from remat.errors import BadArgument
from remat.units import format_bytes

if TYPE_CHECKING:
    from remat.algorithms.dynamic import Program, Replay

PERCENT = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6})?")
PERCENTS = "100,90,80,70,60,50,40,30,20,10"

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
        str,
        typer.Option(help="h_dtr, h_dtr_eq, h_local, lru, size, msps, random, h'(yes, no, eq), or one of a package."),
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
        say(json.dumps(record(done) | {"heuristic": heuristic, "dealloc": dealloc, "operators": program.calls}))
        return
    say(f"status     {done.status.value}")
    say(f"clock      {done.clock}")
    say(f"remat cost {done.remat_cost} ({done.overhead:.3f} times the program's {done.compute})")
    say(f"evictions  {done.evictions}")
    say(f"remats     {done.remats}")
    say(f"peak       {done.peak} ({format_bytes(done.peak)} of {format_bytes(allowed)})")
    say(f"accesses   {done.accesses}")


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


def percents(text: str) -> list[float]:
    """Percents of a list `90,80.5`.

    Raises:
        BadArgument: C-BUDGETS, when the text is none, or has too many.
    """
    parts = text.split(",")
    if len(parts) > MOST_BUDGETS or not all(PERCENT.fullmatch(part.strip()) for part in parts):
        what = f"{text!r:.80} is not a list of at most {MOST_BUDGETS} percents."
        raise BadArgument("C-BUDGETS", what, fix='write "90,80,70".')
    return [float(part) for part in parts]


@group.command("log")
def log(
    model: Annotated[
        str,
        typer.Argument(
            help="A model of remat.zoo.dynamic: resnet, densenet, unet, tree-lstm, lstm, transformer, adversarial, experts."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Write the log here.")],
    cost: Annotated[
        str, typer.Option(help='Cost of an operation: its "time", or the "bytes" it reads and writes.')
    ] = "time",
    seed: Annotated[int, typer.Option(help="Seed of weights and data.")] = 0,
    scale: Annotated[int, typer.Option(help="Factor of the batch.")] = 1,
) -> None:
    """Run a training step and write its log, which the public simulator reads too."""
    check_files(output)
    from remat.exec.step_log import log_step
    from remat.zoo.dynamic import training_step

    instructions = log_step(training_step(model, seed, scale), output, cost=cost)
    say(f"log        {output}: {len(instructions)} instructions")


def titles_of(logs: Sequence[Path]) -> dict[Path, str]:
    """What each log is called: its name without the ending, after as many of its folders as tell it from the others."""
    most = max((len(path.parts) for path in logs), default=0)

    def spelled(path: Path, depth: int) -> str:
        return "/".join((*path.parts[:-1], path.stem)[-depth:])

    def title(path: Path) -> str:
        others = [other for other in logs if other != path]
        for depth in range(1, most + 1):
            if all(spelled(path, depth) != spelled(other, depth) for other in others):
                return spelled(path, depth)
        return str(path)  # only the ending tells it from another

    return {path: title(path) for path in logs}


@group.command("curves")
def curves(
    logs: Annotated[list[Path], typer.Argument(help="Logs.")],
    heuristic: Annotated[list[str] | None, typer.Option(help="Heuristic; may be given several times.")] = None,
    budgets: Annotated[str, typer.Option(help="Percents of the peak without a budget.")] = PERCENTS,
    dealloc: Annotated[str, typer.Option(help="What is let go of: eager, ignore or banish.")] = "eager",
    limit: Annotated[float, typer.Option(help="A run that costs this many times the program has thrashed.")] = 2.0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the CSV here, not to the screen.")
    ] = None,
    draw: Annotated[
        Path | None, typer.Option(help="Write a picture here: overhead above, accesses below (needs matplotlib).")
    ] = None,
) -> None:
    """Replay LOGS under many budgets and heuristics: the data of figures 2 and 12 of the paper, as CSV and as a picture."""
    from remat.algorithms.dynamic import load_program, program_peak, simulate
    from remat.viz.replays import ReplayMark, draw_replays

    names = heuristic or ["h_dtr", "h_dtr_eq", "h_local", "lru", "msps", "size"]
    shares = percents(budgets)
    check_files(output, draw, reads=logs)
    check_pictures(draw)
    titles = titles_of(logs)
    rows: list[tuple[object, ...]] = []
    panels: dict[str, dict[str, list[ReplayMark]]] = {}
    for path, title in titles.items():
        program = load_program(path)
        peak = program_peak(program)
        for name in names:
            for share in shares:
                done = simulate(program, int(peak * share / 100), name, dealloc=dealloc, limit=limit)
                rows.append((title, name, share, *record(done).values()))
                ended = done.status.value == "ok"
                mark = ReplayMark(share=share, overhead=done.overhead if ended else None, accesses=done.accesses)
                panels.setdefault(title, {}).setdefault(name, []).append(mark)
    header = ("log", "heuristic", "percent", *record(done).keys())
    write_table([header, *rows], output)
    if draw is not None:
        draw_replays(panels, draw)
