"""A transform and a partitioner from outside."""

from attrs import evolve, frozen

from remat.algorithms import Applied, Partitioner, Segments, Transform


@frozen
class Slack(Transform):
    """Plan with less than the budget, so that something is left for what the model does not know."""

    spare: int = 0

    def apply(self, problem, *, clock=None, seed=0):
        """The same problem with `spare` bytes less."""
        less = evolve(problem, budget=max(0, problem.budget - self.spare))
        return Applied(problem=less, lift=lambda schedule: schedule)


@frozen
class Halves(Partitioner):
    """Two segments of the captured order."""

    def partition(self, graph):
        """As `Segments` of half the forward nodes."""
        return Segments(max(1, (graph.loss + 1) // 2)).partition(graph)
