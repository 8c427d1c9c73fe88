"""The simulator against its oracle, the public simulator's reference points, and the paper's theorems."""

import json
import math
import random
from pathlib import Path

import numpy as np
import pytest

from remat.algorithms._dtr.rounding import quotient
from remat.algorithms._dtr.scores import choice
from remat.algorithms._dtr.simulator import simulation
from remat.algorithms.dynamic import (
    Family,
    LastAccess,
    Pool,
    ProgramBuilder,
    Score,
    Status,
    attack,
    program_peak,
    read_instructions,
    read_program,
    score_named,
    simulate,
    unit_chain_log,
    write_instructions,
)
from remat.errors import BadArgument, MalformedFile
from remat.testing.programs import random_log
from tests.algorithms.dtr import model

FAMILY = {
    "h_dtr": ("e*", True, True),
    "h_dtr_eq": ("eq", True, True),
    "h_local": ("local", True, True),
    "msps": ("ancestors", True, False),
    "size": ("no", True, False),
    "lru": "lru",
    "h'(yes, no, e*)": ("e*", False, True),
    "h'(no, yes, EqClass)": ("eq", True, False),
    "h'(no, no, local)": ("local", False, False),
    "h'(yes, no, no)": ("no", False, True),
}


def chain(length):
    return read_program(write_instructions(unit_chain_log(length)))


@pytest.mark.parametrize(
    ("score", "overhead"),
    [("h_dtr", 1.4), ("h_dtr_eq", 1.4), ("msps", 1.5), ("h_local", 2.775), ("lru", 2.775)],
)
def test_unit_chains_cost_what_the_public_simulator_says(score, overhead):
    done = simulate(chain(100), 20, score)
    assert (done.status, done.overhead) == (Status.OK, overhead)
    assert done.clock == 1 + done.compute + done.remat_cost


def test_storage_accesses_are_those_of_the_public_simulator():
    accesses = {
        name: simulate(chain(100), 20, name).accesses for name in ("h_dtr", "h_dtr_eq", "msps", "h_local", "lru")
    }
    assert accesses == {"h_dtr": 61108, "h_dtr_eq": 10055, "msps": 66192, "h_local": 6470, "lru": 6470}


RECORDED = json.loads((Path(__file__).parent / "public_simulator.json").read_text())
"""What the public simulator (uwsampl/dtr-prototype) says of `random_log(seed, wide_aliases=seed % 3 == 0)`, aliases, caches and
all: `[seed, dealloc, heuristic, budget, limit, numbers]`, runs in which one of its assertions fails left out."""


@pytest.mark.parametrize("score", sorted({row[2] for row in RECORDED}))
def test_random_logs_go_as_in_the_public_simulator(score):
    rows = [row for row in RECORDED if row[2] == score]
    assert len(rows) > 50
    for seed, dealloc, _, budget, limit, expected in rows:
        program = read_program(random_log(seed, wide_aliases=seed % 3 == 0))
        done = simulate(program, budget, score, dealloc=dealloc, limit=limit)
        found = [done.status.value, *(getattr(done, name) for name in NUMBERS)]
        if "eq" in score.lower():  # there its order of merging follows addresses, and so do its accesses
            assert found.pop() == pytest.approx(expected.pop(), rel=0.02, abs=6)
        assert found == expected, (seed, dealloc, budget)


NUMBERS = ("clock", "remat_cost", "remats", "evictions", "peak", "accesses")


CACHED = {"h_dtr", "msps", "h'(yes, no, e*)"}
"""Scores whose neighborhoods the public simulator caches: while an operator is under way its cache can be older than the truth,
which is all that the oracle knows. They are held against its recorded runs above, and against the oracle on chains."""


@pytest.mark.parametrize("dealloc", ["eager", "ignore"])
@pytest.mark.parametrize("score", sorted(set(FAMILY) - CACHED))
def test_random_logs_go_as_in_the_oracle(score, dealloc):
    ends = set()
    for seed in range(40):
        lines = random_log(seed)
        program = read_program(lines)
        peak = program_peak(program)
        for share in (1.0, 0.8, 0.65, 0.5):
            budget = int(peak * share)
            expected = model.run(lines, budget, FAMILY[score], dealloc, limit=20)
            done = simulate(program, budget, score, dealloc=dealloc, limit=20)
            assert {name: getattr(done, name) for name in expected} == expected, (seed, share)
            ends.add(done.status)
    assert {Status.OK, Status.OUT_OF_MEMORY} <= ends


@pytest.mark.parametrize("score", sorted(CACHED))
def test_chains_go_as_in_the_oracle(score):
    lines = list(write_instructions(unit_chain_log(40)))
    for budget in (8, 12, 20, 40):
        expected = model.run(lines, budget, FAMILY[score], limit=20)
        done = simulate(read_program(lines), budget, score, limit=20)
        assert {name: getattr(done, name) for name in expected} == expected


@pytest.mark.parametrize("score", ["h_local", "lru", "size", "h'(yes, no, no)"])
def test_banishing_goes_as_in_the_oracle(score):
    finished = 0
    for seed in range(80):
        lines = random_log(seed, wide_aliases=True)
        program = read_program(lines)
        peak = program_peak(program)
        for share in (1.0, 0.85, 0.7):
            budget = int(peak * share)
            expected = model.run(lines, budget, FAMILY[score], "banish", limit=20)
            done = simulate(program, budget, score, dealloc="banish", limit=20)
            assert {name: getattr(done, name) for name in expected} == expected, (seed, share)
            finished += done.status is Status.OK and done.remats > 0
    assert finished >= 3


@pytest.mark.parametrize("score", ["h_dtr_eq", "h_local", "lru"])
def test_an_alias_with_several_arguments_goes_as_in_the_oracle(score):
    for seed in range(40):
        lines = random_log(seed, wide_aliases=True)
        program = read_program(lines)
        budget = int(program_peak(program) * 0.7)
        expected = model.run(lines, budget, FAMILY[score], limit=20)
        done = simulate(program, budget, score, limit=20)
        assert {name: getattr(done, name) for name in expected} == expected, seed


@pytest.mark.parametrize("score", ["h_dtr", "msps"])
def test_neighborhoods_end_well_where_aliases_make_cycles(score):
    for seed in range(60):
        program = read_program(random_log(seed, wide_aliases=True))
        for share in (0.9, 0.7, 0.5):
            done = simulate(program, int(program_peak(program) * share), score, limit=20)
            assert done.peak <= done.budget or done.status is Status.OUT_OF_MEMORY


class Scalar(Score):
    """A published score asked outside of the kernels: the same numbers have to come out."""

    def __init__(self, inner):
        object.__setattr__(self, "inner", inner)

    @property
    def measure(self):
        return self.inner.measure

    def value(self, cost, size, staleness, access):
        return self.inner.value(cost, size, staleness, access)


@pytest.mark.parametrize("dealloc", ["eager", "ignore", "banish"])
@pytest.mark.parametrize("score", FAMILY)
def test_a_score_written_in_python_does_what_its_kernel_does(score, dealloc):
    for seed in range(25):
        program = read_program(random_log(seed))
        budget = int(program_peak(program) * 0.75)
        inside = simulate(program, budget, score, dealloc=dealloc, limit=20)
        outside = simulate(program, budget, Scalar(score_named(score)), dealloc=dealloc, limit=20)
        keys = ("status", "clock", "remat_cost", "remats", "evictions", "peak")
        assert [getattr(inside, key) for key in keys] == [getattr(outside, key) for key in keys], seed


@pytest.mark.parametrize(
    ("values", "victim"),
    [([3, 0, 0], 1), ([0, -6], 1), ([-6, 0, -6, 0], 2), ([2, 1, 1], 2), ([0.0, -0.0], 0), ([math.inf, math.inf], 1)],
)
def test_the_smallest_score_goes_whatever_its_sign(values, victim):
    class Given(Score):
        def values(self, pool):
            return np.array(values)

    numbers = np.ones(len(values), np.int64)
    assert choice(Given(), Pool(cost=numbers, size=numbers, staleness=numbers, access=numbers)) == victim


def test_chance_draws_what_cpython_draws():
    program, order = chain(30), random.Random(7)

    class Drawn(Score):
        MEASURE = "no"

        def values(self, pool):
            values = np.ones(len(pool.size))
            values[order.randrange(len(pool.size))] = 0.5
            return values

    assert simulate(program, 12, "random", seed=7).clock == simulate(program, 12, Drawn()).clock
    assert simulate(program, 12, "random", seed=8) != simulate(program, 12, "random", seed=7)


@pytest.mark.parametrize("bits", [20, 53, 54, 62])
def test_quotients_round_as_python_rounds(bits):
    draw = random.Random(bits)
    for _ in range(2000):
        number, size, late = (draw.getrandbits(draw.randint(1, bits)) for _ in range(3))
        size, late, number = size + 1, late + 1, draw.choice([number, -number, size * draw.randint(1, 7)])
        number = max(-(2**62), min(2**62, number))
        with np.errstate(over="ignore"):  # in plain Python numpy warns of what wraps around on purpose
            assert quotient(number, size, late) == number / (size * late), (number, size, late)


@pytest.mark.parametrize("score", ["h'(no, no, e*)", "h_dtr", "h_dtr_eq"])
def test_theorem_3_1_chains_take_linearly_many_operations(score):
    """Under a budget of 2 ceil(sqrt N) the 2 N operators of a chain take less than 4 N operations, for N up to 10,000.

    The first score is the h_e* of the theorem. Measured: 1.76 times the program at most, 1.55 by h_dtr and h_dtr_eq.
    """
    overheads = []
    for length in (4, 10, 33, 100, 317, 1000, 3163, 10_000):
        done = simulate(chain(length), 2 * math.ceil(math.sqrt(length)), score)
        assert done.status is Status.OK
        overheads.append(done.overhead)
    assert max(overheads) < 2
    assert overheads[-1] - overheads[-3] < 0.1  # ten times the length: where LRU takes three times the operations


@pytest.mark.parametrize("score", ["h_dtr", "h_dtr_eq", "h_local", "lru", "msps", "size"])
def test_theorem_3_2_an_adversary_makes_every_rule_pay(score):
    """The ratio grows with N / B: at least half of it here."""
    for operators, budget in ((60, 6), (120, 6), (120, 4)):
        found = attack(score, operators=operators, budget=budget)
        assert found.replay.status is Status.OK
        assert found.best == operators
        assert found.ratio >= operators / budget / 2
        assert found.replay.peak <= budget


def test_memory_never_passes_the_budget_and_all_of_it_suffices():
    for seed in range(30):
        program = read_program(random_log(seed))
        peak = program_peak(program)
        whole = simulate(program, peak)
        assert (whole.status, whole.remats, whole.peak) == (Status.OK, 0, peak)
        assert simulate(program, peak // 2).peak <= peak // 2


def test_thrashing_ends_with_a_result():
    done = simulate(chain(400), 20, "size", limit=3)
    assert done.status is Status.THRASHED
    assert 2 * done.compute < done.remat_cost <= 2 * done.compute + 1
    free = ProgramBuilder()  # nothing costs anything: the number of recomputations is limited too
    for i in range(60):
        free.call("f", [f"x{i - 1}"] if i else [], 0, [(f"x{i}", 1, -1)])
    assert simulate(free.build(), 3, "h_local").status in (Status.OK, Status.OUT_OF_MEMORY, Status.THRASHED)


def test_workspace_counts_while_an_operator_runs():
    builder = ProgramBuilder()
    builder.call("f", [], 1, [("a", 2, -1)])
    builder.call("g", ["a"], 1, [("b", 2, -1)], work=5)
    program = builder.build()
    assert program_peak(program) == 9
    assert simulate(program, 8).status is Status.OUT_OF_MEMORY


BAD = {
    "empty": ("", 1),
    "a remark alone": ('{"INSTRUCTION": "ANNOTATE", "ANNOTATION": "START"}', 1),
    "not JSON": ('{"INSTRUCTION": "RELEASE"', 1),
    "a list": ("[1]", 1),
    "no instruction": ("{}", 1),
    "unknown": ('{"INSTRUCTION": "JUMP"}', 1),
    "field missing": ('{"INSTRUCTION": "RELEASE"}', 1),
    "negative": ('{"INSTRUCTION": "CALL", "NAME": "f", "ARGS": [], "RESULT": ["x"], "TIME": -1}', 1),
    "no result": ('{"INSTRUCTION": "CALL", "NAME": "f", "ARGS": [], "RESULT": [], "TIME": 1}', 1),
    "cut": ('{"INSTRUCTION": "CONSTANT", "NAME": "x"}', 1),
    "stray": ('{"INSTRUCTION": "MEMORY", "NAME": "x", "MEMORY": 1}', 1),
    "unknown source": ('{"INSTRUCTION": "COPY", "DST": "y", "SRC": "x"}', 1),
    "unknown argument": ('\n{"INSTRUCTION": "MUTATE", "NAME": "f", "ARGS": ["x"], "MUTATE": [0], "TIME": 1}', 2),
}
CALL = [
    {"INSTRUCTION": "CALL", "NAME": "f", "ARGS": [], "RESULT": ["x"], "TIME": 1},
    {"INSTRUCTION": "MEMORY", "NAME": "x", "MEMORY": 1},
    {"INSTRUCTION": "ALIAS", "NAME": "x", "ALIAS": -1},
]


@pytest.mark.parametrize("name", BAD)
def test_a_malformed_line_is_named(name):
    text, line = BAD[name]
    with pytest.raises(MalformedFile, match=f"F-LOG: at line {line}: "):
        read_program(text.splitlines())


@pytest.mark.parametrize(
    ("more", "line", "what"),
    [
        (CALL, 4, "taken"),
        ([CALL[0] | {"RESULT": ["y"]}, CALL[1]], 5, "MEMORY of 'y' is missing"),
        (
            [CALL[0] | {"RESULT": ["y"]}, CALL[1] | {"NAME": "y"}, CALL[2] | {"NAME": "y", "ALIAS": 0}],
            4,
            "alias of argument",
        ),
        ([{"INSTRUCTION": "RELEASE", "NAME": "x"}] * 2, 5, "released more often"),
        ([{"INSTRUCTION": "RELEASE", "NAME": "x"}, {"INSTRUCTION": "COPY", "DST": "y", "SRC": "x"}], 5, "was released"),
    ],
)
def test_what_makes_no_sense_is_named_with_its_line(more, line, what):
    with pytest.raises(MalformedFile, match=f"at line {line}: .*{what}"):
        read_program(json.dumps(record) for record in [*CALL, *more])


def test_what_was_banished_cannot_be_read_again():
    more = [{"INSTRUCTION": "RELEASE", "NAME": "x"}, CALL[0] | {"ARGS": ["x"], "RESULT": ["y"]}]
    more += [CALL[1] | {"NAME": "y"}, CALL[2] | {"NAME": "y"}]
    program = read_program(json.dumps(record) for record in [*CALL, *more])
    assert simulate(program, 10).status is Status.OK
    with pytest.raises(MalformedFile, match="line 5"):
        simulate(program, 10, "lru", dealloc="banish")


def test_what_stands_before_the_start_does_not_count():
    late = [{"INSTRUCTION": "RELEASE", "NAME": "x"}, {"INSTRUCTION": "COPY", "DST": "y", "SRC": "z"}]
    lines = [json.dumps(record) for record in [*CALL, *late, {"INSTRUCTION": "ANNOTATE", "ANNOTATION": "START"}, *CALL]]
    assert read_program(lines).calls == 1
    with pytest.raises(MalformedFile, match="line 5"):
        read_program(lines[:5])


def test_logs_are_written_as_they_were_read():
    for seed in range(10):
        lines = random_log(seed)
        again = list(write_instructions(instruction for _, instruction in read_instructions(lines)))
        assert [json.loads(line) for line in again] == [json.loads(line) for line in lines]


@pytest.mark.parametrize(
    "wrong",
    [{"budget": -1}, {"score": "h_nothing"}, {"score": 3}, {"dealloc": "later"}, {"limit": 0.5}, {"budget": 1.5}],
)
def test_wrong_arguments_are_refused(wrong):
    with pytest.raises(BadArgument):
        simulate(chain(4), **({"budget": 4} | wrong))


def test_scores_have_names_and_reprs_that_rebuild_them():
    for name in ("h_dtr", "h_DTR_eq", "h_lru", "h'(yes,no,e*)"):
        found = score_named(name)
        assert eval(repr(found), {"Family": Family, "LastAccess": LastAccess}) == found


def test_nothing_is_left_under_way():
    done = simulation(chain(50), 16, "h_dtr_eq")
    assert int(done.machine.s.now[0].depth) == 0
    assert int(done.machine.s.storages["lent"].sum()) == 0
