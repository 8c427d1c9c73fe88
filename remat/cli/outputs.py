"""Outputs are looked at before long work begins: that their folder takes files, and that their ending is one that is drawn."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable
from pathlib import Path

from remat.errors import BackendMissing, BadArgument
from remat.viz.canvas import PICTURES


def check_files(*paths: Path | None, reads: Iterable[Path | None] = ()) -> None:
    """Refuse what cannot be written as a file, whole or not at all, and what the command reads; None is no file.

    Raises:
        BadArgument: C-OUTPUT.
    """
    given = [path for path in paths if path is not None]
    for path in given:
        reason = _reason(path)
        if reason:
            raise BadArgument(
                "C-OUTPUT", f"{path} cannot be written: {reason}.", fix="name a file in a folder of yours."
            )
    twice = next((path for path in given if sum(path.resolve() == other.resolve() for other in given) > 1), None)
    if twice is not None:
        raise BadArgument("C-OUTPUT", f"{twice} is named for two outputs.", fix="name each output apart.")
    sources = {path.resolve() for path in reads if path is not None}
    lost = next((path for path in given if path.resolve() in sources), None)
    if lost is not None:
        raise BadArgument("C-OUTPUT", f"{lost} is read by this command, and would be lost.", fix="name another file.")


def check_pictures(*paths: Path | None) -> None:
    """Refuse a picture that cannot be written or drawn; None is no picture.

    Raises:
        BadArgument: C-PICTURE, for another ending than those of `PICTURES`; C-OUTPUT.
        BackendMissing: V-MATPLOTLIB.
    """
    check_files(*paths)
    for path in paths:
        if path is None:
            continue
        if path.suffix.lower() not in PICTURES:
            what = f"{path} does not end like a picture."
            raise BadArgument("C-PICTURE", what, fix=f"let it end in {', '.join(PICTURES)}.")
        if importlib.util.find_spec("matplotlib") is None:
            fix = "pip install 'remat[viz]'"
            raise BackendMissing("V-MATPLOTLIB", "a picture needs matplotlib, which is not installed.", fix=fix)


def _reason(path: Path) -> str:
    """Why a file cannot be written there; empty where it can."""
    folder = path.parent
    if path.is_dir():
        return "it is a folder"
    if path.exists() and not path.is_file():
        return "it is no regular file"
    if not folder.is_dir():
        return f"there is no folder {folder}"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"the folder {folder} takes no files"
    if path.exists() and not os.access(path, os.W_OK):
        return "it may not be changed"
    return ""


__all__ = ["check_files", "check_pictures"]
