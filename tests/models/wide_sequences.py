"""The wide zoo: recurrence, trees, state spaces, long convolutions, very deep equal layers; torch alone."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.models.model import Call, classified, regressed, returned_loss
from tests.models.wide_derivatives import multilayer
from tests.models.wide_entry import alone


class UnrolledLstm(nn.Module):
    """Two LSTM cells, step by step over a sequence, a forecast at each step."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cells = nn.ModuleList([nn.LSTMCell(64 if i == 0 else width, width) for i in range(2)])
        self.head = nn.Linear(width, 64)

    def forward(self, series: Tensor) -> Tensor:
        empty = series.new_zeros(series.shape[0], self.cells[0].hidden_size)
        states, forecast = [(empty, empty)] * 2, []
        for x in series.unbind(1):
            for i, cell in enumerate(self.cells):
                states[i] = cell(x, states[i])
                x = states[i][0]
            forecast.append(self.head(x))
        return torch.stack(forecast, 1)


class BinaryTree(nn.Module):
    """A tree LSTM over a complete binary tree: two children with a forget gate each (Tai et al., 2015)."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.leaf = nn.Linear(64, 3 * width)
        self.join = nn.Linear(2 * width, 5 * width)
        self.head = nn.Linear(width, 10)
        self.depth = depth

    def forward(self, leaves: Tensor) -> Tensor:
        return self.head(self.state(leaves, 0, 1 << self.depth)[0])

    def state(self, leaves: Tensor, first: int, count: int) -> tuple[Tensor, Tensor]:
        """Output and cell of the subtree over some leaves."""
        if count == 1:
            i, o, u = self.leaf(leaves[:, first]).chunk(3, 1)
            cell = i.sigmoid() * u.tanh()
            return o.sigmoid() * cell.tanh(), cell
        (h, c), (k, d) = (self.state(leaves, first + at, count // 2) for at in (0, count // 2))
        i, f, g, o, u = self.join(torch.cat((h, k), 1)).chunk(5, 1)
        cell = i.sigmoid() * u.tanh() + f.sigmoid() * c + g.sigmoid() * d
        return o.sigmoid() * cell.tanh(), cell


class RungeKutta(nn.Module):
    """A differential equation in equal steps of fourth order, differentiated step by step (Chen et al., 2018)."""

    def __init__(self, width: int, steps: int) -> None:
        super().__init__()
        self.slope = multilayer([64, width, width, 64])
        self.steps = steps

    def forward(self, x: Tensor) -> Tensor:
        h = 1 / self.steps
        for _ in range(self.steps):
            a = self.slope(x)
            b = self.slope(x + h / 2 * a)
            c = self.slope(x + h / 2 * b)
            x = x + h / 6 * (a + 2 * b + 2 * c + self.slope(x + h * c))
        return x


class SelectiveScan(nn.Module):
    """A selective state space by an associative scan over doubled distances (Gu and Dao, 2023)."""

    def __init__(self, width: int, states: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.into = nn.Linear(width, 2 * width)
        self.mix = nn.Conv1d(width, width, 4, padding=3, groups=width)
        self.project = nn.Linear(width, 2 * states + 1)
        self.decay = nn.Parameter(torch.zeros(width, states))
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.into(self.norm(x)).chunk(2, -1)
        value = F.silu(self.mix(value.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        b, c, step = self.project(value).split((self.decay.shape[1], self.decay.shape[1], 1), -1)
        step = F.softplus(step)
        keep = torch.exp(-step[..., None] * F.softplus(self.decay))
        state, reach = step[..., None] * value[..., None] * b[:, :, None], 1
        while reach < x.shape[1]:
            state = state + keep * F.pad(state, (0, 0, 0, 0, reach, 0))[:, : x.shape[1]]
            keep = keep * F.pad(keep, (0, 0, 0, 0, reach, 0))[:, : x.shape[1]]
            reach *= 2
        return x + self.out((state * c[:, :, None]).sum(-1) * F.silu(gate))


class LongConvolution(nn.Module):
    """A convolution as long as the sequence, by Fourier transforms, gated (Poli et al., 2023)."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.filter = nn.Parameter(torch.randn(length, width) / length)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        query, key, value = self.into(self.norm(x)).chunk(3, -1)
        spectrum = torch.fft.rfft(key * value, 2 * length, dim=1) * torch.fft.rfft(self.filter, 2 * length, dim=0)
        return x + self.out(query * torch.fft.irfft(spectrum, 2 * length, dim=1)[:, :length])


class Worded(nn.Module):
    """Blocks between an embedding and scores of the next word."""

    def __init__(self, width: int, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.words = nn.Embedding(8192, width)
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(width, 8192)

    def forward(self, ids: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.blocks(self.words(ids))[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


class WaveNet(nn.Module):
    """Dilated gated convolutions; every layer adds to one sum at the end (van den Oord et al., 2016)."""

    def __init__(self, width: int, cycles: int) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, width, 1)
        self.dilated = nn.ModuleList(
            [nn.Conv1d(width, 2 * width, 2, dilation=1 << k) for _ in range(cycles) for k in range(8)]
        )
        self.both = nn.ModuleList([nn.Conv1d(width, 2 * width, 1) for _ in self.dilated])
        self.head = nn.Sequential(nn.ReLU(), nn.Conv1d(width, width, 1), nn.ReLU(), nn.Conv1d(width, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        x, total = self.first(x), torch.zeros(())
        for dilated, both in zip(self.dilated, self.both, strict=True):
            a, b = dilated(F.pad(x, (dilated.dilation[0], 0))).chunk(2, 1)
            residual, skip = both(a.tanh() * b.sigmoid()).chunk(2, 1)
            x, total = x + residual, total + skip
        return self.head(total)


class EqualLayers(nn.Module):
    """Residual layers of one size, many of them."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(depth)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + F.gelu(layer(x))
        return x


class SharedTransformer(nn.Module):
    """One transformer layer used again and again, with a halting weight for each use (Dehghani et al., 2018)."""

    def __init__(self, width: int, uses: int) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, dropout=0.0, batch_first=True)
        self.halt, self.head = nn.Linear(width, 1), nn.Linear(width, 64)
        self.uses = uses

    def forward(self, x: Tensor) -> Tensor:
        left, total = torch.ones(()), torch.zeros(())
        for _ in range(self.uses):
            x = self.layer(x)
            stop = self.halt(x).sigmoid()
            total, left = total + left * stop * x, left * (1 - stop)
        return self.head(total + left * x)


class AttendingDecoder(nn.Module):
    """A GRU cell that attends to all encoder states at each step, teacher forcing (Bahdanau et al., 2014)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.encoder = nn.ModuleList([nn.GRUCell(64, width), nn.GRUCell(64, width)])
        self.decoder = nn.GRUCell(64 + 2 * width, width)
        self.query, self.key, self.score = nn.Linear(width, width), nn.Linear(2 * width, width), nn.Linear(width, 1)
        self.head = nn.Linear(width, 64)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        both = []
        for cell, steps in zip(self.encoder, (source.unbind(1), source.flip(1).unbind(1)), strict=True):
            state, states = source.new_zeros(source.shape[0], cell.hidden_size), []
            for x in steps:
                state = cell(x, state)
                states.append(state)
            both.append(torch.stack(states, 1))
        memory = torch.cat((both[0], both[1].flip(1)), -1)
        keys, losses = self.key(memory), []
        for x in target.unbind(1):
            share = self.score(torch.tanh(keys + self.query(state)[:, None])).softmax(1)
            state = self.decoder(torch.cat((x, (share * memory).sum(1)), -1), state)
            losses.append(F.mse_loss(self.head(state), x))
        return torch.stack(losses).mean()


MODELS = (
    alone("unrolled-lstm", lambda: UnrolledLstm(512), lambda: Call((torch.randn(512, 24, 64),)), regressed, "recurrent"),
    alone("tree", lambda: BinaryTree(256, 5), lambda: Call((torch.randn(256, 32, 64),)), classified, "tree"),
    alone("runge-kutta", lambda: RungeKutta(512, 12), lambda: Call((torch.randn(4096, 64),)), regressed, "recurrent"),
    alone("selective-scan", lambda: Worded(256, [SelectiveScan(256, 8) for _ in range(4)]),
          lambda: Call((torch.randint(8192, (8, 256)),)), returned_loss, "state-space"),
    alone("long-convolution", lambda: Worded(384, [LongConvolution(384, 1024) for _ in range(8)]),
          lambda: Call((torch.randint(8192, (8, 1024)),)), returned_loss, "state-space"),
    alone("wavenet", lambda: WaveNet(64, 3), lambda: Call((torch.randn(8, 1, 8192),)), regressed, "dense"),
    alone("equal-layers", lambda: EqualLayers(512, 150), lambda: Call((torch.randn(4096, 512),)), regressed, "deep-equal"),
    alone("shared-transformer", lambda: SharedTransformer(512, 12), lambda: Call((torch.randn(16, 256, 512),)), regressed,
          "shared", "deep-equal"),
    alone("attending-decoder", lambda: AttendingDecoder(512), lambda: Call((torch.randn(512, 16, 64), torch.randn(512, 16, 64))),
          returned_loss, "recurrent"),
)  # fmt: skip
