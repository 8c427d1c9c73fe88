"""The laws of a transform, and `check_transform`, which tests all of them on small problems."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from random import Random
from typing import TYPE_CHECKING, Any, Final

from attrs import evolve

from remat.algorithms._core.outcome import Outcome
from remat.algorithms._core.problem import Problem
from remat.algorithms._core.transforms import Applied, RefusedTransform, Transform
from remat.algorithms._whole.exhaustive import Exhaustive
from remat.errors import BudgetExceeded, InvalidSchedule
from remat.ir import Graph, Schedule, validate
from remat.settings import instance
from remat.testing.case import Case, case_of
from remat.testing.clock import memory_clock
from remat.testing.guarded import GuardedTrial
from remat.testing.random_schedules import random_schedule
from remat.testing.renaming import other_names, renamed, with_names
from remat.testing.report import Report, Say, Tally, check_arguments
from remat.testing.trial import check_repr
from remat.testing.trying import Examples, try_examples
from remat.testing.walks import Walk, offloading

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

TRANSFORM_LAWS = {
    "L-REFUSE": "`refuses` returns None or a line of text, always the same",
    "L-RAISE": "no exception is raised for a graph that is not refused",
    "L-TIME": "it ends within seconds on a small problem",
    "L-THREAD": "no thread or process is left running",
    "L-GLOBAL": "global state of the process is not changed: generators of random numbers, environment, limits",
    "L-PURE": "the problem is not changed",
    "L-INT": "`apply` returns an Applied, `lift` a Schedule",
    "L-ASKED": "the deadline is kept; the link is kept, with the limit of the host, or left out",
    "L-LIFT": "a valid schedule of the transformed problem is lifted to one that breaks no replay rule",
    "L-FIT": "a schedule that fits the transformed budget is lifted to one that fits the original budget",
    "L-LINK": "the same with copies, if the transformed problem has a link",
    "L-PROOF": "if the transform keeps proofs, no schedule of the original problem beats a bound of the transformed one",
    "L-REPEAT": "the same problem is transformed and lifted the same way, whatever the state of the global generators",
    "L-NAMES": "names do not matter: with others, sorted alike or in reverse, it lifts alike; nor does the order of sets",
    "L-INTERRUPT": "an interruption is let through, or stops the clock; it is not swallowed",
    "L-STOP": "after its clock has expired it still returns a problem, and lifts valid schedules",
    "L-REPR": "`repr` rebuilds the transform",
}
_STATES: Final = 600


def check_transform(
    transform: Transform,
    *,
    graphs: SearchStrategy[Graph] | None = None,
    exclude: Mapping[str, str] | None = None,
    words: Mapping[str, Any] | None = None,
    examples: int = 60,
    shrink: bool = True,
    say: Say | None = None,
) -> Report:
    """Test every law of a transform on small random problems; arguments as for `check_solver`.

    Raises:
        LawBroken: with the law and the example; `L-NONE` if every graph was refused.
    """
    check_arguments(
        "check_transform", transform, instance(Transform, "Condense(HPartition())"), exclude, examples, graphs
    )
    tally = Tally(transform, TRANSFORM_LAWS, exclude)
    check_repr(transform, tally, words)

    def judge(graph: Graph, number: int) -> None:
        _Trial(transform, case_of(graph, number), tally).run()

    try_examples(judge, Examples(graphs=graphs, count=examples, shrink=shrink), tally)
    return tally.report(say)


class _Trial(GuardedTrial):
    """One problem tested under all laws."""

    def __init__(self, transform: Transform, case: Case, tally: Tally) -> None:
        super().__init__(transform, case.problem.graph, case.text, TRANSFORM_LAWS, tally)
        self.transform = transform
        self.case = case
        self.random = Random(case.number)
        deadline = self.random.choice((None, None, 3.5))
        self.problem = evolve(case.problem, deadline=deadline)
        self.linked = evolve(case.linked, deadline=deadline, host_budget=self.random.choice((None, 0, 7)))

    def run(self) -> None:
        """All laws; the others only if the graph is not refused."""
        if self.refused():
            return
        pristine = copy.deepcopy(self.problem)
        applied = self.applied(self.problem)
        if applied is None:
            self.tally.refused += 1
            return
        if self.tally.tries("L-PURE"):
            self.expect("L-PURE", self.problem == pristine, "the problem has changed.")
        self.kept(applied, self.problem)
        walks = [random_schedule(applied.problem.graph, self.random.randint) for _ in range(3)]
        exact = Exhaustive(max_states=_STATES).solve(applied.problem)
        for schedule in (*walks, exact.schedule):
            if schedule is not None:
                self.lifts(applied, schedule)
        if self.transform.keeps_proofs and self.tally.tries("L-PROOF"):
            self.proves(exact)
        self.repeats(applied, walks[0])
        self.renames(applied, walks[0])
        clock = memory_clock()
        self.interrupted(
            "`apply`", self.case.number, lambda: self.transform.apply(self.problem, clock=clock), lambda: clock.stopped
        )
        if self.tally.tries("L-STOP"):
            self.stops()
        self.links()

    def applied(self, problem: Problem) -> Applied | None:
        """The transformed problem; None if a part of the transform refuses its graph. Tests L-INT."""

        def ask() -> Applied | None:
            try:
                return self.transform.apply(problem)
            except RefusedTransform:
                return None

        applied = self.guarded("`apply`", ask)
        if applied is not None and not isinstance(applied, Applied):
            raise self.broken("L-INT", f"`apply` returns {applied!r:.80}, not an Applied.")
        return applied

    def lifted(self, applied: Applied, schedule: Schedule) -> Schedule:
        """The schedule of the original problem. Tests L-INT."""
        back = self.guarded("`lift`", lambda: applied.lift(schedule))
        if not isinstance(back, Schedule):
            raise self.broken("L-INT", f"`lift` returns {back!r:.80}, not a Schedule.")
        return back

    def stops(self) -> None:
        """L-STOP: called as `t >> s` calls it, with a seed and a clock that expires after a few readings."""
        clock = memory_clock(self.random.randint(0, 3))

        def ask() -> Applied | None:
            try:
                return self.transform.apply(self.problem, clock=clock, seed=self.case.seed)
            except RefusedTransform:
                return None

        applied = self.guarded("`apply`", ask)
        if applied is not None:
            walk = random_schedule(applied.problem.graph, self.random.randint)
            self.replays("L-STOP", self.problem, applied, walk)

    def kept(self, applied: Applied, problem: Problem) -> None:
        """L-ASKED."""
        if self.tally.tries("L-ASKED"):
            before, after = problem, applied.problem
            same = after.deadline == before.deadline
            self.expect("L-ASKED", same, f"a deadline of {before.deadline} became {after.deadline}.")
            self.expect("L-ASKED", after.link in (None, before.link), f"the link {before.link} became {after.link}.")
            same = after.link is None or after.host_budget == before.host_budget
            self.expect("L-ASKED", same, f"the limit of the host, {before.host_budget}, became {after.host_budget}.")

    def lifts(self, applied: Applied, schedule: Schedule) -> None:
        """L-LIFT and L-FIT."""
        if self.tally.tries("L-LIFT"):
            self.replays("L-LIFT", self.problem, applied, schedule)
        fits = validate(applied.problem.graph, schedule).peak <= applied.problem.budget
        if fits and self.tally.tries("L-FIT"):
            peak = validate(self.problem.graph, self.lifted(applied, schedule)).peak
            what = f"a schedule within {applied.problem.budget} B is lifted to {peak} B, above {self.problem.budget} B."
            self.expect("L-FIT", peak <= self.problem.budget, f"{what}\n{_lines(schedule)}")

    def replays(self, law: str, problem: Problem, applied: Applied, schedule: Schedule) -> None:
        """The lifted schedule breaks no rule, except possibly the budget."""
        lifted = self.lifted(applied, schedule)
        try:
            validate(problem.graph, lifted, None, problem.link)
        except InvalidSchedule as error:
            raise self.broken(law, f"{error}\n{_lines(lifted)}\nlifted from {_lines(schedule)}") from error

    def links(self) -> None:
        """L-LINK, and L-ASKED for the problem with a link."""
        if "L-LINK" in self.tally.excluded or (self.tally.only not in (None, "L-LINK", "L-ASKED")):
            return
        applied = self.applied(self.linked)
        if applied is None:
            return
        self.kept(applied, self.linked)
        problem = applied.problem
        if problem.link is None or not self.tally.tries("L-LINK"):
            return
        copied = [offloading(problem.graph), *(self._copied(problem.graph) for _ in range(3))]
        for schedule in copied:
            try:
                validate(problem.graph, schedule, None, problem.link)
            except InvalidSchedule:
                continue
            self.replays("L-LINK", self.linked, applied, schedule)
            if "L-FIT" not in self.tally.excluded:
                self.fits_linked(applied, schedule)

    def _copied(self, graph: Graph) -> Schedule:
        return Walk(graph, self.random.randint, copies=True).schedule()

    def fits_linked(self, applied: Applied, schedule: Schedule) -> None:
        """A schedule within the transformed budget is lifted to one within the original budget."""
        try:
            validate(applied.problem.graph, schedule, applied.problem.budget, applied.problem.link)
        except BudgetExceeded:
            return
        try:
            validate(self.linked.graph, self.lifted(applied, schedule), self.linked.budget, self.linked.link)
        except BudgetExceeded as error:
            raise self.broken("L-LINK", f"{error}\nlifted from {_lines(schedule)}") from error

    def proves(self, transformed: Outcome) -> None:
        """L-PROOF."""
        time, _ = self.case.best()
        what = f"the transformed problem takes at least {transformed.lower} ns, the original {time} ns."
        self.expect("L-PROOF", transformed.lower <= time, what)

    def repeats(self, applied: Applied, walk: Schedule) -> None:
        """L-REPEAT."""
        if not self.tally.tries("L-REPEAT"):
            return
        for again in self.reseeded("`apply`", lambda: self._again(self.problem, walk)):
            same = again == (applied.problem, self.lifted(applied, walk))
            self.expect("L-REPEAT", same, "a second call gives another problem, or lifts differently.")

    def _again(self, problem: Problem, walk: Schedule) -> tuple[Problem, Schedule]:
        again = self.transform.apply(problem)
        return again.problem, again.lift(walk)

    def renames(self, applied: Applied, walk: Schedule) -> None:
        """L-NAMES: nodes and data correspond by index, so each step of a walk has a counterpart."""
        if not self.tally.tries("L-NAMES"):
            return
        names, what = other_names(self.graph, self.case.number)
        other = evolve(self.problem, graph=renamed(self.graph, names))
        if self.transform.refuses(other.graph) is not None:
            raise self.broken("L-NAMES", f"{what} the graph is refused.")
        again = self.applied(other)
        graph, same = applied.problem.graph, again is not None and _alike(applied.problem, again.problem)
        self.expect("L-NAMES", same, f"{what} it gives another problem.")
        assert again is not None
        step = _counterparts(graph, again.problem.graph)
        lifted = self.lifted(again, Schedule(tuple(step(original) for original in walk.steps)))
        same = lifted == with_names(self.lifted(applied, walk), names)
        self.expect("L-NAMES", same, f"{what} it lifts differently.")


def _alike(problem: Problem, other: Problem) -> bool:
    """Whether two problems have the same numbers and structure, so that they may differ in names only."""

    def numbers(problem: Problem) -> tuple[object, ...]:
        graph = problem.graph
        nodes = [(node.phase, node.options, len(node.reads), len(node.writes)) for node in graph.computes]
        data = [(datum.size, datum.kind, len(datum.writers)) for datum in graph.data]
        return problem.budget, nodes, data, len(graph.layers), graph.writes_by_node, graph.reads_by_node

    return numbers(problem) == numbers(other)


def _counterparts(graph: Graph, other: Graph) -> Callable[[Any], Any]:
    """A function from a step of one graph to the corresponding step of the other."""
    nodes = {a.name: b.name for a, b in zip(graph.computes, other.computes, strict=True)}
    data = {a.name: b.name for a, b in zip(graph.data, other.data, strict=True)}
    data |= {a.phantom: b.phantom for a, b in zip(graph.layers, other.layers, strict=True)}

    def counterpart(step: Any) -> Any:
        return evolve(step, node=nodes[step.node]) if hasattr(step, "node") else evolve(step, datum=data[step.datum])

    return counterpart


def _lines(schedule: Schedule) -> str:
    return "; ".join(map(str, schedule.steps))


__all__ = ["TRANSFORM_LAWS", "check_transform"]
