"""Lets torchvision be imported beside a torch that its compiled operators do not fit (its wheels have no CPU build)."""

from __future__ import annotations

import contextlib
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path

import torch

SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
NAMES = ("nms", "qnms")
"""What torchvision registers shapes for while it is imported, whether its operators are there or not."""

_declared: list[torch.library.Library] = []
"""Declarations end with the object that made them."""


def declare_torchvision_operators() -> None:
    """Declare what torchvision's import needs, unless its own operators load or this was done before.

    timm imports torchvision, and so does transformers where torchvision is installed: call this before any of the three.
    """
    spec = find_spec("torchvision")
    if _declared or spec is None or spec.origin is None or _loads(Path(spec.origin).parent):
        return
    library = torch.library.Library("torchvision", "DEF")
    for name in NAMES:
        library.define(name + SCHEMA)
    _declared.append(library)


def _loads(folder: Path) -> bool:
    for suffix in EXTENSION_SUFFIXES:
        compiled = folder / f"_C{suffix}"
        with contextlib.suppress(OSError):
            if compiled.exists():
                torch.ops.load_library(compiled)
                return True
    return False
