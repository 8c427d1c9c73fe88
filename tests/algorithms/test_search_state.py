"""What passes share: conditions as values, the parts of a search, random streams by name."""

import copy
import itertools
import pickle
import sys

import numpy as np
import pytest
from attrs import frozen

from remat.algorithms import (
    Clock,
    Floor,
    MultiStart,
    Polish,
    Problem,
    SavedSet,
    SingleInstant,
    any_plan,
    gap,
    gap_above,
    no_plan,
    parse,
)
from remat.algorithms._arrays.streams import _STREAMS, Streams, _number
from remat.algorithms._core.outcome import IMPOSSIBLE
from remat.algorithms._search.run_move import RunMove
from remat.algorithms._search.standing import Bounds, Incumbents
from remat.algorithms._search.state import Search
from remat.errors import BackendMissing, BadArgument
from tests.algorithms.test_runs_liveness import chain


@frozen
class At:
    """How far a search is."""

    best_time: float
    lower: float


NONE, FAR, NEAR, HOPELESS = At(float("inf"), 100), At(110, 100), At(101, 100), At(float("inf"), IMPOSSIBLE)


@pytest.mark.parametrize(
    "condition, holds",
    [
        (gap(0.05), (False, False, True, True)),
        (gap_above(0.05), (True, True, False, False)),
        (no_plan, (True, False, False, True)),
        (any_plan, (False, True, True, False)),
    ],
    ids=repr,
)
def test_a_condition_looks_at_plan_and_bound(condition, holds):
    assert tuple(condition(at) for at in (NONE, FAR, NEAR, HOPELESS)) == holds
    assert parse(repr(condition)) == condition
    assert pickle.loads(pickle.dumps(condition)) == copy.deepcopy(condition) == condition


def test_an_expression_with_conditions_is_read_back():
    solver = Polish(
        (
            Floor(),
            MultiStart(4).if_(no_plan),
            MultiStart().if_(gap_above(0.1)).if_(any_plan),
            MultiStart(4).if_(no_plan, throughout=False),
        ),
        stop=gap(0.01),
    )
    assert parse(repr(solver)) == solver
    assert solver.moves[1] != solver.moves[3]


@pytest.mark.parametrize("build", [lambda: MultiStart().if_(0.01), lambda: Polish((MultiStart(),), stop=0.01)])
def test_a_number_is_no_condition(build):
    with pytest.raises(BadArgument, match=r"gap\(0.001\)"):
        build()


@frozen
class Recorded(RunMove):
    """Says when it is asked whether to stop, before and after it offers a sequence, or else the captured order."""

    heard: list
    sequence: np.ndarray | None = None

    def improve(self, search):
        self.heard.append(search.enough)
        search.offer(search.base if self.sequence is None else self.sequence, "recorded")
        self.heard.append(search.enough)


def search_over(budget):
    return Search(Problem(graph=chain(8), budget=budget), Clock(), 0, "test")


def test_a_pass_is_asked_only_where_its_condition_holds_and_ends_when_it_holds_no_longer():
    heard = []
    fits = search_over(100)
    Recorded(heard).if_(no_plan).improve(fits)
    assert heard == []
    tight = search_over(21)
    with tight.while_(no_plan):
        assert not tight.enough
        MultiStart(4).improve(tight)
        assert tight.best is not None and tight.enough
    assert tight.enough == (tight.best_time <= tight.lower)


@pytest.mark.parametrize("throughout", [True, False])
def test_a_pass_that_has_begun_ends_with_its_condition_unless_that_is_only_for_its_beginning(throughout):
    heard, planned, search = [], search_over(21), search_over(21)
    MultiStart(4).improve(planned)
    move = Recorded(heard, planned.best).if_(no_plan, throughout=throughout)
    move.improve(search)
    assert search.best is not None and search.best_time > search.lower
    assert heard == [False, throughout]
    move.improve(search)
    assert len(heard) == 2  # there is a plan: it does not begin
    assert ("when it begins" in move.outline(chain(8))[0]) is not throughout


def test_a_stop_rule_holds_inside_the_passes_of_a_polish_and_not_after_it():
    heard = []
    search = search_over(21)
    MultiStart(4).improve(search)
    assert search.lower < search.best_time
    with search.until(any_plan):
        assert search.enough
        with search.while_(gap_above(0.0)):
            assert search.enough
    assert not search.enough
    Polish((Recorded(heard),), stop=any_plan).improve(search)
    assert heard == []  # there is a plan: no pass begins


def test_incumbents_keep_the_best_of_distinct_times():
    incumbents, sequence = Incumbents(), np.arange(3, dtype=np.int32)
    for time, wanted, best in ((9, True, 9), (7, True, 7), (9, False, 7), (8, True, 7), (7, False, 7)):
        assert incumbents.wants(time) is wanted
        if wanted:
            assert incumbents.take(sequence, time) is (time == best and time != 8)
        assert incumbents.best_time == best
    assert [time for time, _ in incumbents.pool] == [7, 8, 9]
    assert len(incumbents.others(2)) == 2


def test_evidence_only_rises_and_ranks_instants_by_their_bounds():
    evidence = Bounds(10)
    assert [evidence.raises(bound) for bound in (10, 12, 11, IMPOSSIBLE)] == [False, True, False, True]
    for at, bound in ((4, 1), (2, 5), (3, 5)):
        evidence.record_instant(at, bound)
    assert evidence.hardest(2) == [2, 3]


def test_no_two_streams_share_a_number():
    seen = {}
    for name, (_, places) in _STREAMS.items():
        for keys in itertools.product(*(range(min(count, 300)) for _, count in places)):
            number = _number(name, keys)
            assert number not in seen, (name, keys, seen[number])
            seen[number] = name, keys


def test_keys_without_a_place_in_the_table_get_streams_of_their_own():
    states = {int(Streams(0).spawn("start", k)[0]) for k in range(400)} | {int(Streams(0).spawn("easy budget")[0])}
    assert len(states) == 401


def test_a_stream_depends_on_the_seed_the_name_and_the_keys_alone():
    one = Streams(3).spawn("saved set", 1, 2)
    assert one.dtype == np.uint64 and one.shape == (1,)
    assert (one == Streams(3).spawn("saved set", 1, 2)).all()
    assert (one != Streams(4).spawn("saved set", 1, 2)).all()
    with pytest.raises(ValueError, match="keys"):
        Streams(3).spawn("saved set", 1)


def test_without_highs_the_rest_of_a_polish_plans_and_says_so_once(monkeypatch):
    monkeypatch.setitem(sys.modules, "highspy", None)
    solver = Polish((Floor(), MultiStart(4), SingleInstant(), SavedSet()), stop=gap(0.0))
    with pytest.warns(RuntimeWarning, match="HiGHS cannot be loaded") as warned:
        outcome = solver.solve(Problem(graph=chain(8), budget=21))
    assert len(warned) == 1
    assert outcome.schedule is not None
    assert [words.split("(")[0] for words in outcome.trail if "left out" in words] == ["SingleInstant", "SavedSet"]
    with pytest.raises(BackendMissing, match="A-BACKEND"):
        SingleInstant().solve(Problem(graph=chain(8), budget=21))
