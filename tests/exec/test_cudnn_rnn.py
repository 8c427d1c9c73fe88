"""Recurrent nets as cuDNN has them: a stand-in of its kernels on the CPU; the kernels themselves are run by `make test-cuda`."""

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import remat.exec
from remat.errors import Uncapturable
from remat.exec._run.runtime import StepError
from remat.exec._torch import cudnn_rnn
from tests.exec.support import LIGHT, train

NETS = {0: torch.rnn_relu, 1: torch.rnn_tanh, 2: torch.lstm, 3: torch.gru}


def net_of(x, weight, hx, cx, how):
    stride0, mode, _, proj, layers, batch_first, dropout, training, both = how
    states = hx if cx is None else (hx, cx)
    biases = stride0 - bool(proj) == 4
    return NETS[mode](x, states, list(weight), biases, layers, dropout, training, both, batch_first)


def elsewhere(function, *args):
    """In a thread of its own autograd is on, wherever the caller is."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *args).result()


def forward(x, weight, hx, cx, *how):
    with torch.no_grad():
        output, *states = elsewhere(net_of, x.detach(), [part.detach() for part in weight], hx.detach(),
                                    None if cx is None else cx.detach(), how)  # fmt: skip
    cy = states[1] if cx is not None else x.new_empty(0)
    return output, states[0], cy, torch.zeros(5, dtype=torch.uint8), torch.cat([part.flatten() for part in weight])


def backward(x, weight, hx, cx, output, flat, reserve, grad_output, grad_hy, grad_cy, *how):
    assert reserve.numel() == 5 and flat.numel() == sum(part.numel() for part in weight)

    def gradients():
        given = [t.detach().clone().requires_grad_() for t in (x, hx, *(() if cx is None else (cx,)), *weight)]
        first = 2 if cx is None else 3
        results = net_of(given[0], given[first:], given[1], None if cx is None else given[2], how)
        pairs = zip(results, (grad_output, grad_hy, grad_cy), strict=False)
        pairs = [(result, grad) for result, grad in pairs if grad is not None]
        outputs, grads = zip(*pairs, strict=True)
        return torch.autograd.grad(outputs, given, grads)

    dx, dhx, *rest = elsewhere(gradients)
    dcx = rest.pop(0) if cx is not None else x.new_empty(0)
    return dx, dhx, dcx, torch.cat([part.flatten() for part in rest])


@pytest.fixture(autouse=True)
def kernels(monkeypatch):
    library = torch.library.Library("remat", "IMPL")
    library.impl("cudnn_rnn", forward, "CPU")
    library.impl("cudnn_rnn_backward", backward, "CPU")
    monkeypatch.setattr(cudnn_rnn, "takes", lambda x: True)
    yield
    library._destroy()


class Recurrent(nn.Module):
    """A recurrent net with the loss inside, which reads some of what it returns."""

    def __init__(self, kind, states=False, **how):
        super().__init__()
        self.before, self.net, self.states = nn.Linear(3, 4), kind(4, 5, batch_first=True, **how), states

    def forward(self, x):
        output, last = self.net(torch.tanh(self.before(x)))
        last = last if isinstance(last, tuple) else (last,)
        return output.square().mean() + (sum(state.sin().mean() for state in last) if self.states else 0)


CASES = {
    "lstm": (nn.LSTM, {}), "gru": (nn.GRU, {}), "rnn": (nn.RNN, {}), "relu": (nn.RNN, {"nonlinearity": "relu"}),
    "lstm both ways": (nn.LSTM, {"bidirectional": True, "num_layers": 2}), "projected": (nn.LSTM, {"proj_size": 2}),
    "without biases": (nn.GRU, {"bias": False, "num_layers": 2}), "states": (nn.LSTM, {"states": True}),
    "states of a gru": (nn.GRU, {"states": True}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_net_of_cudnn_is_one_operation_and_trains_the_same(name):
    kind, how = CASES[name]
    torch.manual_seed(0)
    bare, x = Recurrent(kind, **how).double(), torch.randn(6, 7, 3, dtype=torch.float64)
    module = copy.deepcopy(bare)
    targets = [str(op.target) for op in remat.exec.capture(module, (x,)).program.ops]
    assert targets.count("remat.cudnn_rnn.default") == targets.count("remat.cudnn_rnn_backward.default") == 1
    wrapped = remat.exec.wrap(module, x, "100%", solver=LIGHT, on_uncapturable="raise")
    for one, two in zip(train(bare, (x,)), train(wrapped, (x,)), strict=True):
        assert all(torch.allclose(a, two["grad"][path], rtol=1e-12, atol=1e-15) for path, a in one["grad"].items())
        assert torch.allclose(one["out"][0], two["out"][0], rtol=1e-13)
    assert remat.exec.report(wrapped).ran == "plan"


def test_dropout_inside_is_refused_with_the_way_out():
    module = Recurrent(nn.LSTM, num_layers=2, dropout=0.5)
    with pytest.raises(Uncapturable, match="no replay can put back") as refused:
        remat.exec.wrap(module, torch.randn(6, 7, 3), "1MiB")
    assert "dropout=0" in refused.value.fix and refused.value.rule == "X-OP"


def test_under_autocast_all_that_goes_to_cudnn_is_float16():
    """As in eager, whatever type autocast has; gradients of weights come back in the type of the weights."""
    torch.manual_seed(0)
    module, x = Recurrent(nn.GRU), torch.randn(6, 7, 3)
    halved = copy.deepcopy(module)
    halved.net.half()
    loss = halved.net(torch.tanh(halved.before(x)).half())[0].float().square().mean()
    loss.backward()
    with torch.autocast("cpu", torch.bfloat16):
        program = remat.exec.capture(module, (x,)).program
        wrapped = remat.exec.wrap(module, x, "100%", solver=LIGHT, on_uncapturable="raise")
        out = wrapped(x)
    out.backward()
    (op,) = [op for op in program.ops if str(op.target) == "remat.cudnn_rnn.default"]
    assert {program.values[name].spec.dtype for name in op.reads} == {torch.float16}
    assert remat.exec.report(wrapped).ran == "plan"
    for path, parameter in module.named_parameters():
        expected = halved.get_parameter(path).grad.float()
        assert parameter.grad.dtype == torch.float32
        assert torch.allclose(parameter.grad, expected, atol=3e-2 * float(expected.abs().max())), path


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("share", [120, 80])
def test_a_net_of_cudnn_is_one_operation_under_dtr(name, share, monkeypatch):
    monkeypatch.setattr(cudnn_rnn, "DEVICES", ("cpu",))
    kind, how = CASES[name]
    torch.manual_seed(0)
    bare, x = Recurrent(kind, **how).double(), torch.randn(6, 70, 3, dtype=torch.float64)
    module = copy.deepcopy(bare)
    budget = remat.exec.measure_step(lambda: bare(x).backward()).peak * share // 100
    bare.zero_grad()
    calls = []
    monkeypatch.setattr(cudnn_rnn, "by_cudnn", lambda *args, real=cudnn_rnn.by_cudnn: calls.append(0) or real(*args))
    wrapped = remat.exec.dtr(module, budget)
    for one, two in zip(train(bare, (x,)), train(wrapped, (x,)), strict=True):
        assert all(torch.allclose(a, two["grad"][path], rtol=1e-12, atol=1e-15) for path, a in one["grad"].items())
        assert torch.allclose(one["out"][0], two["out"][0], rtol=1e-13)
    assert len(calls) == 3


def test_dropout_inside_is_refused_under_dtr_too(monkeypatch):
    monkeypatch.setattr(cudnn_rnn, "DEVICES", ("cpu",))
    wrapped = remat.exec.dtr(Recurrent(nn.LSTM, num_layers=2, dropout=0.5), "1MiB")
    with pytest.raises(StepError, match=r"X-OP.*no replay can put back.*dropout=0"):
        wrapped(torch.randn(6, 7, 3))


def test_a_trace_leaves_the_weights_of_the_module_alone():
    module = Recurrent(nn.LSTM)
    before = [part.data_ptr() for part in module.net._flat_weights]
    remat.exec.capture(module, (torch.randn(6, 7, 3),))
    assert [part.data_ptr() for part in module.net._flat_weights] == before
    assert [getattr(module.net, name).data_ptr() for name in module.net._flat_weights_names] == before
