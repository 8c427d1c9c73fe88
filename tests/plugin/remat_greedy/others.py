"""A transform, a partitioner, a source of options and a score from outside."""

from attrs import evolve, frozen

from remat.algorithms import Applied, OptionSource, Partitioner, Segments, Transform, undominated
from remat.algorithms.dynamic import Score
from remat.ir import Phase, Schedule, option_of


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


@frozen
class Ends(OptionSource):
    """Two options of a block: keep all that its backward reads, or run its forward again before it."""

    def options(self, block, *, clock=None, seed=0):
        """Where data have one writer each both, else the first."""
        names = [node.name for node in block.computes]
        orders = [names]
        if all(len(datum.writers) < 2 for datum in block.data):
            again = [node.name for node in block.computes if node.phase is Phase.FORWARD and not node.run_once]
            orders.append([*names[: block.loss + 1], *again, *names[block.loss + 1 :]])
        return undominated(option_of(block, Schedule.from_runs(block, order)) for order in orders)


@frozen
class Largest(Score):
    """The largest goes first."""

    MEASURE = "no"

    def value(self, cost, size, staleness, access):
        """Less for what is larger."""
        return -size
