"""The laws of a score of DTR, and `check_score`, which tests all of them on random pools and random programs."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from random import Random
from typing import Any, Final

import numpy as np
from attrs import evolve

from remat.algorithms._dtr.reader import read_program
from remat.algorithms._dtr.scores import COSTS, Chance, Pool, Score
from remat.algorithms._dtr.simulator import Replay, Status, program_peak, simulate
from remat.errors import BadArgument
from remat.settings import instance, whole
from remat.testing.guarded import GuardedTrial
from remat.testing.hash_order import NoChild, in_a_child
from remat.testing.programs import OnlineReplay, numbers_of, random_log
from remat.testing.report import LawBroken, Report, Say, Tally
from remat.testing.trial import check_repr, described

SCORE_LAWS = {
    "L-RAISE": "no exception is raised for a pool",
    "L-TIME": "it ends within seconds on a small pool",
    "L-THREAD": "no thread or process is left running",
    "L-GLOBAL": "global state of the process is not changed: generators of random numbers, environment, limits",
    "L-MEASURE": "`measure` is one of the measures of cost that runtimes keep",
    "L-NUMBER": "`values` returns one number for each storage, of any sign, none of them NaN",
    "L-PURE": "the pool is not changed",
    "L-ORDER": "the score of a storage does not depend on its place in the pool",
    "L-SINGLE": "`values` agrees with `value`, storage by storage",
    "L-REPEAT": "the same pool gives the same scores, whatever the state of the global generators",
    "L-REPLAY": "the simulator keeps the budget, and a second replay is the same",
    "L-ONLINE": "the runtime for PyTorch steps evicts and recomputes as the simulator does",
    "L-HASH": "in a process with another hash seed the scores of a pool are the same",
    "L-REPR": "`repr` rebuilds the score",
    "L-PICKLE": "it survives pickling, as modules under DTR need",
}
_ELSEWHERE: Final = 8
"""Number of pools that are scored in the child process."""
_LARGEST: Final = (1, 10, 10**4, 10**9, 1 << 60)
"""Bounds of costs, sizes and times; pools have 0 and ties as well."""
_SAME_LIFETIMES: Final = ("no", "local", "eq")
"""Measures for which both runtimes count the same: the online one forgets released storages that nothing needs."""


def check_score(
    score: Score,
    *,
    exclude: Mapping[str, str] | None = None,
    words: Mapping[str, Any] | None = None,
    examples: int = 40,
    say: Say | None = None,
) -> Report:
    """Test every law of a score on random pools, and on random programs in the simulator and in the online runtime.

    The laws ask for numbers, the same each time; which storage should go is for the score to say. The smallest number goes, of
    equal ones the last in the pool, but of several 0 with none below it the first.

    Args:
        score: the score under check; not `random`, which has no values.
        exclude: laws to leave out, each with a reason; the report prints them.
        words: values of the names in its repr that are in no registry, except its class.
        examples: number of pools, and of programs under three budgets each.
        say: called with the text of the report; None: print it.

    Raises:
        LawBroken: with the law and the pool or the program.
        BadArgument: A-SETTING, for something that is no score, and for `random`.
    """
    instance(Score, "h_dtr_eq").check(score, "check_score: score")
    whole(1).check(examples, "check_score: examples")
    if isinstance(score, Chance):
        raise BadArgument("A-SETTING", "check_score: `random` has no values.", fix="give a score that has.")
    tally = Tally(score, SCORE_LAWS, exclude)
    check_repr(score, tally, words)
    _check_pickle(score, tally)
    if tally.tries("L-MEASURE") and score.measure not in COSTS:
        raise LawBroken("L-MEASURE", f"`measure` is {score.measure!r:.100}, not one of {', '.join(COSTS)}.")
    for number in range(examples):
        tally.examples += 1
        _PoolTrial(score, random_pool(number), number, tally).run()
        _ProgramTrial(score, number, tally).run()
    _check_elsewhere(score, tally)
    return tally.report(say)


def _check_pickle(score: Score, tally: Tally) -> None:
    """L-PICKLE."""
    if not tally.tries("L-PICKLE"):
        return
    try:
        same = pickle.loads(pickle.dumps(score)) == score
    except (pickle.PickleError, AttributeError, TypeError) as error:
        raise LawBroken("L-PICKLE", f"{score!r} cannot be pickled: {described(error)}") from error
    if not same:
        raise LawBroken("L-PICKLE", f"{score!r} differs after pickling.")


def _check_elsewhere(score: Score, tally: Tally) -> None:
    """L-HASH; left out if no other process can import the score."""
    if "L-HASH" in tally.excluded:
        return
    numbers = list(range(min(tally.examples, _ELSEWHERE)))
    try:
        answers = in_a_child(scored, score, numbers)
    except NoChild as why:
        tally.excluded["L-HASH"] = str(why)
        return
    for number, answer in zip(numbers, answers, strict=True):
        tally.tries("L-HASH")
        here = scored(score, number)
        if here != answer:
            what = f"{score!r}: in this process the scores are {here!r:.200}, in one with another hash seed {answer!r:.200}."
            raise LawBroken("L-HASH", f"{what} ({SCORE_LAWS['L-HASH']})")


def scored(score: Score, number: int) -> list[float]:
    """The scores of a random pool, for comparison with those of another process."""
    return [float(value) for value in np.asarray(score.values(random_pool(number)))]


def random_pool(seed: int) -> Pool:
    """A pool of one to twelve storages with zeros, ties and numbers up to 2^60."""
    draw = Random(seed)
    count, clock = draw.randint(1, 12), draw.choice(_LARGEST) + 1

    def numbers(largest: int) -> np.ndarray:
        return np.array([draw.choice((0, 1, largest, draw.randint(0, largest))) for _ in range(count)], np.int64)

    access = np.minimum(numbers(clock), clock)
    return Pool(
        cost=numbers(draw.choice(_LARGEST)),
        size=numbers(draw.choice(_LARGEST)),
        staleness=clock - access,
        access=access,
    )


def _rows(pool: Pool) -> list[list[int]]:
    columns = (pool.cost, pool.size, pool.staleness, pool.access)
    return [list(row) for row in zip(*(column.tolist() for column in columns), strict=True)]


class _PoolTrial(GuardedTrial):
    """One pool tested under the laws of `values`."""

    def __init__(self, score: Score, pool: Pool, number: int, tally: Tally) -> None:
        lines = ["cost, size, staleness, access", *(", ".join(map(str, row)) for row in _rows(pool))]
        super().__init__(score, None, "\n".join(lines), SCORE_LAWS, tally)  # type: ignore[arg-type]  # it has no graph
        self.score, self.pool, self.number = score, pool, number

    def run(self) -> None:
        """All laws of a pool."""
        before = _rows(self.pool)
        values = self.guarded("`values`", lambda: np.asarray(self.score.values(self.pool)))
        if self.tally.tries("L-PURE"):
            self.expect("L-PURE", _rows(self.pool) == before, "the pool has changed.")
        if self.tally.tries("L-NUMBER"):
            fine = values.shape == self.pool.cost.shape and values.dtype.kind in "fi" and not np.isnan(values).any()
            self.expect("L-NUMBER", fine, f"`values` returns {values!r:.200}.")
        if self.tally.tries("L-REPEAT"):
            for again in self.reseeded("`values`", lambda: np.asarray(self.score.values(self.pool))):
                self.expect("L-REPEAT", np.array_equal(again, values), f"{values!r:.200}, then {again!r:.200}.")
        if self.tally.tries("L-ORDER"):
            self.ordered(values)
        self.single(values)

    def ordered(self, values: np.ndarray) -> None:
        """L-ORDER, in a random order."""
        order = np.array(Random(self.number).sample(range(len(values)), len(values)))
        columns = {name: getattr(self.pool, name)[order] for name in ("cost", "size", "staleness", "access")}
        other = self.quietly("`values`", lambda: np.asarray(self.score.values(evolve(self.pool, **columns))))
        self.expect("L-ORDER", _close(other, values[order]), f"in the order {order.tolist()}: {other!r:.200}.")

    def single(self, values: np.ndarray) -> None:
        """L-SINGLE, where the score has a `value`."""
        if type(self.score).value is Score.value or not self.tally.tries("L-SINGLE"):
            return
        each = self.quietly(
            "`value`", lambda: np.array([self.score.value(*row) for row in _rows(self.pool)], np.float64)
        )
        self.expect("L-SINGLE", _close(values, each), f"`values` returns {values!r:.200}, `value` {each!r:.200}.")


def _close(first: np.ndarray, second: np.ndarray) -> bool:
    """Whether numbers are equal up to rounding."""
    return first.shape == second.shape and bool(np.isclose(first, second, rtol=1e-9, atol=0.0).all())


class _ProgramTrial(GuardedTrial):
    """One program under three budgets, in both runtimes."""

    def __init__(self, score: Score, number: int, tally: Tally) -> None:
        log = random_log(number, 40)
        super().__init__(score, None, "\n".join(log), SCORE_LAWS, tally)  # type: ignore[arg-type]  # it has no graph
        self.score, self.program = score, read_program(log, keep=False)

    def run(self) -> None:
        """L-REPLAY and L-ONLINE."""
        peak = program_peak(self.program)
        for budget in (peak * share // 100 for share in (75, 50, 25)):
            replay = self.replayed(budget)
            if self.tally.tries("L-REPLAY"):
                fine = replay.peak <= budget and (
                    replay.status is not Status.OK or replay.clock >= self.program.compute
                )
                self.expect("L-REPLAY", fine, f"within {budget} bytes: {replay}.")
                again = self.replayed(budget)
                self.expect("L-REPLAY", again == replay, f"within {budget} bytes: {replay}, then {again}.")
            if self.score.measure in _SAME_LIFETIMES and self.tally.tries("L-ONLINE"):
                online = self.online(budget)
                self.expect(
                    "L-ONLINE", online == numbers_of(replay), f"within {budget} bytes: {replay}, online {online}."
                )

    def online(self, budget: int) -> tuple[object, ...]:
        """What the online runtime does."""
        return self.quietly("the online runtime", lambda: OnlineReplay(self.program, budget, self.score).numbers)

    def replayed(self, budget: int) -> Replay:
        """A replay in the simulator."""
        return self.quietly("the simulator", lambda: simulate(self.program, budget, self.score))


__all__ = ["SCORE_LAWS", "check_score", "random_pool"]
