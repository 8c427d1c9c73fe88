"""Each theorem and each rule it names: a proof that is accepted, and a schedule that breaks this rule alone and beats the bound.

The oracle runs with one rule switched off (`Without…`), so its optimum is a schedule that keeps all other rules; the validator
then names the rule that is broken. Graphs are random legal ones, by seed; `python -m tests.proof.test_theorems` looks for seeds.
"""

import math
import sys

import pytest

from remat.algorithms import Problem
from remat.algorithms._arrays.graph_arrays import flatten
from remat.algorithms._bounds.floor import first_run_floor, floor_of
from remat.algorithms._proving.certificate import Claim, grow, step_of
from remat.algorithms._proving.evidence import Needs
from remat.errors import InvalidSchedule
from remat.ir import Drop, Link, Offload, Phase, Prefetch, Schedule, parse_text, validate
from remat.proof.check import RULES
from remat.testing import oracle
from tests.proof.conftest import linked
from tests.proof.exhaustive import graph_of

SLOW = Link(to_host_latency=1 << 40, to_device_latency=1 << 40)
"""A link on which a copy takes longer than any step: schedules without copies are the fastest."""


class WithoutRead:
    """Reads find what is not there."""

    def finds(self, node, option, held):
        return True


class WithoutPhase:
    """Forward nodes may first run after the loss, backward nodes before it; the loss may run again, or never."""

    def finished(self, state):
        _, there = state
        return self.kept <= {name for name, count in there if self.complete(name, count)}

    def may_run(self, node, ran, held):
        if node.phase is Phase.LOSS:
            ran = (ran - {node.name}) | self.forward
        if node.phase is Phase.BACKWARD:
            ran = ran | {self.loss}
        if node.phase is Phase.FORWARD:
            ran = ran - {self.loss}
        return super().may_run(node, ran, held)


class WithoutOrder:
    """Draws come in any order."""

    def __init__(self, graph):
        super().__init__(graph)
        self.draws = []

    def is_timely(self, node, ran):
        return super().is_timely(_Undrawn(node), ran)


class _Undrawn:
    """A node that does not draw."""

    def __init__(self, node):
        self._node = node

    def __getattr__(self, name):
        return False if name == "draws" else getattr(self._node, name)


class WithoutOnce:
    """Run-once nodes run again, and contributions come in any order."""

    def __init__(self, graph):
        super().__init__(graph)
        self.counted, self.sums = self.sums, dict.fromkeys(self.sums, ())

    def may_run(self, node, ran, held):
        if node.phase is not Phase.LOSS:
            ran = ran - {node.name} if node.run_once and node.name in ran else ran
        not_full = all(held.get(name, 0) < len(writers) for name, writers in self.counted[node.name])
        return not_full and super().may_run(node, ran, held)


class WithoutKeep:
    """What is kept may be dropped."""

    def moves(self, state):
        yield from super().moves(state)
        ran, there = state
        for name, count in there:
            if name in self.kept and self.complete(name, count):
                yield Drop(name), (ran, tuple(cell for cell in there if cell[0] != name)), 0, 0


class WithoutEnd:
    """Nothing need be there at the end."""

    def finished(self, state):
        return self.loss in state[0]


class WithoutMem:
    """Every run fits."""

    def moves(self, state):
        return ((step, after, time, 0) for step, after, time, _ in super().moves(state))


class WithoutLink:
    """Copies to the host and back take no time and need no link."""

    def moves(self, state):
        yield from super().moves(state)
        ran, there = state
        held = dict(there)
        live = sum(self.bytes_of(name, count) for name, count in there)
        for name, count in there:
            if self.complete(name, count) and name not in self.kept:
                rest = tuple(cell for cell in there if cell[0] != name)
                yield Offload(name), (ran | {f"@{name}"}, rest), 0, 0
        for name in (one[1:] for one in ran if one.startswith("@")):
            if name not in held:
                back = tuple(sorted({**held, name: len(self.writers[name])}.items()))
                yield Prefetch(name), (ran, back), 0, live + self.size[name]


WITHOUT = {
    "S-END": WithoutEnd,
    "S-KEEP": WithoutKeep,
    "S-LINK": WithoutLink,
    "S-MEM": WithoutMem,
    "S-ONCE": WithoutOnce,
    "S-ORDER": WithoutOrder,
    "S-PHASE": WithoutPhase,
    "S-READ": WithoutRead,
}


def fits_alone(graph, budget):
    """Whether each node fits by itself: otherwise no relaxation is solved."""
    return budget >= first_run_floor(flatten(graph))[0]


def proofs_of(theorem, step, graph, budget):
    """Proofs by a theorem within a budget."""
    instants = [v for v in sorted(step.required) if step.phase[v] or theorem != "link"]
    if theorem == "floor":
        floor, node = floor_of(flatten(graph))
        return [Needs(graph, budget, flatten(graph), node).proof()] if budget < floor else []
    if theorem == "link":
        problem = Problem(graph=graph, budget=budget, link=SLOW)
        return [linked(problem, t) for t in instants if fits_alone(graph, budget)]
    sets = [[t] for t in instants] + [instants[:2], instants[-2:], [instants[0], instants[-1]]]
    captured = theorem == "captured"
    claims = [Claim(budget, sorted(set(instants)), math.inf, captured=captured) for instants in sets]
    return [grow(step, claim, leaves=30).proof for claim in claims]


def beaten(theorem, rule, graph, patch):
    """A proof of a graph, and a schedule that breaks the rule, by the validator's word, keeps the others, and beats the proof."""
    step = step_of(graph)
    name = "_Captured" if theorem == "captured" else "_Rules"
    among = "captured" if theorem == "captured" else "all"
    points = oracle.frontier(graph, among, states=20_000)
    if points is None:
        return None
    with patch.context() as switched:
        switched.setattr(oracle, name, type("Without", (WITHOUT[rule], getattr(oracle, name)), {}))
        free = oracle.frontier(graph, among, states=20_000)
    for budget in sorted({point.peak - 1 for point in points if point.peak} | {point.peak for point in points}):
        best = oracle.optimum(free or (), budget)
        if rule == "S-MEM":
            best = min(free or (), key=lambda point: point.time, default=None)
        if best is None:
            continue
        for proof in proofs_of(theorem, step, graph, budget):
            if proof.bound is None or best.time < proof.bound:
                try:
                    validate(graph, Schedule(best.steps), budget)
                except InvalidSchedule as error:
                    if error.rule == rule:
                        return proof, best
    return None


BY_HAND = {
    "sum": parse_text("""\
remat graph 1
graph sum
data t 1 tangent
data g1 5 gradient
data g2 5 gradient
data w 1 param_grad
loss L : -> t ; time 1
backward B1 : t -> g1 ; time 1 workspace 10
backward B2 : t -> g2 ; time 1 workspace 10
backward B3 : g1 g2 -> w ; time 1
"""),
    "draws": parse_text("""\
remat graph 1
graph draws
data o 10 output
data a 10
data t 0 tangent
forward F1 : -> o ; time 1 draws
forward F2 : -> a ; time 1 draws
loss L : -> t ; time 1
"""),
}
"""Floors: of a second gradient beside the first, which could wait on the host; of a second draw beside an output."""

SEEDS = {
    ("instants", "S-END"): 1,
    ("instants", "S-KEEP"): 52,
    ("instants", "S-LINK"): 5,
    ("instants", "S-MEM"): 1,
    ("instants", "S-ONCE"): 1,
    ("instants", "S-ORDER"): 62,
    ("instants", "S-PHASE"): 0,
    ("instants", "S-READ"): 3,
    ("captured", "S-END"): 1,
    ("captured", "S-KEEP"): 52,
    ("captured", "S-LINK"): 5,
    ("captured", "S-MEM"): 1,
    ("captured", "S-ONCE"): 1,
    ("captured", "S-ORDER"): 62,
    ("captured", "S-PHASE"): 0,
    ("captured", "S-READ"): 3,
    ("link", "S-END"): 1,
    ("link", "S-KEEP"): 60,
    ("link", "S-LINK"): 5,
    ("link", "S-MEM"): 3,
    ("link", "S-ONCE"): 18,
    ("link", "S-ORDER"): 62,
    ("link", "S-PHASE"): 0,
    ("link", "S-READ"): 3,
    ("floor", "S-END"): "sum",
    ("floor", "S-KEEP"): 52,
    ("floor", "S-LINK"): "sum",
    ("floor", "S-MEM"): "sum",
    ("floor", "S-ONCE"): 1,
    ("floor", "S-ORDER"): "draws",
    ("floor", "S-PHASE"): 2,
    ("floor", "S-READ"): "sum",
}
"""The graph of each: a random one of this seed, or one by hand."""


@pytest.mark.parametrize(("theorem", "rule"), SEEDS, ids="-".join)
def test_a_schedule_that_breaks_one_rule_beats_the_bound(theorem, rule, monkeypatch):
    seed = SEEDS[theorem, rule]
    graph = BY_HAND[seed] if isinstance(seed, str) else graph_of(seed)
    found = beaten(theorem, rule, graph, monkeypatch)
    assert found is not None
    proof, best = found
    assert proof.theorem == theorem
    verdict = proof.check(graph)
    assert verdict.bound is None or best.time < verdict.bound


def test_every_rule_that_the_theorems_assume_has_its_schedules():
    assert set(WITHOUT) == set(RULES)
    assert {theorem for theorem, _ in SEEDS} == {"instants", "captured", "link", "floor"}


def look():
    """Print a seed for each theorem and rule."""
    for theorem, rule in SEEDS:
        for seed in range(1000):
            if beaten(theorem, rule, graph_of(seed), pytest.MonkeyPatch) is not None:
                print(f"    ({theorem!r}, {rule!r}): {seed},", flush=True)
                break
        else:
            print(f"    # none for {theorem} {rule}", flush=True)


if __name__ == "__main__":
    sys.exit(look())
