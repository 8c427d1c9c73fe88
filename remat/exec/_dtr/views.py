"""Views of storages: tensors over memory that was overwritten, and whether two views have elements in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from remat.algorithms._dtr.values import Run, Value
from remat.exec._torch.wrappers import over, view_form


def view_of(value: Value) -> Run:
    """Computes the view of an overwritten storage that a value was of the storage before."""
    form = view_form(value.payload)

    def run(payloads: list[Any]) -> Sequence[Any]:
        (root,) = payloads
        return [over(root, form)]

    return run


def overlap(first: Value, second: Value) -> bool:
    """Whether two values in one storage have elements in common; True where that is not clear from their strides."""
    mine, theirs = first.payload, second.payload
    if mine is None or theirs is None or mine.dtype != theirs.dtype or mine.stride() != theirs.stride():
        return True
    shapes = [mine.shape, theirs.shape]
    order = sorted((stride, at) for at, stride in enumerate(mine.stride()) if max(shape[at] for shape in shapes) > 1)
    begin, end, room = mine.storage_offset(), theirs.storage_offset(), None
    for stride, at in reversed(order):
        if stride == 0:
            return True
        places = (begin // stride, end // stride)
        begin, end = begin % stride, end % stride
        if room is not None and any(
            place + shape[at] > room // stride for place, shape in zip(places, shapes, strict=True)
        ):
            return True
        if places[0] + shapes[0][at] <= places[1] or places[1] + shapes[1][at] <= places[0]:
            return False
        room = stride
    return True
