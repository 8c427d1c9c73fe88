"""Solvers with one bug each: an exact solver behind a mistake that authors make."""

from attrs import evolve, field, frozen

from remat.algorithms import IMPOSSIBLE, Exhaustive, Plan, Solver
from remat.ir import Drop, Layer, Option, Phase, Run, Schedule


def exact(problem, **changed):
    return Exhaustive(max_states=1000).solve(evolve(problem, **changed))


def planned(schedule, lower=0):
    return Plan(schedule=schedule, lower=lower)


def with_data(graph, change):
    return evolve(graph, data=tuple(change(datum) for datum in graph.data))


def with_nodes(graph, change):
    """Nodes changed by `change`; options of layers' nodes stay, they belong to the layer."""
    own = graph.layer_by_node
    return evolve(graph, computes=tuple(node if node.name in own else change(node) for node in graph.computes))


@frozen
class Planted(Solver):
    def plan(self, problem, clock, seed):
        steps = exact(problem).schedule
        return planned(None if steps is None else Schedule(tuple(self.spoil(problem.graph, list(steps.steps)))))

    def spoil(self, graph, steps):
        return steps


class DropsTooEarly(Planted):
    def spoil(self, graph, steps):
        for i, step in enumerate(steps):
            if isinstance(step, Drop) and i and isinstance(steps[i - 1], Run):
                run = graph.node(steps[i - 1].node)
                if step.datum in run.reads:
                    steps[i - 1 : i + 1] = [step, steps[i - 1]]
                    return steps
        return steps


class OffByOneByte(Planted):
    def plan(self, problem, clock, seed):
        return planned(exact(problem, budget=problem.budget + 1).schedule)


class IgnoresWorkspace(Planted):
    def plan(self, problem, clock, seed):
        def no_workspace(node):
            return evolve(node, options=tuple(Option(time=one.time) for one in node.options))

        return planned(exact(problem, graph=with_nodes(problem.graph, no_workspace)).schedule)


class ForgetsTheOutputsSize(Planted):
    """Counts what a run reads and holds, and its outputs only when they are not there yet."""

    def plan(self, problem, clock, seed):
        free = with_data(problem.graph, lambda one: evolve(one, size=one.size // 2))
        return planned(exact(problem, graph=free).schedule)


class ForgetsAContribution(Planted):
    def spoil(self, graph, steps):
        sums = [datum.writers[-1] for datum in graph.data if len(datum.writers) > 1]
        return [step for step in steps if not (isinstance(step, Run) and sums and step.node == sums[0])]


class WrongTwin(Planted):
    """Runs a layer's backward by another option than its forward."""

    def spoil(self, graph, steps):
        for layer in graph.layers:
            if len(layer.options) > 1:
                swap = {Run(layer.backward, 0): Run(layer.backward, 1), Run(layer.backward, 1): Run(layer.backward, 0)}
                return [swap.get(step, step) for step in steps]
        return steps


class KeepsThePhantomOfAnotherOption(Planted):
    """Takes every phantom to be as small as the smallest of its layer."""

    def plan(self, problem, clock, seed):
        graph = problem.graph
        layers = tuple(
            Layer(
                forward=one.forward,
                backward=one.backward,
                phantom=one.phantom,
                options=tuple(evolve(o, phantom=min(p.phantom for p in one.options)) for o in one.options),
                no_save=one.no_save,
            )
            for one in graph.layers
        )
        return planned(exact(problem, graph=evolve(graph, layers=layers)).schedule)


class ReplaysTheLoss(Planted):
    def spoil(self, graph, steps):
        loss = graph.computes[graph.loss].name
        return [copy for step in steps for copy in ([step, step] if step == Run(loss) else [step])]


class ReplaysWhatRunsOnce(Planted):
    """Keeps nothing over the loss and runs the whole forward again, whatever may run only once."""

    def plan(self, problem, clock, seed):
        graph = problem.graph
        if not graph.flat or any(len(datum.writers) > 1 for datum in graph.data):
            return planned(None)
        names = [node.name for node in graph.computes]
        return planned(
            Schedule.from_runs(graph, [*names[: graph.loss + 1], *names[: graph.loss], *names[graph.loss + 1 :]])
        )


class ReordersDraws(Planted):
    """Runs forward nodes in the last order that data allow, whatever they draw."""

    def plan(self, problem, clock, seed):
        graph = problem.graph
        if not graph.flat:
            return planned(None)
        runs, made, left = [], set(), list(graph.computes)
        while left:
            phase = left[0].phase
            ready = [
                node
                for node in left
                if node.phase is phase and all(set(graph.datum(name).writers) <= made for name in node.reads)
            ]
            node = ready[-1] if phase is Phase.FORWARD else ready[0]
            runs.append(node.name)
            made.add(node.name)
            left.remove(node)
        return planned(Schedule.from_runs(graph, runs))


class StopsBeforeTheEnd(Planted):
    def spoil(self, graph, steps):
        last = max(i for i, step in enumerate(steps) if isinstance(step, Run))
        return steps[:last]


class DropsWhatIsKept(Planted):
    def spoil(self, graph, steps):
        kept = [datum.name for datum in graph.data if datum.keep]
        return [*steps, Drop(kept[-1])]


class BoundOfRoundedTimes(Planted):
    def plan(self, problem, clock, seed):
        def rounded(node):
            return evolve(node, options=tuple(evolve(one, time=-(-one.time // 4) * 4) for one in node.options))

        return planned(None, lower=exact(problem, graph=with_nodes(problem.graph, rounded)).lower)


class BoundOfRoundedSizes(Planted):
    """Proves on a graph whose sizes are rounded up to whole slots."""

    def plan(self, problem, clock, seed):
        coarse = with_data(problem.graph, lambda one: evolve(one, size=-(-one.size // 4) * 4))
        return planned(None, lower=exact(problem, graph=coarse).lower)


class BoundOfOneOrder(Planted):
    """Takes what no schedule without recomputation can do for impossible."""

    def plan(self, problem, clock, seed):
        if not problem.graph.flat:
            return planned(None)
        schedule = Schedule.from_runs(problem.graph, range(len(problem.graph)))
        fits = self.replayed_peak(problem.graph, schedule) <= problem.budget
        return planned(schedule if fits else None, lower=0 if fits else IMPOSSIBLE)

    def replayed_peak(self, graph, schedule):
        from remat.ir import validate

        return validate(graph, schedule).peak


class InfeasibleOnTimeOut(Planted):
    def plan(self, problem, clock, seed):
        for _ in range(3):
            if clock.expired:
                return planned(None, lower=IMPOSSIBLE)
        return planned(exact(problem).schedule)


class UnvalidatedReport(Planted):
    """Reports a plan on the way that does not fit, and returns one that does."""

    def plan(self, problem, clock, seed):
        draft = exact(problem, budget=problem.budget + 2).schedule
        if draft is not None:
            clock.report(self, schedule=draft)
        return planned(exact(problem).schedule)


class BoundWithoutCopies(Planted):
    """Says that its bound holds with a link, and proves it for schedules without copies."""

    models_link = True

    def plan(self, problem, clock, seed):
        found = exact(problem, link=None)
        return planned(found.schedule, found.lower)


class FloatBound(Planted):
    def plan(self, problem, clock, seed):
        found = exact(problem)
        return planned(found.schedule, found.lower * 1.0)


class ForgetsToAnswer(Planted):
    def plan(self, problem, clock, seed):
        planned(exact(problem).schedule)


calls = []


class Moody(Planted):
    def plan(self, problem, clock, seed):
        calls.append(0)
        return planned(exact(problem).schedule if len(calls) % 2 else None)


class WritesToTheGraph(Planted):
    def plan(self, problem, clock, seed):
        object.__setattr__(problem.graph, "name", "mine")
        return planned(exact(problem).schedule)


class RefusesWithoutAReason(Planted):
    def refuses(self, graph):
        return "" if len(graph) > 3 else None


@frozen(repr=False)
class ForgetsItsSettings(Planted):
    depth: int = 3

    def __repr__(self):
        return f"{type(self).__name__}({self.depth - 1})"


@frozen
class HoldsAFunction(Planted):
    test: object = field(default=lambda graph: True, repr=False)


SOLVERS = {
    DropsTooEarly(): "L-REPLAY",
    ForgetsAContribution(): "L-REPLAY",
    WrongTwin(): "L-REPLAY",
    ReplaysTheLoss(): "L-REPLAY",
    ReplaysWhatRunsOnce(): "L-REPLAY L-LINK",
    ReordersDraws(): "L-REPLAY L-LINK",
    StopsBeforeTheEnd(): "L-REPLAY",
    DropsWhatIsKept(): "L-REPLAY",
    OffByOneByte(): "L-BUDGET",
    IgnoresWorkspace(): "L-BUDGET",
    ForgetsTheOutputsSize(): "L-BUDGET",
    KeepsThePhantomOfAnotherOption(): "L-REPLAY L-BUDGET",
    BoundOfRoundedTimes(): "L-BOUND",
    BoundOfRoundedSizes(): "L-BOUND",
    BoundOfOneOrder(): "L-BOUND",
    InfeasibleOnTimeOut(): "L-STOP",
    UnvalidatedReport(): "L-REPORT",
    BoundWithoutCopies(): "L-LINK",
    FloatBound(): "L-INT",
    ForgetsToAnswer(): "L-INT",
    Moody(): "L-REPEAT",
    WritesToTheGraph(): "L-PURE",
    RefusesWithoutAReason(): "L-REFUSE",
    ForgetsItsSettings(): "L-REPR",
    HoldsAFunction(): "L-PICKLE",
}
"""Each planted bug, and the laws that it may break first."""
