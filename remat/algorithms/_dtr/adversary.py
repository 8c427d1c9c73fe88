"""The programs of the paper's two theorems: the unit chain (3.1) and the adversary against any deterministic rule (3.2).

Theorem 3.1: a chain of N operators and its backward take O(N) operations under a budget of 2 ceil(sqrt N) and more.
Theorem 3.2: for every deterministic rule and budget B there is a program of N operators on which it takes Omega(N / B) times
the operations of an order that knows the program: B paths start at one tensor, and the next operator always extends a
path of which no tensor is in memory, so that the whole path is recomputed; path by path takes N operations.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from remat.algorithms._dtr.log import Alias, Call, Instruction, Memory, Release, write_instructions
from remat.algorithms._dtr.program import Program
from remat.algorithms._dtr.reader import read_program
from remat.algorithms._dtr.scores import A_SCORE, Score
from remat.algorithms._dtr.simulator import Replay, Status, simulation
from remat.ir.arguments import A_TEXT
from remat.settings import SEED, either, takes, whole


def operator(name: str, args: tuple[str, ...], *, time: int = 1, size: int = 1) -> tuple[Instruction, ...]:
    """The instructions of an operator whose single result has the same name."""
    return Call((name,), "f", args, time), Memory(name, size), Alias(name, -1)


@takes(length=whole(1, "operators"))
def unit_chain_log(length: int) -> Iterator[Instruction]:
    """The chain of section 3: `length` operators and as many of the backward, of cost 1 and one byte each.

    Each of `f0` to `f{n-1}` reads the one before; `b{i}` reads `b{i+1}` and `f{i-1}`; each is released after its last reader.
    """
    for i in range(length):
        yield from operator(f"f{i}", (f"f{i - 1}",) if i else ())
    yield Release(f"f{length - 1}")
    yield from operator(f"b{length - 1}", ())
    for i in reversed(range(length - 1)):
        yield Release(f"f{i}")
        yield from operator(f"b{i}", (*((f"f{i - 1}",) if i else ()), f"b{i + 1}"))
        yield Release(f"b{i + 1}")


@frozen(kw_only=True)
class Attack:
    """The adversary's program for a rule, and the rule's run of it.

    Attributes:
        program: the program it chose. replay: the rule on it. paths: its paths.
        best: operations of an order that knows the program: one path after the other, with two tensors and the root in memory.
    """

    program: Program
    replay: Replay
    paths: int
    best: int

    @property
    def ratio(self) -> float:
        """Operations of the rule divided by operations of that order."""
        return (self.replay.compute + self.replay.remat_cost) / self.best


@takes(score=either(A_TEXT, A_SCORE), operators=whole(1), budget=whole(3, "tensors"), seed=SEED)
def attack(score: Score | str, *, operators: int, budget: int, seed: int = 0) -> Attack:
    """Play the adversary of theorem 3.2 against a rule, which has to be deterministic.

    Args:
        score: the rule.
        operators: N, the root included.
        budget: B, in tensors, at least 3.
        seed: of the score `random`, which then is deterministic too.

    The program has no releases and no output condition. Takes about `operators` replays.
    """
    lengths = [0] * budget
    log: list[Instruction] = list(operator("root", ()))
    path = 0
    while True:
        program = read_program(write_instructions(log), keep=False)
        run = simulation(program, budget, score, dealloc="ignore", seed=seed)
        created = sum(lengths) + 1
        if created >= operators or run.replay.status is not Status.OK:
            return Attack(program=program, replay=run.replay, paths=budget, best=created)
        resident = {name for name, here in zip(program.tensor_names, run.resident(), strict=True) if here}
        path = next_path(lengths, resident, path)
        before = f"p{path}_{lengths[path] - 1}" if lengths[path] else "root"
        log += operator(f"p{path}_{lengths[path]}", (before,))
        lengths[path] += 1


def next_path(lengths: list[int], resident: set[str], last: int) -> int:
    """The longest path with no tensor in memory; where there is none, the next path in turn."""
    gone = [p for p, n in enumerate(lengths) if n and not any(f"p{p}_{i}" in resident for i in range(n))]
    if 0 in lengths:
        return lengths.index(0)
    return max(gone, key=lambda p: (lengths[p], -p)) if gone else (last + 1) % len(lengths)
