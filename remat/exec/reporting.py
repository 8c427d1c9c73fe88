"""The report of a wrapped module: what was predicted, what was measured, which solver planned it and how good it is."""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen
from torch import nn

from remat.algorithms import IMPOSSIBLE
from remat.errors import BadArgument
from remat.exec._copy.copies import CopyCounts
from remat.exec._module.entries import Bare, Dynamic, Ready
from remat.exec._module.state import State, state_of
from remat.exec._plan.families import FAMILY, REPAIRED, SINGLE, UNRELATED
from remat.exec._plan.progress import seconds_by_stage
from remat.ir import Cost, Graph, Lane, Link, Schedule
from remat.units import Bytes, Ns, format_bytes, format_ns

SOURCES = {
    UNRELATED: "this step alone: its operations are others than those of the sizes planned before",
    FAMILY: "plans of other sizes, improved by a short search",
    REPAIRED: "a plan of another size that did not fit, shaved to the budget and improved",
}
"""What the report says of a plan that was not made for its step alone."""


@frozen(kw_only=True)
class Report:
    """What is known about the planned step of a wrapped module; `str` gives a table.

    Attributes:
        budget: [bytes]; None: nothing was planned, the unwrapped module runs.
        predicted_peak, measured_peak: most bytes the step holds; measured on a rehearsal; `overhead` is in both.
        store_all_peak: what a step that keeps everything would hold by prediction [bytes].
        predicted_time, measured_time: of one step, forward and backward [ns]; measured: the median of the last steps, or the
            rehearsal.
        store_all_time: predicted time of a step that keeps everything [ns].
        reruns, recomputation: number and time of the runs after each node's first [ns].
        lower: a bound on the predicted time of every schedule within the budget [ns].
        provenance: where the plan comes from: "own": it was made for this step; "unrelated": likewise, and its operations are
            others than those of all steps planned before (a loop unrolled in time, a size of 1); "family": from plans of other
            sizes; "repaired": from one of these that did not fit and was shaved to the budget.
        word: what it is: `certified`, exact and with a proof, or `claimed`.
        gap: predicted time over that bound, less one: the plan is at most this far from the fastest; None without a bound.
            Planning computes the bounds that cost little, `report(model, tighten=True)` the others.
        tightened: whether these others are in `lower` and `gap`.
        planner: the solver that planned.
        trail: what each solver reported.
        planning_seconds: time of the planning alone, without imports and compilation.
        seconds: of each stage: capture, cost, plan (`bound` is a part of it), lower, rehearsal; import and compile are in none.
        loss_reserve: bytes the plan has for a loss outside the module, and for gradients in another layout than traced.
        overhead: bytes that a call holds outside its plan: what is computed before it because shapes follow from it, and what
            undoes a forward that took the wrong branch.
        reserved: most bytes the caching allocator held from the driver in the rehearsal (CUDA), else 0.
        graph, schedule, cost: what was planned on, the plan, and its replayed cost.
        source: the generated functions; empty where the bare module runs.
        plans: number of plans the module has; calls whose captured programs are equal share one.
        guards: number of checks that a call makes before it runs the plan.
        exported: why torch's joint export has traced the step and not the log; empty: the log has, or the export was asked for.
        unfilled: why the step was captured, where captures at other sizes were there to fill it in from; else empty.
        origin: the file that the plan comes from, and whose times it was made with, or another process of the group; empty: it
            was planned here.
        ran: "plan", or why the last call did not run it; where it ran under DTR, that begins with "DTR: ".
        asked: the budget asked for, where no plan was found for it and the smallest budget found stands for it; else None.
        link: that the plan was made with; None: without copies to the host. What is predicted of copies stands in `cost`.
        copied: what the copies of the last step were, or of the rehearsal; None: there were none.
        inner: what compiled the functions of the plan, the budgets that it was planned for in turn, and what a step held each
            time; empty: eager's kernels run the plan.
    """

    budget: Bytes | None
    predicted_peak: Bytes
    measured_peak: Bytes | None
    store_all_peak: Bytes
    predicted_time: Ns
    measured_time: Ns | None
    store_all_time: Ns
    reruns: int
    recomputation: Ns
    lower: Ns | float
    gap: float | None
    planner: str
    trail: tuple[str, ...]
    planning_seconds: float
    seconds: dict[str, float]
    loss_reserve: Bytes
    reserved: Bytes
    graph: Graph
    schedule: Schedule
    cost: Cost
    source: str
    plans: int
    guards: int = 0
    ran: str = "plan"
    asked: Bytes | None = None
    overhead: Bytes = 0
    origin: str = ""
    exported: str = ""
    word: str = "claimed"
    tightened: bool = False
    link: Link | None = None
    copied: CopyCounts | None = None
    provenance: str = SINGLE
    unfilled: str = ""
    inner: str = ""
    fitted: str = ""

    def __str__(self) -> str:
        rows = self.rows()
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name.ljust(width)}  {value}" for name, value in rows)

    def _bound(self) -> str:
        """The lower bound of the time, and whether it is certified or claimed."""
        if self.lower <= 0 or self.lower == IMPOSSIBLE:
            return "none"
        return f"{format_ns(int(self.lower))} ({self.word})"

    def rows(self) -> list[tuple[str, str]]:
        """The table: name and value."""
        measured, took = _measured(self.measured_peak, format_bytes), _measured(self.measured_time, format_ns)
        extra = self.predicted_time / self.store_all_time - 1 if self.store_all_time else 0.0
        gap = "no bound" if self.gap is None else f"{self.gap:.2%}"
        if self.gap and not self.tightened:
            gap += " at most; `report(model, tighten=True)` looks for a better bound"
        share = (
            f" ({self.predicted_peak / self.store_all_peak:.1%} of keeping everything)" if self.store_all_peak else ""
        )
        rows = [
            ("budget", self._budget()),
            ("predicted peak", format_bytes(self.predicted_peak) + share),
            ("measured peak", measured),
            ("predicted time", f"{format_ns(self.predicted_time)} ({extra:+.1%} over keeping everything)"),
            ("measured time", took),
            ("recomputations", f"{self.reruns} runs, {format_ns(self.recomputation)}"),
            ("lower bound", self._bound()),
            ("gap", gap),
            ("planned by", self.planner),
            ("seconds", seconds_by_stage(self.seconds)),
            ("last call ran", "the plan" if self.ran == "plan" else self.ran),
        ]
        if self.origin or self.provenance != SINGLE:
            rows.append(("plan from", self.origin or SOURCES[self.provenance]))
        if self.inner:
            rows.append(("compiled by", self.inner))
        if self.fitted:
            rows.append(("made to fit", self.fitted))
        if self.unfilled:
            rows.append(("captured as", self.unfilled))
        if self.exported:
            rows.append(("traced by", f"the joint export: {self.exported}"))
        if self.guards:
            rows.append(("guards", f"{self.guards} checks a call"))
        apart = (
            ("for the loss outside", self.loss_reserve),
            ("held outside the plan", self.overhead),
            ("reserved by the allocator", self.reserved),
        )
        return rows + self._copies() + [(what, format_bytes(size)) for what, size in apart if size]

    def _copies(self) -> list[tuple[str, str]]:
        """The rows on copies: the link, bytes each way, idle time and host memory, predicted and measured."""
        if self.link is None:
            return []
        rows = [("link", f"{_speed(self.link.to_host)} to the host, {_speed(self.link.to_device)} back")]
        copies, copied = self.cost.copies, self.copied
        if not copies:
            return [*rows, ("copies", "none: the plan is faster without")]
        sizes = {lane: sum(self.graph.datum(c.what).size for c in copies if c.lane is lane) for lane in Lane}
        planned = f"{format_bytes(sizes[Lane.TO_HOST])} to the host, {format_bytes(sizes[Lane.TO_DEVICE])} back"
        idle = None if copied is None else copied.idle
        overlap = None if copied is None else copied.overlap
        shared = "" if overlap is None else f"; {overlap:.0%} of the copying went on beside computing"
        peak = None if copied is None else copied.host_peak
        waited = "" if idle is None else f", {format_ns(idle)} measured"
        taken = "" if peak is None else f", {format_bytes(peak)} taken"
        return [
            *rows,
            ("copies", f"{len(copies)} ({planned})"),
            ("idle time", f"{format_ns(self.cost.idle)} predicted{waited}{shared}"),
            ("host peak", f"{format_bytes(self.cost.host_peak)} predicted{taken}"),
        ]

    def _budget(self) -> str:
        if self.budget is None:
            return "none: the unwrapped module runs"
        if self.asked is None:
            return format_bytes(self.budget)
        return (
            f"{format_bytes(self.budget)}, the smallest a plan was found for ({format_bytes(self.asked)} was asked for)"
        )


def report(model: nn.Module, *, tighten: bool = False) -> Report:
    """The report of the plan that the last call used, or of the first plan before any call.

    Args:
        model: what `remat.exec.wrap` returned.
        tighten: first compute the bounds that planning left out, integer formulations at the hardest moments and over all orders:
            seconds, on some graphs a minute, once per plan. The plan stays as it is.

    Raises:
        BadArgument: X-REPORT, when the module is not wrapped, or what it runs is not planned; the message says why.
    """
    state = state_of(model)
    ready = state.last if state.last is not None else next(iter(state.entries), None)
    if ready is None:
        raise BadArgument(
            "X-REPORT", "nothing has been planned yet (plans are not pickled).", fix="run a training step."
        )
    if isinstance(ready, Dynamic):
        what = f"the step runs under DTR, without a plan: {ready.reason}"
        raise BadArgument("X-REPORT", what, fix="ask remat.exec.dtr_report.")
    if isinstance(ready, Bare):
        raise BadArgument(
            "X-REPORT", f"the module falls back to the unwrapped one: {ready.reason}", fix="see the reason."
        )
    if tighten and ready.planned.lowered is not None:
        state.raise_bound(ready)
    return report_of(state, ready)


def _rehearsed_peak(ready: Ready) -> Bytes | None:
    """The most bytes a rehearsed call held, with what it holds outside the plan; None: it was not rehearsed."""
    return None if ready.rehearsal is None else ready.rehearsal.peak + ready.planned.captured.overhead


def _measured_step(ready: Ready) -> Ns | None:
    """The time of a step: that of the calls so far, else that of the rehearsal."""
    return ready.meter.time or (None if ready.rehearsal is None else ready.rehearsal.time)


def _count_plans(state: State) -> int:
    """How many plans a module has; calls of several forms may share one."""
    return len({id(entry.planned.outcome) for entry in state.entries if isinstance(entry, Ready)})


def report_of(state: State, ready: Ready) -> Report:
    """The report of one plan.

    Raises:
        BadArgument: X-REPORT, where no plan was found.
    """
    planned = ready.planned
    outcome, rehearsal = state.outcome_of(ready), ready.rehearsal
    overhead = planned.captured.overhead
    if outcome.cost is None or outcome.schedule is None:
        raise BadArgument("X-REPORT", "there is no plan.", fix="give a larger budget.")
    keeps_all = outcome.cost.reruns == 0 and outcome.cost.peak == planned.store_all
    return Report(
        budget=planned.budget,
        predicted_peak=outcome.cost.peak + overhead,
        measured_peak=_rehearsed_peak(ready),
        store_all_peak=planned.store_all + overhead,
        predicted_time=outcome.cost.time,
        measured_time=_measured_step(ready),
        store_all_time=planned.graph.time,
        reruns=outcome.cost.reruns,
        recomputation=outcome.cost.recomputation,
        lower=outcome.lower,
        word=outcome.word,
        gap=outcome.gap,
        planner="StoreAll()" if keeps_all else planned.planner or state.settings.name(),
        trail=outcome.trail,
        planning_seconds=planned.seconds["plan"],
        seconds=planned.seconds,
        loss_reserve=planned.reserve + planned.retained,
        reserved=0 if rehearsal is None else rehearsal.reserved,
        graph=planned.graph,
        schedule=outcome.schedule,
        cost=outcome.cost,
        source="" if planned.lowered is None else planned.lowered.source,
        plans=_count_plans(state),
        guards=len(planned.captured.guards.reads) + len(planned.captured.late),
        ran=state.ran,
        asked=planned.asked,
        overhead=overhead,
        origin=planned.origin,
        tightened=outcome is not planned.outcome,
        link=planned.link,
        copied=None if planned.lowered is None or planned.lowered.copier is None else planned.lowered.copier.last,
        exported=planned.captured.exported,
        provenance=planned.provenance,
        unfilled=planned.unfilled,
        inner=planned.inner,
        fitted=planned.fitted,
    )


def _speed(bandwidth: int | None) -> str:
    return "unbounded" if bandwidth is None else f"{bandwidth / 1e9:.3g} GB/s"


def _measured(value: int | None, text: Callable[[int], str]) -> str:
    return "not measured yet" if value is None else text(value)
