"""What the pictures share: a figure that belongs to no window, the axes of step time, and the file."""

from __future__ import annotations

import io
import os
from collections.abc import Collection
from typing import Any

from remat.errors import BackendMissing, BadArgument
from remat.ir.arguments import A_PATH
from remat.ir.json_document import write_whole
from remat.settings import optional
from remat.units import Bytes, GiB, KiB, MiB
from remat.viz.escape import plain

BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILION, PURPLE, GREY = (
    "#000000", "#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7", "#999999",
)  # fmt: skip
"""Colors that eyes with any of the usual color deficiencies tell apart (Okabe and Ito, 2008), and a grey."""

PICTURES = (".png", ".svg", ".pdf", ".svgz", ".eps", ".ps")
"""Endings of the formats that are written, in which a picture has a title."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
"""Shapes that tell lines apart without color."""


A_FILE = optional(A_PATH)
"""The file of a picture, or none."""


def refuse_nothing(drawn: Collection[object], fix: str) -> None:
    """Refuse to draw nothing.

    Raises:
        BadArgument: V-EMPTY, with what to give.
    """
    if not drawn:
        raise BadArgument("V-EMPTY", "there is nothing to draw.", fix=fix)


def new_figure(width: float, height: float) -> Any:
    """A matplotlib `Figure` of this size [inches], which a notebook shows where it is the value of a cell.

    Raises:
        BackendMissing: V-MATPLOTLIB, without matplotlib.
    """
    try:
        from remat.viz.shown import Shown
    except ImportError as error:
        fix = "pip install 'remat[viz]'"
        raise BackendMissing("V-MATPLOTLIB", "a picture needs matplotlib, which is not installed.", fix=fix) from error
    return Shown(figsize=(width, height), layout="constrained")


def unit_of(size: Bytes) -> tuple[str, Bytes]:
    """The largest unit that a size reaches, and its bytes."""
    return next(((name, unit) for name, unit in (("GiB", GiB), ("MiB", MiB), ("KiB", KiB)) if size >= unit), ("B", 1))


def time_axes() -> tuple[Any, Any]:
    """A figure of step time, in units of the step that keeps everything, and its axes."""
    figure = new_figure(8.0, 4.8)
    axes = figure.add_subplot()
    axes.axhline(1.0, color="0.6", linewidth=0.8, linestyle=":")
    axes.set_ylabel("step time, keeping everything = 1")
    return figure, axes


def write_title(axes: Any, text: str) -> None:
    """Put a title above axes; a name in it is text, not mathematics."""
    axes.set_title(plain(text), parse_math=False)


def finished(figure: Any, path: str | os.PathLike[str] | None, title: str = "") -> Any:
    """The figure under its title, and written whole to the file, where there is one; the same figure makes the same file.

    Raises:
        BadArgument: V-ENDING, as `picture`.
    """
    if title:
        figure.suptitle(plain(title), parse_math=False)
    if path is not None:
        write_whole(path, picture(figure, path))
    return figure


def picture(figure: Any, path: str | os.PathLike[str]) -> bytes:
    """What a file of this name holds.

    Raises:
        BadArgument: V-ENDING, when the name ends in none of `PICTURES`.
    """
    from matplotlib import rc_context

    ending, title = os.path.splitext(path)[1].lower(), figure.get_suptitle()
    if ending not in PICTURES:
        what = f"{os.fspath(path)!r:.200} does not end like a picture."
        raise BadArgument("V-ENDING", what, fix=f"let it end in {', '.join(PICTURES)}.")
    file = io.BytesIO()
    metadata = {**_UNDATED.get(ending, {}), **({"Title": title} if title else {})}
    with rc_context({"svg.hashsalt": "remat", "svg.fonttype": "none"}):
        figure.savefig(file, format=ending.removeprefix("."), metadata=metadata)
    return file.getvalue()


_UNDATED: dict[str, dict[str, None]] = {".svg": {"Date": None}, ".svgz": {"Date": None}, ".pdf": {"CreationDate": None}}
