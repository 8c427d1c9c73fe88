"""Greedy: drop what is largest and cheap to make again, until the captured order fits."""

from attrs import frozen

from remat.algorithms import Plan, Solver
from remat.ir import Phase, Schedule, validate


@frozen
class Greedy(Solver):
    """Replays, right before each backward node, the forward nodes of one more datum until the peak fits."""

    rounds: int = 20

    def refuses(self, graph):
        """Flat graphs whose data have one writer each."""
        fine = graph.flat and all(len(datum.writers) < 2 for datum in graph.data)
        return None if fine else "layers, options and sums are not treated; expand the graph first"

    def plan(self, problem, clock, seed):
        """Replay the writers of the largest saved data, one after the other."""
        graph, replayed = problem.graph, set()
        able = [n for n in graph.computes if n.phase is Phase.FORWARD and not n.run_once]
        able.sort(key=lambda node: -sum(graph.datum(name).size for name in node.writes))
        for node in [None, *able[: self.rounds]]:
            replayed |= {node.name} if node else set()
            schedule = Schedule.from_runs(graph, self.runs(graph, replayed))
            if clock.expired or validate(graph, schedule).peak <= problem.budget:
                break
        fits = validate(graph, schedule).peak <= problem.budget
        return Plan(schedule=schedule if fits else None, trail=(f"greedy: {len(replayed)} nodes replayed",))

    def runs(self, graph, replayed):
        names = [node.name for node in graph.computes]
        again = [name for name in names[: graph.loss] if name in replayed]
        return [*names[: graph.loss + 1], *again, *names[graph.loss + 1 :]]
