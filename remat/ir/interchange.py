"""JSON forms of graphs and schedules, versioned. Reading refuses unknown keys and values, and names the place.

The forms are documented in `docs/reference/forms.md`, with JSON schemas next to it, well enough for another language to
write them. Files are written whole or not at all.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from remat.errors import MalformedFile
from remat.ir.arguments import A_FILE_NAME, A_PATH, A_THING, RAW
from remat.ir.graph import Graph
from remat.ir.json_document import JsonObject, as_text, born, parse_json, read_unzipped, write_whole
from remat.ir.node import KEPT, Compute, Data, Kind, Layer, Phase
from remat.ir.option import LayerOption, Moment, Option
from remat.ir.schedule import Schedule
from remat.ir.step import Drop, Offload, Prefetch, Run, Step
from remat.ir.text import parse_text, print_text
from remat.settings import takes

GRAPH_FORMAT = "remat-graph/1"
SCHEDULE_FORMAT = "remat-schedule/1"

_STEPS: dict[str, type[Drop] | type[Offload] | type[Prefetch]] = {
    "drop": Drop,
    "offload": Offload,
    "prefetch": Prefetch,
}
_STEP_NAMES = {kind: name for name, kind in _STEPS.items()}
_PHASES = {phase.value: phase for phase in Phase}
_KINDS = {kind.value: kind for kind in Kind}
T = TypeVar("T")


# -- files -------------------------------------------------------------------------------------------------------------


@takes(thing=A_THING, path=A_FILE_NAME)
def dump(thing: Graph | Schedule, path: str | os.PathLike[str]) -> None:
    """Write a graph or schedule, whole or not at all: as JSON, gzipped when the name ends in `.gz`, as text for `.remat`."""
    path = Path(path)
    text = (print_text(thing) if path.suffix == ".remat" else dumps(thing)).encode()
    write_whole(path, text)


@takes(path=A_PATH)
def load(path: str | os.PathLike[str]) -> Graph | Schedule:
    """Read a graph or schedule that `dump` wrote.

    Raises:
        MalformedFile: with the place in the document; OSError when the file cannot be read.
    """
    return loads(read_unzipped(path))


@takes(thing=A_THING)
def dumps(thing: Graph | Schedule) -> str:
    """The JSON text of a graph or schedule."""
    document = graph_to_json(thing) if isinstance(thing, Graph) else schedule_to_json(thing)
    return json.dumps(document, indent=None, separators=(",", ":"), ensure_ascii=False)


@takes(raw=RAW)
def loads(raw: bytes | str) -> Graph | Schedule:
    """The graph or schedule of a JSON text, or of the text form.

    Raises:
        MalformedFile: with the place in the document.
    """
    text = as_text(raw)
    if text.lstrip().startswith(("remat ", "#")):  # of the two forms the text form alone has comments
        return parse_text(text)
    document = parse_json(text)
    form = document.get("format") if isinstance(document, dict) else None
    if form == GRAPH_FORMAT:
        return graph_from_json(document)
    if form == SCHEDULE_FORMAT:
        return schedule_from_json(document)
    formats = f"{GRAPH_FORMAT} and {SCHEDULE_FORMAT}"
    raise MalformedFile("F-FORMAT", f"format is {form!r:.80}.", where="$.format", fix=f"this version reads {formats}.")


# -- writing -----------------------------------------------------------------------------------------------------------


def graph_to_json(graph: Graph) -> dict[str, Any]:
    """The JSON document of a graph; what has its default value is left out."""
    return {
        "format": GRAPH_FORMAT,
        "name": graph.name,
        "computes": [_compute(node, graph.layer_by_node) for node in graph.computes],
        "data": [_datum(datum) for datum in graph.data],
        "layers": [_layer(layer) for layer in graph.layers],
    }


def schedule_to_json(schedule: Schedule) -> dict[str, Any]:
    """The JSON document of a schedule: steps as `["run", node, option]`, `["drop", datum]`, …."""
    return {"format": SCHEDULE_FORMAT, "steps": _write_steps(schedule.steps)}


def _write_steps(steps: tuple[Step, ...]) -> list[list[Any]]:
    return [
        (["run", step.node, step.option] if step.option else ["run", step.node])
        if isinstance(step, Run)
        else [_STEP_NAMES[type(step)], step.datum]
        for step in steps
    ]


def _lean(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value not in ((), [], "", False, None)}


def _compute(node: Compute, layers: Mapping[str, Layer]) -> dict[str, Any]:
    options = [] if node.name in layers else [[option.time, option.workspace] for option in node.options]
    return {
        "name": node.name,
        "phase": node.phase.value,
        **_lean(
            options=options,
            reads=list(node.reads),
            writes=list(node.writes),
            scope=node.scope,
            twin=node.twin,
            signature=node.signature,
            draws=node.draws,
            run_once=node.run_once,
            after=list(node.after),
        ),
    }


def _datum(datum: Data) -> dict[str, Any]:
    lean: dict[str, Any] = {"name": datum.name, "size": datum.size, "kind": datum.kind.value}
    if datum.writers:
        lean["writers"] = list(datum.writers)
    if datum.keep != (datum.kind in KEPT):
        lean["keep"] = datum.keep
    return lean


def _layer(layer: Layer) -> dict[str, Any]:
    return {
        "forward": layer.forward,
        "backward": layer.backward,
        "phantom": layer.phantom,
        "no_save": [layer.no_save.time, layer.no_save.workspace],
        "options": [_layer_option(option) for option in layer.options],
        **_lean(no_save_steps=_write_steps(layer.no_save_steps)),
    }


def _layer_option(option: LayerOption) -> dict[str, Any]:
    return {
        "forward": option.forward,
        "backward": option.backward,
        "phantom": option.phantom,
        "forward_workspace": option.forward_workspace,
        "backward_workspace": option.backward_workspace,
        **_lean(
            backward_reads=list(option.backward_reads),
            forward_profile=[[m.live, list(m.absent)] for m in option.forward_profile],
            backward_profile=[[m.live, list(m.absent)] for m in option.backward_profile],
            forward_steps=_write_steps(option.forward_steps),
            backward_steps=_write_steps(option.backward_steps),
        ),
    }


# -- reading -----------------------------------------------------------------------------------------------------------


def graph_from_json(document: Any, where: str = "$") -> Graph:
    """The graph of a JSON document, or of the part of one that is at `where`.

    Raises:
        MalformedFile: for a missing, unknown or wrongly typed field, or a broken `G-…` rule, with the place.
    """
    top = JsonObject(document, where, {"format", "name", "computes", "data", "layers"})
    _check_format(top, GRAPH_FORMAT)
    data = top.each("data", _read_datum)
    layers = top.each("layers", _read_layer, default=[])
    options = {}
    listed = top.get("computes", list)
    named = {entry["name"] for entry in listed if isinstance(entry, dict) and isinstance(entry.get("name"), str)}
    for i, layer in enumerate(layers):
        for name in (layer.forward, layer.backward):
            if name not in named:
                what = f"a layer names the node {name!r}, which is not there."
                raise MalformedFile("G-UNKNOWN", what, where=f"{where}.layers[{i}]", fix="add it.")
        options[layer.forward] = layer.forward_options
        options[layer.backward] = layer.backward_options
    computes = top.each("computes", lambda value, where: _read_compute(value, where, options))
    return born(
        where,
        lambda: Graph(name=top.get("name", str), computes=tuple(computes), data=tuple(data), layers=tuple(layers)),
    )


def schedule_from_json(document: Any, where: str = "$") -> Schedule:
    """The schedule of a JSON document, or of the part of one that is at `where`.

    Raises:
        MalformedFile: with the place of what is wrong.
    """
    top = JsonObject(document, where, {"format", "steps"})
    _check_format(top, SCHEDULE_FORMAT)
    return Schedule(tuple(top.each("steps", _read_step)))


def _check_format(top: JsonObject, form: str) -> None:
    if top.get("format", str) != form:
        what, place = f"format is {top.value['format']!r:.80}.", f"{top.where}.format"
        raise MalformedFile("F-FORMAT", what, where=place, fix=f"this version reads {form} here.")


_COMPUTE_KEYS = {
    "name",
    "phase",
    "options",
    "reads",
    "writes",
    "scope",
    "twin",
    "signature",
    "draws",
    "run_once",
    "after",
}


def _read_compute(value: Any, where: str, of_layers: Mapping[str, tuple[Option, ...]]) -> Compute:
    o = JsonObject(value, where, _COMPUTE_KEYS)
    name = o.get("name", str)
    if name in of_layers:
        if "options" in o.value:
            fix = "leave them out; they follow from the layer."
            raise MalformedFile("F-KEY", "the options of a layer's node stand in the layer.", where=where, fix=fix)
        options = of_layers[name]
    else:
        options = tuple(o.each("options", _read_option))
    return born(
        where,
        lambda: Compute(
            name=name,
            phase=_one_of(_PHASES, o.get("phase", str), f"{where}.phase"),
            reads=o.names("reads"),
            writes=o.names("writes"),
            options=options,
            scope=o.get("scope", str, ""),
            twin=o.get("twin", str, ""),
            signature=o.get("signature", str, ""),
            draws=o.get("draws", bool, False),
            run_once=o.get("run_once", bool, False),
            after=o.names("after"),
        ),
    )


def _read_datum(value: Any, where: str) -> Data:
    o = JsonObject(value, where, {"name", "size", "kind", "writers", "keep"})
    keep = {"keep": o.get("keep", bool)} if "keep" in o.value else {}
    kind = _one_of(_KINDS, o.get("kind", str), f"{where}.kind")
    name, size, writers = o.get("name", str), o.get("size", int), o.names("writers")
    return born(where, lambda: Data(name=name, size=size, kind=kind, writers=writers, **keep))


_LAYER_KEYS = {"forward", "backward", "phantom", "no_save", "options", "no_save_steps"}
_OPTION_INTS = ("forward", "backward", "phantom", "forward_workspace", "backward_workspace")
_OPTION_LISTS = ("backward_reads", "forward_profile", "backward_profile", "forward_steps", "backward_steps")


def _read_layer(value: Any, where: str) -> Layer:
    o = JsonObject(value, where, _LAYER_KEYS)
    options = tuple(o.each("options", _read_layer_option))
    no_save = _read_option(o.get("no_save", list), f"{where}.no_save")
    steps = tuple(o.each("no_save_steps", _read_step, default=[]))
    names = {key: o.get(key, str) for key in ("forward", "backward", "phantom")}
    return born(where, lambda: Layer(options=options, no_save=no_save, no_save_steps=steps, **names))


def _read_layer_option(value: Any, where: str) -> LayerOption:
    o = JsonObject(value, where, {*_OPTION_INTS, *_OPTION_LISTS})
    ints = {key: o.get(key, int) for key in _OPTION_INTS}
    return born(
        where,
        lambda: LayerOption(
            backward_reads=o.names("backward_reads"),
            forward_profile=tuple(o.each("forward_profile", _read_moment, default=[])),
            backward_profile=tuple(o.each("backward_profile", _read_moment, default=[])),
            forward_steps=tuple(o.each("forward_steps", _read_step, default=[])),
            backward_steps=tuple(o.each("backward_steps", _read_step, default=[])),
            **ints,
        ),
    )


def _read_option(value: Any, where: str) -> Option:
    if not isinstance(value, list) or len(value) != 2:
        raise MalformedFile("F-TYPE", f"{value!r:.60} is not [time, workspace].", where=where, fix="write two ints.")
    return born(where, lambda: Option(time=value[0], workspace=value[1]))


def _read_moment(value: Any, where: str) -> Moment:
    if not isinstance(value, list) or len(value) != 2 or not isinstance(value[1], list):
        raise MalformedFile(
            "F-TYPE", f"{value!r:.60} is not [live, [absent…]].", where=where, fix="write an int and a list."
        )
    return born(where, lambda: Moment(live=value[0], absent=tuple(value[1])))


def _read_step(value: Any, where: str) -> Step:
    fix = 'write ["run", node], ["run", node, option], ["drop", datum], ["offload", datum] or ["prefetch", datum].'
    if not isinstance(value, list) or not value or not isinstance(value[0], str):
        raise MalformedFile("F-STEP", f"{value!r:.60} is not a step.", where=where, fix=fix)
    if value[0] == "run" and len(value) in (2, 3):
        return born(where, lambda: Run(*value[1:]))
    if value[0] in _STEPS and len(value) == 2:
        return born(where, lambda: _STEPS[value[0]](value[1]))
    raise MalformedFile("F-STEP", f"{value!r:.60} is not a step.", where=where, fix=fix)


def _one_of(table: Mapping[str, T], value: str, where: str) -> T:
    if value not in table:
        raise MalformedFile(
            "F-VALUE", f"{value!r:.60} is not known.", where=where, fix=f"write one of {', '.join(table)}."
        )
    return table[value]
