"""Forwards of some threads while others capture: they wait where tensors are exchanged, and never for each other."""

import threading
import time

import pytest
import torch
from torch import nn

import remat.exec
from remat.exec._torch import exchange
from remat.exec._torch.exchange import Exchange
from tests.exec.support import LIGHT

SOON = 20.0


def body():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh())


def wrap(module, **options):
    settings = {"budget": "200%", "solver": LIGHT, "cost": "estimate", "on_uncapturable": "raise"} | options
    return remat.exec.wrap(module, **settings)


def in_threads(*functions):
    """Runs functions, each in a thread; their errors."""
    errors = []

    def run(function):
        try:
            function()
        except Exception as error:  # noqa: BLE001
            errors.append(repr(error))

    threads = [threading.Thread(target=run, args=(function,), daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
    return [*errors, *("a thread has not ended" for thread in threads if thread.is_alive())]


@pytest.mark.parametrize("outer", [False, True], ids=["the module", "one around it"])
def test_evaluations_beside_captures_in_another_thread_are_those_of_the_bare_module(outer):
    module = wrap(body()).train()
    evaluated, x, done = nn.Sequential(module) if outer else module, torch.randn(8, 16), threading.Event()
    other = wrap(nn.Sequential(module[0], nn.Tanh()))  # shares a layer, and captures too
    expected, differing = body().train()(x).detach(), []

    def evaluate():
        try:
            while not done.is_set():
                with torch.no_grad():
                    # statistics of the batch: what training steps write meanwhile is not read
                    differing.append(not torch.equal(evaluated(x), expected))
        finally:
            done.set()

    def train():
        try:
            for rows in range(20, 26):
                module(torch.randn(rows, 16)).sum().backward()
                other(torch.randn(rows, 16)).sum().backward()
        finally:
            done.set()

    assert in_threads(evaluate, train) == []
    assert len(differing) > 10
    assert not any(differing)


class Counting(nn.Module):
    """Counts its steps with gradients; without, it returns the count."""

    def __init__(self):
        super().__init__()
        self.body = body()
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        if not torch.is_grad_enabled():
            return self.steps.clone()
        self.steps += 1
        return self.body(x)


def test_no_forward_of_another_thread_sees_the_buffers_that_a_rehearsal_writes():
    module, counts, done = wrap(Counting()), [], threading.Event()

    def evaluate():
        while not done.is_set():
            with torch.no_grad():
                counts.append(int(module(torch.ones(2, 16))))

    def plan():
        try:
            remat.exec.prepare(module, [torch.randn(rows, 16) for rows in range(30, 35)], progress=False)
        finally:
            done.set()

    assert in_threads(evaluate, plan) == []
    assert set(counts) == {0}


class Telling(nn.Module):
    """Says that it runs, and leaves time for what another thread does then."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 4)

    def forward(self, x):
        if not RUNNING.is_set():
            RUNNING.set()
            READ.wait(0.05)
        return self.body(x)


RUNNING, READ = threading.Event(), threading.Event()


@pytest.mark.parametrize("outer", [False, True], ids=["the module", "one around it"])
def test_a_state_that_another_thread_asks_for_during_a_capture_has_real_tensors(outer):
    RUNNING.clear()
    READ.clear()
    module, states = wrap(Telling()), []
    asked = nn.Sequential(module) if outer else module

    def save():
        RUNNING.wait(SOON)
        states.append(asked.state_dict())
        READ.set()

    assert in_threads(save, lambda: module(torch.randn(2, 4))) == []
    assert [type(tensor) for tensor in states[0].values()] == [torch.Tensor] * 2
    expected = [tensor.detach() for tensor in module.parameters()]
    assert all(map(torch.equal, states[0].values(), expected))


def test_two_forwards_that_both_capture_do_not_wait_for_each_other():
    ways, both, order = Exchange(), threading.Barrier(2), []

    def forward(name):
        with ways.reading:
            both.wait(SOON)
            with ways.alone:
                order.append(name)
                with ways.reading, ways.planning, ways.alone:
                    time.sleep(0.02)
                order.append(name)

    assert in_threads(lambda: forward("a"), lambda: forward("b")) == []
    assert order in (["a", "a", "b", "b"], ["b", "b", "a", "a"])


def test_a_capture_waits_for_forwards_and_forwards_for_a_capture():
    ways, inside, events = Exchange(), threading.Event(), []

    def forward():
        with ways.reading:
            inside.set()
            time.sleep(0.05)
            events.append("forward")

    def capture():
        inside.wait(SOON)
        with ways.alone:
            events.append("capture begins")
            inside.clear()
            time.sleep(0.05)
            events.append("capture ends")

    def later():
        while "capture begins" not in events:
            time.sleep(0.001)
        with ways.reading:
            events.append("later")

    assert in_threads(forward, capture, later) == []
    assert events == ["forward", "capture begins", "capture ends", "later"]


def test_a_forward_that_waits_for_one_of_another_thread_does_not_stop_for_a_capture(monkeypatch):
    monkeypatch.setattr(exchange, "POLITE", 0.05)
    monkeypatch.setattr(exchange, "LONG", 0.05)
    ways, inside, events = Exchange(), threading.Event(), []

    def inner():
        with ways.reading:
            events.append("inner")

    def outer():
        with ways.reading:
            inside.set()
            while not ways.threads.awaited:
                time.sleep(0.001)
            assert in_threads(inner) == []

    def capture():
        inside.wait(SOON)
        with ways.alone:
            events.append("capture")

    assert in_threads(outer, capture) == []
    assert events == ["inner", "capture"]


def test_a_failure_inside_leaves_nothing_taken():
    ways = Exchange()
    for way in (ways.reading, ways.alone, ways.planning):
        with pytest.raises(ValueError, match="inside"), way:
            raise ValueError("inside")

    def others():
        with ways.alone, ways.reading:
            pass

    assert in_threads(others) == []


# -- under DTR -------------------------------------------------------------------------------------------------------------


def test_threads_train_one_module_under_dtr():
    def net():
        torch.manual_seed(0)
        return nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.Tanh())])

    bare, module = net(), remat.exec.dtr(net(), "1MiB")
    inputs = [torch.randn(128, 64) for _ in range(3)]
    parameters, differing = list(module.parameters()), []
    expected = [torch.autograd.grad(bare(x).square().mean(), list(bare.parameters())) for x in inputs]

    def train(at):
        for _ in range(12):
            grads = torch.autograd.grad(module(inputs[at]).square().mean(), parameters)
            differing.append(not all(map(torch.equal, grads, expected[at])))

    assert in_threads(*(lambda at=at: train(at) for at in range(3))) == []
    assert len(differing) == 36
    assert not any(differing)
    assert remat.exec.dtr_report(module).evictions


class Chosen(nn.Module):
    """Rows chosen by random numbers, so that it runs under DTR, with layers that become parts."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(16, 16), nn.Tanh())])

    def forward(self, x):
        out = self.body(x)
        if torch.is_grad_enabled():
            out = out[(torch.rand(len(out)) > -1).nonzero().squeeze(1)]
        return out


@pytest.mark.filterwarnings("ignore:.*runs under DTR")
def test_evaluations_of_a_divided_module_leave_no_forward_behind():
    module, done = wrap(Chosen(), budget="1MiB", on_uncapturable="dtr"), threading.Event()
    x, differing = torch.randn(8, 16), []
    with torch.no_grad():
        expected = module(x)

    def evaluate():
        while not done.is_set():
            with torch.no_grad():
                differing.append(not torch.equal(module(x), expected))

    def train():
        try:
            for _ in range(30):
                module(torch.randn(64, 16)).sum().backward()
        finally:
            done.set()

    assert in_threads(evaluate, train) == []
    assert not any(differing)
    assert [part.path for part in remat.exec.dtr_report(module).parts] == ["body"]
    assert "forward" not in module.body.__dict__
