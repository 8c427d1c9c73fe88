"""Progress has fields, the log says where the time goes, and trails hold nothing that differs between two runs."""

import logging
import re
import time
from pathlib import Path

import pytest

from remat.algorithms import (
    Autocapper,
    Clock,
    Dtr,
    FullRelaxation,
    HIlp,
    Intervals,
    Linearise,
    MultiStart,
    Polish,
    Problem,
    SavedSet,
    SingleInstant,
    StoreAll,
    TwRemat,
    best,
    choices,
    gap,
    hierarchical,
    named,
    quick,
    store_all_peak,
    warm,
)
from remat.algorithms._curves.tradeoff import SWEEP
from remat.ir import load
from tests.algorithms.test_runs_liveness import chain

BLOCKS = Path(__file__).parents[1] / "data" / "blocks"
SOLVERS = {
    "quick": quick,
    "a polish": Polish((MultiStart(starts=2), SavedSet(), SingleInstant()), stop=gap(0.0)),
    "a formulation": HIlp(gap=0.05),
    "a formulation with a start": warm(HIlp(gap=0.05, warm_start=False), seed=Dtr()),
    "levels": hierarchical(Intervals(6), lower=quick.sweep(peaks=2, saves=2), top=HIlp(gap=0.05)),
    "the relaxation": FullRelaxation(),
    "trees": TwRemat(),
    "a chain": named.rotor,
    "a transform of many": Linearise() >> best(StoreAll(), Autocapper()),
}


def problem(share=0.7):
    graph = load(BLOCKS / "gpt2_layer.json")
    return Problem(graph=graph, budget=int(store_all_peak(graph) * share))


@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
def test_a_trail_is_the_same_in_two_runs(solver, monkeypatch):
    """The second run is on a machine whose clocks go four times as fast."""
    first = solver.solve(problem())
    process, monotonic = time.process_time, time.monotonic
    monkeypatch.setattr(time, "process_time", lambda: 4 * process())
    monkeypatch.setattr(time, "monotonic", lambda: 4 * monotonic())
    second = solver.solve(problem())
    assert first.trail and second.trail == first.trail
    assert not [line for line in first.trail if re.search(r"\bCPU\b|\d s\b", line)]


def test_progress_counts_the_passes_of_a_search():
    passes = (MultiStart(starts=2), SavedSet(), SingleInstant())
    heard = []
    outcome = Polish(passes, stop=gap(0.0)).solve(problem(), clock=Clock(listener=heard.append))
    assert {one.stage for one in heard} <= set(map(repr, passes))
    assert {one.total for one in heard} == {3}
    assert all(one.stage == repr(passes[one.done]) for one in heard)
    assert min(one.best for one in heard if one.best is not None) == outcome.upper
    assert heard[-1].bound == outcome.lower
    assert heard[-1].gap == pytest.approx(outcome.gap)


def test_progress_counts_the_parts_of_a_combinator():
    heard = []
    best(StoreAll(), Dtr()).solve(Problem(graph=chain(4), budget=100), clock=Clock(listener=heard.append))
    assert [(one.stage, one.done, one.total) for one in heard] == [("StoreAll()", 1, 2), (repr(Dtr()), 2, 2)]


def test_progress_counts_the_budgets_of_a_curve_and_the_log_hears_of_each(caplog):
    heard, graph = [], problem().graph
    with caplog.at_level(logging.INFO, "remat"):
        curve = choices(graph, ["60%", "80%", "100%"], solver=quick, clock=Clock(listener=heard.append))
    reached = [one for one in heard if one.stage == SWEEP]
    assert [(one.done, one.total) for one in reached] == [(1, 3), (2, 3), (3, 3)]
    assert [one.best for one in reached] == [one.outcome.cost and one.outcome.cost.time for one in curve.choices]
    said = [one for one in caplog.records if one.name == "remat.algorithms._curves.tradeoff"]
    assert [one.levelno for one in said] == [logging.INFO] * 3
    assert all(f"{choice.budget} B" in one.getMessage() for one, choice in zip(said, curve.choices, strict=True))


def test_the_log_has_every_pass_with_its_seconds_and_its_bound(caplog):
    passes = (MultiStart(starts=2), SingleInstant())
    with caplog.at_level(logging.DEBUG, "remat"):
        outcome = Polish(passes, stop=gap(0.0)).solve(problem())
    said = [one for one in caplog.records if one.name == "remat.algorithms._search.pipeline"]
    assert [one.levelno for one in said] == [logging.DEBUG] * 2
    form = r"(.*): \d+\.\d{3} s, time (\d+) ns, bound (\d+) ns"
    words = [re.fullmatch(form, one.getMessage()).groups() for one in said]
    assert [name for name, _, _ in words] == list(map(repr, passes))
    assert words[-1][1:] == (str(int(outcome.upper)), str(outcome.lower))
    solved = [one for one in caplog.records if one.name == "remat.algorithms._core.solver"]
    assert [one.getMessage().startswith("Polish(") for one in solved] == [True]


def test_the_clock_charges_its_own_source_of_time():
    """So that a benchmark may count processor seconds: `Clock(now=time.process_time)`."""
    ticks = iter(range(10**6))
    clock = Clock(now=lambda: next(ticks))
    SingleInstant().solve(problem(), clock=clock)
    assert clock.spent["bound"] >= 1 and clock.spent["bound"] == int(clock.spent["bound"])


def test_every_module_that_logs_does_so_under_its_name():
    root = Path(__file__).parents[2] / "remat"
    loggers = {
        line for path in root.rglob("*.py") for line in re.findall(r"= logging\.getLogger\(.*\)", path.read_text())
    }
    assert loggers == {"= logging.getLogger(__name__)"}
