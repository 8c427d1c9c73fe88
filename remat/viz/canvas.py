"""What the pictures share: a figure that belongs to no window, the axes of step time, and the file."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

from remat.errors import BackendMissing, BadArgument


def refuse_nothing(drawn: Collection[object], fix: str) -> None:
    """Refuse to draw nothing.

    Raises:
        BadArgument: V-EMPTY, with what to give.
    """
    if not drawn:
        raise BadArgument("V-EMPTY", "there is nothing to draw.", fix=fix)


def new_figure(width: float, height: float) -> Any:
    """A matplotlib `Figure` of this size [inches].

    Raises:
        BackendMissing: V-MATPLOTLIB, without matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        fix = "pip install 'remat[viz]'"
        raise BackendMissing("V-MATPLOTLIB", "a picture needs matplotlib, which is not installed.", fix=fix) from error
    return Figure(figsize=(width, height), layout="constrained")


def time_axes() -> tuple[Any, Any]:
    """A figure of step time, in units of the step that keeps everything, and its axes."""
    figure = new_figure(8.0, 4.8)
    axes = figure.add_subplot()
    axes.axhline(1.0, color="0.6", linewidth=0.8, linestyle=":")
    axes.set_ylabel("step time, keeping everything = 1")
    return figure, axes


def finished(figure: Any, path: str | os.PathLike[str] | None, title: str = "") -> Any:
    """The figure under its title, and written to the file, where there is one."""
    if title:
        figure.suptitle(title)
    if path is not None:
        figure.savefig(path)
    return figure
