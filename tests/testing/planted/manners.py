"""Solvers with one bug each in how they behave: time, interruption, reports, global state, hash order, exceptions."""

import os
import random
import signal
import threading
import time

import numpy as np
from attrs import evolve

from remat.algorithms import Plan, Problem
from remat.errors import InvalidSchedule
from remat.ir import Phase, Run, Schedule, validate

from .solvers import Planted, exact, planned


def captured(problem):
    return Schedule.from_runs(problem.graph, range(len(problem.graph)))


class SwallowsInterruption(Planted):
    def plan(self, problem, clock, seed):
        try:
            return planned(exact(problem).schedule)
        except KeyboardInterrupt:
            return planned(None)


class SwallowsEverything(Planted):
    """Tries one budget after the other, and goes on whatever happens."""

    def plan(self, problem, clock, seed):
        found = None
        for share in (2, 1):
            try:
                found = exact(problem, budget=problem.budget // share).schedule or found
            except BaseException:  # noqa: BLE001 - the bug
                continue
        return planned(found)


class NeverAsksTheClock(Planted):
    """Waits for luck."""

    def plan(self, problem, clock, seed):
        chance = random.Random(seed)
        while chance.random() < 1:
            pass


class AsksTheClockOnce(Planted):
    """Looks at the clock before the work, and then works for seconds."""

    def plan(self, problem, clock, seed):
        if not clock.expired:
            return planned(exact(problem).schedule)
        total = sum(i * i % 7 for i in range(200_000_000))
        return planned(None, lower=total * 0)


class Slow(Planted):
    """A third of a second for each plan, whatever the clock says."""

    def plan(self, problem, clock, seed):
        end = time.process_time() + 0.3
        while time.process_time() < end:
            found = exact(problem)
        return planned(found.schedule)


class Sleeps(Planted):
    def plan(self, problem, clock, seed):
        while not clock.expired:
            time.sleep(0.5)
        return planned(exact(problem).schedule)


class ReportsTheWorseLater(Planted):
    def plan(self, problem, clock, seed):
        found = exact(problem).schedule
        if found is not None:
            clock.report(self, schedule=found)
            again = Schedule.from_runs(problem.graph, [*found.runs[:1], *found.runs])
            if validated(problem, again):
                clock.report(self, schedule=again)
        return planned(found)


def validated(problem, schedule):
    try:
        validate(problem.graph, schedule, problem.budget)
    except InvalidSchedule:
        return False
    return True


class ReportsNoTime(Planted):
    def plan(self, problem, clock, seed):
        found = exact(problem).schedule
        if found is not None:
            clock.report(self, schedule=found, best=0)
        return planned(found)


class AnswersLessThanItReported(Planted):
    """Reports its best plan and answers none."""

    def plan(self, problem, clock, seed):
        found = exact(problem).schedule
        if found is not None:
            clock.report(self, schedule=found)
        return planned(None)


class UnprovedReport(Planted):
    def plan(self, problem, clock, seed):
        found = exact(problem)
        clock.report(self, bound=problem.graph.time * 2 + 1)
        return planned(found.schedule)


class SeedsTheGenerator(Planted):
    def plan(self, problem, clock, seed):
        random.seed(seed)
        return planned(exact(problem).schedule)


class SeedsNumpy(Planted):
    def plan(self, problem, clock, seed):
        np.random.seed(seed % 2**32)
        return planned(exact(problem).schedule)


class DrawsFromNumpy(Planted):
    def plan(self, problem, clock, seed):
        return planned(exact(problem).schedule if np.random.rand() < 0.5 else None)


class Tosses(Planted):
    """By chance that no seed decides."""

    def plan(self, problem, clock, seed):
        return planned(exact(problem).schedule if os.urandom(1)[0] & 1 else None)


class SeldomWrong(Planted):
    """One answer in five is half a plan, by chance."""

    def plan(self, problem, clock, seed):
        found = exact(problem).schedule
        if found is None or random.SystemRandom().random() > 0.2:
            return planned(found)
        return planned(Schedule(found.steps[: len(found.steps) // 2]))


class LeaksAThread(Planted):
    def plan(self, problem, clock, seed):
        threading.Thread(target=threading.Event().wait, args=(600,), daemon=True).start()
        return planned(exact(problem).schedule)


class SetsTheEnvironment(Planted):
    def plan(self, problem, clock, seed):
        os.environ["PLANTED_THREADS"] = str(seed)
        return planned(exact(problem).schedule)


class RemembersByBudget(Planted):
    """A memory that takes two graphs of one size for one."""

    def plan(self, problem, clock, seed):
        key = (len(problem.graph), problem.link is None)
        if key not in memory:
            memory[key] = exact(problem).schedule
        return planned(memory[key])


memory = {}


class AsTheSetComes(Planted):
    """Of nodes that are as good the first of a set."""

    def first(self, names):
        return next(iter(names))

    def plan(self, problem, clock, seed):
        names = {node.name for node in problem.graph.computes if node.phase is Phase.FORWARD and not node.run_once}
        found = captured(problem)
        if names and problem.graph.flat and problem.budget:
            at = 1 + max(i for i, run in enumerate(found.runs) if problem.graph.node(run.node).phase is Phase.FORWARD)
            runs = [*found.runs[:at], Run(self.first(names)), *found.runs[at:]]
            again = Schedule.from_runs(problem.graph, runs)
            found = again if validated(problem, again) else found
        return planned(found if validated(problem, found) else None)


class FirstByName(AsTheSetComes):
    """Of nodes that are as good the first in the order of their names."""

    def first(self, names):
        return min(names)


class HashesAWord(Planted):
    """The hash of a word decides: another process answers otherwise."""

    def plan(self, problem, clock, seed):
        found = exact(problem)
        return planned(found.schedule, lower=hash("planted") % ((found.schedule is not None and found.lower) or 1))


class KnowsForwardByName(Planted):
    """Nodes of the forward are those whose names begin with F."""

    def plan(self, problem, clock, seed):
        found = exact(problem).schedule
        fine = found is not None and any(run.node.startswith("F") for run in found.runs)
        return planned(found if fine else None)


class KnowsNoLayers(Planted):
    def plan(self, problem, clock, seed):
        sizes = {datum.name: datum.size for datum in problem.graph.data}
        found = exact(problem).schedule
        sum(sizes[step.datum] for step in (found.steps if found else ()) if not isinstance(step, Run))
        return planned(found)


class ForgetsThatNothingFits(Planted):
    def plan(self, problem, clock, seed):
        found = exact(problem).schedule
        return planned(Schedule(found.steps))


class RefusalRaises(Planted):
    def refuses(self, graph):
        return None if graph.layers[0].options else "no options"


class SmallSeeds(Planted):
    def plan(self, problem, clock, seed):
        np.random.RandomState(seed)
        return planned(exact(problem).schedule)


class ChangesTheBudget(Planted):
    def plan(self, problem, clock, seed):
        object.__setattr__(problem, "budget", problem.budget - 1 if problem.budget else 0)
        return planned(exact(problem).schedule)


class AnswersASchedule(Planted):
    def plan(self, problem, clock, seed):
        return exact(problem).schedule


class AnswersAnOutcome(Planted):
    def plan(self, problem, clock, seed):
        return exact(Problem(graph=problem.graph, budget=problem.budget))


class TrailOfWords(Planted):
    def plan(self, problem, clock, seed):
        plan = planned(exact(problem).schedule)
        object.__setattr__(plan, "trail", "found it")
        return plan


class OptionsOfTheFirstLayer(Planted):
    """Runs the second layer's backward by the option of the first."""

    def plan(self, problem, clock, seed):
        found = exact(problem).schedule
        layers = problem.graph.layers
        if found is None or len(layers) < 2:
            return planned(found)
        first = next(step.option for step in found.steps if isinstance(step, Run) and step.node == layers[0].backward)
        most = len(layers[1].options) - 1
        steps = [
            evolve(step, option=min(first, most)) if isinstance(step, Run) and step.node == layers[1].backward else step
            for step in found.steps
        ]
        return Plan(schedule=Schedule(tuple(steps)))


class UsesSignals(Planted):
    """A deadline of its own by an alarm, which only the main thread may set."""

    def plan(self, problem, clock, seed):
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        return planned(exact(problem).schedule)


class StopsTheClock(Planted):
    """Stops the clock when it is done."""

    def plan(self, problem, clock, seed):
        found = exact(problem)
        clock.stop()
        return planned(found.schedule)


class ReportsNoNumber(Planted):
    def plan(self, problem, clock, seed):
        found = exact(problem)
        clock.report(self, bound=found.lower / 2)
        return planned(found.schedule)


class FirstByAddress(Planted):
    """Of two nodes the one that lies lower in memory."""

    def plan(self, problem, clock, seed):
        graph = problem.graph
        found = exact(problem).schedule
        return planned(found if id(graph) // 256 % 2 else None)


MANNERS = {
    SwallowsInterruption(): "L-INTERRUPT",
    SwallowsEverything(): "L-INTERRUPT",
    NeverAsksTheClock(): "L-TIME",
    AsksTheClockOnce(): "L-TIME",
    Slow(): "L-TIME",
    Sleeps(): "L-TIME",
    ReportsTheWorseLater(): "L-BETTER",
    ReportsNoTime(): "L-BETTER",
    AnswersLessThanItReported(): "L-BETTER",
    UnprovedReport(): "L-REPORT",
    SeedsTheGenerator(): "L-GLOBAL",
    SeedsNumpy(): "L-GLOBAL",
    DrawsFromNumpy(): "L-GLOBAL",
    Tosses(): "L-REPEAT L-NAMES L-INTERRUPT L-THREAD",  # whichever law first sees two plans differ
    SeldomWrong(): "L-REPLAY L-REPEAT L-NAMES L-STOP L-INTERRUPT L-THREAD L-LINK L-HOST",  # likewise, or that half a plan is none
    LeaksAThread(): "L-THREAD",
    SetsTheEnvironment(): "L-GLOBAL",
    RemembersByBudget(): "L-REPLAY L-BUDGET L-REPEAT L-NAMES",
    AsTheSetComes(): "L-NAMES L-HASH",
    HashesAWord(): "L-HASH",
    FirstByName(): "L-NAMES",
    KnowsForwardByName(): "L-NAMES",
    KnowsNoLayers(): "L-RAISE",
    ForgetsThatNothingFits(): "L-RAISE",
    RefusalRaises(): "L-RAISE",
    SmallSeeds(): "L-RAISE",
    ChangesTheBudget(): "L-PURE",
    AnswersASchedule(): "L-INT",
    AnswersAnOutcome(): "L-INT",
    TrailOfWords(): "L-INT",
    OptionsOfTheFirstLayer(): "L-REPLAY",
    UsesSignals(): "L-THREAD",
    StopsTheClock(): "L-INTERRUPT",
    ReportsNoNumber(): "L-REPORT",
    FirstByAddress(): "L-REPEAT L-NAMES",
}
"""Each planted bug, and the laws that it may break first."""
