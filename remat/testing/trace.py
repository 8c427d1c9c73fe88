"""The state before each step of a valid schedule without copies, by names: which nodes have run, which data are resident.

For maps from schedules to points of formulations (`remat.testing.relaxation`). It shares no code with replay or with the arrays
of solvers.
"""

from __future__ import annotations

from remat.ir import Drop, Graph, Run, Schedule
from remat.units import Bytes, Ns


class Trace:
    """A valid schedule, step by step.

    Attributes:
        graph, schedule: the arguments.
        before: resident data before each step and at the end: contributions so far by name of a datum, options by name of a
            phantom.
        first: the step of each node's first run, by name; nodes that never run are left out.
        runs: the steps of all runs of each node, by name.
    """

    def __init__(self, graph: Graph, schedule: Schedule) -> None:
        self.graph, self.schedule = graph, schedule
        self.before: list[dict[str, int]] = []
        self.runs: dict[str, list[int]] = {}
        self._left_by = {layer.forward: layer for layer in graph.layers}
        self._phantoms = {layer.phantom: layer for layer in graph.layers}
        self._size = {datum.name: datum.size for datum in graph.data}
        self._several = {datum.name for datum in graph.data if len(datum.writers) > 1}
        self._follow()
        self.first = {name: steps[0] for name, steps in self.runs.items()}

    def _follow(self) -> None:
        """Fill `before` and `runs`."""
        now: dict[str, int] = {}
        for at, step in enumerate(self.schedule.steps):
            self.before.append(dict(now))
            if isinstance(step, Drop):
                del now[step.datum]
            elif isinstance(step, Run):
                self._run(at, step, now)
        self.before.append(now)

    def _run(self, at: int, run: Run, now: dict[str, int]) -> None:
        self.runs.setdefault(run.node, []).append(at)
        for name in self.graph.node(run.node).writes:
            now[name] = now.get(name, 0) + 1 if name in self._several else 1
        layer = self._left_by.get(run.node)
        if layer is not None and run.option < len(layer.options):
            now[layer.phantom] = run.option

    @property
    def time(self) -> Ns:
        """Time of all runs [ns]."""
        options = (self.graph.node(step.node).options[step.option] for step in self.schedule.runs)
        return sum(option.time for option in options)

    @property
    def peak(self) -> Bytes:
        """The largest number of bytes charged at a run, or resident at the end [bytes]."""
        ran = [at for steps in self.runs.values() for at in steps]
        return max(self.resident(len(self.before) - 1), *(self.charged(at) for at in ran))

    def option(self, step: int) -> int:
        """The option of the run at a step."""
        run = self.schedule.steps[step]
        assert isinstance(run, Run)
        return run.option

    def ran_before(self, node: str, step: int) -> bool:
        """Whether a node has run before a step."""
        return self.first.get(node, step) < step

    def runs_within(self, node: str, start: int, end: int | None = None) -> bool:
        """Whether a node runs at a step from `start` on and, if given, before `end`."""
        return any(start <= at and (end is None or at < end) for at in self.runs.get(node, ()))

    def resident(self, step: int) -> Bytes:
        """Bytes resident before a step."""
        return sum(self._bytes(name, contents) for name, contents in self.before[step].items())

    def charged(self, step: int) -> Bytes:
        """Bytes that the run at a step needs (S-MEM): resident data, all its outputs, its workspace."""
        run = self.schedule.steps[step]
        assert isinstance(run, Run)
        node = self.graph.node(run.node)
        output_bytes = sum(self._size[name] for name in node.writes)
        layer = self._left_by.get(run.node)
        if layer is not None and run.option < len(layer.options):
            output_bytes += layer.options[run.option].phantom
        return self.resident(step) + output_bytes + node.options[run.option].workspace

    def _bytes(self, name: str, contents: int) -> Bytes:
        layer = self._phantoms.get(name)
        return self._size[name] if layer is None else layer.options[contents].phantom
