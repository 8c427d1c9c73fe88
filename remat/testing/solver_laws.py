"""The laws of a solver, and `check_solver`, which tests all of them on small problems and reports the smallest example.

The laws of transforms, partitioners, option sources and bounds are in the modules with those names.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from remat.algorithms._core.outcome import Plan
from remat.algorithms._core.problem import Problem
from remat.algorithms._core.solver import Solver
from remat.settings import instance
from remat.testing.case import case_of
from remat.testing.clock import memory_clock
from remat.testing.hash_order import NoChild, in_a_child
from remat.testing.report import LawBroken, Report, Say, Tally, check_arguments
from remat.testing.solver_trial import SolverTrial
from remat.testing.trial import check_repr
from remat.testing.trying import Examples, try_examples

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from remat.ir import Graph

SOLVER_LAWS = {
    "L-REFUSE": "`refuses` returns None or a line of text, always the same; nothing is planned for a refused graph",
    "L-RAISE": "no exception is raised for a graph that is not refused",
    "L-TIME": "it ends soon after its clock expires, and within seconds on a small problem; long computations read the clock",
    "L-THREAD": "no thread or process is left running; in another thread the plan is the same",
    "L-GLOBAL": "global state of the process is not changed: generators of random numbers, environment, limits",
    "L-PURE": "the problem is not changed",
    "L-INT": "`plan` returns a Plan: `lower` is an int, or IMPOSSIBLE; the trail is a tuple of text",
    "L-REPLAY": "a proposed schedule breaks no replay rule",
    "L-BUDGET": "a proposed schedule fits the budget",
    "L-BOUND": "`lower` is at most the time of every schedule of the problem; IMPOSSIBLE only if there is none",
    "L-CLASS": "a bound in `class_bounds` is at most the time of every schedule of its class (if the kit knows the class)",
    "L-REPORT": "plans and bounds reported to the clock are valid, and the plans fit",
    "L-BETTER": "each plan reported to the clock has its true time and is no worse than the previous one; nor is the result",
    "L-REPEAT": "the same problem and seed give the same plan, whatever the state of the global generators",
    "L-NAMES": "names do not matter: with others, sorted alike or in reverse, the plan is the same; nor does the order of sets",
    "L-STOP": "after the clock has expired the plan is still valid and the bound still holds",
    "L-INTERRUPT": "an interruption is let through, or stops the clock; it is not swallowed, and nothing else stops the clock",
    "L-LINK": "with a link, schedules are valid and bounds hold for schedules with copies too",
    "L-HOST": "with a limit of the host, copies keep it and bounds hold for every schedule that does",
    "L-START": "from a start that fits the plan is valid and fits, and the bound holds",
    "L-EVIDENCE": "the checker accepts the proof that evidence gives, of this problem, and it proves no more than the bound; "
    "the bound holds where a proof is asked for too",
    "L-HASH": "in a process with another hash seed the plan is the same",
    "L-REPR": "`repr` rebuilds the solver",
    "L-PICKLE": "it survives pickling, as worker pools need",
}
_ELSEWHERE = 8
"""Number of problems that are solved in the child process."""


def check_solver(
    solver: Solver,
    *,
    graphs: SearchStrategy[Graph] | None = None,
    exclude: Mapping[str, str] | None = None,
    words: Mapping[str, Any] | None = None,
    examples: int = 60,
    shrink: bool = True,
    say: Say | None = None,
) -> Report:
    """Test every law of a solver on small random problems, whose optimum is found by exhaustive search.

    Args:
        solver: the solver under check.
        graphs: a hypothesis strategy of graphs it accepts; None: chains, layers, branches and any legal graphs, with small and
            large numbers, most of them with exactly the budget that some optimum needs.
        exclude: laws to leave out, each with a reason; the report prints them.
        words: values of the names in the solver's repr that are in no registry, except its class.
        examples: number of problems.
        shrink: look for a smaller example of a broken law, for a second or two; False: report the first.
        say: called with the text of the report; None: print it.

    Raises:
        LawBroken: with the law and the smallest example; `L-NONE` if the solver refused every graph.
    """
    check_arguments("check_solver", solver, instance(Solver, "StoreAll()"), exclude, examples, graphs)
    tally = Tally(solver, SOLVER_LAWS, exclude)
    check_repr(solver, tally, words)
    if tally.tries("L-PICKLE"):
        _check_pickle(solver)
    asked: list[tuple[Problem, int]] = []

    def judge(graph: Graph, number: int) -> None:
        trial = SolverTrial(solver, case_of(graph, number), SOLVER_LAWS, tally)
        trial.run()
        if trial.planned:
            asked.append((trial.problem, trial.case.seed))

    try_examples(judge, Examples(graphs=graphs, count=examples, shrink=shrink), tally)
    _check_elsewhere(solver, asked[:: max(1, len(asked) // _ELSEWHERE)], tally)
    return tally.report(say)


def _check_pickle(solver: Solver) -> None:
    try:
        again = pickle.loads(pickle.dumps(solver))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise LawBroken("L-PICKLE", f"{solver!r} cannot be pickled: {error}") from error
    if again != solver:
        raise LawBroken("L-PICKLE", f"{solver!r} comes back as {again!r}.")


def _check_elsewhere(solver: Solver, asked: list[tuple[Problem, int]], tally: Tally) -> None:
    """L-HASH; left out if no other process can import the solver."""
    if "L-HASH" in tally.excluded or not asked:
        return
    try:
        answers = in_a_child(answered, solver, asked)
    except NoChild as why:
        tally.excluded["L-HASH"] = str(why)
        return
    for (problem, seed), answer in zip(asked, answers, strict=True):
        tally.tries("L-HASH")
        here = answered(solver, (problem, seed))
        if here != answer:
            example = case_text(problem)
            what = f"{solver!r}: in this process the plan is {here}, in one with another hash seed {answer}."
            raise LawBroken("L-HASH", f"{what} ({SOLVER_LAWS['L-HASH']})", example=example)


def answered(solver: Solver, question: tuple[Problem, int]) -> str:
    """A plan as text, for comparison with the plan of another process."""
    problem, seed = question
    plan = solver.plan(problem, memory_clock(), seed)
    if not isinstance(plan, Plan):
        return repr(plan)
    steps = "no schedule" if plan.schedule is None else "; ".join(map(str, plan.schedule.steps))
    return f"{steps}, at least {plan.lower} ns"


def case_text(problem: Problem) -> str:
    """Budget and graph in text form."""
    from remat.ir import print_text

    return f"# budget {problem.budget}\n{print_text(problem.graph)}"


__all__ = ["SOLVER_LAWS", "check_solver"]
