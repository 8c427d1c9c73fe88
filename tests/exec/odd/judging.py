"""The judge of odd modules: exact over several steps against a bare twin, or clearly refused; nothing left behind either way."""

import functools
import re
from collections.abc import Callable

import torch
from attrs import field, frozen
from torch import nn

import remat.exec
from remat.errors import Infeasible, RematError
from remat.exec._run.runtime import StepError
from tests.exec.odd.snapshot import changes, fakes, generators, seed_all, snapshot
from tests.exec.support import LIGHT

STEPS = 4
EXACT, REFUSED, EITHER = "exact", "refused", "either"
ROWS, WIDTH = 256, 16
LINE = re.compile(r"\w\.py\W{1,3}(?:line )?\d+")
"""How a message may name a source line: `model.py:12`, `model.py, line 12`, `"model.py", line 12`."""


def rows(step):
    """One batch of rows."""
    return (torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(100 + step)),)


def squares(_, out):
    """A loss of everything in an output that requires a gradient."""
    return sum(tensor.square().mean() for tensor in tensors_in(out) if tensor.requires_grad)


def tensors_in(value):
    """Tensors in an output, objects included."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    elif hasattr(value, "__dict__"):
        value = list(vars(value).values())
    return [tensor for part in value for tensor in tensors_in(part)] if isinstance(value, (list, tuple)) else []


def nothing(module, step):
    """No change."""


@frozen(kw_only=True)
class Odd:
    """A module that a capture may stumble over.

    Attributes:
        name: of the test.
        build: makes the module, with whatever it reaches outside itself as new.
        expect: "exact" where the issue demands it, "refused" where nothing else is right, "either" else.
        inputs: of each step, a tuple or a mapping.
        loss: of the module and its output.
        change: done to the module before each step, after the wrap.
        options: of `wrap`.
        inside: makes the function given as `loss=`; the bare twin is run through one of its own.
        line: whether a refusal has a source line to name.
    """

    name: str
    build: Callable[[], nn.Module]
    expect: str
    inputs: Callable[[int], tuple | dict] = rows
    loss: Callable = squares
    change: Callable[[nn.Module, int], None] = nothing
    options: dict = field(factory=dict)
    inside: Callable[[], Callable] | None = None
    line: bool = True


ODDS: dict[str, Odd] = {}


def odd(name, expect, **how):
    """Enter a class or a function without arguments into the table."""

    def enter(build):
        assert name not in ODDS, name
        ODDS[name] = Odd(name=name, build=build, expect=expect, **how)
        return build

    return enter


def judge(case):
    """Check a case; returns "exact" or "refused", and raises `AssertionError` where it is neither.

    Whatever is raised besides the library's own errors escapes: an internal error is a failure.
    """
    bare, inside = fresh(case)
    expected = trained(case, bare, inside)
    twin = trained(case, *fresh(case))
    # else a clock decides, and no two twins train the same
    steady = not [line for pair in zip(expected, twin, strict=True) for line in changes(*pair)]
    module, inside = fresh(case)
    sample = case.inputs(0)
    before = state_of(module, inside, sample)
    error = wrapped = None
    try:
        wrapped = wrap(module, sample, {} if inside is None else {"loss": inside}, case.options)
    except RematError as refusal:
        error = refusal
    assert_untouched(before, state_of(module, inside, sample), "wrap")
    if error is not None:
        assert_clear(case, error, module)
        if steady:
            assert_same_training(expected, trained(case, module, inside), "after a refusal")
        return REFUSED
    assert_untouched(before, state_of(wrapped, inside, sample), "wrap")
    return run_wrapped(case, wrapped, inside, expected)


def fresh(case):
    """A new module and its loss function, if it has one; twins are equal to the last bit."""
    seed_all(0)
    module = case.build()
    inside = None if case.inside is None else case.inside()
    seed_all(1)
    return module, inside


def wrap(module, sample, loss, options):
    """Wrap as a user with a hard budget does, with a planner of milliseconds."""
    options = {"budget": "60%", "solver": LIGHT, "on_uncapturable": "raise"} | loss | options
    return remat.exec.wrap(module, sample, **options)


def state_of(module, inside, sample):
    """Everything that a wrap must leave as it was."""
    return snapshot(module=module, inside=inside, sample=sample, generators=generators())


def take_step(case, module, run, step):
    """One training step; what it leaves, as a table: `run` is what is called, the module or a function around it."""
    call = case.inputs(step)
    out = run(**call) if isinstance(call, dict) else run(*call)
    loss = case.loss(module, out)
    planned = is_planned(loss)
    loss.backward()
    table = snapshot(out=out, call=call, module=module, generators=generators())
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.grad is not None:
                parameter.add_(parameter.grad, alpha=-0.05)
    for parameter in module.parameters():
        parameter.grad = None
    return table, planned


def is_planned(loss):
    """Whether a loss came through a planned step rather than through the bare module."""
    stack, seen = [loss.grad_fn], set()
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if getattr(node, "_forward_cls", None) is not None and node._forward_cls.__module__.startswith("remat."):
            return True
        stack += [before for before, _ in node.next_functions]
    return False


def trained(case, module, inside):
    """The tables of a bare module's steps."""
    run = module if inside is None else functools.partial(inside, module)
    tables = []
    for step in range(STEPS):
        case.change(module, step)
        tables.append(take_step(case, module, run, step)[0])
    return tables


def run_wrapped(case, wrapped, inside, expected):
    """The steps of a wrapped module beside those of its twin."""
    for step in range(STEPS):
        case.change(wrapped, step)
        before = state_of(wrapped, inside, None)
        try:
            table, planned = take_step(case, wrapped, wrapped, step)
        except RematError as error:
            after = state_of(wrapped, inside, None)
            if isinstance(error, StepError):
                # Refused in the backward: the forward had ended, and has done what it does.
                assert not fakes(after), f"step {step} left fake tensors: {fakes(after)}"
            else:
                assert_untouched(before, after, f"the refused call of step {step}")
            assert_clear(case, error, wrapped)
            return REFUSED
        assert not fakes(table), f"step {step} left fake tensors: {fakes(table)}"
        assert_same_training(expected[step : step + 1], [table], f"step {step}")
        assert planned, f"step {step} ran bare under a hard budget"
    report = remat.exec.report(wrapped)
    assert report.source and report.predicted_peak <= report.budget
    return EXACT


def assert_untouched(before, after, what):
    """State is deeply as before."""
    assert not fakes(after), f"{what} left fake tensors: {fakes(after)}"
    lines = changes(before, after)
    assert not lines, f"{what} left its traces: {lines}"


def assert_same_training(expected, tables, what):
    """Steps left the same, to the last bit."""
    for bare, table in zip(expected, tables, strict=True):
        # A forward set on the instance is kept beside the attributes: it is what is planned.
        lines = [line for line in changes(bare, table) if not line.startswith("module.forward")]
        assert not lines, f"{what} differs from the bare module: {lines}"


def assert_clear(case, error, module):
    """A refusal names its rule, the module, the source line, and the way out."""
    assert not isinstance(error, Infeasible), f"the case needs another budget: {error}"
    text = str(error)
    assert error.rule and error.fix, f"no rule or no way out: {text}"
    places = {path for path, _ in module.named_modules() if path} | {type(part).__name__ for part in module.modules()}
    named = any(re.search(rf"(?<![\w.]){re.escape(place)}(?!\w)", text) for place in places)
    assert named, f"names no module: {text}"
    if case.line:
        assert LINE.search(text), f"names no source line: {text}"
