"""Models of which a part can be captured and the rest cannot, with generators of calls."""

import torch
from torch import nn
from torch.nn import functional

from remat.zoo.dynamic import Detector, Experts, TreeLSTM


class Attention(nn.Module):
    """A block of a transformer, with its residual sums inside: its input has several uses in it."""

    def __init__(self, width=16, heads=2, dropout=0.1):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.all, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, words):
        batch, length, width = words.shape
        split = self.all(self.first(words)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = (query @ key.transpose(2, 3)).softmax(3) @ value
        words = words + self.dropout(self.out(mixed.transpose(1, 2).reshape(batch, length, width)))
        return words + self.dropout(self.wide(self.second(words)))


class Mixture(nn.Module):
    """Blocks of attention, each with a layer behind it whose rows go to the expert that a gate chooses."""

    def __init__(self, layers=2, width=16):
        super().__init__()
        self.blocks = nn.ModuleList(Attention(width) for _ in range(layers))
        self.experts = nn.ModuleList(Experts(layers=1, experts=3, width=width) for _ in range(layers))

    def forward(self, words):
        for block, experts in zip(self.blocks, self.experts, strict=True):
            words = block(words)
            words = words + experts(words.flatten(0, 1)).view_as(words)
        return words.square().mean()


class Parsed(nn.Module):
    """A convolutional encoder whose outputs are the leaves of a tree, as many as a score lets through: TreeLSTM on top."""

    def __init__(self, width=8):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, width, 3, stride=2, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.Dropout(0.2),
            nn.Conv2d(width, width, 3, stride=2, padding=1), nn.Tanh(),
        )  # fmt: skip
        self.tree = TreeLSTM(width=width)

    def forward(self, pictures, target):
        features = self.encoder(pictures)
        picture, row, column = (features.sum(1) > -1).nonzero()[:12].unbind(1)
        nodes = [self.grown(leaf.unsqueeze(0)) for leaf in features[picture, :, row, column]]
        while len(nodes) > 1:
            nodes = [self.joined(nodes[:2]), *nodes[2:]] if len(nodes) % 3 else [self.joined(nodes[-2:]), *nodes[:-2]]
        return functional.cross_entropy(self.tree.head(nodes[0][0]), target)

    def grown(self, leaf):
        enter, leave, fresh = self.tree.leaf(leaf).chunk(3, 1)
        cell = torch.sigmoid(enter) * torch.tanh(fresh)
        return torch.sigmoid(leave) * torch.tanh(cell), cell

    def joined(self, children):
        hidden = torch.stack([h for h, _ in children]).sum(0)
        kept = sum(torch.sigmoid(self.tree.forget(h)) * c for h, c in children)
        enter, leave, fresh = self.tree.inner(hidden).chunk(3, 1)
        cell = torch.sigmoid(enter) * torch.tanh(fresh) + kept
        return torch.sigmoid(leave) * torch.tanh(cell), cell


def detector(draw):
    return Detector(), lambda: (torch.randn(3, 3, 40, 40, generator=draw), torch.randint(5, (3,), generator=draw))


def mixture(draw):
    return Mixture(), lambda: (torch.randn(2, 12, 16, generator=draw),)


def parsed(draw):
    return Parsed(), lambda: (torch.randn(2, 3, 24, 24, generator=draw), torch.randint(5, (1,), generator=draw))


MODELS = {"detector": detector, "mixture": mixture, "parsed": parsed}


def made(name, seed=0):
    """A model of the list with a function that draws its calls."""
    torch.manual_seed(seed)
    return MODELS[name](torch.Generator().manual_seed(seed))
