"""The checks on sound parts: what they print, what they leave out, what they refuse; and what they are made of."""

import random
import subprocess
import threading
import time
from pathlib import Path
from random import Random

import pytest
from attrs import evolve, frozen

from remat.algorithms import Exhaustive, Plan, Solver, StoreAll
from remat.algorithms._hierarchy.partition import Segments, Undivided
from remat.errors import BadArgument
from remat.ir import Graph, Schedule, print_text, validate
from remat.testing import (
    LawBroken,
    check_backend,
    check_bound,
    check_partitioner,
    check_solver,
    check_source,
    check_transform,
)
from remat.testing.case import case_of, optima_of
from remat.testing.families import FAMILIES, chain, layered, long
from remat.testing.guard import Overrun, patient, whole_process
from remat.testing.interruption import calls, interrupted
from remat.testing.oracle import frontier
from remat.testing.random_schedules import AMONG, in_captured_order, random_schedule
from remat.testing.reducing import smaller
from remat.testing.renaming import backwards, prefixed, renamed, with_names
from remat.testing.solver_laws import SOLVER_LAWS
from remat.testing.trace import Trace

from .planted.partitioners import NotConvex
from .planted.sources import Two
from .planted.transforms import LosesARun, Rename


def quiet(text):
    pass


# -- reports -----------------------------------------------------------------------------------------------------------


def test_the_sound_solver_keeps_all_laws_and_the_report_says_what_was_left_out():
    said = []
    report = check_solver(Exhaustive(), examples=20, exclude={"L-LINK": "searches no copies"}, say=said.append)
    assert "L-LINK: left out, because searches no copies" in said[0]
    assert set(report.tried) == set(SOLVER_LAWS) - {"L-LINK", "L-RAISE"}


@pytest.mark.parametrize("reason", ["", "  ", None])
def test_an_exclusion_needs_a_reason(reason):
    with pytest.raises(Exception, match="without a reason"):
        check_solver(Exhaustive(), exclude={"L-LINK": reason}, say=quiet)


def test_an_unknown_law_cannot_be_excluded():
    with pytest.raises(Exception, match="L-NOPE"):
        check_solver(Exhaustive(), exclude={"L-NOPE": "because"}, say=quiet)


@pytest.mark.parametrize(
    "check", [check_solver, check_transform, check_partitioner, check_source, check_backend, check_bound]
)
def test_what_no_check_can_check_is_refused_with_what_to_give(check):
    for part in (3, StoreAll):  # a class in place of an object of it
        with pytest.raises(BadArgument, match=rf"A-SETTING: {check.__name__}: .* Fix: give an? [A-Z]"):
            check(part, say=quiet)


def test_a_check_wants_reasons_and_examples():
    with pytest.raises(BadArgument, match=r"check_solver: exclude is .*a reason for each law"):
        check_solver(StoreAll(), exclude=["L-PICKLE"], say=quiet)
    with pytest.raises(BadArgument, match="check_solver: examples is 0"):
        check_solver(StoreAll(), examples=0, say=quiet)


def test_a_solver_that_refuses_everything_is_not_called_checked():
    with pytest.raises(LawBroken, match="nothing was checked"):
        check_solver(Exhaustive(max_nodes=1), examples=8, say=quiet)


@frozen
class Inner:
    depth: int = 1


@frozen
class Outer(Solver):
    inner: Inner = Inner()

    def plan(self, problem, clock, seed):
        return Exhaustive().plan(problem, clock, seed)


def test_words_in_a_repr_that_no_registry_knows_are_given():
    with pytest.raises(LawBroken, match=r"words=\{"):
        check_solver(Outer(), examples=1, say=quiet)
    assert check_solver(Outer(), examples=2, words={"Inner": Inner}, say=quiet).tried["L-REPR"] == 1


def test_a_solver_of_the_started_script_is_asked_in_no_other_process():
    here = type("Here", (Outer,), {"__module__": "__main__"})
    exclude = {"L-PICKLE": "stands nowhere", "L-REPR": "stands nowhere"}
    report = check_solver(here(), examples=2, exclude=exclude, say=quiet)
    assert "script" in report.excluded["L-HASH"]


class FirstTimeWrong(Exhaustive):
    """Wrong once in its life."""

    def plan(self, problem, clock, seed):
        if not told:
            told.append(0)
            return Plan(schedule=Schedule(()))
        return Exhaustive.plan(self, problem, clock, seed)


told = []


def test_a_law_that_is_broken_once_and_kept_when_asked_again_is_told_plainly():
    with pytest.raises(LawBroken, match="broke L-REPLAY once") as broken:
        check_solver(FirstTimeWrong(), exclude={"L-REPR": "is wrong once"}, say=quiet)
    assert broken.value.law == "L-REPEAT"


def test_sound_parts_keep_all_laws():
    check_transform(Rename(), say=quiet)
    check_source(Two(), say=quiet)
    for partitioner in (Undivided(), Segments(1), Segments(2), Segments(20)):
        check_partitioner(partitioner, say=quiet, examples=40)


@pytest.mark.parametrize(("check", "part"), [(check_transform, LosesARun()), (check_partitioner, NotConvex())])
def test_an_error_of_a_law_carries_the_example(check, part):
    with pytest.raises(LawBroken) as caught:
        check(part, say=quiet)
    assert "remat graph 1" in caught.value.example and caught.value.example in str(caught.value)


# -- examples ----------------------------------------------------------------------------------------------------------


def graphs(count):
    return [FAMILIES[seed % len(FAMILIES)](Random(seed).randint) for seed in range(count)]


def test_the_default_run_reaches_the_hard_part():
    cases = [case_of(graph, seed) for seed, graph in enumerate(graphs(60))]
    reruns = [validate(case.problem.graph, schedule).reruns for case in cases if (schedule := case.best()[1])]
    assert sum(count >= 2 for count in reruns) >= 8
    drawn = [case.problem.graph for case in cases]
    assert sum(len(graph.layers) >= 2 for graph in drawn) >= 6
    assert sum(len(graph) > 12 for graph in drawn) >= 5
    assert sum(any(datum.size >= 2**50 for datum in graph.data) for graph in drawn) >= 8
    assert sum(graph.time >= 2**50 for graph in drawn) >= 8
    assert sum(any(node.after for node in graph.computes) for graph in drawn) >= 5
    assert sum(any(node.draws for node in graph.computes) for graph in drawn) >= 5
    assert sum(any(len(datum.writers) > 1 for datum in graph.data) for graph in drawn) >= 12
    assert sum(not graph.flat and not graph.layers for graph in drawn) >= 4
    assert len({datum.kind for graph in drawn for datum in graph.data}) >= 8
    assert len({print_text(graph) for graph in drawn}) == 60


def test_the_optima_of_a_case_are_those_of_the_other_oracle():
    for seed in range(40):
        graph = FAMILIES[3](Random(seed).randint)
        optima, complete = optima_of(graph)
        if complete:
            assert [(one.time, one.peak) for one in optima][-1] == [(one.time, one.peak) for one in frontier(graph)][-1]


@pytest.mark.parametrize("among", AMONG)
def test_random_schedules_are_valid_and_of_their_class(among):
    reruns = 0
    for seed, graph in enumerate(graphs(60)):
        schedule = random_schedule(graph, Random(seed).randint, among)
        cost = validate(graph, schedule)
        trace = Trace(graph, schedule)
        assert (trace.time, trace.peak) == (cost.time, cost.peak)
        assert among == "all" or in_captured_order(graph, schedule)
        reruns += cost.reruns > 0
    assert reruns >= 15


def test_smaller_graphs_are_legal_and_lead_to_a_single_node():
    for graph in (chain(Random(1).randint), layered(Random(1).randint), long(Random(1).randint)):
        while (candidate := next(smaller(graph), None)) is not None:
            assert isinstance(candidate, Graph) and candidate != graph
            graph = candidate
        assert len(graph) == 1


def test_only_numbers_change_where_the_structure_is_to_stay():
    graph = chain(Random(3).randint)
    for candidate in smaller(graph, structure=False):
        assert [node.reads for node in candidate.computes] == [node.reads for node in graph.computes]


def test_a_renamed_graph_has_the_same_schedules():
    for seed, graph in enumerate(graphs(20)):
        schedule = random_schedule(graph, Random(seed).randint)
        for names in (prefixed(graph, "x."), backwards(graph, "x.")):
            again = validate(renamed(graph, names), with_names(schedule, names))
            assert again.time == validate(graph, schedule).time


def test_new_names_sort_as_before_or_in_reverse():
    for graph in graphs(20):
        straight, reverse = prefixed(graph, "x."), backwards(graph, "x.")
        assert sorted(straight.values()) == [straight[name] for name in sorted(straight)]
        assert sorted(reverse.values(), reverse=True) == [reverse[name] for name in sorted(reverse)]
        assert len(set(reverse.values())) == len(reverse) >= len(graph) + len(graph.data)


# -- guards ------------------------------------------------------------------------------------------------------------


def test_a_question_that_takes_too_long_is_ended(monkeypatch):
    monkeypatch.setattr("remat.testing.guard.PATIENCE", 0.3)
    with pytest.raises(Overrun), patient():
        while True:
            pass


def test_a_question_that_waits_for_nothing_is_ended(monkeypatch):
    monkeypatch.setattr("remat.testing.guard.IDLE", 0.5)
    with pytest.raises(Overrun), patient():
        time.sleep(60)


def test_in_other_threads_nothing_is_interrupted():
    seen = []

    def ask():
        with patient() as watch:
            seen.append(watch.seconds)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert len(seen) == 1


def test_the_state_of_the_process_is_told_by_words():
    before = whole_process()
    random.random()
    changed = [what for what, state in whole_process().items() if before[what] != state]
    assert changed == ["the generator of `random`"]
    random.setstate(before[changed[0]])


def test_an_interruption_is_raised_at_the_call_that_was_chosen():
    def work():
        return [evolve(Inner(), depth=k).depth for k in range(3)]

    count = calls({__name__}, work)
    assert count >= 3
    with pytest.raises(KeyboardInterrupt):
        interrupted({__name__}, count, work)
    assert interrupted({__name__}, count + 1, work) == [0, 1, 2]


def test_an_interruption_leaves_the_repr_of_a_part_as_it_was():
    part = Inner()
    text = repr(part)
    for at in range(1, 1 + calls({__name__}, lambda: repr(part))):
        with pytest.raises(KeyboardInterrupt):
            interrupted({__name__}, at, lambda: repr(part))
        assert repr(part) == text


def test_store_all_is_refused_nothing_by_names():
    assert check_solver(StoreAll(), examples=6, exclude={"L-BUDGET": "has one plan"}, say=quiet).tried["L-NAMES"]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="child processes are looked up in /proc")
def test_a_process_of_any_kind_that_is_left_running_breaks_a_law():
    left = []

    class LeavesOne(Solver):
        def plan(self, problem, clock, seed):
            left.append(subprocess.Popen(["sleep", "60"]))
            return Plan()

    try:
        with pytest.raises(LawBroken, match=r"L-THREAD: .* left the process \d+ running"):
            check_solver(frozen(LeavesOne)(), exclude={"L-REPR": "a local class", "L-PICKLE": "likewise"}, say=quiet)
    finally:
        for process in left:
            process.kill()
            process.wait()
