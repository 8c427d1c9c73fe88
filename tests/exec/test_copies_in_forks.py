"""Copies to the host in a process that is forked: it has host memory and threads of its own, and begins steps of its own."""

import gc
import os
import signal

import pytest
import torch
from torch import nn

import remat.exec
from remat.errors import RematError
from remat.ir import Link
from tests.exec.copying import FAST, CopyAll

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
LIMIT = 60


def wrapped(offload=FAST):
    torch.manual_seed(0)
    body = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(8, 8), nn.Tanh())), nn.Linear(8, 1))
    x = torch.randn(64, 8)
    options = {"solver": CopyAll(), "cost": "estimate", "rehearse": False}
    return remat.exec.wrap(body, x, "80%", loss_reserve=0, offload=offload, **options), x


def gradients(module, loss):
    return torch.autograd.grad(loss.sum(), list(module.parameters()))


def forked(check):
    """A child that runs a check; returns what waits for it and says whether the check held."""
    child = os.fork()
    if child == 0:
        signal.alarm(LIMIT)
        try:
            code = 0 if check() else 1
        except BaseException:  # noqa: BLE001 (nothing of the tests may go on in the child)
            code = 2
        os._exit(code)
    return lambda: os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("offload", [FAST, "disk"])
def test_parent_and_child_train_at_once_without_writing_into_each_others_copies(offload):
    module, x = wrapped(offload)
    expected = gradients(module, module(x))
    readable, writable = os.pipe()

    def check():
        os.read(readable, 1)
        return all(map(torch.isfinite, (g.sum() for g in gradients(module, module(x * 3)))))

    wait = forked(check)
    loss = module(x)
    os.write(writable, b"1")
    assert wait()
    assert all(torch.equal(a, b) for a, b in zip(gradients(module, loss), expected, strict=True))
    os.close(readable)
    os.close(writable)


def test_a_child_drops_a_step_whose_copies_are_under_way_and_trains():
    module, x = wrapped(Link.symmetric(gb_per_s=0.0001))
    expected = gradients(module, module(x))
    loss = [module(x)]

    def check():
        loss.clear()
        gc.collect()
        return all(torch.equal(a, b) for a, b in zip(gradients(module, module(x)), expected, strict=True))

    assert forked(check)()
    assert all(torch.equal(a, b) for a, b in zip(gradients(module, loss.pop()), expected, strict=True))


def test_a_step_that_the_parent_began_is_not_ended_by_the_child():
    module, x = wrapped()
    loss = module(x)

    def check():
        with pytest.raises(
            RematError, match=r"X-HOST: the forward ran in process .*, which was forked.* Fix: run forward"
        ):
            gradients(module, loss)
        return True

    assert forked(check)()
    gradients(module, loss)
