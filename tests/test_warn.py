"""Warnings name the user's line, from whatever depth they are given."""

import inspect
import threading
import warnings
from concurrent.futures import BrokenExecutor, Executor, Future
from pathlib import Path

import pytest
import torch
from torch import nn

import remat
from remat._warn import warn
from remat.algorithms import HIlp
from remat.ir import load


def lines(run):
    """File and line of every warning of a call, which is made in the last line of `run`."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    source, first = inspect.getsourcelines(run)
    return [(one.filename, one.lineno) for one in caught], [(__file__, first + len(source) - 1)]


def test_a_warning_through_generated_and_standard_code_names_the_line_that_began_it():
    within = {"warn": warn}
    exec(compile("def generated():\n    warn('words', UserWarning)\n", "<generated>", "exec"), within)

    def run():
        list(map(lambda _: within["generated"](), sorted([1], key=lambda one: one)))

    said, expected = lines(run)
    assert said == expected


def test_a_warning_through_modules_of_torch_names_the_call():
    module = nn.Sequential(nn.Linear(3, 3))
    code = "from remat._warn import warn\ndef hook(*_):\n    warn('words', UserWarning)\n"
    within = {}
    exec(compile(code, nn.modules.module.__file__, "exec"), within)  # as if it stood in torch
    module.register_forward_hook(torch.no_grad()(within["hook"]))

    def run():
        module(torch.ones(1, 3))

    said, expected = lines(run)
    assert said == expected


def test_wrap_names_the_line_that_wraps():
    class Unhappy(nn.Module):
        def forward(self, x):
            return x.nonzero().float().sum() + len([one for one in x.tolist() if one])

    module = nn.Sequential(nn.Linear(3, 3), Unhappy())

    def run():
        remat.exec.wrap(module, (torch.randn(2, 3),), "50%", on_uncapturable="bare")

    said, expected = lines(run)
    assert said == expected


def test_a_lost_worker_is_a_warning_at_the_line_that_solves():
    class Broken(Executor):
        def submit(self, *_args, **_named):
            future = Future()
            future.set_exception(BrokenExecutor("gone"))
            return future

    graph = load(Path(__file__).parent / "data" / "blocks" / "gpt2_mlp.json")
    sweep = HIlp().sweep(peaks=1, saves=1)

    def run():
        sweep.options(graph, executor=Broken())

    said, expected = lines(run)
    assert said == expected


def test_without_a_line_of_the_users_the_outermost_is_named():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        thread = threading.Thread(target=warn, args=("words", UserWarning))
        thread.start()
        thread.join()
    assert [one.filename for one in caught] == [threading.__file__]


def test_a_filter_by_module_applies():
    with warnings.catch_warnings():
        warnings.filterwarnings("error", module=__name__.replace(".", r"\."))
        with pytest.raises(UserWarning, match="words"):
            warn("words", UserWarning)
