"""The runtime for programs that come as they are called: it does what the simulator does, and forgets what nothing needs."""

import gc
import weakref

import pytest

from remat.algorithms._dtr.online import Call, Core, Handle, Out, OutOfRoom, Thrashing
from remat.algorithms._dtr.program import COMPUTE, GET, PIN, RELEASE
from remat.algorithms._dtr.scores import score_named
from remat.algorithms.dynamic import Status, program_peak, read_program, simulate, unit_chain_log, write_instructions
from tests.algorithms.dtr.logs import random_log

SCORES = ("h_dtr_eq", "h_local", "lru", "size", "random", "h'(yes, no, eq)", "h'(no, yes, local)", "h_dtr", "msps")



class Replayed:
    """A program of the simulator through the online runtime, call by call; everything it ever made is kept."""

    def __init__(self, program, budget, score, limit=float("inf")):
        self.program, self.core = program, Core(budget, score_named(score), limit=limit)
        self.values, self.handles = {}, {}
        self.status = Status.OK
        try:
            for kind, arg in program.flat.steps.tolist():
                self.step(kind, arg)
        except OutOfRoom:
            self.status = Status.OUT_OF_MEMORY
        except Thrashing:
            self.status = Status.THRASHED

    def step(self, kind, arg):
        core = self.core
        if kind == COMPUTE:
            self.compute(arg)
        elif kind == GET:
            self.handles.setdefault(arg, []).append(Handle(self.values[arg]))
        elif kind == RELEASE:
            self.handles[arg].pop()
        elif kind == PIN:
            core.get(self.values[arg])
            core.pin(self.values[arg].storage)

    def compute(self, op):
        g = self.program.flat
        args = [int(g.args[k].tensor) for k in range(g.ops[op].args, g.ops[op + 1].args)]
        outs = range(g.ops[op].outs, g.ops[op + 1].outs)
        places = {int(g.tensors[t].storage): k for k, t in reversed(list(enumerate(args)))}
        declared = [Out(int(g.tensors["size"][t]), places.get(int(g.tensors[t].storage), -1)) for t in outs]
        call = Call(tuple(self.values[t] for t in args), lambda _: [True] * len(declared), cost=int(g.ops[op].cost))
        for t, value in zip(outs, self.core.declare(call, declared), strict=True):
            self.values[t] = value
            self.handles.setdefault(t, []).append(Handle(value))
        self.core.perform(call)


def numbers(core):
    return (core.clock, core.remat_cost, core.remats, core.evictions, core.peak)


def replays(score, seeds, shares=(90, 75, 60, 40)):
    """Each program with what the simulator says and what the online runtime did."""
    for seed in seeds:
        program = read_program(random_log(seed, 60), keep=False)
        peak = program_peak(program)
        for share in shares:
            budget = peak * share // 100
            yield simulate(program, budget, score), Replayed(program, budget, score)


@pytest.mark.parametrize("score", SCORES)
def test_random_programs_go_as_in_the_simulator(score):
    ended = {Status.OK: 0, Status.OUT_OF_MEMORY: 0}
    for expected, replayed in replays(score, range(15)):
        assert replayed.status == expected.status
        assert numbers(replayed.core) == (
            expected.clock, expected.remat_cost, expected.remats, expected.evictions, expected.peak
        )  # fmt: skip
        ended[expected.status] += expected.remats > 0 or expected.status is not Status.OK
    assert min(ended.values()) > 5
