"""Functions of torch under DTR that are made of several operations, and work on memory of their own in between."""

import pytest
import torch
from torch import nn
from torch.nn.utils import rnn

from tests.exec.dtr_steps import Body, both

LENGTHS = torch.tensor([3, 8, 7, 5, 8, 1, 2, 4])


class Recurrent(nn.Module):
    """Sequences of several lengths through recurrent layers, packed."""

    def __init__(self, kind):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(24, 24), nn.Tanh()) for _ in range(6)))
        self.inner = kind(24, 12, batch_first=True, bidirectional=True)
        self.last = nn.Linear(24, 24)

    def forward(self, x):
        x = self.layers(x).view(8, 8, 24)
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
