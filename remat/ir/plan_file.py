"""Plans as files: graphs with their schedules, and what they were planned for. Versioned JSON, refused when damaged.

A file holds every plan of one module: one for each combination of shapes, say. It says what a plan must agree with to be run
again (a fingerprint of the captured program, its tensors, the version of torch) and what it need not (the device and its costs).
The form is documented in `docs/reference/forms.md`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from attrs import astuple, field, frozen

from remat.errors import BadArgument, InvalidSchedule, MalformedFile
from remat.ir.arguments import A_FILE_NAME, A_GRAPH, A_LINK, A_PATH, A_SCHEDULE, A_TEXT
from remat.ir.checks import a_flag, a_text, a_tuple, at_least, encodes, such
from remat.ir.cost import Cost
from remat.ir.graph import Graph
from remat.ir.interchange import graph_from_json, graph_to_json, schedule_from_json, schedule_to_json
from remat.ir.json_document import JsonObject, as_text, born, parse_json, read_unzipped, write_whole
from remat.ir.link import Link
from remat.ir.schedule import Schedule
from remat.ir.validation import validate
from remat.settings import Setting, instance, optional, takes, tuple_of, whole
from remat.units import Bytes, Ns

PLAN_FORMAT = "remat-plan/1"

CostEntry = tuple[Ns, Bytes, tuple[Bytes | None, ...]]
"""Time, workspace, and what the allocator gave for each output; None where an output is no tensor of its own."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_BYTES = at_least(0, "bytes")
_NS = at_least(0, "ns")
_NUMBER = whole(0)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and encodes(value)


def _is_rehearsal(value: Any) -> bool:
    return type(value) is tuple and len(value) == 3 and all(map(_NUMBER.accepts, value))


def _are_costs(value: Any) -> bool:
    return isinstance(value, Mapping) and all(_is_text(name) and _is_cost(value[name]) for name in value)


def _is_cost(value: Any) -> bool:
    if type(value) is not tuple or len(value) != 3 or type(value[2]) is not tuple:
        return False
    return all(map(_NUMBER.accepts, (*value[:2], *(size for size in value[2] if size is not None))))


_FINGERPRINT = Setting("64 hexadecimal digits", lambda value: _is_text(value) and bool(_DIGEST.fullmatch(value)))
_TEXTS = tuple_of(Setting("text that UTF-8 can hold", _is_text), empty=True)
_REHEARSAL = Setting("a tuple of three ints from 0 to 2^63 - 1: peak, reserved [bytes], time [ns]", _is_rehearsal)
_COSTS = Setting("a mapping of texts to (time, workspace, (size, …)), of ints from 0 to 2^63 - 1", _are_costs)


@frozen(kw_only=True)
class SavedPlan:
    """One planned step.

    Attributes:
        fingerprint: of the captured program, whatever device it is on; 64 hexadecimal digits.
        tensors: parameters, buffers and inputs of the step, with types and shapes, one a line, for people.
        graph, schedule: what was planned on, and the plan.
        budget: what it was planned for, `overhead` included [bytes].
        overhead: bytes that a call holds besides the plan.
        reserve, retained: what a loss outside the module was taken to hold, at its height and during the backward [bytes].
        audited: whether these two were measured.
        lower: a bound for every schedule of this graph within this budget, certified or claimed [ns]; 0: none.
        planner: who planned.
        trail: what the planners said.
        rehearsal: peak, reserved [bytes] and time [ns] that a rehearsal measured; None: there was none.
        link: that its copies go over; None: it makes none.
    """

    fingerprint: str = field(validator=such(_FINGERPRINT))
    tensors: tuple[str, ...] = field(validator=a_tuple(str))
    graph: Graph = field(validator=such(A_GRAPH))
    schedule: Schedule = field(validator=such(A_SCHEDULE))
    budget: Bytes = field(validator=_BYTES)
    overhead: Bytes = field(default=0, validator=_BYTES)
    reserve: Bytes = field(default=0, validator=_BYTES)
    retained: Bytes = field(default=0, validator=_BYTES)
    audited: bool = field(default=False, validator=a_flag)
    lower: Ns = field(default=0, validator=_NS)
    planner: str = field(default="", validator=a_text)
    trail: tuple[str, ...] = field(default=(), validator=such(_TEXTS))
    rehearsal: tuple[Bytes, Bytes, Ns] | None = field(default=None, validator=such(optional(_REHEARSAL)))
    link: Link | None = field(default=None, validator=such(A_LINK))

    @cached_property
    def cost(self) -> Cost:
        """What the plan costs, by replay.

        Raises:
            InvalidSchedule: the schedule breaks a rule, or the budget.
        """
        return validate(self.graph, self.schedule, max(0, self.budget - self.overhead), self.link)


@frozen(kw_only=True)
class PlanFile:
    """The plans of one module.

    Attributes:
        model: class of the module.
        remat, torch: versions of the two.
        machine: device, and what else times and workspaces hang on, for people and to compare.
        budget: of steps that are not in the file [bytes].
        costs_by: "measure" or "estimate".
        costs: of operations, by signature, as measured on that machine.
        plans: one for each step, each with another fingerprint.
    """

    model: str = field(validator=a_text)
    remat: str = field(validator=a_text)
    torch: str = field(validator=a_text)
    machine: str = field(validator=a_text)
    budget: Bytes = field(validator=_BYTES)
    costs_by: str = field(validator=a_text)
    costs: Mapping[str, CostEntry] = field(factory=dict, repr=False, validator=such(_COSTS))
    plans: tuple[SavedPlan, ...] = field(repr=False, validator=a_tuple(SavedPlan))

    def plan_for(self, fingerprint: str) -> SavedPlan | None:
        """The plan of a program."""
        return next((plan for plan in self.plans if plan.fingerprint == fingerprint), None)


# -- files -------------------------------------------------------------------------------------------------------------


A_FILE = instance(PlanFile, "read_plans(path)")


@takes(file=A_FILE, path=A_FILE_NAME)
def write_plans(file: PlanFile, path: str | os.PathLike[str]) -> None:
    """Write plans as JSON, whole or not at all; gzipped when the name ends in `.gz`.

    Raises:
        BadArgument: as `print_plans`; OSError when the file cannot be written.
    """
    write_whole(path, print_plans(file).encode())


@takes(path=A_PATH)
def read_plans(path: str | os.PathLike[str]) -> PlanFile:
    """Read plans that `write_plans` wrote.

    Raises:
        MalformedFile: with the place in the document; OSError when the file cannot be read.
    """
    return parse_plans(as_text(read_unzipped(path)))


@takes(file=A_FILE)
def print_plans(file: PlanFile) -> str:
    """The JSON text of plans.

    Raises:
        BadArgument: F-PLAN, when there is none, two are of one step, or one breaks a rule on its graph or within its budget.
    """
    fault = _fault(file.plans)
    if fault is not None:
        place, what, fix = fault
        raise BadArgument("F-PLAN", f"at plans{place}: {what}", fix=fix)
    document = _document(file)
    return _canonical({**document, "checksum": _checksum(document)})


@takes(text=A_TEXT)
def parse_plans(text: str) -> PlanFile:
    """The plans of a JSON text.

    Raises:
        MalformedFile: with the place in the document.
    """
    return plans_from_json(parse_json(text))


def _canonical(document: Any) -> str:
    """The same text for equal documents: keys sorted, no blanks."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _checksum(document: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical text of all but the checksum."""
    text = _canonical({key: value for key, value in document.items() if key != "checksum"})
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


# -- writing -----------------------------------------------------------------------------------------------------------


def _document(file: PlanFile) -> dict[str, Any]:
    return {
        "format": PLAN_FORMAT,
        "model": file.model,
        "remat": file.remat,
        "torch": file.torch,
        "machine": file.machine,
        "budget": file.budget,
        "costs_by": file.costs_by,
        "costs": {name: [time, workspace, list(sizes)] for name, (time, workspace, sizes) in file.costs.items()},
        "plans": [_plan(plan) for plan in file.plans],
    }


def _plan(plan: SavedPlan) -> dict[str, Any]:
    document = {
        "fingerprint": plan.fingerprint,
        "tensors": list(plan.tensors),
        "graph": graph_to_json(plan.graph),
        "schedule": schedule_to_json(plan.schedule),
        "budget": plan.budget,
        "overhead": plan.overhead,
        "reserve": plan.reserve,
        "retained": plan.retained,
        "audited": plan.audited,
        "lower": plan.lower,
        "planner": plan.planner,
        "trail": list(plan.trail),
    }
    if plan.rehearsal is not None:
        document["rehearsal"] = list(plan.rehearsal)
    if plan.link is not None:
        document["link"] = list(astuple(plan.link))
    return document


# -- reading -----------------------------------------------------------------------------------------------------------

_TOP = {"format", "checksum", "model", "remat", "torch", "machine", "budget", "costs_by", "costs", "plans"}
_INTS = ("budget", "overhead", "reserve", "retained", "lower")
_PLAN = {"fingerprint", "tensors", "graph", "schedule", "audited", "planner", "trail", "rehearsal", "link", *_INTS}


def plans_from_json(document: Any) -> PlanFile:
    """The plans of a JSON document; each is replayed.

    Raises:
        MalformedFile: for what is missing, unknown, of a wrong type, changed since it was written, or breaks a rule of graphs or
            schedules; with the place.
    """
    form = document.get("format") if isinstance(document, dict) else None
    if form != PLAN_FORMAT:
        fix = f"this version reads {PLAN_FORMAT}, which `remat.exec.save_plan` writes."
        raise MalformedFile("F-FORMAT", f"format is {form!r:.80}, which is no plan.", where="$.format", fix=fix)
    top = JsonObject(document, "$", _TOP)
    if top.get("checksum", str) != _checksum(document):
        fix = "copy or save it again."
        raise MalformedFile("F-CHECKSUM", "the file was changed since it was written.", where="$.checksum", fix=fix)
    texts = {key: top.get(key, str) for key in ("model", "remat", "torch", "machine", "costs_by")}
    costs = {name: _read_cost(value, f"$.costs[{name!r:.60}]") for name, value in top.get("costs", dict).items()}
    plans = tuple(top.each("plans", _read_plan))
    fault = _fault(plans)
    if fault is not None:
        place, what, fix = fault
        raise MalformedFile("F-PLAN", what, where=f"$.plans{place}", fix=fix)
    return born("$", lambda: PlanFile(budget=top.get("budget", int), costs=costs, plans=plans, **texts))


def _read_cost(value: Any, where: str) -> CostEntry:
    if not isinstance(value, list) or len(value) != 3 or not isinstance(value[2], list):
        fix = "write [time, workspace, [size…]]."
        raise MalformedFile("F-TYPE", f"{value!r:.60} is not the cost of an operation.", where=where, fix=fix)
    time, workspace, sizes = value
    for number in (time, workspace, *(size for size in sizes if size is not None)):
        _check_number(number, where)
    return time, workspace, tuple(sizes)


def _check_number(number: Any, where: str) -> None:
    if not _NUMBER.accepts(number):
        fix = "write whole numbers from 0 to 2^63 - 1."
        raise MalformedFile("F-TYPE", f"{number!r:.60} is not a number of bytes or ns.", where=where, fix=fix)


def _read_plan(value: Any, where: str) -> SavedPlan:
    top = JsonObject(value, where, _PLAN)
    fingerprint = top.get("fingerprint", str)
    if not _DIGEST.fullmatch(fingerprint):
        what = f"{fingerprint!r:.80} is not a fingerprint."
        raise MalformedFile("F-TYPE", what, where=f"{where}.fingerprint", fix="write 64 hexadecimal digits.")
    graph = graph_from_json(top.get("graph", dict), f"{where}.graph")
    schedule = schedule_from_json(top.get("schedule", dict), f"{where}.schedule")
    ints = {key: top.get(key, int) for key in _INTS}
    trail = tuple(top.each("trail", _read_text))
    rehearsal = None
    if "rehearsal" in top.value:
        rehearsal = _read_rehearsal(top.get("rehearsal", list), f"{where}.rehearsal")
    link = _read_link(top.get("link", list), f"{where}.link") if "link" in top.value else None
    return born(
        where,
        lambda: SavedPlan(
            fingerprint=fingerprint,
            tensors=top.names("tensors"),
            graph=graph,
            schedule=schedule,
            audited=top.get("audited", bool),
            planner=top.get("planner", str),
            trail=trail,
            rehearsal=rehearsal,
            link=link,
            **ints,
        ),
    )


def _read_text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise MalformedFile("F-TYPE", f"{value!r:.60} is not text.", where=where, fix="write text.")
    return value


def _read_rehearsal(value: list[Any], where: str) -> tuple[Bytes, Bytes, Ns]:
    if len(value) != 3:
        raise MalformedFile("F-TYPE", f"{value!r:.60} is not [peak, reserved, time].", where=where, fix="write three.")
    for number in value:
        _check_number(number, where)
    peak, reserved, time = value
    return peak, reserved, time


def _read_link(value: list[Any], where: str) -> Link:
    if len(value) != 4:
        fix = "write four numbers; null for a bandwidth without a bound."
        what = f"{value!r:.60} is not [to host, to device, latency to host, latency to device]."
        raise MalformedFile("F-TYPE", what, where=where, fix=fix)
    for number in (*(bandwidth for bandwidth in value[:2] if bandwidth is not None), *value[2:]):
        _check_number(number, where)
    to_host, to_device, out, back = value
    return born(where, lambda: Link(to_host=to_host, to_device=to_device, to_host_latency=out, to_device_latency=back))


def _fault(plans: tuple[SavedPlan, ...]) -> tuple[str, str, str] | None:
    """What plans may not be, in a file or on the way to one: the place below them, the fault, the remedy; None: nothing."""
    if not plans:
        return "", "there is no plan in it.", "save a module that has plans."
    if len({plan.fingerprint for plan in plans}) != len(plans):
        return "", "two plans are of one step.", "keep one of them."
    for i, plan in enumerate(plans):
        try:
            cost = plan.cost
        except InvalidSchedule as error:
            what = f"the plan is not one of its graph within its budget: {error}"
            return f"[{i}].schedule", what, "plan and save it again."
        if plan.lower > cost.time:
            what = f"a lower bound of {plan.lower} ns lies above the plan's {cost.time} ns."
            return f"[{i}].lower", what, "plan and save it again."
    return None


__all__ = [
    "PLAN_FORMAT",
    "CostEntry",
    "PlanFile",
    "SavedPlan",
    "parse_plans",
    "plans_from_json",
    "print_plans",
    "read_plans",
    "write_plans",
]
