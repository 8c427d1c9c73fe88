"""An entry of the library: one graph, its instances, and what is known of each; with its JSON form `remat-instances/1`."""

from __future__ import annotations

import math
import re
from typing import Any

from attrs import evolve, field, frozen

from remat.errors import BadArgument, MalformedFile
from remat.ir.json_document import JsonObject
from remat.units import Bytes, Ns

FORMAT = "remat-instances/1"
NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
DIGEST = re.compile(r"[0-9a-f]{64}")
LONGEST_AUTHOR = 80
"""Characters of a finder's name."""
SHARES = (70, 50, 35, 25)
"""Budgets of the instances of a graph, in per cent of the peak of keeping everything, rounded down to bytes."""


def author(text: str) -> str:
    """The name of a finder, as given.

    Raises:
        BadArgument: R-AUTHOR, when it is empty, long, or holds what is not printed.
    """
    if not 0 < len(text) <= LONGEST_AUTHOR or text != text.strip() or not text.isprintable():
        fix = f"give up to {LONGEST_AUTHOR} characters, on one line."
        raise BadArgument("R-AUTHOR", f"{text[:LONGEST_AUTHOR]!r} is no name of a finder.", fix=fix)
    return text


@frozen(kw_only=True)
class PlanRecord:
    """The fastest schedule known.

    Attributes:
        time: of its replay [ns]. peak: of its replay [bytes].
        by: who found it. date: when, as `2026-11-22`.
    """

    time: Ns
    peak: Bytes
    by: str
    date: str


@frozen(kw_only=True)
class BoundRecord:
    """The largest bound known: certified by a proof, or claimed.

    Attributes:
        bound: no schedule takes less [ns]; None: no schedule exists.
        by: who found it. date: when.
    """

    bound: Ns | None
    by: str
    date: str

    @property
    def value(self) -> float:
        """The bound, infinite where no schedule exists [ns]."""
        return math.inf if self.bound is None else self.bound


@frozen(kw_only=True)
class Instance:
    """A graph at a budget.

    Attributes:
        graph: name of the graph. share: the budget in per cent of the peak of keeping everything. budget: the same [bytes].
        plan: the fastest schedule known, None: none is. bound: the largest certified bound. claim: a larger one without a proof.
    """

    graph: str
    share: int
    budget: Bytes
    plan: PlanRecord | None = field(default=None)
    bound: BoundRecord | None = field(default=None)
    claim: BoundRecord | None = field(default=None)

    @property
    def name(self) -> str:
        """Graph and budget, as `hf-bert/50`."""
        return f"{self.graph}/{self.share}"

    @property
    def gap(self) -> float | None:
        """The time over the certified bound, less one; None where either is missing."""
        if self.plan is None or self.bound is None or not self.bound.bound:
            return None
        return self.plan.time / self.bound.bound - 1

    @property
    def status(self) -> str:
        """`optimal`, `impossible` (both certified), `feasible` or `open`."""
        if self.plan is None:
            return "impossible" if self.bound is not None and self.bound.bound is None else "open"
        return "optimal" if self.bound is not None and self.bound.bound == self.plan.time else "feasible"


@frozen(kw_only=True)
class Entry:
    """A graph and its instances.

    Attributes:
        name: of the graph. origin: how the graph was made. digest: fingerprint of the graph, as in proofs.
        nodes: their number. time: of every node once [ns]. peak: of keeping everything in the captured order [bytes].
        instances: by falling budget.
    """

    name: str
    origin: str
    digest: str
    nodes: int
    time: Ns
    peak: Bytes
    instances: tuple[Instance, ...]

    def instance(self, share: int) -> Instance:
        """The instance at a share.

        Raises:
            BadArgument: R-INSTANCE, when there is none.
        """
        for instance in self.instances:
            if instance.share == share:
                return instance
        fix = f"give one of {', '.join(instance.name for instance in self.instances)}."
        raise BadArgument("R-INSTANCE", f"{self.name} has no instance at {share} %.", fix=fix)

    def replaced(self, instance: Instance) -> Entry:
        """The entry with another state of one of its instances."""
        rest = tuple(instance if instance.share == other.share else other for other in self.instances)
        return evolve(self, instances=rest)


# -- JSON --------------------------------------------------------------------------------------------------------------


def entry_to_json(entry: Entry) -> dict[str, Any]:
    """The JSON document of an entry."""
    head = {key: getattr(entry, key) for key in ("name", "origin", "digest", "nodes", "time", "peak")}
    return {"format": FORMAT, **head, "instances": [_instance_to_json(instance) for instance in entry.instances]}


def _instance_to_json(instance: Instance) -> dict[str, Any]:
    document: dict[str, Any] = {"share": instance.share, "budget": instance.budget}
    if instance.plan is not None:
        plan = instance.plan
        document["plan"] = {"time": plan.time, "peak": plan.peak, "by": plan.by, "date": plan.date}
    for key in ("bound", "claim"):
        bound = getattr(instance, key)
        if bound is not None:
            document[key] = {"bound": bound.bound, "by": bound.by, "date": bound.date}
    return document


def entry_from_json(document: Any) -> Entry:
    """The entry of a JSON document.

    Raises:
        MalformedFile: with the place in the document.
    """
    keys = {"format", "name", "origin", "digest", "nodes", "time", "peak", "instances"}
    form = document.get("format") if isinstance(document, dict) else None
    if form != FORMAT:
        fix = f"this version reads {FORMAT}."
        raise MalformedFile("F-FORMAT", f"format is {form!r:.80}.", where="$.format", fix=fix)
    reader = JsonObject(document, "$", keys)
    name = _text(reader, "name", NAME)
    instances = tuple(reader.each("instances", lambda value, where: _instance_from_json(value, where, name)))
    shares = [instance.share for instance in instances]
    if shares != sorted(set(shares), reverse=True):
        what = f"shares are {shares}."
        raise MalformedFile("F-VALUE", what, where="$.instances", fix="list each once, from the largest down.")
    return Entry(
        name=name, origin=reader.get("origin", str), digest=_text(reader, "digest", DIGEST),
        nodes=_natural(reader, "nodes"), time=_natural(reader, "time"), peak=_natural(reader, "peak"), instances=instances,
    )  # fmt: skip


def _instance_from_json(value: Any, where: str, graph: str) -> Instance:
    reader = JsonObject(value, where, {"share", "budget", "plan", "bound", "claim"})
    instance = Instance(graph=graph, share=_natural(reader, "share"), budget=_natural(reader, "budget"))
    if "plan" in value:
        plan = JsonObject(value["plan"], f"{where}.plan", {"time", "peak", "by", "date"})
        record = PlanRecord(time=_natural(plan, "time"), peak=_natural(plan, "peak"), **_origin(plan))
        instance = evolve(instance, plan=record)
    if "bound" in value:
        instance = evolve(instance, bound=_bound_from_json(value["bound"], f"{where}.bound"))
    if "claim" in value:
        instance = evolve(instance, claim=_bound_from_json(value["claim"], f"{where}.claim"))
    return instance


def _bound_from_json(value: Any, where: str) -> BoundRecord:
    reader = JsonObject(value, where, {"bound", "by", "date"})
    nothing = "bound" in reader.value and reader.value["bound"] is None
    return BoundRecord(bound=None if nothing else _natural(reader, "bound"), **_origin(reader))


def _origin(reader: JsonObject) -> dict[str, str]:
    try:
        return {"by": author(reader.get("by", str)), "date": _text(reader, "date", DATE)}
    except BadArgument as error:
        raise MalformedFile(error.rule, error.what, where=f"{reader.where}.by", fix=error.fix) from None


def _natural(reader: JsonObject, key: str) -> int:
    value = reader.get(key, int)
    if not 0 <= value < 2**63:
        fix = "write a whole number from 0 to below 2^63."
        raise MalformedFile("F-VALUE", f"{value} is out of range.", where=f"{reader.where}.{key}", fix=fix)
    return value


def _text(reader: JsonObject, key: str, pattern: re.Pattern[str]) -> str:
    value = reader.get(key, str)
    if not pattern.fullmatch(value):
        fix = f"write text of the form {pattern.pattern}."
        raise MalformedFile("F-VALUE", f"{value!r:.80} is no {key}.", where=f"{reader.where}.{key}", fix=fix)
    return value


__all__ = [
    "FORMAT", "SHARES", "BoundRecord", "Entry", "Instance", "PlanRecord", "author", "entry_from_json", "entry_to_json",
]  # fmt: skip
