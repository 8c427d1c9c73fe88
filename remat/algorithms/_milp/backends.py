"""Back ends: the solvers of a model, and which of their results count.

`Highs` passes CVXPY's problem data to HiGHS through its own interface, which takes a start, reports progress and can be
interrupted. `Cvxpy` solves with any solver that CVXPY supports (SCIP by default). Both return a point only when the solver
has an incumbent (CVXPY turns a time limit without one into zero vectors under the status `user_limit`), and `infeasible`
only as the result of one solve: the caller confirms it by a second solve with other settings (HiGHS 1.13 to 1.15.1 have
reported small feasible formulations as infeasible).
"""

from __future__ import annotations

import math
import warnings
from importlib.util import find_spec
from typing import Any, ClassVar

import numpy as np
from attrs import evolve, field, frozen

from remat.algorithms._core.clock import Clock
from remat.algorithms._milp.answer import Answer, Floats, less_tolerance
from remat.algorithms._milp.backend import (
    NO_HINTS,
    NODES,
    Backend,
    Hints,
    Limits,
    Seen,
    below,
    deferred_interruption,
    missing,
)
from remat.algorithms._milp.highs import loaded
from remat.algorithms._milp.linear import Flags
from remat.algorithms._milp.milp_model import MilpModel
from remat.errors import BackendMissing, shown
from remat.settings import FLAG, NAME, Setting, tuple_of, whole

_OPTION = Setting(
    "a pair of a name and a value",
    lambda value: type(value) is tuple and len(value) == 2 and isinstance(value[0], str) and bool(value[0]),
)


@frozen(kw_only=True)
class Highs(Backend):
    """HiGHS, by its own interface, on the numbers that CVXPY would give it.

    Attributes:
        threads, nodes: limits; the gap and the time come from the caller.
        implied: declare columns integral that are so in some optimum: HiGHS then cuts on memory rows, which halves its time.
        presolve: HiGHS's own, for MILPs.
        seed: of its random choices.
    """

    takes_start: ClassVar[bool] = True

    threads: int = field(default=1, validator=whole(1, "threads"))
    nodes: int | None = field(default=None, validator=NODES)
    implied: bool = field(default=True, validator=FLAG)
    presolve: bool = field(default=False, validator=FLAG)
    seed: int = field(default=0, validator=whole(0))

    def with_save(self) -> Backend:
        """With presolve: with a second budget it saves time (measured on captured blocks: half)."""
        return evolve(self, presolve=True)

    def check(self) -> None:
        """Raise `BackendMissing` when highspy is not installed."""
        if find_spec("highspy") is None:
            raise missing("HIGHS")

    def solve(self, model: MilpModel, limits: Limits, hints: Hints = NO_HINTS) -> Answer:
        """Solve; see `Backend.solve`."""
        self.check()
        import highspy

        clock = Clock(limits.seconds if math.isfinite(limits.seconds) else None)
        mixed = model.mixed
        implied = model.linear.implied[model.order] if mixed and self.implied else None
        solver = _loaded(model, implied)
        options: dict[str, Any] = {
            "mip_rel_gap": limits.gap,
            "threads": self.threads,
            "random_seed": self.seed,
            # presolve costs these MILPs more time than it saves, and it has lost points of them
            "presolve": "choose" if hints.second != (self.presolve or not mixed) else "off",
        }
        if (limits.nodes or self.nodes) is not None:
            options["mip_max_nodes"] = limits.nodes or self.nodes
        for name, value in options.items():
            solver.setOptionValue(name, value)
        if hints.start is not None and not clock.expired:
            whole = _completed(highspy, model, hints.start[model.order], implied, clock)
            if whole is not None:
                solution = highspy.HighsSolution()
                solution.col_value = whole.tolist()
                solution.value_valid = True
                solver.setSolution(solution)
        if hints.cutoff is not None and mixed:
            solver.setOptionValue("objective_bound", hints.cutoff * model.cost_unit)
        if clock.expired:
            return Answer(note=_LATE)
        _end_with(solver, clock)
        _Watch(model, hints.seen).run(solver)
        answer = _answer(highspy, solver, model)
        return answer if hints.cutoff is None or not mixed else below(answer, hints.cutoff, model)


_LATE = "HiGHS: no time was left when it had the problem"


def _loaded(model: MilpModel, implied: Flags | None = None) -> Any:
    """HiGHS with the problem of a model, columns integral that are `implied` to be."""
    form = model.scaled
    integral = form.integral if implied is None else form.integral | implied
    equal = np.arange(len(form.row_of)) < form.equations
    return loaded(form.rows.tocsc(), form.cost, model.scaled_right, equal, integral)


def _end_with(solver: Any, clock: Clock) -> None:
    """Limit HiGHS to what is left of the seconds: handing the problem over takes some of them."""
    if math.isfinite(clock.remaining):
        solver.setOptionValue("time_limit", clock.remaining)


def _completed(highspy: Any, model: MilpModel, start: Floats, implied: Flags | None, clock: Clock) -> Floats | None:
    """The start with the least residency that its runs need; None where they do not fit the formulation, or time runs out.

    With the runs fixed, the least residency is 0 or 1 everywhere, and presolve finds it by propagation.
    """
    if implied is None:
        return start
    solver = _loaded(model)
    count = len(start)
    runs = np.flatnonzero(model.scaled.integral).astype(np.int32)
    fixed = np.round(start[runs])
    solver.changeColsIntegrality(len(runs), runs, np.zeros(len(runs), np.uint8))
    solver.changeColsBounds(len(runs), runs, fixed, fixed)
    solver.changeColsCost(count, np.arange(count, dtype=np.int32), implied.astype(float))
    _end_with(solver, clock)
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    return np.round(np.array(solver.getSolution().col_value))


class _Watch:
    """Listens to HiGHS: passes on incumbents and bounds, and stops it on request or at Ctrl-C.

    While HiGHS runs, Ctrl-C only sets a flag that the next call-back reads: an exception must not cross its C++ frames.
    """

    def __init__(self, model: MilpModel, seen: Seen | None) -> None:
        self.model, self.seen = model, seen
        self.stop = self.interrupted = False

    def run(self, solver: Any) -> None:
        """Solve.

        Raises:
            KeyboardInterrupt: after the solver has stopped, when the user asked for it.
        """
        if self.seen is not None:
            solver.cbMipImprovingSolution.subscribe(self.improved)
            solver.cbMipInterrupt.subscribe(self.polled)
            solver.cbSimplexInterrupt.subscribe(self.polled)
            with deferred_interruption(self.pressed):
                solver.run()
        else:
            solver.run()
        if self.interrupted:
            raise KeyboardInterrupt

    def pressed(self) -> None:
        self.interrupted = True

    def improved(self, event: Any) -> None:
        self._report(event, np.array(event.data_out.mip_solution))

    def polled(self, event: Any) -> None:
        self._report(event, None)

    def _report(self, event: Any, values: Floats | None) -> None:
        if self.seen is not None and not self.stop:
            bound = less_tolerance(event.data_out.mip_dual_bound, self.model.cost_unit)
            point = None if values is None or not len(values) else self.model.in_order(values)
            self.stop = self.seen(point, bound)
        if self.stop or self.interrupted:
            event.data_in.user_interrupt = True


def _answer(highspy: Any, solver: Any, model: MilpModel) -> Answer:
    status, info = solver.getModelStatus(), solver.getInfo()
    kinds = highspy.HighsModelStatus
    point = None
    if info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible and status != kinds.kInfeasible:
        point = model.in_order(np.array(solver.getSolution().col_value))
    mixed = model.mixed
    done = status == kinds.kOptimal
    value = info.mip_dual_bound if mixed else (info.objective_function_value if done else 0.0)
    infeasible = status in (kinds.kInfeasible, kinds.kUnboundedOrInfeasible)
    duals = None
    if not mixed:
        values = solver.getDualRay()[2] if infeasible else (solver.getSolution().row_dual if done else None)
        duals = None if values is None or len(values) == 0 else model.multipliers(-np.array(values))
    return Answer(
        point=point,
        bound=less_tolerance(value, model.cost_unit),
        finished=done,
        infeasible=infeasible,
        duals=duals,
        note=f"HiGHS: {solver.modelStatusToString(status)}",
    )


@frozen(kw_only=True)
class Cvxpy(Backend):
    """Any mixed-integer solver that CVXPY supports; no start, no progress.

    Attributes:
        solver: CVXPY's name of it. options: passed on, as (name, value) pairs.
        threads, nodes: limits, for HiGHS and SCIP.
    """

    solver: str = field(default="SCIP", validator=NAME)
    threads: int = field(default=1, validator=whole(1, "threads"))
    nodes: int | None = field(default=None, validator=NODES)
    options: tuple[tuple[str, object], ...] = field(default=(), validator=tuple_of(_OPTION, empty=True))

    def check(self) -> None:
        """Raise `BackendMissing` when CVXPY or the solver is not installed, or CVXPY has no solver of that name."""
        if find_spec("cvxpy") is None:
            raise missing("cvxpy")
        import cvxpy as cp
        from cvxpy.reductions.solvers.defines import MI_SOLVERS

        if self.solver in cp.installed_solvers():
            return
        if self.solver in cp.settings.SOLVERS:
            raise missing(self.solver)
        fix = f"give one that it has for MILPs: {', '.join(sorted(MI_SOLVERS))}."
        raise BackendMissing("A-BACKEND", f"CVXPY has no solver {shown(self.solver)}.", fix=fix)

    def solve(self, model: MilpModel, limits: Limits, hints: Hints = NO_HINTS) -> Answer:
        """Solve; see `Backend.solve`."""
        self.check()
        import cvxpy as cp

        options = {**self._limits(limits, hints.second), **dict(self.options)}
        if self.solver == "SCIP":
            return self._scip(model, options)
        try:
            with warnings.catch_warnings():
                # CVXPY warns of an inaccurate point at every limit; points are replayed in any case
                warnings.simplefilter("ignore", UserWarning)
                model.problem.solve(solver=self.solver, **options)
        except cp.error.SolverError as error:
            return Answer(note=f"{self.solver}: {error}")
        return self._answer(model)

    def _scip(self, model: MilpModel, options: dict[str, Any]) -> Answer:
        """SCIP by CVXPY's data and driver; its own object has more information than CVXPY's status."""
        import cvxpy as cp

        data, chain, _ = model.problem.get_problem_data(cp.SCIP)
        results = chain.solve_via_data(model.problem, data, solver_opts=options)
        solver, word = results["model"], str(results["scip_status"])
        if word == "userinterrupt":
            raise KeyboardInterrupt
        bound = float(solver.getDualbound())
        point = model.in_order(results["primal"], model.columns(data)) if "primal" in results else None
        return Answer(
            point=point,
            bound=less_tolerance(bound if abs(bound) < solver.infinity() else 0.0, model.cost_unit),
            finished=word in ("optimal", "gaplimit"),
            infeasible=word in ("infeasible", "inforunbd"),
            note=f"SCIP: {word}",
        )

    def _limits(self, limits: Limits, second: bool) -> dict[str, Any]:
        seconds, nodes = limits.seconds, limits.nodes or self.nodes
        if self.solver == "SCIP":
            options: dict[str, Any] = {
                "limits/gap": limits.gap,
                "parallel/maxnthreads": self.threads,
                "lp/threads": self.threads,
            }
            if math.isfinite(seconds):
                options["limits/time"] = max(0.0, seconds)
            if nodes is not None:
                options["limits/nodes"] = nodes
            if second:
                options |= {"presolving/maxrounds": 0, "propagating/maxroundsroot": 0}
            return {"scip_params": options}
        if self.solver == "HIGHS":
            options = {"mip_rel_gap": limits.gap, "threads": self.threads, "presolve": "off" if second else "choose"}
            if math.isfinite(seconds):
                options["time_limit"] = max(0.0, seconds)
            if nodes is not None:
                options["mip_max_nodes"] = nodes
            return options
        return {}

    def _answer(self, model: MilpModel) -> Answer:
        problem = model.problem
        status = str(problem.status)
        bound, incumbent = self._evidence(problem)
        point = model.point() if incumbent else None
        return Answer(
            point=point,
            bound=less_tolerance(bound, model.cost_unit),
            finished=status == "optimal",
            infeasible=status in ("infeasible", "infeasible_or_unbounded"),
            note=f"{self.solver}: {status}",
        )

    def _evidence(self, problem: Any) -> tuple[float, bool]:
        """The bound, and whether there is an incumbent at all, which the status alone does not show."""
        extra = problem.solver_stats.extra_stats if problem.solver_stats is not None else None
        if self.solver == "HIGHS":
            has_incumbent = bool(np.isfinite(float(getattr(extra, "mip_gap", np.inf))))
            return float(getattr(extra, "mip_dual_bound", 0.0)), has_incumbent and problem.status != "infeasible"
        good = problem.status in ("optimal", "optimal_inaccurate")
        return (float(problem.value) if problem.status == "optimal" else 0.0), good
