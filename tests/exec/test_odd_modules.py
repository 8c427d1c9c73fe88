"""Odd modules, each by name: exact over several steps or clearly refused, and everything deeply as before."""

import attrs
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from remat.errors import Uncapturable
from tests.exec.odd import judging as judges
from tests.exec.odd.base import Blocks
from tests.exec.odd.judging import EITHER, EXACT, ODDS, REFUSED, judge
from tests.exec.odd.snapshot import Bits

pytestmark = pytest.mark.filterwarnings("ignore")


LIMITS = {"two-views-of-one-tensor": "the gradient of a bias is summed in another order (see docs/reference/exec.md)"}


@pytest.mark.parametrize("name", ODDS)
def test_odd_module_is_exact_or_refused(name, request):
    if name in LIMITS:
        request.applymarker(pytest.mark.xfail(reason=LIMITS[name], strict=True, raises=AssertionError))
    case = ODDS[name]
    verdict = judge(case)
    assert case.expect in (verdict, EITHER), f"{name} is {verdict}"


# -- the judge itself ------------------------------------------------------------------------------------------------------

CLOCKS = {"clock-is-a-factor", "clock-measures-the-forward"}


def twins(name):
    case = ODDS[name]
    return [judges.trained(case, *judges.fresh(case)) for _ in range(2)]


@pytest.mark.parametrize("name", sorted(ODDS.keys() - CLOCKS))
def test_bare_twins_train_the_same(name):
    """Else the judge would blame the wrap for what the module does."""
    bare, twin = twins(name)
    judges.assert_same_training(bare, twin, "a bare twin")


@pytest.mark.parametrize("name", [name for name, case in ODDS.items() if case.change is not judges.nothing])
def test_a_change_makes_a_difference(name):
    """Else a wrap that ignores it would pass."""
    case = ODDS[name]
    still = attrs.evolve(case, change=judges.nothing)
    tables = [judges.trained(kind, *judges.fresh(kind)) for kind in (case, still)]
    tensors = [
        [{path: leaf for path, leaf in table.items() if isinstance(leaf, Bits)} for table in run] for run in tables
    ]
    assert tensors[0] != tensors[1]


def wrapped_bare(module, sample, loss, options):
    """Claims to have wrapped."""
    return module


def runs_the_forward(module, sample, loss, options):
    module(*sample)
    raise Uncapturable("X-TEST", "Blocks, tests/odd.py:3: no.", fix="none.")


def draws(module, sample, loss, options):
    torch.rand(1)
    raise Uncapturable("X-TEST", "Blocks, tests/odd.py:3: no.", fix="none.")


def leaves_a_fake(module, sample, loss, options):
    with FakeTensorMode() as mode:
        module.left = [mode.from_tensor(torch.ones(2))]
    raise Uncapturable("X-TEST", "Blocks, tests/odd.py:3: no.", fix="none.")


def leaves_a_hook(module, sample, loss, options):
    module.blocks[0].register_forward_hook(lambda *_: None)
    raise Uncapturable("X-TEST", "Blocks, tests/odd.py:3: no.", fix="none.")


def breaks_the_module(module, sample, loss, options):
    """What no walk sees: something that is not ours."""
    torch.nn.functional.gelu = torch.sin
    raise Uncapturable("X-TEST", "Blocks, tests/odd.py:3: no.", fix="none.")


def refuses_without_a_module(module, sample, loss, options):
    raise Uncapturable("X-TEST", "tests/odd.py:3: no.", fix="none.")


def refuses_without_a_line(module, sample, loss, options):
    raise Uncapturable("X-TEST", "Blocks: no.", fix="none.")


def refuses_without_a_fix(module, sample, loss, options):
    raise Uncapturable("X-TEST", "Blocks, tests/odd.py:3: no.")


def crashes(module, sample, loss, options):
    raise AttributeError("'NoneType' object has no attribute 'shape'")


@pytest.mark.parametrize(
    ("planted", "message"),
    [
        (wrapped_bare, "ran bare"),
        (draws, "generators"),
        (leaves_a_fake, "fake tensors"),
        (leaves_a_hook, "_forward_hooks"),
        (breaks_the_module, "after a refusal differs"),
        (refuses_without_a_module, "names no module"),
        (refuses_without_a_line, "names no source line"),
        (refuses_without_a_fix, "no way out"),
        (crashes, "NoneType"),
    ],
    ids=lambda part: getattr(part, "__name__", ""),
)
def test_the_judge_sees_what_is_wrong(planted, message, monkeypatch):
    monkeypatch.setattr(torch.nn.functional, "gelu", torch.nn.functional.gelu)
    monkeypatch.setattr(judges, "wrap", planted)
    case = judges.Odd(name="plain", build=Blocks, expect=EXACT)
    with pytest.raises((AssertionError, AttributeError), match=message):
        judge(case)


def test_the_judge_sees_a_forward_that_was_called(monkeypatch):
    monkeypatch.setattr(judges, "wrap", runs_the_forward)
    with pytest.raises(AssertionError, match=r"stats.*became"):
        judge(ODDS["counter-in-a-dict"])


def test_the_judge_passes_what_is_right():
    assert judge(judges.Odd(name="plain", build=Blocks, expect=EXACT)) == EXACT
    assert len(ODDS) >= 40
    assert {case.expect for case in ODDS.values()} == {EXACT, EITHER, REFUSED}
