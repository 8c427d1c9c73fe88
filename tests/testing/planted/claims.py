"""Solvers with one bug each in what they claim: bounds of a class, of a coarser or another problem, of floats."""

import math

import numpy as np
from attrs import evolve

from remat.algorithms import IMPOSSIBLE, ClassBound, HIlp, Plan
from remat.algorithms._proving.prover import CAPTURED as ASSUMES
from remat.ir import Kind, Phase, Schedule, validate
from remat.testing.oracle import frontier, optimum

from .solvers import Planted, exact, planned, with_nodes

LARGE = 2**53


def best_of_class(problem, among):
    """The bound that holds for a class of schedules, as a proof of an optimum or of infeasibility."""
    points = frontier(problem.graph, among, states=30_000) if len(problem.graph) <= 7 else None
    if points is None:
        return 0
    best = optimum(points, problem.budget)
    return IMPOSSIBLE if best is None else best.time


class SellsTheCapturedOrder(Planted):
    """The optimum of schedules in the captured order, and that there is none, as a proof for all."""

    def plan(self, problem, clock, seed):
        return planned(None, lower=best_of_class(problem, "captured"))


class SellsStagedSchedules(Planted):
    """The bound of an integer program in stages, as a proof for all."""

    def plan(self, problem, clock, seed):
        class_bounds = HIlp(warm_start=False, gap=0.0).solve(problem).class_bounds
        return planned(None, lower=max((bound.value for bound in class_bounds), default=0))


class EachNodeAtMostTwice(Planted):
    """No node runs a third time: every rerun of a rerun is forgotten."""

    def plan(self, problem, clock, seed):
        found = exact(problem)
        if found.schedule is None:
            return planned(None)
        runs = [run.node for run in found.schedule.runs]
        thrice = any(runs.count(name) > 2 for name in runs)
        return planned(None, lower=found.lower + thrice)


class HighWhereTwoRerun(Planted):
    def plan(self, problem, clock, seed):
        found = exact(problem)
        return planned(None, lower=found.lower + (found.cost is not None and found.cost.reruns >= 2))


class HighAboveTwelveNodes(Planted):
    def plan(self, problem, clock, seed):
        return planned(None, lower=problem.graph.time + 1 if len(problem.graph) > 12 else 0)


class BackwardRunsOnce(Planted):
    """Proves for schedules in which no backward node runs again."""

    def plan(self, problem, clock, seed):
        def once(node):
            return evolve(node, run_once=node.run_once or node.phase is Phase.BACKWARD)

        if not problem.graph.flat:
            return planned(None)
        return planned(None, lower=exact(problem, graph=with_nodes(problem.graph, once)).lower)


class ForwardRunsOnce(Planted):
    """Proves for schedules without recomputation of the forward."""

    def plan(self, problem, clock, seed):
        def once(node):
            return evolve(node, run_once=node.run_once or node.phase is Phase.FORWARD)

        return planned(None, lower=exact(problem, graph=with_nodes(problem.graph, once)).lower)


class WritersOfStatesDraw(Planted):
    """Takes whoever writes a random state for one that draws, so that it keeps its place."""

    def plan(self, problem, clock, seed):
        graph = problem.graph
        states = {datum.name for datum in graph.data if datum.kind is Kind.RNG_STATE}
        own = with_nodes(graph, lambda node: evolve(node, draws=node.draws or bool(states & set(node.writes))))
        return planned(None, lower=exact(problem, graph=own).lower)


class OnlyTheFirstOption(Planted):
    """Proves with the first option of every node outside layers."""

    def plan(self, problem, clock, seed):
        own = with_nodes(problem.graph, lambda node: evolve(node, options=node.options[:1]))
        return planned(None, lower=exact(problem, graph=own).lower)


class LayersAlwaysSave(Planted):
    """Takes it for impossible that a layer runs and keeps nothing."""

    def plan(self, problem, clock, seed):
        graph = problem.graph
        if not graph.layers:
            return planned(None)
        dear = 2 * graph.time + 1
        layers = tuple(
            evolve(layer, no_save=evolve(layer.no_save, time=layer.no_save.time + dear)) for layer in graph.layers
        )
        options = {layer.forward: layer.forward_options for layer in layers}
        computes = tuple(evolve(node, options=options.get(node.name, node.options)) for node in graph.computes)
        return planned(None, lower=exact(problem, graph=evolve(graph, computes=computes, layers=layers)).lower)


class CountsDeadNodes(Planted):
    """The time of all nodes, also of those that lead to nothing kept."""

    def plan(self, problem, clock, seed):
        return planned(None, lower=problem.graph.time)


class SlowestOptions(Planted):
    def plan(self, problem, clock, seed):
        required = (problem.graph.computes[i] for i in problem.graph.required)
        return planned(None, lower=sum(max(option.time for option in node.options) for node in required))


class SumsAreKeptWhole(Planted):
    """Counts a sum of contributions as if each had bytes of its own until the sum is read."""

    def plan(self, problem, clock, seed):
        graph = problem.graph
        data = tuple(
            evolve(datum, size=datum.size * len(datum.writers)) if len(datum.writers) > 1 else datum
            for datum in graph.data
        )
        return planned(None, lower=exact(problem, graph=evolve(graph, data=data)).lower)


class ContributorsRunOnce(Planted):
    """A node that adds to a sum is never run again."""

    def plan(self, problem, clock, seed):
        sums = {datum.name for datum in problem.graph.data if len(datum.writers) > 1}
        own = with_nodes(
            problem.graph, lambda node: evolve(node, run_once=node.run_once or bool(sums & set(node.writes)))
        )
        return planned(None, lower=exact(problem, graph=own).lower)


class WhatTheLossReadsIsKept(Planted):
    """Takes for kept what the loss reads."""

    def plan(self, problem, clock, seed):
        graph = problem.graph
        reads = {name for name in graph.computes[graph.loss].reads if not graph.datum(name).outside}
        data = tuple(evolve(one, keep=one.keep or one.name in reads) for one in graph.data)
        return planned(None, lower=exact(problem, graph=evolve(graph, data=data)).lower)


class ToleratesAMillionth(Planted):
    """Fits within a millionth of the budget."""

    def plan(self, problem, clock, seed):
        return planned(exact(problem, budget=problem.budget + problem.budget // 10**6).schedule)


class FloatBytes(Planted):
    """Adds bytes up as floats: what is a few bytes over a budget near 2^53 seems to fit."""

    def plan(self, problem, clock, seed):
        budget = float(problem.budget)
        most = problem.budget if budget < LARGE else int(np.nextafter(budget, math.inf))
        return planned(exact(problem, budget=most).schedule)


class FloatNanoseconds(Planted):
    """Adds times up as floats, rounded up."""

    def plan(self, problem, clock, seed):
        lower = exact(problem).lower
        return planned(
            None, lower=lower if not LARGE <= lower < IMPOSSIBLE else int(np.nextafter(float(lower), math.inf))
        )


class WordsOf32Bits(Planted):
    """Bytes in signed words of 32 bits."""

    def plan(self, problem, clock, seed):
        sizes = np.array([datum.size for datum in problem.graph.data], np.int64).astype(np.int32)
        fits = int(sizes.clip(0).sum()) <= problem.budget
        return planned(Schedule.from_runs(problem.graph, range(len(problem.graph))) if fits else None)


class NumpyBound(Planted):
    def plan(self, problem, clock, seed):
        lower = exact(problem).lower
        return planned(None, lower=np.int64(lower) if lower < LARGE else lower)


class BelowNothing(Planted):
    def plan(self, problem, clock, seed):
        return planned(exact(problem).schedule, lower=-1)


class WrongClassBound(Planted):
    """A class bound that is a nanosecond above the optimum of its class."""

    def plan(self, problem, clock, seed):
        value = best_of_class(problem, "captured")
        class_bounds = (ClassBound(value=value + 1, assumes=ASSUMES),) if 0 < value < IMPOSSIBLE else ()
        return Plan(class_bounds=class_bounds)


class NothingOfItsClass(Planted):
    """Says that its class is empty where what it tried did not fit."""

    def plan(self, problem, clock, seed):
        schedule = Schedule.from_runs(problem.graph, range(len(problem.graph)))
        if validate(problem.graph, schedule).peak <= problem.budget:
            return planned(schedule)
        return Plan(class_bounds=(ClassBound(value=IMPOSSIBLE, assumes=ASSUMES),))


class UpperAsLowerOnTimeOut(Planted):
    """When the time is over, what it has found is the bound."""

    def plan(self, problem, clock, seed):
        schedule = Schedule.from_runs(problem.graph, range(len(problem.graph)))
        cost = validate(problem.graph, schedule)
        if clock.expired and cost.peak <= problem.budget:
            return planned(schedule, lower=cost.time + 1)
        return planned(exact(problem).schedule)


class HalfAPlanOnTimeOut(Planted):
    def plan(self, problem, clock, seed):
        found = exact(problem).schedule
        if found is None or not clock.expired:
            return planned(found)
        return planned(Schedule(found.steps[: len(found.steps) // 2]))


class OverBudgetOnTimeOut(Planted):
    def plan(self, problem, clock, seed):
        if clock.expired:
            return planned(Schedule.from_runs(problem.graph, range(len(problem.graph))))
        return planned(exact(problem).schedule)


class ForgetsTheBudgetOfALink(Planted):
    """Where there is a link everything fits: what is too much could be offloaded."""

    def plan(self, problem, clock, seed):
        if problem.link is not None:
            return planned(Schedule.from_runs(problem.graph, range(len(problem.graph))))
        return planned(exact(problem).schedule)


CLAIMS = {
    SellsTheCapturedOrder(): "L-BOUND",
    SellsStagedSchedules(): "L-BOUND",
    EachNodeAtMostTwice(): "L-BOUND",
    HighWhereTwoRerun(): "L-BOUND",
    HighAboveTwelveNodes(): "L-BOUND",
    BackwardRunsOnce(): "L-BOUND",
    ForwardRunsOnce(): "L-BOUND",
    WritersOfStatesDraw(): "L-BOUND",
    OnlyTheFirstOption(): "L-BOUND",
    LayersAlwaysSave(): "L-BOUND",
    CountsDeadNodes(): "L-BOUND",
    SlowestOptions(): "L-BOUND",
    SumsAreKeptWhole(): "L-BOUND",
    ContributorsRunOnce(): "L-BOUND",
    WhatTheLossReadsIsKept(): "L-BOUND",
    ToleratesAMillionth(): "L-BUDGET",
    FloatBytes(): "L-BUDGET",
    FloatNanoseconds(): "L-BOUND",
    WordsOf32Bits(): "L-BUDGET L-LINK",
    NumpyBound(): "L-INT",
    BelowNothing(): "L-INT",
    WrongClassBound(): "L-CLASS",
    NothingOfItsClass(): "L-CLASS",
    UpperAsLowerOnTimeOut(): "L-STOP",
    HalfAPlanOnTimeOut(): "L-STOP",
    OverBudgetOnTimeOut(): "L-STOP",
    ForgetsTheBudgetOfALink(): "L-LINK",
}
"""Each planted bug, and the laws that it may break first."""
