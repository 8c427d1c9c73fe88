"""Plans that are known to work: of each step planned in this process, the one of the smallest peak.

A search under a deadline may miss what an earlier one has found. The plan of that one is replayed where the search finds nothing.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from remat.algorithms import Outcome
from remat.errors import InvalidSchedule
from remat.exec._program.digest import program_digest
from remat.exec._program.program import Program
from remat.ir import Graph, Schedule, validate
from remat.units import Bytes

MOST = 64
"""Steps whose plans are kept, the latest."""


class KnownPlans:
    """The plan of the smallest peak for each of the latest steps.

    Args:
        most: number of steps.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._plans: OrderedDict[str, tuple[Bytes, Schedule]] = OrderedDict()
        self._lock = threading.Lock()

    def learn(self, program: Program, outcome: Outcome) -> None:
        """Keep a plan without copies, where its peak is the smallest of its step."""
        if outcome.schedule is None or outcome.cost is None or outcome.cost.copies:
            return
        digest, plan = program_digest(program), (outcome.cost.peak, outcome.schedule)
        with self._lock:
            self._plans[digest] = min(self._plans.pop(digest, plan), plan, key=lambda plan: plan[0])
            if len(self._plans) > self._most:
                self._plans.popitem(last=False)

    def replayed(self, program: Program, graph: Graph) -> Outcome | None:
        """The plan of a step, replayed on its graph as it is now; None: there is none."""
        with self._lock:
            _, schedule = self._plans.get(program_digest(program), (0, None))
        if schedule is None:
            return None
        try:
            cost = validate(graph, schedule)
        except InvalidSchedule:  # the loss outside is another one, and with it the graph
            return None
        return Outcome(schedule=schedule, cost=cost, trail=("a plan that was made before in this process, replayed",))


known_plans = KnownPlans()
"""Of this process."""

__all__ = ["KnownPlans", "known_plans"]
