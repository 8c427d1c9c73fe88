"""The laws of a transform, and `check_transform`, which tries all of them on small problems."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from remat.algorithms._core.outcome import Outcome
from remat.algorithms._core.problem import Problem
from remat.algorithms._core.transforms import Applied, RefusedTransform, Transform
from remat.algorithms._whole.exhaustive import Exhaustive
from remat.errors import InvalidSchedule
from remat.ir import Schedule, print_text, validate
from remat.testing.report import Report, Say, Tally
from remat.testing.trial import Trial, check_repr, settings_for

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from remat.ir import Graph

TRANSFORM_LAWS = {
    "L-REFUSE": "`refuses` answers None or a line of text, always the same",
    "L-LIFT": "a valid schedule of the transformed problem is lifted to one that breaks no replay rule",
    "L-FIT": "a schedule that fits the transformed budget is lifted to one that fits the original budget",
    "L-PROOF": "a transform that keeps proofs: no schedule of the original problem beats a bound of the transformed one",
    "L-REPEAT": "the same problem is transformed the same way",
    "L-PURE": "the problem is left as it was",
    "L-REPR": "`repr` rebuilds the transform",
}


def check_transform(
    transform: Transform,
    *,
    graphs: SearchStrategy[Graph] | None = None,
    exclude: Mapping[str, str] | None = None,
    examples: int = 60,
    shrink: bool = True,
    say: Say | None = None,
) -> Report:
    """Try every law of a transform on small random problems.

    Args:
        transform: the transform under check.
        graphs: a hypothesis strategy of graphs it accepts; None: flat graphs, chains, and graphs of layers, all tiny.
        exclude: laws to leave out, each with a reason; the report prints them.
        examples: number of problems.
        shrink: look for the smallest example of a broken law.
        say: takes the report as text; None: the standard output.

    Raises:
        LawBroken: with the law and the example; `L-NONE` when everything was refused.
    """
    from hypothesis import given
    from hypothesis import strategies as st

    from remat.testing.examples import tiny_graphs
    from remat.testing.strategies import problems, valid_schedules

    tally = Tally(transform, TRANSFORM_LAWS, exclude)
    check_repr(transform, tally)

    @settings_for(examples, shrink)
    @given(problems(tiny_graphs() if graphs is None else graphs), st.data())
    def all_laws(problem: Problem, data: st.DataObject) -> None:
        trial = _Trial(transform, problem, tally)
        applied = trial.applied()
        if applied is None:
            return
        walk = Schedule.from_runs(applied.problem.graph, data.draw(valid_schedules(applied.problem.graph)).runs)
        trial.run(applied, walk)

    all_laws()
    return tally.report(say)


class _Trial(Trial):
    """One problem tried under all laws."""

    def __init__(self, transform: Transform, problem: Problem, tally: Tally) -> None:
        example = f"# budget {problem.budget}\n{print_text(problem.graph)}"
        super().__init__(transform, problem.graph, example, TRANSFORM_LAWS, tally)
        self.transform = transform
        self.problem = problem

    def applied(self) -> Applied | None:
        """The transformed problem, or None when the transform refuses."""
        if self.refused():
            return None
        try:
            return self.transform.apply(self.problem)
        except RefusedTransform:
            self.tally.refused += 1
            return None

    def run(self, applied: Applied, walk: Schedule) -> None:
        """All laws but the refusal's. `walk` is a valid schedule of the transformed graph."""
        if self.tally.tries("L-PURE"):
            before = print_text(self.problem.graph)
            self.transform.apply(self.problem)
            self.expect("L-PURE", print_text(self.problem.graph) == before, "the graph has changed.")
        if self.tally.tries("L-REPEAT"):
            again = self.transform.apply(self.problem).problem
            same = again.budget == applied.problem.budget and again.graph == applied.problem.graph
            self.expect("L-REPEAT", same, "applied again it makes another problem.")
        exact = Exhaustive(max_states=1000).solve(applied.problem)
        for schedule in (walk, exact.schedule):
            if schedule is not None:
                self.lifts(applied, schedule)
        if self.transform.keeps_proofs and self.tally.tries("L-PROOF"):
            self.proves(exact)

    def lifts(self, applied: Applied, schedule: Schedule) -> None:
        """L-LIFT and L-FIT."""
        if self.tally.tries("L-LIFT"):
            try:
                validate(self.problem.graph, applied.lift(schedule))
            except InvalidSchedule as error:
                raise self.broken("L-LIFT", f"{error} (of {'; '.join(map(str, schedule.steps))})") from error
        fits = validate(applied.problem.graph, schedule).peak <= applied.problem.budget
        if fits and self.tally.tries("L-FIT"):
            peak = validate(self.problem.graph, applied.lift(schedule)).peak
            what = f"a schedule within {applied.problem.budget} B is lifted to one of {peak} B."
            self.expect("L-FIT", peak <= self.problem.budget, what)

    def proves(self, transformed: Outcome) -> None:
        """L-PROOF."""
        original = Exhaustive(max_states=1000).solve(self.problem)
        what = f"the transformed problem takes at least {transformed.lower} ns, the original {original.upper} ns."
        self.expect("L-PROOF", transformed.lower <= original.upper, what)
