"""Kinds of corruption of a valid schedule, each with the rule that it breaks and the step at which the validator must report it.

For authors of validators and of lowerings: a table of schedules that must be refused. Does not need hypothesis.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

from remat.ir import Drop, Graph, Kind, Link, Offload, Phase, Prefetch, Run, Schedule, Step, validate
from remat.units import Bytes


@frozen(kw_only=True)
class Corrupted:
    """A schedule that breaks a rule.

    Attributes:
        schedule: the schedule. step: index of the step at fault; the schedule's length for the end.
        budget, link: for the validation.
    """

    schedule: Schedule
    step: int
    budget: Bytes | None = None
    link: Link | None = None


Maker = Callable[[Graph, list[Step]], Corrupted | None]


@frozen
class Corruption:
    """One kind: its name, the rule it breaks, and a function that corrupts a valid schedule without copies, or returns None."""

    name: str
    rule: str
    make: Maker


def _at(steps: list[Step], step: int, budget: Bytes | None = None, link: Link | None = None) -> Corrupted:
    return Corrupted(schedule=Schedule(tuple(steps)), step=step, budget=budget, link=link)


def _runs(steps: list[Step], names: set[str]) -> list[int]:
    return [i for i, step in enumerate(steps) if isinstance(step, Run) and step.node in names]


def _loss(graph: Graph, steps: list[Step]) -> int:
    return _runs(steps, {graph.computes[graph.loss].name})[0]


def _unknown_node(graph: Graph, steps: list[Step]) -> Corrupted | None:
    return _at([Run("nobody"), *steps], 0)


def _unknown_option(graph: Graph, steps: list[Step]) -> Corrupted | None:
    first = _runs(steps, set(graph.node_index))[0]
    node = graph.node(steps[first].node)  # type: ignore[union-attr]
    return _at([*steps[:first], Run(node.name, len(node.options)), *steps[first + 1 :]], first)


def _unknown_datum(graph: Graph, steps: list[Step]) -> Corrupted | None:
    return _at([*steps, Drop("nothing")], len(steps))


def _no_producer(graph: Graph, steps: list[Step]) -> Corrupted | None:
    """A run is left out whose outputs the next run, of a forward node, reads."""
    for i in range(len(steps) - 1):
        first, second = steps[i], steps[i + 1]
        if not (isinstance(first, Run) and isinstance(second, Run)) or first in steps[:i]:
            continue
        outputs, reads = set(graph.node(first.node).writes), set(graph.node(second.node).reads)
        fresh = not any(isinstance(s, Run) and outputs & set(graph.node(s.node).writes) for s in steps[:i])
        same = graph.node(first.node).phase is graph.node(second.node).phase is Phase.FORWARD
        if (
            outputs & reads
            and fresh
            and same
            and not graph.node(first.node).draws
            and not graph.node(second.node).draws
        ):
            return _at([*steps[:i], *steps[i + 1 :]], i)
    return None


def _dropped_too_early(graph: Graph, steps: list[Step]) -> Corrupted | None:
    for i in range(1, len(steps)):
        run, drop = steps[i - 1], steps[i]
        if isinstance(run, Run) and isinstance(drop, Drop) and drop.datum in graph.node(run.node).reads:
            return _at([*steps[: i - 1], drop, run, *steps[i + 1 :]], i)
    return None


def _sums(graph: Graph) -> list[str]:
    return [datum.name for datum in graph.data if len(datum.writers) > 1]


def _contribution_left_out(graph: Graph, steps: list[Step]) -> Corrupted | None:
    """The last contribution to the first sum with a reader is left out; the reader is at fault."""
    for name in _sums(graph):
        last = graph.datum(name).writers[-1]
        places = _runs(steps, {last})
        readers = _runs(steps, {node.name for node in graph.computes if name in node.reads})
        writes_more = len(graph.node(last).writes) > 1
        if len(places) == 1 and readers and readers[0] > places[0] and not writes_more:
            left = [*steps[: places[0]], *steps[places[0] + 1 :]]
            drops = [i for i, step in enumerate(left) if step == Drop(name) and i < readers[0] - 1]
            if not drops:
                return _at(left, readers[0] - 1)
    return None


def _phantom_of_another_option(graph: Graph, steps: list[Step]) -> Corrupted | None:
    for layer in graph.layers:
        places = _runs(steps, {layer.backward})
        if len(layer.options) > 1 and places:
            run = steps[places[0]]
            other = Run(layer.backward, 1 - min(1, run.option))  # type: ignore[union-attr]
            return _at([*steps[: places[0]], other, *steps[places[0] + 1 :]], places[0])
    return None


def _loss_twice(graph: Graph, steps: list[Step]) -> Corrupted | None:
    at = _loss(graph, steps)
    return _at([*steps[: at + 1], steps[at], *steps[at + 1 :]], at + 1)


def _no_loss(graph: Graph, steps: list[Step]) -> Corrupted | None:
    at = _loss(graph, steps)
    later = [i for i in range(at + 1, len(steps)) if isinstance(steps[i], Run)]
    first = next((i for i in later if graph.node(steps[i].node).phase is Phase.BACKWARD), None)  # type: ignore[union-attr]
    return None if first is None or later[0] != first else _at([*steps[:at], *steps[at + 1 :]], first - 1)


def _forward_left_out(graph: Graph, steps: list[Step]) -> Corrupted | None:
    """A forward node whose outputs are not read up to the loss first runs after it."""
    at = _loss(graph, steps)
    for node in graph.computes[: graph.loss]:
        used = set(node.writes)
        early = [step for step in steps[: at + 1] if isinstance(step, Run)]
        layer = graph.layer_by_node.get(node.name)
        if layer is None and not node.draws and not any(used & set(graph.node(step.node).reads) for step in early):
            left = [step for step in steps[:at] if not (isinstance(step, Run) and step.node == node.name)]
            left = [step for step in left if getattr(step, "datum", "") not in used]
            return _at([*left, *steps[at:]], len(left))
    return None


def _backward_before_the_loss(graph: Graph, steps: list[Step]) -> Corrupted | None:
    names = [node.name for node in graph.computes if node.phase is Phase.BACKWARD]
    return _at([Run(names[0]), *steps], 0) if names else None


def _draws_out_of_order(graph: Graph, steps: list[Step]) -> Corrupted | None:
    draws = [node for node in graph.computes if node.draws]
    if len(draws) < 2 or draws[1].phase is not Phase.FORWARD:
        return None
    return _at([Run(draws[1].name), *steps], 0)


def _run_once_again(graph: Graph, steps: list[Step]) -> Corrupted | None:
    once = {node.name for node in graph.computes if node.run_once and node.phase is not Phase.LOSS}
    places = _runs(steps, once)
    return _at([*steps[: places[0] + 1], *steps[places[0] :]], places[0] + 1) if places else None


def _contribution_again(graph: Graph, steps: list[Step]) -> Corrupted | None:
    writers = {name for datum in _sums(graph) for name in graph.datum(datum).writers}
    places = _runs(steps, {name for name in writers if not graph.node(name).run_once})
    return _at([*steps[: places[0] + 1], *steps[places[0] :]], places[0] + 1) if places else None


def _contribution_out_of_order(graph: Graph, steps: list[Step]) -> Corrupted | None:
    """The last contribution to a sum is made before the first."""
    for name in _sums(graph):
        first, last = (graph.datum(name).writers[k] for k in (0, -1))
        place = _runs(steps, {first})[0]
        if place > _loss(graph, steps) and graph.node(last).phase is Phase.BACKWARD and not graph.node(last).draws:
            return _at([*steps[:place], Run(last), *steps[place:]], place)
    return None


def _kept_dropped(graph: Graph, steps: list[Step]) -> Corrupted | None:
    kept = [datum.name for datum in graph.data if datum.keep]
    return _at([*steps, Drop(kept[0])], len(steps)) if kept else None


def _dropped_twice(graph: Graph, steps: list[Step]) -> Corrupted | None:
    places = [i for i, step in enumerate(steps) if isinstance(step, Drop)]
    return _at([*steps[: places[0] + 1], *steps[places[0] :]], places[0] + 1) if places else None


def _input_dropped(graph: Graph, steps: list[Step]) -> Corrupted | None:
    inputs = [datum.name for datum in graph.data if datum.outside]
    return _at([Drop(inputs[0]), *steps], 0) if inputs else None


def _dropped_before_it_is_made(graph: Graph, steps: list[Step]) -> Corrupted | None:
    produced = [datum.name for datum in graph.data if not datum.outside]
    return _at([Drop(produced[-1]), *steps], 0)


def _cut_short(graph: Graph, steps: list[Step]) -> Corrupted | None:
    """All steps from the first run that completes a kept datum of the backward are missing."""
    at = _loss(graph, steps)
    kept = {w for datum in graph.data if datum.keep for w in datum.writers if graph.node(w).phase is Phase.BACKWARD}
    places = [i for i in _runs(steps, kept) if i > at]
    return _at(steps[: places[0]], places[0]) if places else None


def _a_byte_too_few(graph: Graph, steps: list[Step]) -> Corrupted | None:
    cost = validate(graph, Schedule(tuple(steps)))
    return _at(steps, cost.peak_step, budget=cost.peak - 1) if cost.peak else None


def _movable(graph: Graph, steps: list[Step]) -> tuple[int, str] | None:
    """A datum, and the step after which it is resident, complete and may be copied."""
    for i, step in enumerate(steps):
        if isinstance(step, Run):
            for name in graph.node(step.node).writes:
                if len(graph.datum(name).writers) == 1 and not graph.datum(name).keep:
                    return i + 1, name
    return None


def _copy_without_a_link(graph: Graph, steps: list[Step]) -> Corrupted | None:
    place = _movable(graph, steps)
    return None if place is None else _at([*steps[: place[0]], Offload(place[1]), *steps[place[0] :]], place[0])


def _prefetch_of_nothing(graph: Graph, steps: list[Step]) -> Corrupted | None:
    produced = next((datum.name for datum in graph.data if not datum.outside), None)
    return None if produced is None else _at([Prefetch(produced), *steps], 0, link=Link())


def _read_while_away(graph: Graph, steps: list[Step]) -> Corrupted | None:
    for i in range(1, len(steps)):
        step = steps[i]
        if isinstance(step, Run):
            for name in graph.node(step.node).reads:
                datum = graph.datum(name)
                if not datum.keep and not datum.outside:
                    return _at([*steps[:i], Offload(name), *steps[i:]], i + 1, link=Link())
    return None


def _kept_offloaded(graph: Graph, steps: list[Step]) -> Corrupted | None:
    kept = [datum.name for datum in graph.data if datum.keep and datum.kind is not Kind.INPUT]
    return _at([*steps, Offload(kept[0])], len(steps), link=Link()) if kept else None


CORRUPTIONS = (
    Corruption("unknown node", "S-NAME", _unknown_node),
    Corruption("unknown option", "S-NAME", _unknown_option),
    Corruption("unknown datum", "S-NAME", _unknown_datum),
    Corruption("producer left out", "S-READ", _no_producer),
    Corruption("dropped too early", "S-READ", _dropped_too_early),
    Corruption("contribution left out", "S-READ", _contribution_left_out),
    Corruption("phantom of another option", "S-READ", _phantom_of_another_option),
    Corruption("read while offloaded", "S-READ", _read_while_away),
    Corruption("loss twice", "S-PHASE", _loss_twice),
    Corruption("no loss", "S-PHASE", _no_loss),
    Corruption("forward node first run after the loss", "S-PHASE", _forward_left_out),
    Corruption("backward node before the loss", "S-PHASE", _backward_before_the_loss),
    Corruption("random draws out of order", "S-ORDER", _draws_out_of_order),
    Corruption("run-once node again", "S-ONCE", _run_once_again),
    Corruption("contribution again", "S-ONCE", _contribution_again),
    Corruption("contributions out of order", "S-ONCE", _contribution_out_of_order),
    Corruption("kept datum dropped", "S-KEEP", _kept_dropped),
    Corruption("kept datum offloaded", "S-KEEP", _kept_offloaded),
    Corruption("dropped twice", "S-DROP", _dropped_twice),
    Corruption("input dropped", "S-DROP", _input_dropped),
    Corruption("dropped before it is made", "S-DROP", _dropped_before_it_is_made),
    Corruption("prefetch of what was not offloaded", "S-DROP", _prefetch_of_nothing),
    Corruption("cut short", "S-END", _cut_short),
    Corruption("a byte too few", "S-MEM", _a_byte_too_few),
    Corruption("copy without a link", "S-LINK", _copy_without_a_link),
)
"""Every kind of corruption."""
