"""The judge of random modules: refused clearly, or exact to the last bit and never over the budget."""

import contextlib
import functools
import time
import traceback

import torch
from attrs import frozen

import remat.exec
from remat.errors import Infeasible, Uncapturable
from tests.exec.odd.judging import (
    STEPS,
    Odd,
    assert_clear,
    assert_same_training,
    assert_untouched,
    fresh,
    state_of,
    take_step,
)
from tests.exec.odd.snapshot import fakes
from tests.exec.support import LIGHT

wrap = remat.exec.wrap
TRIES = 4

EXACT, REFUSED, INFEASIBLE = "exact", "refused", "infeasible"
WRONG, OVER, INTERNAL, INVALID = "wrong", "over budget", "internal error", "invalid"
FAILURES = (WRONG, OVER, INTERNAL, INVALID)


class OverBudget(AssertionError):
    """A measured peak above the budget."""


@frozen(kw_only=True)
class Verdict:
    """What became of a random module.

    Attributes:
        seed, kind: which it was.
        word: exact, refused, infeasible, or one of `FAILURES`; invalid: the bare module does not run, a bug of the generator.
        detail: the refusal's rule, the difference, or the error.
        budget, peak: bytes given, and the most that a step held.
        seconds: process time.
    """

    seed: int
    kind: str
    word: str
    detail: str = ""
    budget: int = 0
    peak: int = 0
    seconds: float = 0.0


def judge(program):
    """The verdict on a random module."""
    start, facts = time.process_time(), {}
    case = Odd(
        name=f"fuzz-{program.seed}", build=program.build, expect=EXACT, inputs=program.inputs, loss=_loss(program)
    )
    try:
        expected = bare_steps(case, program, fresh(case)[0])
    except Exception:  # noqa: BLE001 - the generator wrote what does not run: told, and counted as a failure
        word, detail = INVALID, traceback.format_exc(limit=-2)
    else:
        word, detail = _guarded(case, program, expected, facts)
    seconds = round(time.process_time() - start, 2)
    return Verdict(seed=program.seed, kind=program.kind, word=word, detail=detail, seconds=seconds, **facts)


def _guarded(case, program, expected, facts):
    try:
        return judged(case, program, expected, facts)
    except OverBudget as error:
        return OVER, str(error)
    except AssertionError as error:
        return WRONG, str(error)
    except Exception:  # noqa: BLE001 - whatever escapes is what is looked for
        return INTERNAL, traceback.format_exc(limit=-6)


def judged(case, program, expected, facts):
    """A word and a detail; what is wrong is raised."""
    module, _ = fresh(case)
    sample = case.inputs(0)
    before = state_of(module, None, sample)
    try:
        wrapped = wrapped_within(program, module, sample)
    except Uncapturable as error:
        assert_untouched(before, state_of(module, None, sample), "wrap")
        assert_clear(case, error, module)
        assert_same_training(expected, bare_steps(case, program, module), "after a refusal")
        return REFUSED, first_words(error)
    except Infeasible as error:
        assert_untouched(before, state_of(module, None, sample), "wrap")
        return INFEASIBLE, first_words(error)
    assert_untouched(before, state_of(wrapped, None, sample), "wrap")
    facts["budget"] = remat.exec.report(wrapped).budget
    for step in range(STEPS):
        stopped = step_beside(case, program, wrapped, step, expected[step])
        if stopped is not None:
            return stopped
    facts["peak"] = max(peak_of(case, program, wrapped, step) for step in range(STEPS))
    if facts["peak"] > facts["budget"]:
        raise OverBudget(f"{facts['peak']} B held of {facts['budget']} B")
    return EXACT, ""


def wrapped_within(program, module, sample):
    """Wrapped at the budget of the program, or at the smallest that is said to do; costs are measured anew for each try.

    Raises:
        Infeasible: no budget that was said to do did.
    """
    options = {
        "solver": LIGHT,
        "on_uncapturable": "raise",
        "loss_reserve": program.reserve,
        "rehearse": program.rehearse,
    }
    budget = 1 if program.share is None else f"{100 * program.share:.0f}%"
    for _ in range(TRIES):
        try:
            return in_mode(program, wrap, module, sample, budget, **options)
        except Infeasible as error:
            assert error.budget < error.smallest and error.floor <= error.smallest, str(error)
            budget, refusal = error.smallest, error
    raise refusal


def step_beside(case, program, wrapped, step, expected):
    """One step of the wrapped module beside that of its twin; a verdict if it is refused."""
    before = state_of(wrapped, None, None)
    try:
        table, planned = take_step(case, wrapped, functools.partial(in_mode, program, wrapped), step)
    except (Uncapturable, Infeasible) as error:
        assert_untouched(before, state_of(wrapped, None, None), f"the refused call of step {step}")
        if isinstance(error, Infeasible):
            return INFEASIBLE, first_words(error)
        assert_clear(case, error, wrapped)
        return REFUSED, first_words(error)
    assert not fakes(table), f"step {step} left fake tensors: {fakes(table)}"
    assert_same_training([expected], [table], f"step {step}")
    assert planned, f"step {step} ran bare under a hard budget"
    return None


def peak_of(case, program, wrapped, step):
    """Most bytes that a step holds above what lived before it."""
    call = case.inputs(step)
    for parameter in wrapped.parameters():
        parameter.grad = None
    return remat.exec.measure_step(lambda: case.loss(wrapped, in_mode(program, wrapped, **call)).backward()).peak


def bare_steps(case, program, module):
    """What each step of a bare module leaves."""
    run = functools.partial(in_mode, program, module)
    return [take_step(case, module, run, step)[0] for step in range(STEPS)]


def _loss(program):
    return lambda _, out: in_mode(program, program.loss, out)


def in_mode(program, function, *args, **kwargs):
    """Call a function, under autocast if that is the program's kind."""
    with torch.autocast("cpu", torch.bfloat16) if program.kind == "autocast" else contextlib.nullcontext():
        return function(*args, **kwargs)


def first_words(error):
    """A refusal in brief, to count by."""
    return str(error)[:160]
