"""Schedules: tuples of steps over one graph, named by the names of its nodes and data.

Without copies the natural form is the *run sequence*, the list of runs alone: `Schedule.from_runs` places every drop.
Only `validate` decides whether a schedule is valid, and what it costs.
"""

from __future__ import annotations

from collections.abc import Iterable

from attrs import field, frozen

from remat.errors import IllFormed
from remat.ir.graph import Graph
from remat.ir.node import Data
from remat.ir.step import Run, Step, some_steps
from remat.settings import MANY, instance, takes


@frozen
class Schedule:
    """A sequence of steps of one training step."""

    steps: tuple[Step, ...] = field(validator=some_steps)

    def __len__(self) -> int:
        return len(self.steps)

    def __repr__(self) -> str:
        return f"<Schedule: {len(self.runs)} runs, {len(self.steps)} steps>"

    @property
    def runs(self) -> tuple[Run, ...]:
        """The run sequence: the runs alone, in order."""
        return tuple(step for step in self.steps if isinstance(step, Run))

    @classmethod
    @takes(graph=instance(Graph, "remat.load(path)"), runs=MANY)
    def from_runs(cls, graph: Graph, runs: Iterable[Run | str | int]) -> Schedule:
        """The schedule of a run sequence, each drop placed as early as it can be.

        A datum is dropped at its last read before its next production; one without a reader before its next production
        is dropped after its run. Of a datum with several writers, the next production is the next run of its first
        writer. Kept data are never dropped, except an incomplete sum that is started again.

        Args:
            graph: the graph of the runs.
            runs: runs, or names or indices of nodes (run by their option 0).

        Raises:
            IllFormed: G-UNKNOWN, when a run names a node or option that the graph does not have.
        """
        sequence = [_named(graph, item) for item in runs]
        drops = _drops(graph, sequence)
        steps: list[Step] = []
        for run, dropped in zip(sequence, drops, strict=True):
            steps.append(run)
            steps.extend(graph.drops[name] for name in dropped)
        return cls(tuple(steps))


def _named(graph: Graph, item: Run | str | int) -> Run:
    if isinstance(item, int):
        if not 0 <= item < len(graph):
            fix = f"give 0 to {len(graph) - 1}."
            raise IllFormed("G-UNKNOWN", f"a run names node {item} of {len(graph)}.", fix=fix)
        return graph.first_runs[item]
    run = Run(item) if isinstance(item, str) else item
    if not isinstance(run, Run):
        what = f"{item!r:.80} is not a run, a name or an index of a node."
        raise IllFormed("G-TYPE", what, fix='give e.g. Run("F"), "F" or 0.')
    if run.node not in graph.node_index or run.option >= len(graph.node(run.node).options):
        raise IllFormed("G-UNKNOWN", f"{run} names a node or option that does not exist.", fix="correct the name.")
    return run


def _drops(graph: Graph, sequence: list[Run]) -> list[list[str]]:
    """The names to drop after each run, by one backward pass: whether a datum is read before it is recomputed."""
    needed = {datum.name: datum.keep for datum in graph.data}
    needed.update((layer.phantom, False) for layer in graph.layers)
    first_writer = _first_writers(graph)
    never = {datum.name for datum in graph.data if _never_dropped(datum)}
    drops: list[list[str]] = []
    for run in reversed(sequence):
        reads, makes = graph.touched(run)
        touched = dict.fromkeys((*reads, *makes))
        drops.append([name for name in touched if not needed[name] and name not in never])
        for name in makes:
            # A later contribution needs the earlier ones: only the first writer's run starts a residency.
            needed[name] = first_writer.get(name, run.node) != run.node
        needed.update(dict.fromkeys(reads, True))
    drops.reverse()
    return drops


def _first_writers(graph: Graph) -> dict[str, str]:
    return {datum.name: datum.writers[0] for datum in graph.data if datum.writers}


def _never_dropped(datum: Data) -> bool:
    """Whether no drop of a datum is legal; a kept sum may go while it is incomplete, before its first writer starts it again."""
    return datum.outside or (datum.keep and len(datum.writers) == 1)
