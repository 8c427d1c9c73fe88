"""`remat warm-up`: compile the planner's kernels now, so that the first plan does not wait for them."""

from __future__ import annotations

import typer

from remat.cli.words import say


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("warm-up")(compile_kernels)


def compile_kernels() -> None:
    """Compile the planner's kernels and cache them, e.g. while an image is built."""
    from remat.algorithms import warm_up
    from remat.algorithms._arrays.kernel_cache import cache_folder

    seconds = warm_up()
    folder = cache_folder()
    say(f"compiled   {seconds:.1f} s")
    say(f"cached     {'nowhere: set NUMBA_CACHE_DIR to a folder that can be written' if folder is None else folder}")
