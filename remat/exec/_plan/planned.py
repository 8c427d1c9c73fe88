"""A planned step, and the warnings about its budget."""

from __future__ import annotations

from attrs import frozen

from remat.algorithms import Outcome
from remat.exec._capture.capturing import Captured
from remat.exec._plan.families import SINGLE
from remat.exec._run.lowering import Lowered
from remat.exec._run.rehearsal import Rehearsal
from remat.ir import Graph, Link
from remat.units import Bytes, format_bytes


@frozen(kw_only=True, eq=False)
class Planned:
    """A step that can run.

    Attributes:
        captured: the trace, with sizes as measured.
        graph: what was planned on.
        outcome: what the solver returned.
        lowered: the generated functions.
        budget: bytes, or None where there is none; what a call holds outside the plan (`Captured.overhead`) is in it.
        reserve, retained: what a loss outside the module is assumed to hold, at its peak and during the backward [bytes].
        audited: whether these two were measured on a real step.
        excess: the part of `retained` that gradients of outputs take which arrive in another layout than the trace's [bytes].
        store_all: replayed peak of `StoreAll` [bytes].
        seconds: of each stage: capture, cost, plan, lower, later rehearsal; `bound` is a part of plan; import and compile are in
            none.
        asked: the budget asked for, where no plan was found for it and this is the plan of the smallest budget found; else None.
        origin: where the plan comes from, where it was saved and not made here; empty: made here.
        planner: who made it, where it was not made here.
        rehearsed: what was measured of it on this machine, before it was saved.
        link: that it was planned with; None: without copies.
        provenance: "own": it was made for this step; "unrelated": likewise, and its operations are others than those of all
            steps planned before (a loop unrolled in time, a size of 1); "family": it comes from plans of other sizes;
            "repaired": from one of these that did not fit and was shaved.
        unfilled: why the step was captured, where captures at other sizes were there to fill it in from; empty: it was filled
            in, or there were none.
        inner: what compiled its functions, and the plans that were tried; empty: eager's kernels run them.
        fitted: the plans that were tried, and what a step held each time, where the first one held more than the budget.
    """

    captured: Captured
    graph: Graph
    outcome: Outcome
    lowered: Lowered | None
    budget: Bytes | None
    reserve: Bytes
    retained: Bytes
    audited: bool
    excess: Bytes
    store_all: Bytes
    seconds: dict[str, float]
    asked: Bytes | None = None
    origin: str = ""
    planner: str = ""
    rehearsed: Rehearsal | None = None
    link: Link | None = None
    provenance: str = SINGLE
    unfilled: str = ""
    inner: str = ""
    fitted: str = ""


def above_budget(planned: Planned, measured: Bytes, *, estimated: bool) -> str:
    """A warning that a rehearsal held more than the budget; empty where it did not. `estimated`: costs were not measured."""
    if planned.budget is None or measured <= planned.budget:
        return ""
    cause, fix = "some operation takes more memory in the step than on its own", ", and report it, with the module"
    if estimated:
        cause, fix = 'with cost="estimate" nobody knows what kernels take for themselves', ', or cost="measure"'
    elif planned.captured.program.device.type == "cuda":
        cause = "the allocator gives cached blocks that are larger than what is asked for"
        fix = ", or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, under which blocks are as large as they need to be"
    return (
        f"the rehearsal of the plan held {format_bytes(measured)} ({measured} B), and the budget is "
        f"{format_bytes(planned.budget)} ({planned.budget} B): {cause}. "
        f"Give a budget that is {measured - planned.budget} B smaller{fix}."
    )


def over_budget(planned: Planned) -> str:
    """A warning that the plan is for the smallest budget found, in place of the budget asked for; empty where it is not."""
    if planned.asked is None or planned.budget is None:
        return ""
    return (
        f"no plan for {format_bytes(planned.asked)} ({planned.asked} B) was found; the step runs in the smallest budget a plan "
        f"was found for, {format_bytes(planned.budget)} ({planned.budget} B)."
    )
