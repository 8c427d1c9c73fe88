"""A problem as arrays, and what a run sequence of it costs."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from remat.algorithms._arrays.graph_arrays import Flat, Floats, Longs, flatten
from remat.algorithms._arrays.liveness import memory_profile, total_time
from remat.algorithms._core.problem import Problem
from remat.algorithms._search.kernel_prefetch import await_first_kernels
from remat.ir import Schedule
from remat.units import Bytes, Ns

Sequence = NDArray[np.int32]


@frozen(eq=False)
class RunProblem:
    """A problem as arrays, and the cost of its run sequences.

    Attributes:
        problem: the problem. flat: its graph as arrays.
        base: the captured order of the nodes that must run. base_peak: its peak [bytes]. base_time: its time [ns].
        profile: bytes charged at each node in that order, by node.
    """

    problem: Problem
    flat: Flat
    base: Sequence
    base_peak: Bytes
    base_time: Ns
    profile: Longs

    @classmethod
    def of(cls, problem: Problem) -> RunProblem:
        """The arrays of a problem; waits for the process that compiles kernels."""
        await_first_kernels()
        flat = flatten(problem.graph)
        base = np.flatnonzero(flat.required).astype(np.int32)
        charged = np.zeros(len(base), np.int64)
        peak = int(memory_profile(flat, base, len(base), charged))
        profile = np.zeros(len(problem.graph), np.int64)
        profile[base] = charged
        return cls(problem, flat, base, peak, int(flat.time.sum()), profile)

    @property
    def budget(self) -> Bytes:
        """Of the problem [bytes]."""
        return self.problem.budget

    @cached_property
    def price(self) -> Floats:
        """The nodes' times, as prices for shaving."""
        return self.flat.time.astype(np.float64)

    def sequence_of(self, schedule: Schedule) -> Sequence:
        """The run sequence of a schedule of this graph, without nodes that need not run: the arrays leave out what they read."""
        nodes = [self.problem.graph.node_index[run.node] for run in schedule.runs]
        return np.array([v for v in nodes if self.flat.required[v]], np.int32)

    def schedule_of(self, sequence: Sequence) -> Schedule:
        """A sequence as a schedule."""
        return Schedule.from_runs(self.problem.graph, sequence.tolist())

    def time_of(self, sequence: Sequence) -> Ns:
        """Time of a sequence [ns]."""
        return int(total_time(self.flat, sequence, len(sequence)))

    def peak_of(self, sequence: Sequence) -> Bytes:
        """Peak of a sequence [bytes]."""
        return int(memory_profile(self.flat, sequence, len(sequence), np.empty(len(sequence), np.int64)))

    def fits(self, sequence: Sequence) -> bool:
        """Whether a sequence is within the budget."""
        return self.peak_of(sequence) <= self.budget
