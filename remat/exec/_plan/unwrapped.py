"""The step as autograd runs it where the module is not wrapped: it holds what its nodes have saved, until they have run.

A captured step reads in its backward what is computed with. Autograd holds more: a derivative formula that takes the shape of a
tensor alone saves the tensor (`index_add` its source, `gather` what it reads), and a node holds all that it has saved until the
last of its operations has run.
"""

from __future__ import annotations

from attrs import evolve

from remat.exec._capture.capturing import Captured
from remat.exec._plan.build import adds_gradients
from remat.exec._program.program import Role
from remat.ir import Compute, Graph, Phase


def held_by_autograd(captured: Captured, graph: Graph) -> Graph:
    """The graph of a captured step in which data are read as long as autograd holds them: for memory, not to plan on.

    Args:
        captured: the step.
        graph: the same, with the sizes and workspaces of the device.
    """
    released: dict[str, list[str]] = {}
    ends = _ends(captured)
    for number, storage in captured.saved:
        if (name := _released_by(number, ends)) is not None:
            released.setdefault(name, []).append(storage)
    return evolve(graph, computes=tuple(_reading(node, released.get(node.name, [])) for node in graph.computes))


def _ends(captured: Captured) -> dict[int, str]:
    """The last operation of the backward of each node of autograd, by its number, in the order in which they run.

    Sums that autograd makes between nodes belong to none, whatever number they carry.
    """
    backward = [op for op in captured.program.ops if op.phase is Phase.BACKWARD]
    results = {value for op in backward for value in op.outputs}
    ends: dict[int, str] = {}
    for op in backward:
        if op.role is not Role.VIEW and op.sequence is not None and not adds_gradients(op, results):
            ends.pop(op.sequence, None)
            ends[op.sequence] = op.name
    return ends


def _released_by(number: int, ends: dict[int, str]) -> str | None:
    """The operation after which a node of autograd lets go; None: before the first of the backward.

    A node whose backward computes nothing runs when those that were made after it in the forward have run.
    """
    later = [name for other, name in ends.items() if other > number]
    return ends.get(number, later[-1] if later else None)


def _reading(node: Compute, names: list[str]) -> Compute:
    return evolve(node, reads=tuple(dict.fromkeys((*node.reads, *names)))) if names else node


__all__ = ["held_by_autograd"]
