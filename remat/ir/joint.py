"""Reader of captured joint graphs in the form `remat-joint-graph/1` (plain arrays; see `docs/reference/forms.md`).

The form leaves parameters, inputs and tangents outside. A tangent of no bytes is added, so that the loss has one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any, TypeVar

from remat.errors import IllFormed, MalformedFile
from remat.ir.arguments import A_PATH
from remat.ir.build import GraphBuilder
from remat.ir.graph import Graph
from remat.ir.json_document import read_unzipped
from remat.ir.node import Kind, Phase
from remat.settings import takes

T = TypeVar("T")

_PHASES = (Phase.FORWARD, Phase.LOSS, Phase.BACKWARD)
_KINDS = {
    "activation": Kind.ACTIVATION,
    "grad": Kind.GRADIENT,
    "param_grad": Kind.PARAM_GRAD,
    "loss": Kind.OUTPUT,
    "buffer_out": Kind.UPDATED_BUFFER,
}


@takes(path=A_PATH)
def read_joint_graph(path: str | os.PathLike[str]) -> Graph:
    """The graph of a `remat-joint-graph/1` file, gzipped or not.

    Raises:
        MalformedFile: when it is not one, or breaks a `G-…` rule.
    """
    raw = read_unzipped(path)
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError) as error:
        what = f"not JSON ({type(error).__name__}: {error})."
        raise MalformedFile("F-JSON", what, where="$", fix="write it again, whole.") from error
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != "remat-joint-graph/1":
        fix = "give a remat-joint-graph/1 file."
        raise MalformedFile("F-FORMAT", f"schema is {schema!r:.80}.", where="$.schema", fix=fix)
    try:
        return _build(document)
    except IllFormed as error:
        raise MalformedFile(error.rule, error.what, where="$", fix=error.fix) from error
    except (ValueError, KeyError, TypeError, IndexError) as error:
        what = f"not a remat-joint-graph/1 file ({type(error).__name__}: {error})."
        raise MalformedFile("F-FORMAT", what, where="$", fix="write it again, whole.") from error


def _build(document: dict[str, Any]) -> Graph:
    builder = GraphBuilder(str(document["name"]))
    data = document["data"]
    names = [f"{name}:{i}" for i, (name, _, _) in enumerate(data)]
    for name, (_, size, kind) in zip(names, data, strict=True):
        builder.data(name, size, _KINDS[kind])
    builder.data("tangent", 0, Kind.TANGENT)
    forward_of: dict[int, str] = {}
    for i, (op, phase, time, workspace, reads, writes, sequence, draws, layer, _) in enumerate(document["nodes"]):
        if phase == 0:
            forward_of.setdefault(
                sequence, f"{op}.{i}"
            )  # several forward nodes of one number: the first is differentiated
        builder.compute(
            f"{op}.{i}",
            _at(_PHASES, phase),
            reads=list(dict.fromkeys(_at(names, d) for d in reads)),
            writes=[_at(names, d) for d in writes] + (["tangent"] if phase == 1 else []),
            time=time,
            workspace=workspace,
            scope=f"layers.{layer}" if layer != -1 else "",
            draws=bool(draws),
            twin=forward_of.get(sequence, "") if phase == 2 else "",
        )
    return builder.build()


def _at(table: Sequence[T], place: Any) -> T:
    """The entry at a place, counted from 0; no place is counted from the end."""
    if type(place) is not int or place < 0:
        raise IndexError(f"{place!r:.40} is not a place")
    return table[place]
