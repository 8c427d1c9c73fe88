"""The judge of solvers on one graph: what they claim, against the frontier of the second oracle."""

import random
import time
import traceback

from attrs import field, frozen

from remat.algorithms import Problem
from remat.algorithms._proving.prover import CAPTURED as ASSUMES
from remat.errors import IllFormed
from remat.ir import Link, Schedule, validate
from remat.ir.text import print_text
from remat.testing.legal import legal_graph
from remat.testing.oracle import frontier, optimum
from tests.soundness.solvers import BOUNDS, LINKED, every

ABOVE, IMPOSSIBLE, BELOW, CRASH = "bound above", "false infeasible", "below the optimum", "exception"
CLASS = "class bound above"
FAULTS = (ABOVE, IMPOSSIBLE, BELOW, CRASH, CLASS)
CLASSES = {ASSUMES: "captured", "staged schedules, first runs in the graph's order": "staged"}
"""Classes of schedules that the oracle knows, by the words of a bound beside."""
LINK = Link.symmetric(gb_per_s=2.0, latency=1)
WIDE = 20
"""One graph in so many is put to every solver."""


@frozen(kw_only=True)
class Verdict:
    """What solvers said of a random graph.

    Attributes:
        seed: of the graph; nodes: it has; flat: without layers and options; points: of its frontier.
        refused: the rule by which the graph is not legal, and nothing was asked; empty: it is.
        asked: problems put to each solver that takes the graph.
        faults: solver, budget, word and detail of each.
        seconds: process time.
    """

    seed: int
    nodes: int = 0
    flat: bool = True
    points: int = 0
    refused: str = ""
    asked: dict[str, int] = field(factory=dict)
    faults: list[list] = field(factory=list)
    seconds: float = 0.0


def graph_of(seed):
    """The random graph of a seed."""
    return legal_graph(random.Random(seed).randint)


def changes(points):
    """Every budget where the optimum changes, and the last one before."""
    return sorted({budget for point in points for budget in (point.peak, point.peak - 1) if budget >= 0}, reverse=True)


def three(graph, points):
    """Budgets near the floor, in the middle and at the peak of the captured order."""
    floor, peak = points[-1].peak, validate(graph, Schedule.from_runs(graph, range(len(graph)))).peak
    return list(dict.fromkeys((peak, (floor + peak) // 2, floor)))


def judge(seed, solvers=None):
    """The verdict on the random graph of a seed; one graph in `WIDE` is put to every solver."""
    start = time.process_time()
    try:
        graph = graph_of(seed)
    except IllFormed as error:
        return Verdict(seed=seed, refused=error.rule, seconds=round(time.process_time() - start, 3))
    points = frontier(graph)
    if points is None:
        return Verdict(seed=seed, nodes=len(graph), faults=[["the oracle", 0, CRASH, "gave up"]])
    wide = seed % WIDE == 0
    solvers = every() if solvers is None else solvers
    asked, faults, known = {}, [], {}
    for name, solver in solvers.items():
        if name in BOUNDS:
            budgets = changes(points)
        elif wide:
            budgets = three(graph, points)
        else:
            continue
        problems = [Problem(graph=graph, budget=budget) for budget in budgets]
        if wide and name in LINKED:
            problems += [Problem(graph=graph, budget=budget, link=LINK) for budget in three(graph, points)]
        if solver.refuses(graph) is None:
            asked[name] = len(problems)
        for problem in problems:
            found = fault(solver, problem, optimum(points, problem.budget), known)
            faults += [[name, problem.budget, *found]] if found else []
    return Verdict(
        seed=seed,
        nodes=len(graph),
        flat=graph.flat,
        points=len(points),
        asked=asked,
        faults=faults,
        seconds=round(time.process_time() - start, 3),
    )


def fault(solver, problem, best, known=None):
    """(word, detail) of what is wrong with a solver's outcome; None: nothing. `known` keeps the frontiers of classes.

    With a link more is possible than the oracle knows: a bound above its optimum is wrong all the same, a faster schedule is not.
    """
    try:
        outcome = solver.solve(problem)
    except Exception:  # noqa: BLE001 - whatever escapes is what is looked for
        return CRASH, traceback.format_exc(limit=-4)
    said = f"{outcome.status.value}, lower {outcome.lower}, upper {outcome.upper}"
    if best is None:
        fits = outcome.schedule is not None and problem.link is None
        return (
            (BELOW, f"{said}; nothing fits") if fits else _class_fault(outcome, problem, {} if known is None else known)
        )
    if outcome.lower > best.time:
        word = IMPOSSIBLE if outcome.lower == float("inf") else ABOVE
        return word, f"{said}; the optimum is {best.time}: {'; '.join(outcome.trail)[:400]}"
    if outcome.upper < best.time and problem.link is None:
        return BELOW, f"{said}; the optimum is {best.time}"
    return _class_fault(outcome, problem, {} if known is None else known)


def _class_fault(outcome, problem, known):
    """A bound of a class above the optimum of that class; a class that is too large to enumerate is not judged."""
    for bound in outcome.class_bounds:
        among = CLASSES.get(bound.assumes)
        if among is not None and problem.link is None:
            if among not in known:
                known[among] = frontier(problem.graph, among)
            points = known[among]
            best = None if points is None else optimum(points, problem.budget)
            if best is not None and bound.value > best.time:
                return CLASS, f"{bound}; the optimum of the class is {best.time}: {'; '.join(outcome.trail)[:400]}"
    return None


def told(seed):
    """A graph in the text form, and its frontier."""
    graph = graph_of(seed)
    return f"{print_text(graph)}\n{[(point.time, point.peak) for point in frontier(graph) or ()]}"
