"""Models whose steps differ from call to call, with a generator of calls: for the suites of DTR's runtime."""

import torch
from torch import nn
from torch.nn import functional

from remat.zoo import GPT2, MLP
from remat.zoo.dynamic import Detector, Experts, TreeLSTM
from remat.zoo.resnet import ResNet


class Loss(nn.Module):
    """A module with a loss behind it."""

    def __init__(self, inner, loss):
        super().__init__()
        self.inner, self.loss = inner, loss

    def forward(self, *args):
        *given, target = args
        return self.loss(self.inner(*given), target)


class Lengths(nn.Module):
    """A cell unrolled over as many words as there are."""

    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.LSTMCell(8, 24), nn.Linear(24, 1)

    def forward(self, words):
        hidden = state = words.new_zeros(words.shape[1], 24)
        for word in words:
            hidden, state = self.cell(word, (hidden, state))
        return self.head(hidden).square().mean()


class Squared(nn.Module):
    """Experts with a loss."""

    def __init__(self):
        super().__init__()
        self.experts = Experts(layers=3, experts=3, width=16)

    def forward(self, rows):
        return self.experts(rows).square().mean()


def tree(draw, depth):
    deep = depth > 0 and (depth > 2 or torch.rand((), generator=draw).item() < 0.8)
    return [tree(draw, depth - 1), tree(draw, depth - 1)] if deep else int(torch.randint(50, (), generator=draw))


def mlp(draw):
    model = MLP(layers=6, width=32)
    return model, lambda: (torch.randn(64, 32, generator=draw), torch.randn(64, 8, generator=draw))


def gpt2(draw):
    model = GPT2(layers=2, width=32, heads=2, vocabulary=50, context=24, dropout=0.1)

    def sample():
        words = torch.randint(50, (3, 25), generator=draw)
        return words[:, :-1], words[:, 1:]

    return model, sample


def lstm(draw):
    return Lengths(), lambda: (torch.randn(int(torch.randint(5, 16, (), generator=draw)), 4, 8, generator=draw),)


def tree_lstm(draw):
    model = Loss(TreeLSTM(width=16), functional.cross_entropy)
    return model, lambda: (tree(draw, 4), torch.tensor([1]))


def experts(draw):
    return Squared(), lambda: (torch.randn(48, 16, generator=draw),)


def resnet(draw):
    model = ResNet(blocks=(1, 1), width=8)
    return model, lambda: (torch.randn(4, 3, 32, 32, generator=draw), torch.randint(10, (4,), generator=draw))


def detector(draw):
    return Detector(), lambda: (torch.randn(3, 3, 40, 40, generator=draw), torch.randint(5, (3,), generator=draw))


MODELS = {
    "mlp": mlp, "gpt2": gpt2, "lstm": lstm, "tree-lstm": tree_lstm, "experts": experts, "resnet": resnet, "detector": detector,
}  # fmt: skip


def made(name, seed=0):
    """A model of the list with a function that draws its calls."""
    torch.manual_seed(seed)
    return MODELS[name](torch.Generator().manual_seed(seed))
