"""What autograd itself saves for its backward: the tensors that its nodes hold, though a formula may read their shapes alone."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch

Saved = tuple[tuple[int, torch.Tensor], ...]
"""(number of a node of autograd, tensor that it holds): tensors, since keys of storages are given again when these are gone."""


@cache
def _attributes(kind: Any) -> tuple[str, ...]:
    """The attributes of a kind of node that give what it holds: `_saved_NAME` of an operation, `saved_tensors` of a function."""
    return tuple(name for name in dir(kind) if name.startswith("_saved_") or name == "saved_tensors")


def saved_by(node: Any) -> Iterator[torch.Tensor]:
    """The tensors that a node of autograd holds from its forward to the end of its backward."""
    for name in _attributes(type(node)):  # type: ignore[arg-type]  # mypy takes no class for hashable
        value = getattr(node, name)
        for part in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(part, torch.Tensor):
                yield part
