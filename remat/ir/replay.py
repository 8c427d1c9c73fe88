"""One replay of a schedule: the state, and every rule that does not concern copies, step by step in exact integers.

`validate` drives it; `transfer.py` extends it to schedules with copies. It shares no code with any solver.
"""

from __future__ import annotations

from typing import TypeVar

from remat import errors
from remat.ir.cost import Cost
from remat.ir.graph import Graph
from remat.ir.node import Compute, Phase
from remat.ir.schedule import Schedule
from remat.ir.step import Drop, Run, Step
from remat.units import Bytes, Ns

E = TypeVar("E", bound=errors.InvalidSchedule)


class Replay:
    """The state of a replay. A *cell* is a datum or a phantom, by name."""

    def __init__(self, graph: Graph, schedule: Schedule, budget: Bytes | None) -> None:
        self.graph = graph
        self.schedule = schedule
        self.budget = budget
        self.step = 0
        # contributions so far of a resident cell (a phantom: the option it is of); absent cells are not resident
        self.done: dict[str, int] = {datum.name: 0 for datum in graph.data if datum.outside}
        self._describe_cells(graph)
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

    def _describe_cells(self, graph: Graph) -> None:
        """What each cell is: its bytes, its writers, whether it is kept, and the layer of a phantom."""
        self.size = {datum.name: 0 if datum.outside else datum.size for datum in graph.data}
        self.writers = {datum.name: datum.writers for datum in graph.data}
        self.kept = {datum.name for datum in graph.data if datum.keep}
        self.phantoms = {layer.phantom: layer for layer in graph.layers}

    def play(self) -> Cost:
        """The cost, or the error of the first broken rule."""
        for at, step in enumerate(self.schedule.steps):
            self.step = at
            if type(step) is Run:
                self.run(step)
            elif type(step) is Drop:
                self.drop(step)
            else:
                self.copy(step)
        self.step = len(self.schedule.steps)
        return self.finish()

    # -- steps ---------------------------------------------------------------------------------------------------------

    def run(self, step: Run) -> None:
        """Check the rules, charge the bytes, book the time."""
        node, _, phantom = self.check(step)
        option = node.options[step.option]
        live = self.live + option.workspace + (phantom[1] if phantom else 0)
        for name in node.writes:  # S-MEM: also those already resident, whose duplicate exists for a moment
            live += self.size[name]
        self.timeline.append(live)
        if self.budget is not None and live > self.budget:
            raise self.over_budget(live, step)
        self.store(node, phantom, step)
        self.book(node, option.time)

    def copy(self, step: Step) -> None:
        """Refuse: a replay without a link makes no copies."""
        fix = "give the link (`link=Link(…)`), or recompute instead."
        raise self.wrong(errors.LinkViolation, "S-LINK", "a copy without a link.", step, fix)

    def drop(self, step: Drop) -> None:
        """Free a cell."""
        name = step.datum
        if name not in self.done:
            self.check_name(name, step)
            raise self.wrong(errors.NotResident, "S-DROP", f"{name} is not resident.", step, "leave the drop out.")
        if name in self.kept and self.done[name] == len(self.writers[name]):
            raise self.wrong(errors.KeptDropped, "S-KEEP", f"{name} is kept and complete.", step, "leave the drop out.")
        if name in self.writers and not self.writers[name]:
            what = f"{name} is an input or buffer; it lives outside the step."
            raise self.wrong(errors.NotResident, "S-DROP", what, step, "leave the drop out.")
        self.live -= self.bytes_of(name)
        del self.done[name]
        self.timeline.append(self.live)

    def check_name(self, name: str, step: Step) -> None:
        """S-NAME, for a datum or phantom."""
        if name not in self.size and name not in self.phantoms:
            raise self.wrong(errors.UnknownName, "S-NAME", f"no datum {name!r}.", step, "use the graph's names.")

    def finish(self) -> Cost:
        """S-PHASE and S-END, then the cost."""
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
            played=(self.graph, self.schedule),
        )

    # -- rules ---------------------------------------------------------------------------------------------------------

    def check(self, step: Run) -> tuple[Compute, tuple[str, ...], tuple[str, Bytes] | None]:
        """Every rule of a run but S-MEM: the node, the data it reads, the phantom it makes."""
        index = self.graph.node_index.get(step.node)
        if index is None:
            raise self.wrong(errors.UnknownName, "S-NAME", f"no node {step.node!r}.", step, "use the graph's names.")
        node = self.graph.computes[index]
        if step.option >= len(node.options):
            what = f"{node.name} has options 0 to {len(node.options) - 1}, not {step.option}."
            raise self.wrong(errors.UnknownName, "S-NAME", what, step, "correct the option.")
        self.check_phase(node, step)
        self.check_once(node, step)
        reads, phantom = self.reads_and_phantom(node, step)
        done, writers = self.done, self.writers
        for name in reads:
            if done.get(name, -1) != len(writers[name]):
                raise self.missing(name, step)
        return node, reads, phantom

    def book(self, node: Compute, time: Ns) -> None:
        """Count the run's time, as recomputation unless it is the node's first."""
        if node.name in self.started:
            self.recomputation += time
            self.reruns += 1
        else:
            self.started.add(node.name)
        self.time += time

    def check_phase(self, node: Compute, step: Run) -> None:
        """S-PHASE."""
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
        """S-ONCE and S-ORDER."""
        first = node.name not in self.started
        if node.run_once and not first:
            what = f"{node.name} may run only once."
            raise self.wrong(errors.RunTwice, "S-ONCE", what, step, "keep its outputs instead.")
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
                due = writers[so_far] if so_far < len(writers) else "no node: it is complete"
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
                saved_by = self.done.get(layer.phantom)
                state = "is not resident" if saved_by is None else f"is that of option {saved_by}"
                what = f"the phantom {layer.phantom} {state}, and option {step.option} needs its own."
                raise self.wrong(errors.MissingRead, "S-READ", what, step, f"run {layer.forward}#{step.option} first.")
            return (*node.reads, *layer.options[step.option].backward_reads), None
        if step.option == len(layer.options):
            return node.reads, None
        return node.reads, (layer.phantom, layer.options[step.option].phantom)

    def store(self, node: Compute, phantom: tuple[str, Bytes] | None, step: Run) -> None:
        """Make the outputs resident."""
        done = self.done
        for name in node.writes:
            if name not in done:
                done[name] = 1
                self.live += self.size[name]
            elif len(self.writers[name]) > 1:
                done[name] += 1
        if phantom is not None:
            if phantom[0] in done:
                self.live -= self.bytes_of(phantom[0])
            done[phantom[0]] = step.option
            self.live += phantom[1]

    # -- words ---------------------------------------------------------------------------------------------------------

    def bytes_of(self, name: str) -> Bytes:
        """Bytes of a resident cell; a phantom's are those of its option."""
        if name in self.phantoms:
            return self.phantoms[name].options[self.done[name]].phantom
        return self.size[name]

    def over_budget(self, live: Bytes, step: Step | None) -> errors.BudgetExceeded:
        """S-MEM, as an error."""
        assert self.budget is not None
        largest = sorted(((self.bytes_of(n), n) for n in self.done), key=lambda pair: (-pair[0], pair[1]))[:3]
        residents = tuple((name, size) for size, name in largest if size)
        place = "the end" if step is None else str(step)
        return errors.BudgetExceeded(step=self.step, place=place, live=live, budget=self.budget, residents=residents)

    def missing(self, name: str, step: Step) -> errors.MissingRead:
        """S-READ, as an error."""
        if name in self.done:
            what = f"{name} has {self.done[name]} of {len(self.writers[name])} contributions."
            fix = f"run {', '.join(self.writers[name][self.done[name] :])} first."
        else:
            what = f"{name} is not resident."
            fix = f"run {', '.join(self.writers[name])} before it, or drop {name} later."
        return self.wrong(errors.MissingRead, "S-READ", what, step, fix)

    def wrong(self, kind: type[E], rule: str, what: str, step: Step | None, fix: str) -> E:
        """The error of a broken rule, at this step."""
        return kind(rule, what, step=self.step, place="the end" if step is None else str(step), fix=fix)
