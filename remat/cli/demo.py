"""`remat demo`: train a GPT-2 bare and in a part of its memory, and show that nothing else changed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo")(demo)


def demo(
    steps: Annotated[int, typer.Option(min=1, help="Training steps of each model.")] = 20,
    fraction: Annotated[
        float, typer.Option(min=0.01, max=2.0, help="Budget as a part of the measured bare peak.")
    ] = 0.4,
    out: Annotated[Path, typer.Option(help="Folder of the picture, the plan and the graph.")] = Path("build/demo"),
    seed: Annotated[int, typer.Option(help="Of weights, batches and dropout.")] = 0,
) -> None:
    """Train a 12-layer GPT-2 on English text twice, bare and in a part of its memory; exit code 1 if anything differs."""
    from rich.console import Console

    from remat import demo as work

    settings = work.Settings(steps=steps, fraction=fraction, seed=seed)
    if not work.run(settings, out, Console()):
        raise typer.Exit(1)
