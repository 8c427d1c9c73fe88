"""`remat sweep GRAPH --solver EXPRESSION … --budgets 80%,60%,40%`: time over memory, as CSV and as a picture."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from remat.cli.arguments import read_budget, read_graph, read_link, read_solver
from remat.cli.outputs import check_files, check_pictures
from remat.cli.words import print_exactly, say
from remat.errors import BadArgument
from remat.ir.json_document import write_whole
from remat.units import LARGEST

if TYPE_CHECKING:
    from remat.algorithms._core.solver import Solver
    from remat.algorithms._curves.budget_sweep import Curve, Point
    from remat.ir import Graph
    from remat.units import Bytes
    from remat.viz.curve import Mark

MOST_BUDGETS = 1000
"""Of one call."""
WITHOUT = " without copies"
"""Ends the name of a curve without the link, beside the one with it."""
COLUMNS = ("solver", "budget", "status", "time", "recomputation", "idle", "peak", "lower", "word")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("sweep")(sweep)


def sweep(
    graph: Annotated[Path, typer.Argument(help="Graph: JSON, gzipped JSON or text.")],
    solver: Annotated[
        list[str] | None, typer.Option(help="Expression of the algebra; may be given several times.")
    ] = None,
    budgets: Annotated[
        str, typer.Option(help='Budgets: "80%,60%,2GiB", or "90%:20%:8" for eight between.')
    ] = "90%:20%:8",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the CSV here, not to the screen.")
    ] = None,
    draw: Annotated[Path | None, typer.Option(help="Write a picture here (needs matplotlib).")] = None,
    link: Annotated[
        str | None, typer.Option(help="Link for copies, as in `remat validate`; draws the curves with and without.")
    ] = None,
    within: Annotated[float | None, typer.Option(help="Seconds of planning for each solver.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the searches.")] = 0,
) -> None:
    """Plan GRAPH for many budgets by one or several solvers: exit code 0 when any plan was found, 3 otherwise."""
    from rich.console import Console
    from rich.progress import Progress

    from remat.algorithms._core.clock import Clock
    from remat.algorithms._curves.budget_sweep import sweep as planned

    texts = spread(budgets)
    check_files(output, draw, reads=[graph])
    check_pictures(draw)
    nodes = read_graph(graph)
    limits = [read_budget(budget, nodes) for budget in texts]
    way = None if link is None else read_link(link)
    chosen = planners(solver or ["auto"], linked=way is not None)
    rows: list[tuple[object, ...]] = []
    lines: dict[str, list[Mark]] = {}
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("planning", total=len(set(limits)) * len(chosen))
        curves: dict[str, Curve] = {}

        def step(point: Point) -> None:
            bar.update(task, advance=1)

        for text, (planner, copies) in chosen.items():
            bar.update(task, description=text)
            clock, over = Clock(within), way if copies else None
            curve = curves[text] = planned(nodes, limits, planner, clock=clock, seed=seed, listener=step, link=over)
            rows += [_row(text, point) for point in curve.points]
            lines[text] = [_mark(point) for point in curve.points]
            if len(curve.points) < len(set(limits)) and (within is None or clock.elapsed < within):
                break  # Ctrl-C: write the points reached
    write_table([COLUMNS, *rows], output)
    _say_cut_short(chosen, curves, len(set(limits)))
    for text in solver or ["auto"]:
        if text in curves and text + WITHOUT in curves:
            typer.echo(f"{text}: {crossover(curves[text], curves[text + WITHOUT])}", err=True)
    if draw is not None and rows:
        _draw(lines, draw, nodes, max(limits))
    elif draw is not None:
        say(f"{draw} is not written: no budget was reached", err=True)
    if not any(row[3] != "" for row in rows):
        raise typer.Exit(3)


def _say_cut_short(names: Iterable[str], curves: Mapping[str, Curve], asked: int) -> None:
    """Say which curves lack budgets, and how many they reached before the deadline or Ctrl-C."""
    for name in names:
        reached = len(curves[name].points) if name in curves else 0
        if reached < asked:
            say(f"{name}: stopped after {reached} of {asked} budgets", err=True)


def planners(texts: list[str], *, linked: bool) -> dict[str, tuple[Solver, bool]]:
    """The solvers by the name of their curve, each with whether it has the link; with one, a second curve is without copies."""
    solvers = {text: read_solver(text) for text in texts}
    chosen = {text: (solver, linked) for text, solver in solvers.items()}
    return chosen | {text + WITHOUT: (solver, False) for text, solver in solvers.items() if linked}


def crossover(linked: Curve, bare: Curve) -> str:
    """From which budget on copies save time, in words."""
    from remat.units import format_bytes

    times = {point.budget: point.outcome.upper for point in bare.points}
    pairs = [
        (point.budget, point.outcome.upper, times[point.budget]) for point in linked.points if point.budget in times
    ]
    if not pairs:
        return "no budget was reached both with and without copies."
    saving = [budget for budget, with_copies, without in pairs if with_copies < without]
    if not saving:
        return "copies save no time at any of these budgets."
    largest, alone = max(saving), [budget for budget, _, without in pairs if without == math.inf and budget in saving]
    text = f"copies save time at {format_bytes(largest)} and below, at {len(saving)} of {len(pairs)} budgets"
    return f"{text}; at {format_bytes(max(alone))} and below only they have a plan." if alone else f"{text}."


def _draw(lines: dict[str, list[Mark]], path: Path, graph: Graph, largest: Bytes) -> None:
    from remat.ir import Schedule, validate
    from remat.viz.curves import draw_curves

    peak = validate(graph, Schedule.from_runs(graph, range(len(graph)))).peak if graph.flat else largest
    draw_curves(lines, path, peak=peak, time=graph.time, title=graph.name)


def spread(text: str) -> list[str]:
    """The budgets of a list `80%,2GiB`, or of a range `90%:20%:8` (first, last, count), evenly spaced in per cent or in bytes.

    Raises:
        BadArgument: C-BUDGETS, when the text is neither.
    """
    parts = [part.strip() for part in text.split(":")]
    _check_count(parts)
    budgets = _range(*parts) if len(parts) == 3 else text.split(",") if len(parts) == 1 else []
    budgets = [budget for budget in budgets if budget.strip()]
    if not budgets:
        raise BadArgument(
            "C-BUDGETS", f"{text!r:.80} is not a list of budgets.", fix='write "80%,60%,2GiB", or "90%:20%:8".'
        )
    return budgets


def _check_count(parts: list[str]) -> None:
    """Refuse more than `MOST_BUDGETS` before a list of them is made."""
    asked = parts[0].count(",") + 1
    if len(parts) == 3 and parts[2].isdecimal():
        asked = int(parts[2]) if len(parts[2]) <= len(str(MOST_BUDGETS)) else MOST_BUDGETS + 1
    if asked > MOST_BUDGETS:
        what = f"more than {MOST_BUDGETS} budgets are asked for."
        raise BadArgument("C-BUDGETS", what, fix="ask for fewer: a plan serves every larger budget too.")


def _range(low: str, high: str, count: str) -> list[str]:
    """Budgets from one to another, evenly; none when the texts are not numbers of one kind: bytes, or shares in per cent."""
    if low.endswith("%") != high.endswith("%"):
        return []
    steps = int(count) - 1 if count.isdecimal() else 0
    try:
        first, last = float(low.removesuffix("%")), float(high.removesuffix("%"))
    except ValueError:
        return []
    if not (abs(first) <= LARGEST and abs(last) <= LARGEST):  # nor infinite, nor NaN
        return []
    budgets = [first + (last - first) * k / steps for k in range(steps + 1)] if steps > 0 else []
    percent = low.endswith("%")
    return [f"{budget:.6f}%" if percent else str(round(budget)) for budget in budgets]


def _row(name: str, point: Point) -> tuple[object, ...]:
    outcome = point.outcome
    cost = outcome.cost
    numbers = ("", "", "", "") if cost is None else (cost.time, cost.recomputation, cost.idle, cost.peak)
    return (name, point.budget, outcome.status.value, *numbers, outcome.lower, outcome.word)


def _mark(point: Point) -> Mark:
    from remat.viz.curve import Mark

    cost = point.outcome.cost
    return Mark(budget=point.budget, time=None if cost is None else cost.time, lower=point.outcome.lower)


def write_table(rows: Sequence[Sequence[object]], output: Path | None) -> None:
    """Print rows as CSV, or write them as a file, whole or not at all."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    if output is None:
        print_exactly(text.getvalue())
        return
    write_whole(output, text.getvalue().encode())
