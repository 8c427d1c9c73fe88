"""Thirty random modules in every run of the suite, and what the generator and its judge are trusted for."""

from collections import Counter

import pytest
import torch

import remat.exec
from remat.errors import Uncapturable
from tests.exec.odd.base import Blocks
from tests.exec.odd.judging import rows
from tests.fuzz import judging
from tests.fuzz import program as programs
from tests.fuzz.blocks import BLOCKS
from tests.fuzz.judging import EXACT, FAILURES, INTERNAL, OVER, WRONG, judge
from tests.fuzz.program import Program, program
from tests.fuzz.writer import KINDS

pytestmark = pytest.mark.filterwarnings("ignore")
SEEDS = range(30)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_module_is_exact_or_refused(seed):
    verdict = judge(program(seed))
    assert verdict.word not in FAILURES, f"{verdict.word}: {verdict.detail}\n{program(seed).source}"


def test_a_seed_decides_the_source():
    assert program(3).source == program(3).source
    assert len({program(seed).source for seed in range(100)}) == 100


def test_every_type_and_every_block_is_drawn(monkeypatch):
    drawn = Counter()

    def counted(block):
        def draw(w):
            drawn[block.__name__] += 1
            return block(w)

        return draw

    monkeypatch.setattr(programs, "BLOCKS", {counted(block): share for block, share in BLOCKS.items()})
    kinds = Counter(program(seed).kind for seed in range(500))
    assert drawn.keys() == {block.__name__ for block in BLOCKS} and min(drawn.values()) >= 5
    assert all(kinds[kind] >= 100 for kind in KINDS)


PLAIN = Program(
    seed=0,
    kind="float32",
    source="",
    share=0.9,
    build=Blocks,
    inputs=lambda step: {"x": rows(step)[0]},
    loss=lambda out: out,
    reserve=None,
    rehearse=False,
)
"""Nothing in it is random."""


def wraps_nothing(model, *_, **__):
    return model


def crashes(*_, **__):
    raise AttributeError("'NoneType' object has no attribute 'shape'")


def refuses_badly(*_, **__):
    raise Uncapturable("X-TEST", "no.")


def doubles(model, sample, budget, **options):
    """A wrapped module that is not the one given."""
    wrapped = remat.exec.wrap(model, sample, budget, **options)
    wrapped.register_forward_hook(lambda module, args, out: out * 2)
    return wrapped


@pytest.mark.parametrize(
    ("planted", "word"),
    [(wraps_nothing, INTERNAL), (crashes, INTERNAL), (refuses_badly, WRONG), (doubles, WRONG)],
    ids=lambda part: getattr(part, "__name__", part),
)
def test_the_judge_sees_what_is_wrong(planted, word, monkeypatch):
    assert judge(PLAIN).word == EXACT
    monkeypatch.setattr(judging, "wrap", planted)
    assert judge(PLAIN).word == word


def test_the_judge_sees_a_peak_above_the_budget(monkeypatch):
    measure = remat.exec.measure_step

    def greedy(step):
        return measure(lambda: (torch.ones(1 << 20), step()))

    monkeypatch.setattr(remat.exec, "measure_step", greedy)
    assert judge(PLAIN).word == OVER
