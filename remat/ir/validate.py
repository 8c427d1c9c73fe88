"""The validator: replays a schedule step by step in exact integers and returns its cost, or names the rule it breaks.

It shares no code with any solver. The rules and their ids are those of `docs/reference/rules.md`.
"""

from __future__ import annotations

from typing import TypeVar

from attrs import field, frozen

from remat import errors
from remat.ir.graph import Graph
from remat.ir.node import Compute, Phase
from remat.ir.schedule import Drop, Run, Schedule, Step
from remat.units import Bytes, Ns

SCHEDULE_RULES = {
    "S-NAME": "a step names a node, option or datum of the graph",
    "S-READ": "what a step reads is resident and complete; a backward layer finds the phantom of its own option",
    "S-PHASE": "the loss runs exactly once; every forward node first runs before it; no backward node runs before it",
    "S-ORDER": "first runs of nodes that draw random numbers keep the graph's order",
    "S-ONCE": "run-once nodes are never replayed; each contribution comes once per residency, in order",
    "S-KEEP": "a complete kept datum is never dropped or offloaded",
    "S-DROP": "only what is resident is dropped or offloaded, only what was offloaded is prefetched",
    "S-END": "every kept datum is resident and complete at the end",
    "S-MEM": "resident bytes, all outputs of the running node and its workspace fit the budget at every step",
    "S-LINK": "a copy has a link, uses its direction alone, and its bytes count until it has ended",
}


@frozen(kw_only=True)
class Cost:
    """What a valid schedule costs, by replay.

    Attributes:
        time: makespan of the step [ns]: runs, and waiting for copies.
        recomputation: time of all runs of nodes after their first [ns].
        idle: time the compute stream waited for copies [ns].
        peak: most bytes live in any step, inputs and buffers not counted [bytes].
        peak_step: index of the first step that reaches the peak.
        reruns: number of runs of nodes after their first.
        timeline: bytes live in each step: during a run, after any other step.
    """

    time: Ns
    recomputation: Ns = 0
    idle: Ns = 0
    peak: Bytes
    peak_step: int
    reruns: int = 0
    timeline: tuple[Bytes, ...] = field(repr=False)


def validate(graph: Graph, schedule: Schedule, budget: Bytes | None = None) -> Cost:
    """Replay `schedule` on `graph`.

    Args:
        graph: the training step.
        schedule: steps, named by the graph's names.
        budget: most bytes that may be live in any step; None: no limit.

    Returns:
        The cost, in exact integers.

    Raises:
        InvalidSchedule: the subclass of the broken rule, with rule, step, place and numbers as attributes.
    """
    replay = _Replay(graph, budget)
    for at, step in enumerate(schedule.steps):
        replay.step = at
        if type(step) is Run:
            replay.run(step)
        elif type(step) is Drop:
            replay.drop(step)
        else:
            fix = "give the link (`link=Link(…)`), or recompute instead."
            raise errors.LinkViolation("S-LINK", "a copy without a link.", step=at, place=str(step), fix=fix)
    replay.step = len(schedule.steps)
    return replay.finish()


E = TypeVar("E", bound=errors.InvalidSchedule)


class _Replay:
    """The state of a replay. A *cell* is a datum or a phantom, by name."""

    def __init__(self, graph: Graph, budget: Bytes | None) -> None:
        self.graph = graph
        self.budget = budget
        self.step = 0
        # contributions so far of a resident cell (a phantom: the option it is of); absent cells are not resident
        self.done: dict[str, int] = {datum.name: 0 for datum in graph.data if datum.outside}
        self.size = {datum.name: 0 if datum.outside else datum.size for datum in graph.data}
        self.writers = {datum.name: datum.writers for datum in graph.data}
        self.kept = {datum.name for datum in graph.data if datum.keep}
        self.phantoms = {layer.phantom: layer for layer in graph.layers}
        self.started: set[str] = set()
        self.forward_left = sum(node.phase is Phase.FORWARD for node in graph.computes)
        self.loss_done = False
        self.draws = [node.name for node in graph.computes if node.draws]
        self.drawn = 0
        self.live: Bytes = 0
        self.time: Ns = 0
        self.recomputation: Ns = 0
        self.reruns = 0
        self.timeline: list[Bytes] = []

    # -- steps ---------------------------------------------------------------------------------------------------------

    def run(self, step: Run) -> None:
        index = self.graph.node_index.get(step.node)
        if index is None:
            raise self.wrong(errors.UnknownName, "S-NAME", f"no node {step.node!r}.", step, "use the graph's names.")
        node = self.graph.computes[index]
        if step.option >= len(node.options):
            what = f"{node.name} has options 0 to {len(node.options) - 1}, not {step.option}."
            raise self.wrong(errors.UnknownName, "S-NAME", what, step, "correct the option.")
        self.check_phase(node, step)
        self.check_once(node, step)
        reads, made = self.reads_and_phantom(node, step)
        for name in reads:
            if self.done.get(name, -1) != len(self.writers[name]):
                raise self.missing(name, step)
        option = node.options[step.option]
        self.charge(node, option.workspace, made, step)
        self.store(node, made, step)
        if node.name in self.started:
            self.recomputation += option.time
            self.reruns += 1
        else:
            self.started.add(node.name)
        self.time += option.time

    def drop(self, step: Drop) -> None:
        name = step.datum
        if name not in self.done:
            known = name in self.size or name in self.phantoms
            if not known:
                raise self.wrong(errors.UnknownName, "S-NAME", f"no datum {name!r}.", step, "use the graph's names.")
            raise self.wrong(errors.NotResident, "S-DROP", f"{name} is not resident.", step, "leave the drop out.")
        if name in self.kept and self.done[name] == len(self.writers[name]):
            raise self.wrong(errors.KeptDropped, "S-KEEP", f"{name} is kept and complete.", step, "leave the drop out.")
        if name in self.writers and not self.writers[name]:
            what = f"{name} is an input or buffer; it lives outside the step."
            raise self.wrong(errors.NotResident, "S-DROP", what, step, "leave the drop out.")
        self.live -= self.bytes_of(name)
        del self.done[name]
        self.timeline.append(self.live)

    def finish(self) -> Cost:
        if not self.loss_done:
            raise self.wrong(errors.WrongPhase, "S-PHASE", "the loss never ran.", None, "run it once.")
        for name in sorted(self.kept):
            if self.done.get(name, -1) != len(self.writers[name]):
                state = "incomplete" if name in self.done else "not resident"
                fix = f"run {', '.join(self.writers[name])}."
                raise self.wrong(errors.Unfinished, "S-END", f"{name} is kept and {state} at the end.", None, fix)
        peak = max(self.timeline, default=0)
        return Cost(
            time=self.time,
            recomputation=self.recomputation,
            peak=peak,
            peak_step=self.timeline.index(peak) if self.timeline else 0,
            reruns=self.reruns,
            timeline=tuple(self.timeline),
        )

    # -- rules ---------------------------------------------------------------------------------------------------------

    def check_phase(self, node: Compute, step: Run) -> None:
        first = node.name not in self.started
        if node.phase is Phase.BACKWARD and not self.loss_done:
            what = f"the backward node {node.name} runs before the loss."
            raise self.wrong(errors.WrongPhase, "S-PHASE", what, step, "run the loss first.")
        if node.phase is Phase.FORWARD and first:
            if self.loss_done:
                what = f"the forward node {node.name} first runs after the loss."
                raise self.wrong(errors.WrongPhase, "S-PHASE", what, step, "run it once before the loss.")
            self.forward_left -= 1
        if node.phase is Phase.LOSS:
            if self.loss_done:
                raise self.wrong(errors.WrongPhase, "S-PHASE", "the loss runs twice.", step, "run it once.")
            if self.forward_left:
                what = f"{self.forward_left} forward nodes have not run yet."
                raise self.wrong(errors.WrongPhase, "S-PHASE", what, step, "run every forward node before the loss.")
            self.loss_done = True

    def check_once(self, node: Compute, step: Run) -> None:
        first = node.name not in self.started
        if node.run_once and not first:
            what = f"{node.name} may run only once."
            raise self.wrong(errors.RunTwice, "S-ONCE", what, step, "keep what it made instead.")
        if node.draws and first:
            due = self.draws[self.drawn]
            if node.name != due:
                what = f"{node.name} draws random numbers before {due}, which comes first in the graph."
                raise self.wrong(errors.WrongOrder, "S-ORDER", what, step, f"run {due} before it.")
            self.drawn += 1
        for name in node.writes:
            writers = self.writers[name]
            if len(writers) > 1:
                so_far = self.done.get(name, 0)
                due = writers[so_far] if so_far < len(writers) else "nobody, it is complete"
                if due != node.name:
                    what = f"the next contribution to {name} is due from {due}."
                    raise self.wrong(errors.RunTwice, "S-ONCE", what, step, f"keep the order, or drop {name} first.")

    def reads_and_phantom(self, node: Compute, step: Run) -> tuple[tuple[str, ...], tuple[str, Bytes] | None]:
        """What the step reads of data, and the phantom it makes; a phantom it reads is checked here."""
        layer = self.graph.layer_by_node.get(node.name) if self.phantoms else None
        if layer is None:
            return node.reads, None
        if node.name == layer.backward:
            if self.done.get(layer.phantom) != step.option:
                there = self.done.get(layer.phantom)
                state = "is not resident" if there is None else f"is that of option {there}"
                what = f"the phantom {layer.phantom} {state}, and option {step.option} needs its own."
                raise self.wrong(errors.MissingRead, "S-READ", what, step, f"run {layer.forward}#{step.option} first.")
            return (*node.reads, *layer.options[step.option].backward_reads), None
        if step.option == len(layer.options):
            return node.reads, None
        return node.reads, (layer.phantom, layer.options[step.option].phantom)

    def charge(self, node: Compute, workspace: Bytes, made: tuple[str, Bytes] | None, step: Run) -> None:
        """S-MEM: all outputs are charged, also those already resident, whose duplicate exists for a moment."""
        size = self.size
        live = self.live + workspace + (made[1] if made else 0)
        for name in node.writes:
            live += size[name]
        self.timeline.append(live)
        if self.budget is not None and live > self.budget:
            largest = sorted(((self.bytes_of(n), n) for n in self.done), key=lambda one: (-one[0], one[1]))[:3]
            residents = tuple((name, held) for held, name in largest if held)
            raise errors.BudgetExceeded(
                step=self.step, place=str(step), live=live, budget=self.budget, residents=residents
            )

    def store(self, node: Compute, made: tuple[str, Bytes] | None, step: Run) -> None:
        done = self.done
        for name in node.writes:
            if name not in done:
                done[name] = 1
                self.live += self.size[name]
            elif len(self.writers[name]) > 1:
                done[name] += 1
        if made is not None:
            if made[0] in done:
                self.live -= self.bytes_of(made[0])
            done[made[0]] = step.option
            self.live += made[1]

    # -- words ---------------------------------------------------------------------------------------------------------

    def bytes_of(self, name: str) -> Bytes:
        if name in self.phantoms:
            return self.phantoms[name].options[self.done[name]].phantom
        return self.size[name]

    def missing(self, name: str, step: Run) -> errors.MissingRead:
        if name in self.done:
            what = f"{name} has {self.done[name]} of {len(self.writers[name])} contributions."
            fix = f"run {', '.join(self.writers[name][self.done[name] :])} first."
        else:
            what = f"{name} is not resident."
            fix = f"run {', '.join(self.writers[name])} before it, or drop {name} later."
        return self.wrong(errors.MissingRead, "S-READ", what, step, fix)

    def wrong(self, kind: type[E], rule: str, what: str, step: Step | None, fix: str) -> E:
        return kind(rule, what, step=self.step, place="the end" if step is None else str(step), fix=fix)
