"""The judge of solvers on one graph: what they claim, against the frontier of the second oracle."""

import random
import time
import traceback

from attrs import define, evolve, field, frozen

from remat.algorithms import Problem
from remat.algorithms._proving.prover import CAPTURED as ASSUMES
from remat.errors import IllFormed
from remat.ir import Graph, LayerOption, Link, Option, Schedule, validate
from remat.ir.chain import Block, chain_graph
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
ATTEMPTS = 60
"""So many flat graphs and chains of a seed are tried for a solver that refuses the others."""
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


def flat_of(seed, attempt=0):
    """A random graph of a seed without layers and options."""
    graph = legal_graph(random.Random(f"flat {seed} {attempt}").randint, layers=False, options=False)
    return evolve(graph, name=f"flat.{attempt}")


def chain_of(seed, attempt=0):
    """A random chain of a seed: one to three stages, each of one or two options."""
    choose = random.Random(f"chain {seed} {attempt}").randint
    unit = (1, 1, 10**9, 2**50)[choose(0, 3)]

    def number(most):
        return unit * choose(0, most) + choose(0, 2)

    def option(reads):
        return LayerOption(
            forward=number(3),
            backward=number(3),
            phantom=number(4),
            forward_workspace=number(1),
            backward_workspace=number(1),
            backward_reads=reads,
        )

    blocks = []
    for stage in range(choose(1, 3)):
        reads = [(f"a{stage + 1}",) if choose(0, 3) == 0 else () for _ in range(choose(1, 2))]
        blocks.append(
            Block(
                output=number(4),
                gradient=number(4),
                options=tuple(map(option, reads)),
                param_grad=number(1) * choose(0, 1),
                kept=number(1) * choose(0, 1),
                reads_input=choose(0, 2) > 0,
            )
        )
    loss = Option(time=number(2), workspace=number(1))
    return chain_graph(blocks, loss=loss, loss_gradient=number(3), tangent=choose(0, 1), name=f"chain.{attempt}")


OTHERS = [(make, attempt) for attempt in range(ATTEMPTS) for make in (flat_of, chain_of)]


def changes(points):
    """Every budget where the optimum changes, and the last one before."""
    return sorted({budget for point in points for budget in (point.peak, point.peak - 1) if budget >= 0}, reverse=True)


def three(graph, points):
    """Budgets near the floor, in the middle and at the peak of the captured order."""
    floor, peak = points[-1].peak, validate(graph, Schedule.from_runs(graph, range(len(graph)))).peak
    return list(dict.fromkeys((peak, (floor + peak) // 2, floor)))


def judge(seed, solvers=None):
    """The verdict on the random graph of a seed; one graph in `WIDE` is put to every solver.

    A solver that refuses this one graph is put to another one of the seed that it takes: a flat one, or a chain.
    """
    start = time.process_time()
    try:
        cases = [Case.of(graph_of(seed))]
    except IllFormed as error:
        return Verdict(seed=seed, refused=error.rule, seconds=round(time.process_time() - start, 3))
    if cases[0].points is None:
        return Verdict(seed=seed, nodes=len(cases[0].graph), faults=[["the oracle", 0, CRASH, "gave up"]])
    wide = seed % WIDE == 0
    solvers = every() if solvers is None else solvers
    asked, faults = {}, []
    for name, solver in solvers.items():
        if not wide and name not in BOUNDS:
            continue
        taken = taken_by(solver, seed, cases) if wide else cases[0] if solver.refuses(cases[0].graph) is None else None
        for case in cases[:1] if taken in (None, cases[0]) else [cases[0], taken]:
            problems = case.problems(name, wide=wide)
            if case is taken:
                asked[name] = len(problems)
            for problem in problems:
                found = fault(solver, problem, optimum(case.points, problem.budget), case.classes)
                faults += [[name, problem.budget, found[0], f"{case.graph.name}: {found[1]}"]] if found else []
    return Verdict(
        seed=seed,
        nodes=len(cases[0].graph),
        flat=cases[0].graph.flat,
        points=len(cases[0].points),
        asked=asked,
        faults=faults,
        seconds=round(time.process_time() - start, 3),
    )


def taken_by(solver, seed, cases):
    """The first graph of a seed that a solver takes, flat ones and chains drawn as they are needed; None: there is none."""
    for at in range(1 + len(OTHERS)):
        if at == len(cases):
            make, attempt = OTHERS[at - 1]
            cases.append(Case.of(make(seed, attempt)))
        if solver.refuses(cases[at].graph) is None and cases[at].points is not None:
            return cases[at]
    return None


@define(eq=False)
class Case:
    """A graph and what the oracle knows of it.

    Attributes:
        graph: of problems.
        points: its frontier; None: the oracle gave up.
        classes: frontiers of classes of schedules, as they are asked for.
    """

    graph: Graph
    points: list | None
    classes: dict = field(factory=dict)

    @classmethod
    def of(cls, graph):
        """With its frontier."""
        return cls(graph, frontier(graph))

    def problems(self, name, *, wide):
        """What a solver is asked."""
        budgets = changes(self.points) if name in BOUNDS else three(self.graph, self.points)
        links = [Problem(graph=self.graph, budget=budget, link=LINK) for budget in three(self.graph, self.points)]
        plain = [Problem(graph=self.graph, budget=budget) for budget in budgets]
        return plain + links if wide and name in LINKED else plain


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
    """The graphs of a seed in the text form, each with its frontier."""
    texts = []
    wide = seed % WIDE == 0
    for graph in (graph_of(seed), *(make(seed, attempt) for make, attempt in OTHERS if wide)):
        texts.append(f"{print_text(graph)}\n{[(point.time, point.peak) for point in frontier(graph) or ()]}")
    return "\n".join(texts)
