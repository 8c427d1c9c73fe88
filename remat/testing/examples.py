"""Hypothesis strategies of the examples that checks try: problems with schedules that are known to fit."""

from __future__ import annotations

from hypothesis import strategies as st

from remat.algorithms._core.problem import Problem
from remat.errors import BudgetExceeded
from remat.ir import Graph, Link, Schedule, validate
from remat.testing.case import Case
from remat.testing.strategies import (
    Draw,
    chain_graphs,
    layered_graphs,
    least_need,
    links,
    training_graphs,
    valid_schedules,
)
from remat.testing.walks import offloading


def tiny_graphs() -> st.SearchStrategy[Graph]:
    """Graphs that an exhaustive search can finish."""
    return st.one_of(
        training_graphs(min_forward=3, max_forward=3),
        training_graphs(min_forward=3, max_forward=3, random=False),
        chain_graphs(min_length=2, max_length=3),
        layered_graphs(max_layers=2),
    )


@st.composite
def cases(draw: Draw, graphs: st.SearchStrategy[Graph] | None = None) -> Case:
    """A problem whose budget some schedule needs to the byte, or nearly; the same with a link."""
    graph = draw(tiny_graphs() if graphs is None else graphs)
    walks = [Schedule.from_runs(graph, draw(valid_schedules(graph)).runs) for _ in range(2)]
    peaks = sorted(validate(graph, one).peak for one in walks)
    least = min(least_need(graph), peaks[0])
    budget = draw(
        st.one_of(st.sampled_from([peaks[0], peaks[0], peaks[-1]]), st.integers(max(0, least - 1), peaks[0] + 1))
    )
    link = draw(st.one_of(st.just(Link()), links()))
    copied = draw(st.one_of(st.just(offloading(graph)), valid_schedules(graph, copies=True)))
    return Case(
        problem=Problem(graph=graph, budget=budget),
        witnesses=tuple(walks),
        linked=Problem(graph=graph, budget=_need(graph, copied, link, budget), link=link),
        linked_witnesses=(copied, *walks),
        looks=draw(st.integers(0, 12)),
        seed=draw(st.integers(0, 2)),
    )


def _need(graph: Graph, schedule: Schedule, link: Link, budget: int) -> int:
    """The budget, or what the schedule with copies needs where that is less: then the bound of a link is at stake."""
    peak = validate(graph, schedule, None, link).peak
    try:
        validate(graph, schedule, budget, link)
    except BudgetExceeded:
        return peak
    return min(peak, budget)
