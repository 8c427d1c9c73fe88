"""Functions of torch under DTR that are made of several operations, and work on memory of their own in between."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import rnn

import remat.exec
from remat.exec import StepError
from tests.exec.dtr_steps import Body, X, both, step

LENGTHS = torch.tensor([3, 4, 4, 2, 4, 1, 2, 3])


class Recurrent(nn.Module):
    """Sequences of several lengths through recurrent layers, packed."""

    def __init__(self, kind):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(24, 24), nn.Tanh()) for _ in range(6)))
        self.inner = kind(24, 12, batch_first=True, bidirectional=True)
        self.last = nn.Linear(24, 24)

    def forward(self, x):
        x = self.layers(x)[:32].view(8, 4, 24)
        packed = rnn.pack_padded_sequence(x, LENGTHS + 0, batch_first=True, enforce_sorted=False)
        out, last = self.inner(packed)
        padded, lengths = rnn.pad_packed_sequence(out, batch_first=True)
        assert torch.equal(lengths, LENGTHS) and padded.shape[1] == int(lengths.max())
        rows = [row[:length] for row, length in zip(padded, lengths, strict=True)]
        parts = rnn.unpack_sequence(rnn.pack_sequence(rows, enforce_sorted=False))
        last = last[0] if isinstance(last, tuple) else last
        return torch.stack([self.last(part).sin().sum() for part in parts]).square().mean() + last.sum()


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_packed_sequences_are_those_of_plain_torch(kind):
    both(lambda: Recurrent(kind))


def divided(module, x):
    return torch.cat([part.sin() for part in torch.tensor_split(x, torch.tensor([3, 20]) * 3)]) * x


def test_places_to_divide_at_are_read_as_under_plain_torch():
    both(lambda: Body(divided))


def vector_products(module, x):
    return x * (x[0] @ module.layers[0].weight) + functional.linear(x[1], module.layers[1].weight, module.average)


def quantiles(module, x):
    return x - torch.quantile(x, 0.3, dim=0) + torch.nanquantile(x, torch.tensor([0.2, 0.7]), dim=1)[0][:, None]


def short_time_spectrum(module, x):
    window = torch.hann_window(16)
    spectrum = torch.stft(x.flatten(), 16, window=window, return_complex=True)
    return torch.istft(spectrum * (spectrum.abs() + 1).rsqrt(), 16, window=window).view(64, 24) + x


def leaky(module, x):
    return functional.rrelu(x, training=True) + functional.rrelu(x * 2, 0.1, 0.4, training=True, inplace=True)


def reshaped(module, x):
    y = (x * 2).t_().unsqueeze_(0).transpose_(1, 2).squeeze_().swapaxes_(0, 1)
    assert y.shape == (24, 64) and y.stride() == (1, 24)
    strided = (x * 3).as_strided_((32, 24), (48, 1), 24)
    return y.t() + strided.repeat(2, 1)


def numbered(module, x):
    rows, columns = torch.tensor([1.0, 2.0]), torch.arange(12)
    return x + (columns.unsqueeze_(1) * rows.unsqueeze_(0)).t_().reshape(24)


@pytest.mark.parametrize("between", [vector_products, quantiles, short_time_spectrum, leaky, reshaped, numbered])
def test_temporaries_that_torch_changes_in_place_are_no_matter(between):
    both(lambda: Body(between))


def test_a_form_changed_in_place_that_views_would_miss_is_refused():
    def view(module, x):
        view = (x * 1).view(8, 8, 24)
        return view.transpose_(0, 1).mul_(2).reshape(64, 24)

    def base(module, x):
        y = x[:24] * 1
        row = y[0]
        return y.t_() * row

    for between in (view, base):
        with pytest.raises(
            StepError, match=r"X-WRITE: aten\.t\w*_\.default changes the form of a view, or of a tensor that has"
        ):
            step(remat.exec.dtr(Body(between), "1MiB"), X)


def transformed(module, x):
    return torch.func.grad(lambda rows: rows.sin().sum())(x)


def divided_at_computed_places(module, x):
    return torch.cat(torch.tensor_split(x, (x[0] > 9).long().cumsum(0)[:2]))


def resized_by_a_result(module, x):
    with torch.no_grad():
        out = torch.empty(0)
        torch.mul(x, x, out=out)
    return x * out.sum()


def resized_in_a_buffer(module, x):
    with torch.no_grad():
        torch.mul(x, x, out=module.average[:0])
    return x


@pytest.mark.parametrize(
    "between, words",
    [(transformed, r"X-TRANSFORM.*use torch\.autograd\.grad"),
     (divided_at_computed_places, r"X-TENSOR.*torch\.tensor\(lengths"),
     (resized_by_a_result, r"X-WRITE: aten\.mul\.out resized.*\[0\] to \[64, 24\]"),
     (resized_in_a_buffer, r"X-WRITE: aten\.mul\.out resized")],
)  # fmt: skip
def test_what_cannot_run_here_is_refused_with_a_remedy(between, words):
    with pytest.raises(StepError, match=words):
        step(remat.exec.dtr(Body(between), "1MiB"), X)
