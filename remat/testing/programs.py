"""Random programs for scores and runtimes of DTR, and programs of the simulator run call by call."""

from __future__ import annotations

import json
import random

from remat.algorithms._dtr.memory import OutOfRoom
from remat.algorithms._dtr.online import Core, Thrashing
from remat.algorithms._dtr.program import COMPUTE, GET, PIN, RELEASE, Program
from remat.algorithms._dtr.scores import Score
from remat.algorithms._dtr.simulator import Replay, Status
from remat.algorithms._dtr.values import Call, Handle, Out, Value


def random_log(seed: int, calls: int = 40, *, wide_aliases: bool = False) -> list[str]:
    """Lines of a random log with every instruction of the format, ties and zeros.

    Args:
        seed: of all draws.
        calls: number of instructions after the constants.
        wide_aliases: an operator that makes an alias may have several arguments, so that storages can depend on one another.
    """
    draw, number = random.Random(seed), 0
    out: list[dict[str, object]] = []
    live: list[str] = []
    scale = draw.choice([1, 1, 10**9])

    def new() -> str:
        nonlocal number
        number += 1
        return f"x{number}"

    def size() -> int:
        return draw.choice([0, 1, 1, 2, 3, 5, 8]) * scale

    def time() -> int:
        return draw.choice([0, 1, 1, 2, 3, 7]) * scale + draw.randrange(scale)

    for _ in range(draw.randrange(4)):
        live.append(new())
        out += [
            {"INSTRUCTION": "CONSTANT", "NAME": live[-1]},
            {"INSTRUCTION": "MEMORY", "NAME": live[-1], "MEMORY": size()},
        ]
    for _ in range(calls):
        act = draw.random()
        if act < 0.62 or not live:
            args = [draw.choice(live[-8:]) for _ in range(draw.randrange(min(4, len(live) + 1)))]
            results = [new() for _ in range(draw.choice([1, 1, 1, 2, 3]))]
            out.append({"INSTRUCTION": "CALL", "NAME": "f", "ARGS": args, "RESULT": results, "TIME": time()})
            for result in results:
                alias = draw.randrange(len(args)) if args and draw.random() < 0.25 else -1
                alias = alias if wide_aliases or len(args) == 1 else -1
                out += [{"INSTRUCTION": "MEMORY", "NAME": result, "MEMORY": size()},
                        {"INSTRUCTION": "ALIAS", "NAME": result, "ALIAS": alias}]  # fmt: skip
            live += results
        elif act < 0.7:
            args = draw.sample(live, draw.randrange(1, min(4, len(live) + 1)))
            places = sorted(draw.sample(range(len(args)), draw.randrange(1, len(args) + 1)))
            out.append({"INSTRUCTION": "MUTATE", "NAME": "m_", "ARGS": args, "MUTATE": places, "TIME": time()})
        elif act < 0.75:
            copied = new()
            out.append({"INSTRUCTION": "COPY", "DST": copied, "SRC": draw.choice(live)})
            live.append(copied)
        elif act < 0.79 and len(live) > 1:
            dst, src = draw.sample(live, 2)
            out.append({"INSTRUCTION": "COPY_FROM", "DST": dst, "SRC": src})
        elif act < 0.97:
            live.remove(gone := draw.choice(live))
            out.append({"INSTRUCTION": "RELEASE", "NAME": gone})
        else:
            out.append({"INSTRUCTION": "RELEASE", "NAME": "nobody"})
    return [json.dumps(record) for record in out]


class OnlineReplay:
    """A program of the simulator in the online runtime, call by call; every value that it computes is kept.

    Attributes:
        core: the runtime afterwards. status: how the run ended.
    """

    def __init__(self, program: Program, budget: int, score: Score, limit: float = float("inf")) -> None:
        self.program, self.core = program, Core(budget, score, limit=limit)
        self.values: dict[int, Value] = {}
        self.handles: dict[int, list[Handle]] = {}
        self.status = Status.OK
        try:
            for kind, arg in program.flat.steps.tolist():
                self._step(kind, arg)
        except OutOfRoom:
            self.status = Status.OUT_OF_MEMORY
        except Thrashing:
            self.status = Status.THRASHED

    @property
    def numbers(self) -> tuple[object, ...]:
        """Status, clock, cost and number of recomputations, evictions and peak; to compare with `numbers_of` a replay."""
        core = self.core
        return self.status, core.clock, core.remat_cost, core.remats, core.evictions, core.peak

    def _step(self, kind: int, arg: int) -> None:
        if kind == COMPUTE:
            self._compute(arg)
        elif kind == GET:
            self.handles.setdefault(arg, []).append(Handle(self.values[arg]))
        elif kind == RELEASE:
            self.handles[arg].pop()
        elif kind == PIN:
            self.core.get(self.values[arg])
            self.core.pin(self.values[arg].storage)

    def _compute(self, op: int) -> None:
        g = self.program.flat
        args = [int(g.args[k].tensor) for k in range(g.ops[op].args, g.ops[op + 1].args)]
        outs = range(g.ops[op].outs, g.ops[op + 1].outs)
        places = {int(g.tensors[t].storage): k for k, t in reversed(list(enumerate(args)))}
        declared = [Out(int(g.tensors["size"][t]), places.get(int(g.tensors[t].storage), -1)) for t in outs]
        call = Call(tuple(self.values[t] for t in args), lambda _: [True] * len(declared), cost=int(g.ops[op].cost))
        for t, value in zip(outs, self.core.declare(call, declared), strict=True):
            assert value is not None
            self.values[t] = value
            self.handles.setdefault(t, []).append(Handle(value))
        self.core.perform(call)


def numbers_of(replay: Replay) -> tuple[object, ...]:
    """What a replay of the simulator has in common with an `OnlineReplay`."""
    return replay.status, replay.clock, replay.remat_cost, replay.remats, replay.evictions, replay.peak
