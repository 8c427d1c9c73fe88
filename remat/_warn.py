"""Warnings that name a line of the user's, however deep in this library, torch or the standard library they are given."""

from __future__ import annotations

import os
import sys
import warnings
from types import FrameType

_STANDARD = os.path.dirname(os.__file__) + os.sep
_PACKAGES = tuple(os.path.join(_STANDARD, name) + os.sep for name in ("site-packages", "dist-packages"))
_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep


class RematWarning(UserWarning):
    """Something runs otherwise than asked, and the message says what and why."""


def is_standard(file: str) -> bool:
    """Whether a file belongs to Python's standard library, or is no file (`<string>`, `<frozen …>`)."""
    return file.startswith("<") or (file.startswith(_STANDARD) and not file.startswith(_PACKAGES))


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the innermost running line outside this library, torch, numpy and Python's own; else at the outermost line."""
    skipped = tuple(folder for folder in map(_folder, ("torch", "numpy")) if folder)
    frame: FrameType = sys._getframe(1)
    while frame.f_back is not None and _is_skipped(frame.f_code.co_filename, (_HERE, *skipped)):
        frame = frame.f_back
    warnings.warn_explicit(
        message,
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=frame.f_globals.get("__name__", "<unknown>"),
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )


def _is_skipped(file: str, folders: tuple[str, ...]) -> bool:
    return is_standard(file) or file.startswith(folders)


def _folder(package: str) -> str:
    """The folder of a package, if it has been imported."""
    file = getattr(sys.modules.get(package), "__file__", None)
    return os.path.dirname(os.path.abspath(file)) + os.sep if file else ""
