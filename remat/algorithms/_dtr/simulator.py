"""`simulate`: DTR's run of a program under a budget."""

from __future__ import annotations

import random
from enum import StrEnum

import numpy as np
from attrs import frozen

from remat.algorithms._arrays.graph_arrays import Longs
from remat.algorithms._dtr.log import MOST, malformed
from remat.algorithms._dtr.pool import measure_pool
from remat.algorithms._dtr.program import Program
from remat.algorithms._dtr.runtime import CHOOSE, DONE, GONE, GROW, OUT_OF_MEMORY, advance
from remat.algorithms._dtr.scores import (
    A_SCORE,
    COSTS,
    Chance,
    Family,
    LastAccess,
    Pool,
    Score,
    choice,
    h_dtr_eq,
    score_named,
)
from remat.algorithms._dtr.state import ACCESS, FAMILY, OUTSIDE, RANDOM, Machine, Rules, grown, machine
from remat.settings import SEED, instance, number, one_of, takes, whole

LIMIT = 1000.0
"""Times the cost of the program that a run may take, unless it is told otherwise."""

FEWEST_RUNS = 1_000_000
"""Recomputations that any program may take; a longer one may take `RUNS_PER_CALL` for each of its operators."""

RUNS_PER_CALL = 100


A_PROGRAM = instance(Program, "load_program(path)")


class Status(StrEnum):
    """How a run ended: the program completed; nothing was left to evict; recomputation exceeded its limit."""

    OK = "ok"
    OUT_OF_MEMORY = "oom"
    THRASHED = "thrashed"


@frozen(kw_only=True)
class Replay:
    """The result of a run under DTR.

    Attributes:
        status: how it ended; all else is as of then.
        clock: the clock, which starts at 1 and moves by the cost of each run.
        compute: cost of the whole program without recomputation. remat_cost, remats: cost and number of recomputations.
        evictions: storages taken out of memory, those the program let go of included.
        peak: most bytes at once. budget: bytes allowed, None without a limit.
        accesses: storages looked at by scores and by what is kept for them. scored: scores that were computed.
    """

    status: Status
    clock: int
    compute: int
    remat_cost: int
    remats: int
    evictions: int
    peak: int
    budget: int | None
    accesses: int
    scored: int

    @property
    def overhead(self) -> float:
        """Cost with recomputation over cost without; 1 where nothing costs anything."""
        return (self.compute + self.remat_cost) / self.compute if self.compute else 1.0


@frozen
class Simulation:
    """A replay with the runtime as it was left, for those who want to see more."""

    replay: Replay
    machine: Machine

    def resident(self) -> np.ndarray:
        """Whether each storage is in memory."""
        return np.array(self.machine.s.storages["material"])


def simulate(
    program: Program,
    budget: int | None,
    score: Score | str = h_dtr_eq,
    *,
    dealloc: str = "eager",
    limit: float = LIMIT,
    seed: int = 0,
) -> Replay:
    """Replay a program under a budget.

    Args:
        program: of a log (`read_program`) or made by a `ProgramBuilder`.
        budget: bytes; None: no limit.
        score: what is evicted first, or its name.
        dealloc: what a storage that the program lets go of becomes: `eager`: it is evicted; `ignore`: nothing;
            `banish`: it is removed for good as soon as nothing evicted depends on it.
        limit: the run ends as thrashed when recomputation costs more than `limit - 1` times the program.
        seed: of the score `random`.

    Raises:
        BadArgument: A-SETTING, for a wrong argument; P-NAME, for a score that is not known.
        MalformedFile: F-LOG, where an operator reads what was banished: the log released it before.
    """
    return simulation(program, budget, score, dealloc=dealloc, limit=limit, seed=seed).replay


@takes(program=A_PROGRAM)
def program_peak(program: Program) -> int:
    """Most bytes at once without a budget, what is let go of being evicted: 100 % of a budget in percent."""
    return simulate(program, None, LastAccess()).peak


def simulation(
    program: Program,
    budget: int | None,
    score: Score | str = h_dtr_eq,
    *,
    dealloc: str = "eager",
    limit: float = LIMIT,
    seed: int = 0,
) -> Simulation:
    """`simulate`, with the runtime as it was left."""
    A_PROGRAM.check(program, "simulate: program")
    score = score_named(score) if isinstance(score, str) else score
    A_SCORE.check(score, "simulate: score")
    SEED.check(seed, "simulate: seed")
    one_of("eager", "ignore", "banish").check(dealloc, "simulate: dealloc")
    number(1).check(limit, "simulate: limit")
    if budget is not None:
        whole(0, "bytes").check(budget, "simulate: budget")
    most = min(MOST, program.compute * (limit - 1))
    rules = Rules(
        budget=MOST if budget is None else min(budget, MOST),
        most_cost=int(most),
        most_runs=max(FEWEST_RUNS, RUNS_PER_CALL * program.calls),
        dealloc=("eager", "ignore", "banish").index(dealloc),
        kind=_kind(score),
        cost=COSTS.index(score.measure),
        size=int(isinstance(score, Family) and score.size),
        staleness=int(isinstance(score, Family) and score.staleness),
        widest=int(np.max(np.diff(program.flat.ops["outs"]), initial=0)),
    )
    ended, code = _run(machine(program, rules, _generator(seed)), score)
    now = ended.s.now[0]
    if code == GONE:
        op = int(now.fault)
        what = f"{program.op_names[op]!r:.100} reads what was released and banished."
        raise malformed(program.op_lines[op], what, "release it after its last use, or deallocate eagerly.")
    status = Status.OK if code == DONE else Status.OUT_OF_MEMORY if code == OUT_OF_MEMORY else Status.THRASHED
    replay = Replay(
        status=status,
        clock=int(now.clock),
        compute=program.compute,
        remat_cost=int(now.remat),
        remats=int(now.remats),
        evictions=int(now.evictions),
        peak=int(now.peak),
        budget=budget,
        accesses=int(now.accesses),
        scored=int(now.scored),
    )
    return Simulation(replay, ended)


def _run(m: Machine, score: Score) -> tuple[Machine, int]:
    """Run a machine to its end; serves the requests for which the kernel returns."""
    while True:
        code = advance(m)
        if code == GROW:
            m = grown(m)
        elif code == CHOOSE:
            m.s.now["victim"] = _choice(m, score)
        else:
            return m, code


def _choice(m: Machine, score: Score) -> int:
    """The victim by an outside score."""
    count = measure_pool(m)
    storages = m.s.pool[:count].copy()
    late = np.array(m.s.measured["late"][:count])
    pool = Pool(
        cost=np.array(m.s.measured["number"][:count]),
        size=np.array(m.s.storages["size"][storages]),
        staleness=late,
        access=m.s.now["clock"] - late,
    )
    return int(storages[choice(score, pool)])


def _kind(score: Score) -> int:
    """Code of a score; only the classes of this library themselves have kernels, not what is derived from them."""
    return {Family: FAMILY, LastAccess: ACCESS, Chance: RANDOM}.get(type(score), OUTSIDE)


def _generator(seed: int) -> Longs:
    """State of CPython's generator with that seed: 624 words and the place of the next."""
    return np.array(random.Random(seed).getstate()[1], np.int64)
