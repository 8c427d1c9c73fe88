"""The text form of graphs and schedules: readable, printed and parsed back without loss, used by golden tests.

One line per thing, words separated by blanks, `#` starts a comment line. The grammar is in `docs/reference/forms.md`:

    remat graph 1
    graph tiny
    data x 0 input
    data a 4
    forward F : x -> a ; time 2 workspace 1
    loss L : a -> t ; time 1
    backward B : t a -> g ; time 3 twin F

    remat schedule 1
    run F
    drop a
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TypeVar

from remat.errors import IllFormed, MalformedFile
from remat.ir.arguments import A_TEXT, A_THING
from remat.ir.graph import Graph
from remat.ir.node import KEPT, Compute, Data, Kind, Layer, Phase
from remat.ir.option import LayerOption, Moment, Option
from remat.ir.schedule import Schedule
from remat.ir.step import Drop, Offload, Prefetch, Run, Step
from remat.settings import takes

GRAPH_HEADER = "remat graph 1"
SCHEDULE_HEADER = "remat schedule 1"

_UNQUOTED = re.compile(r"[^\s\"#;:|]+")
_RESERVED = {"->", "absent"}
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"(?=\s|$)|[^\s"]+(?=\s|$)')
_COPIES: dict[str, type[Drop] | type[Offload] | type[Prefetch]] = {
    "drop": Drop,
    "offload": Offload,
    "prefetch": Prefetch,
}
T = TypeVar("T")


# -- printing ----------------------------------------------------------------------------------------------------------


@takes(thing=A_THING)
def print_text(thing: Graph | Schedule) -> str:
    """The text form; ends with a line break."""
    lines = _graph_lines(thing) if isinstance(thing, Graph) else _schedule_lines(thing)
    return "\n".join(lines) + "\n"


def _word(text: str) -> str:
    return text if _UNQUOTED.fullmatch(text) and text not in _RESERVED else json.dumps(text, ensure_ascii=False)


def _words(names: Iterable[str]) -> str:
    return " ".join(map(_word, names))


def _schedule_lines(schedule: Schedule) -> Iterator[str]:
    yield SCHEDULE_HEADER
    yield from map(_step, schedule.steps)


def _step(step: Step) -> str:
    if isinstance(step, Run):
        return f"run {_word(step.node)}" + (f" {step.option}" if step.option else "")
    return f"{type(step).__name__.lower()} {_word(step.datum)}"


def _graph_lines(graph: Graph) -> Iterator[str]:
    yield GRAPH_HEADER
    yield f"graph {_word(graph.name)}"
    for datum in graph.data:
        kind = "" if datum.kind is Kind.ACTIVATION and not datum.keep else f" {datum.kind.value}"
        keep = " keep" if datum.keep and datum.kind not in KEPT else ""
        yield f"data {_word(datum.name)} {datum.size}{kind}{keep}"
    for node in graph.computes:
        yield _node(node, own_options=node.name not in graph.layer_by_node)
    for layer in graph.layers:
        yield from _layer(layer)


def _node(node: Compute, *, own_options: bool) -> str:
    parts = [node.phase.value, _word(node.name), ":", *map(_word, node.reads), "->", *map(_word, node.writes), ";"]
    for option in node.options if own_options else ():
        parts += ["time", str(option.time)] + (["workspace", str(option.workspace)] if option.workspace else [])
    for key, value in (("scope", node.scope), ("twin", node.twin), ("signature", node.signature)):
        parts += [key, _word(value)] if value else []
    parts += ["draws"] * node.draws + ["run_once"] * node.run_once
    for name in node.after:
        parts += ["after", _word(name)]
    return " ".join(parts[:-1] if parts[-1] == ";" else parts)


def _layer(layer: Layer) -> Iterator[str]:
    names = _words((layer.forward, layer.backward, layer.phantom))
    yield f"layer {names} ; time {layer.no_save.time} workspace {layer.no_save.workspace}"
    yield from (f"  no-save-step {_step(step)}" for step in layer.no_save_steps)
    for option in layer.options:
        work = f"{option.forward_workspace} {option.backward_workspace}"
        reads = f" reads {_words(option.backward_reads)}" if option.backward_reads else ""
        yield f"  option time {option.forward} {option.backward} phantom {option.phantom} workspace {work}{reads}"
        for half, steps, profile in (
            ("forward", option.forward_steps, option.forward_profile),
            ("backward", option.backward_steps, option.backward_profile),
        ):
            yield from (f"    {half}-step {_step(step)}" for step in steps)
            for moment in profile:
                absent = f" absent {_words(moment.absent)}" if moment.absent else ""
                yield f"    {half}-live {moment.live}{absent}"


# -- parsing -----------------------------------------------------------------------------------------------------------


@takes(text=A_TEXT)
def parse_text(text: str) -> Graph | Schedule:
    """The graph or schedule of a text form.

    Raises:
        MalformedFile: F-TEXT, or the `G-…` rule that is broken, with the line.
    """
    lines = [_Line(number, line) for number, line in enumerate(text.split("\n"), 1)]
    lines = [line for line in lines if line.words]
    header = " ".join(lines[0].words) if lines else ""
    if header == GRAPH_HEADER:
        return _Reader(lines[1:]).graph()
    if header == SCHEDULE_HEADER:
        return Schedule(tuple(line.step(0) for line in lines[1:]))
    what = f"begins with {header!r:.60}."
    fix = f"begin with {GRAPH_HEADER!r} or {SCHEDULE_HEADER!r}."
    raise MalformedFile("F-FORMAT", what, where=f"line {lines[0].number if lines else 1}", fix=fix)


class _Line:
    """One line being read: its words, names unquoted; `marks` are the words that were not quoted."""

    def __init__(self, number: int, text: str) -> None:
        self.number = number
        self.words: list[str] = []
        self.marks: list[str] = []
        stripped = text.strip()
        at = 0
        while at < len(stripped) and not stripped.startswith("#"):
            match = _TOKEN.match(stripped, at)
            if match is None:
                raise self.wrong(f"{stripped[at:]!r:.60} is not a word", "quote names that hold quotes or blanks")
            token = match.group()
            quoted = token.startswith('"')
            self.words.append(self._unquoted(token) if quoted else token)
            self.marks.append("" if quoted else token)
            at = match.end()
            while at < len(stripped) and stripped[at].isspace():
                at += 1

    def _unquoted(self, token: str) -> str:
        try:
            return str(json.loads(token))
        except ValueError as error:
            raise self.wrong(f"{token!r:.60} is not a quoted word", "quote as JSON does") from error

    def wrong(self, problem: str, fix: str) -> MalformedFile:
        return MalformedFile("F-TEXT", f"{problem}.", where=f"line {self.number}", fix=f"{fix}.")

    def word(self, at: int, what: str) -> str:
        if at >= len(self.words):
            raise self.wrong(f"{what} is missing", f"add {what}")
        return self.words[at]

    def count(self, at: int, what: str) -> int:
        word = self.word(at, what)
        if not re.fullmatch("[0-9]{1,19}", word):
            raise self.wrong(f"{word!r:.60} is not {what}", "write a whole number below 2^63")
        return int(word)

    def ended(self, at: int) -> None:
        if at < len(self.words):
            raise self.wrong(f"{self.words[at]!r:.60} is not expected here", "leave it out")

    def step(self, at: int) -> Step:
        kind = self.word(at, "a step")
        name = self.word(at + 1, "a name")
        if kind == "run":
            more = len(self.words) > at + 2
            option = self.count(at + 2, "an option") if more else 0
            self.ended(at + 2 + more)
            return self.born(lambda: Run(name, option))
        if kind not in _COPIES:
            raise self.wrong(f"{kind!r:.60} is not a step", "write run, drop, offload or prefetch")
        self.ended(at + 2)
        return self.born(lambda: _COPIES[kind](name))

    def born(self, make: Callable[[], T]) -> T:
        try:
            return make()
        except IllFormed as error:
            raise MalformedFile(error.rule, error.what, where=f"line {self.number}", fix=error.fix) from error


class _Draft:
    """A layer being read."""

    def __init__(self, line: _Line) -> None:
        self.line = line
        self.names = [line.word(i, "a name") for i in (1, 2, 3)]
        if line.marks[4:5] != [";"] or line.words[5:6] != ["time"] or line.words[7:8] != ["workspace"]:
            raise line.wrong("a layer without its no-save forward", "write layer F B P ; time N workspace N")
        time, workspace = line.count(6, "a time"), line.count(8, "a workspace")
        line.ended(9)
        self.no_save = line.born(lambda: Option(time=time, workspace=workspace))
        self.no_save_steps: list[Step] = []
        self.options: list[dict[str, object]] = []

    def take(self, line: _Line) -> None:
        word = line.words[0]
        if word == "no-save-step":
            self.no_save_steps.append(line.step(1))
            return
        if word == "option":
            self.options.append(_option(line))
            return
        if not self.options:
            raise line.wrong(f"{word} before the first option", "write option first")
        half, _, what = word.partition("-")
        key = f"{half}_{'steps' if what == 'step' else 'profile'}"
        value = line.step(1) if what == "step" else _moment(line)
        self.options[-1][key] = (*self.options[-1].get(key, ()), value)  # type: ignore[misc]

    def layer(self) -> Layer:
        forward, backward, phantom = self.names
        options = [self.line.born(lambda given=fields: LayerOption(**given)) for fields in self.options]  # type: ignore[misc]
        return self.line.born(
            lambda: Layer(
                forward=forward,
                backward=backward,
                phantom=phantom,
                options=tuple(options),
                no_save=self.no_save,
                no_save_steps=tuple(self.no_save_steps),
            )
        )


def _option(line: _Line) -> dict[str, object]:
    keys = {1: "time", 4: "phantom", 6: "workspace", 9: "reads"}
    for at, key in keys.items():
        if line.words[at : at + 1] not in ([key], []) or (at < 9 and at >= len(line.words)):
            raise line.wrong(f"{key!r} is missing", "write option time N N phantom N workspace N N reads NAME…")
    return {
        "forward": line.count(2, "a time"),
        "backward": line.count(3, "a time"),
        "phantom": line.count(5, "a size"),
        "forward_workspace": line.count(7, "a workspace"),
        "backward_workspace": line.count(8, "a workspace"),
        "backward_reads": tuple(line.words[10:]),
    }


def _moment(line: _Line) -> Moment:
    live = line.count(1, "bytes")
    if line.marks[2:3] not in ([], ["absent"]):
        raise line.wrong(f"{line.words[2]!r:.60} is not expected here", "write absent NAME…")
    return line.born(lambda: Moment(live=live, absent=tuple(line.words[3:])))


class _Reader:
    """A graph being read."""

    def __init__(self, lines: list[_Line]) -> None:
        self.lines = lines
        self.name = "graph"
        self.data: list[tuple[_Line, str, int, Kind, bool]] = []
        self.nodes: list[tuple[_Line, dict[str, object]]] = []
        self.drafts: list[_Draft] = []

    def graph(self) -> Graph:
        for line in self.lines:
            self.take(line)
        writers: dict[str, list[str]] = {}
        for _, node in self.nodes:
            for name in node["writes"]:  # type: ignore[attr-defined]
                writers.setdefault(name, []).append(str(node["name"]))
        data = [
            line.born(
                lambda n=name, s=size, k=kind, f=keep: Data(  # type: ignore[misc]
                    name=n, size=s, kind=k, writers=tuple(writers.get(n, ())), keep=f
                )
            )
            for line, name, size, kind, keep in self.data
        ]
        layers = tuple(draft.layer() for draft in self.drafts)
        options = {name: of_node for layer in layers for name, of_node in _of_layer(layer)}
        computes = [self.compute(line, node, options) for line, node in self.nodes]
        end = _Line(self.lines[-1].number if self.lines else 1, "")
        return end.born(lambda: Graph(name=self.name, computes=tuple(computes), data=tuple(data), layers=layers))

    def take(self, line: _Line) -> None:
        word = line.marks[0]
        if word == "graph":
            self.name = line.word(1, "a name")
            line.ended(2)
        elif word == "data":
            self.data.append(_datum(line))
        elif word in _PHASES:
            self.nodes.append((line, _compute(line, _PHASES[word])))
        elif word == "layer":
            self.drafts.append(_Draft(line))
        elif word in _OF_LAYERS and self.drafts:
            self.drafts[-1].take(line)
        else:
            raise line.wrong(f"{line.words[0]!r:.60} begins no line of a graph here", "see docs/reference/forms.md")

    def compute(self, line: _Line, node: dict[str, object], options: dict[str, tuple[Option, ...]]) -> Compute:
        of_layer = options.get(str(node["name"]))
        if of_layer is not None and node["options"]:
            raise line.wrong("a layer's node states its own time", "leave it out; it follows from the layer")
        fields = dict(node, options=node["options"] if of_layer is None else of_layer)
        return line.born(lambda: Compute(**fields))  # type: ignore[arg-type]


_PHASES = {phase.value: phase for phase in Phase}
_OF_LAYERS = {"no-save-step", "option", "forward-step", "backward-step", "forward-live", "backward-live"}


def _of_layer(layer: Layer) -> tuple[tuple[str, tuple[Option, ...]], ...]:
    return ((layer.forward, layer.forward_options), (layer.backward, layer.backward_options))


def _datum(line: _Line) -> tuple[_Line, str, int, Kind, bool]:
    name, size = line.word(1, "a name"), line.count(2, "a size")
    more = line.words[3:]
    kind = Kind.ACTIVATION
    if more and more[0] != "keep":
        kinds = {kind.value: kind for kind in Kind}
        if more[0] not in kinds:
            raise line.wrong(f"{more[0]!r:.60} is not a kind", f"write one of {', '.join(kinds)}")
        kind = kinds[more.pop(0)]
    if more not in ([], ["keep"]):
        raise line.wrong(f"{more[-1]!r:.60} is not expected here", "write data NAME SIZE KIND keep")
    return line, name, size, kind, bool(more) or kind in KEPT


def _compute(line: _Line, phase: Phase) -> dict[str, object]:
    marks = line.marks
    if marks[2:3] != [":"] or "->" not in marks:
        raise line.wrong("reads and writes are missing", _SHAPE)
    arrow = marks.index("->")
    end = marks.index(";") if ";" in marks else len(marks)
    if end < arrow:
        raise line.wrong("the arrow stands after the semicolon", _SHAPE)
    node: dict[str, object] = {
        "name": line.words[1],
        "phase": phase,
        "reads": tuple(line.words[3:arrow]),
        "writes": tuple(line.words[arrow + 1 : end]),
    }
    return node | _details(line, end + 1)


_SHAPE = "write forward NAME : READ… -> WRITE… ; time N"


def _details(line: _Line, start: int) -> dict[str, object]:
    """What follows the semicolon of a compute node: flags, options, names."""
    details: dict[str, object] = {}
    options: list[list[int]] = []
    after: list[str] = []
    at = start
    while at < len(line.words):
        key = line.marks[at]
        if key in ("draws", "run_once") and key not in details:
            details[key] = True
            at += 1
            continue
        if key == "time":
            options.append([line.count(at + 1, "a time"), 0])
        elif key == "workspace" and options:
            options[-1][1] = line.count(at + 1, "a workspace")
        elif key in ("scope", "twin", "signature") and key not in details:
            details[key] = line.word(at + 1, f"a {key}")
        elif key == "after":
            after.append(line.word(at + 1, "a name"))
        else:
            raise line.wrong(f"{line.words[at]!r:.60} is not expected here", _SHAPE)
        at += 2
    details["options"] = tuple(line.born(partial(Option, time=time, workspace=space)) for time, space in options)
    details["after"] = tuple(after)
    return details
