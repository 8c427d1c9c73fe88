"""Arguments that several commands share: graphs, schedules, budgets and links from the command line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from remat.budget import Share, parse_budget
from remat.errors import BadArgument, MalformedFile
from remat.ir import Graph, Link, PlanFile, SavedPlan, Schedule, load, read_joint_graph, read_plans, validate
from remat.ir.json_document import naming
from remat.units import Bytes, Ns, parse_bytes

if TYPE_CHECKING:
    from remat.algorithms._core.solver import Solver

T = TypeVar("T", Graph, Schedule)

_TIMES = {"": 1, "ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}


def read(path: Path) -> Graph | Schedule | PlanFile:
    """A graph, a schedule or plans in any form this library reads: JSON, gzipped or not, or text; errors name the file."""
    with naming(path.name):
        return _read(path)


def _read(path: Path) -> Graph | Schedule | PlanFile:
    try:
        return load(path)
    except MalformedFile as error:
        if error.rule != "F-FORMAT":
            raise
        first = error
    try:
        return read_plans(path)
    except MalformedFile as error:
        if error.rule == "F-JSON":  # a text form of another version: what was wrong with the first says more
            raise first from None
        if error.rule != "F-FORMAT" or error.where != "$.format":
            raise
    try:
        return read_joint_graph(path)
    except MalformedFile as error:
        if error.where == "$.schema":  # not of that form either: what was wrong with the first says more
            raise first from None
        raise


def read_graph(path: Path) -> Graph:
    """A graph.

    Raises:
        BadArgument: C-KIND, when the file holds something else.
    """
    return _of_kind(path, Graph, "a graph", "give the graph first.")


def read_schedule(path: Path) -> Schedule:
    """A schedule.

    Raises:
        BadArgument: C-KIND, when the file holds something else.
    """
    return _of_kind(path, Schedule, "a schedule", "give the schedule second.")


def _of_kind(path: Path, kind: type[T], words: str, fix: str) -> T:
    content = read(path)
    if isinstance(content, kind):
        return content
    raise BadArgument("C-KIND", f"{path} holds {kind_of(content)}, not {words}.", fix=fix)


def kind_of(content: Graph | Schedule | PlanFile) -> str:
    """What a file holds, in words."""
    return "plans" if isinstance(content, PlanFile) else "a graph" if isinstance(content, Graph) else "a schedule"


def plan_at(plans: PlanFile, place: int) -> SavedPlan:
    """One of the plans of a file.

    Raises:
        BadArgument: C-PLAN, when there are fewer.
    """
    if not 0 <= place < len(plans.plans):
        fix = f"give --plan 0 to {len(plans.plans) - 1}."
        raise BadArgument("C-PLAN", f"there is no plan {place} of {len(plans.plans)}.", fix=fix)
    return plans.plans[place]


def read_budget(text: str, graph: Graph) -> Bytes:
    """A budget: `6GiB`, `4096`, or `40%` of the peak of the captured order."""
    parsed = parse_budget(text)
    if not isinstance(parsed, Share):
        return parsed
    return parsed.bytes(validate(graph, Schedule.from_runs(graph, range(len(graph)))).peak)


def read_link(text: str) -> Link:
    """A link: `12GB/s`, `12GB/s,10us`, or both ways apart, to the host first: `12GB/s,10us:16GB/s,5us`.

    Raises:
        BadArgument: C-LINK, when the text is not a link.
    """
    ways = [_way(part) for part in text.split(":")]
    if not 1 <= len(ways) <= 2:
        raise _no_link(text)
    (down, wait_down), (up, wait_up) = ways[0], ways[-1]
    return Link(to_host=down, to_device=up, to_host_latency=wait_down, to_device_latency=wait_up)


def read_host_budget(text: str | None, link: str | None) -> Bytes | None:
    """Most bytes of copies on the host: `6GiB`, `4096`; None: no limit.

    Raises:
        BadArgument: C-LINK, when there is no link to copy over.
    """
    if text is not None and link is None:
        raise BadArgument("C-LINK", "--host-budget limits copies, and there is no link.", fix='add --link "12GB/s".')
    return None if text is None else parse_bytes(text)


def _way(text: str) -> tuple[int | None, Ns]:
    speed, _, latency = text.partition(",")
    bandwidth = None
    if speed.strip() != "unbounded":
        if not speed.strip().endswith("/s"):
            raise _no_link(text)
        bandwidth = parse_bytes(speed.strip().removesuffix("/s"))
    match = re.fullmatch(r"\s*([0-9]{0,19})\s*([a-z]*)\s*", latency)  # 2^63 ns have 19 digits
    if match is None or match.group(2) not in _TIMES:
        raise _no_link(text)
    return bandwidth, int(match.group(1) or 0) * _TIMES[match.group(2)]


def _no_link(text: str) -> BadArgument:
    return BadArgument(
        "C-LINK", f"{text!r:.80} is not a link.", fix='write "12GB/s", "12GB/s,10us" or "12GB/s:16GB/s".'
    )


def read_solver(text: str) -> Solver:
    """The solver that an expression of the algebra stands for.

    Raises:
        BadArgument: A-EXPR, when it stands for something else; what `parse` and the solver say of it.
    """
    from remat.algorithms._core.solver import Solver
    from remat.algorithms._plugins.expression import parse

    solver = parse(text)
    if not isinstance(solver, Solver):
        raise not_a(text, "solver", solver, "auto, or StoreAll()")
    return solver


def not_a(text: str, kind: str, value: object, examples: str) -> BadArgument:
    """An expression that stands for something else: A-EXPR; a class lacks its parentheses."""
    fix = f"write {text}(), with its settings." if isinstance(value, type) else f"write e.g. {examples}."
    what = "a class" if isinstance(value, type) else f"{value!r:.80}"
    return BadArgument("A-EXPR", f"{text!r:.80} is not a {kind} but {what}.", fix=fix)
