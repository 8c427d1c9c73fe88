"""What most odd modules are made of: a few layers with dropout, and a loss."""

import torch
from torch import nn
from torch.nn import functional

from tests.exec.odd.judging import WIDTH


class Body(nn.Module):
    """Linear layers with dropout; subclasses do something odd between them."""

    def __init__(self, layers=4, dropout=0.1):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(layers))
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(WIDTH, 1)

    def hidden(self, x):
        for layer in self.layers:
            x = self.dropout(functional.gelu(layer(x)))
        return x

    def loss(self, x):
        return self.head(x).square().mean()

    def forward(self, x):
        return self.loss(self.hidden(x))


class Block(nn.Module):
    """A residual block of two layers."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(functional.gelu(self.up(x)))


class Blocks(nn.Module):
    """Residual blocks and a head."""

    def __init__(self, blocks=4):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x).square().mean()


def at(step, action):
    """A change made once, before the step of that number."""

    def change(module, now):
        if now == step:
            action(module)

    return change


def seeded(step):
    """A generator for the inputs of a step."""
    return torch.Generator().manual_seed(100 + step)
