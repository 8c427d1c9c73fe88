"""Plans that were saved: whether one is of a captured step, and what it costs with the workspaces of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

from attrs import frozen

from remat.algorithms import Outcome
from remat.errors import BudgetExceeded, InvalidSchedule, StalePlan
from remat.exec._program.digest import program_digest
from remat.exec._program.program import Program, Value
from remat.exec._program.signatures import signature
from remat.ir import Graph, Link, SavedPlan, validate
from remat.units import Bytes, format_bytes

SHOWN = 3
"""How many differences a message lists."""


@frozen(kw_only=True)
class Replay:
    """A saved plan that a captured step is to run.

    Attributes:
        plan: the plan.
        origin: where it comes from, for people.
        same_machine: whether its times, bound and rehearsal are of this machine.
    """

    plan: SavedPlan
    origin: str
    same_machine: bool

    def outcome(self, graph: Graph, asked: Bytes, overhead: Bytes, link: Link | None = None) -> Outcome:
        """The plan, replayed on a graph with the sizes and workspaces of this machine.

        Args:
            graph: of the step, as measured here.
            asked: the budget [bytes].
            overhead: bytes of it that a call holds besides the plan.
            link: that copies of the plan go over; None: a plan with copies is refused.

        Raises:
            StalePlan: X-FIT, it does not fit the budget here; X-STALE, it is not a schedule of this graph.
        """
        plan = self.plan
        if link is None and plan.link is not None:
            fix = 'give offload, as when it was made (True, "disk" or a Link), or plan anew: leave plan= out.'
            raise StalePlan(
                "X-STALE", f"{self.origin} copies data out of the device.", differs=("it makes copies",), fix=fix
            )
        try:
            cost = validate(graph, plan.schedule, None, link)
        except InvalidSchedule as error:
            differs = (f"its schedule is not one of this step: {error}",)
            raise stale(self.origin, differs) from error
        try:
            cost = validate(graph, plan.schedule, max(0, asked - overhead), link)
        except BudgetExceeded as error:
            needs = cost.peak + overhead
            differs = (
                f"with the sizes and workspaces of this machine it holds {format_bytes(needs)} ({needs} B), and the budget is "
                f"{format_bytes(asked)} ({asked} B)",
            )
            fix = f'give at least {needs} bytes, or plan anew: leave plan= out, or give on_stale="plan".'
            raise StalePlan("X-FIT", f"{self.origin}: {differs[0]}.", differs=differs, fix=fix) from error
        same = self.same_machine and graph == plan.graph
        bound = same and asked - overhead <= plan.budget - plan.overhead
        trail = (*plan.trail, f"replayed, not planned: {self.note}")
        return Outcome(schedule=plan.schedule, cost=cost, lower=plan.lower if bound else 0, trail=trail)

    def without_room(self, what: str, need: Bytes) -> StalePlan:
        """A refusal where the copies of the plan take more on the host than they may."""
        fix = f'give a host_budget of at least {need} bytes, or plan anew: leave plan= out, or give on_stale="plan".'
        return StalePlan("X-FIT", f"{self.origin}: {what}", differs=(what.rstrip("."),), fix=fix)

    @property
    def note(self) -> str:
        """Where the plan comes from, and whose times it was made with."""
        times = "" if self.same_machine else "; it was made with the times of another machine or version"
        return f"{self.origin}{times}"


def stale(origin: str, differs: tuple[str, ...]) -> StalePlan:
    """A refusal that lists what differs."""
    more = f"; and {len(differs) - SHOWN} more" if len(differs) > SHOWN else ""
    what = f"{origin} is not for this step: {'; '.join(differs[:SHOWN])}{more}."
    fix = 'wrap the same model and shapes, or plan anew: leave plan= out, or give on_stale="plan".'
    return StalePlan("X-STALE", what, differs=differs, fix=fix)


def fingerprint(program: Program) -> str:
    """What a program and the plan of a file must share, whatever the device."""
    return program_digest(program, any_device=True)


def tensor_lines(program: Program) -> tuple[str, ...]:
    """Parameters, buffers and inputs with their types and shapes, and which get gradients, one a line."""
    sources = (
        *((value, "parameter", path, ("param", path)) for value, path in program.params),
        *((value, "buffer", path, ("buffer", path)) for value, path in program.buffers),
        *((value, "input", position, ("input", position)) for value, position in program.inputs),
    )
    lines = (
        f"{kind} {name} {_type(program.values[value])}{'' if key in program.grads else ', no gradient'}"
        for value, kind, name, key in sources
    )
    return tuple(dict.fromkeys(lines))


def _type(value: Value) -> str:
    kind = str(value.spec.dtype).removeprefix("torch.")
    return f"{kind}{list(value.spec.shape)}"


def differences(program: Program, plan: SavedPlan) -> tuple[str, ...]:
    """What tells a captured step from the one that a plan was made for, one phrase each."""
    of_step, of_plan = tensor_lines(program), plan.tensors
    of_tensors = (*_tensors_that_differ(of_step, of_plan),)
    if of_tensors:
        return of_tensors
    if program.name != plan.graph.name:
        return (f"the module is a {program.name}, and the plan is of a {plan.graph.name}",)
    return (*_operations_that_differ(program, plan.graph),) or (
        "views, constants or arguments of operations are others",
    )


def _tensors_that_differ(of_step: tuple[str, ...], of_plan: tuple[str, ...]) -> Iterator[str]:
    mine, theirs = ({_named(line): line for line in lines} for lines in (of_step, of_plan))
    for name in dict.fromkeys((*mine, *theirs)):
        if name not in theirs:
            yield f"{mine[name]} is not in the plan"
        elif name not in mine:
            yield f"{theirs[name]} of the plan is not here"
        elif mine[name] != theirs[name]:
            yield f"{name} is {mine[name].removeprefix(name + ' ')} here and {theirs[name].removeprefix(name + ' ')} in the plan"


def _named(line: str) -> str:
    """Kind and name of a tensor."""
    return " ".join(line.split(" ")[:2])


def _operations_that_differ(program: Program, graph: Graph) -> Iterator[str]:
    """The first operation that differs, and how many there are."""
    for op, node in zip_longest(program.nodes, graph.computes):
        mine = None if op is None else (op.name, op.scope, _anywhere(signature(program, op)))
        theirs = None if node is None else (node.name, node.scope, _anywhere(node.signature))
        if mine != theirs:
            yield f"the first operation that differs is {_words(mine)} here and {_words(theirs)} in the plan"
            break
    if len(program.nodes) != len(graph):
        yield f"there are {len(program.nodes)} operations here and {len(graph)} in the plan"


def _anywhere(text: str) -> str:
    """A signature without devices."""
    return "".join(
        part if i == 0 else part.lstrip("abcdefghijklmnopqrstuvwxyz:0123456789")
        for i, part in enumerate(text.split("@"))
    )


def _words(operation: tuple[str, str, str] | None) -> str:
    if operation is None:
        return "none"
    name, scope, text = operation
    shown = text if len(text) <= 100 else f"{text[:100]}…"
    return f"{name} ({shown}) in {scope or 'the module itself'}"


__all__ = ["Replay", "differences", "fingerprint", "stale", "tensor_lines"]
