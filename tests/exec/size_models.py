"""Modules whose path or integers depend on sizes, each in another way; and sizes to call them with."""

import math

import torch
from torch import nn
from torch.nn import functional

WIDTH = 8


class Sized(nn.Module):
    """Two layers with `between` in the middle, on (2, length, 8); a mean."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("places", torch.randn(256, WIDTH, generator=torch.Generator().manual_seed(1)))

    def between(self, x):
        return x

    def forward(self, x):
        hidden = torch.tanh(self.first(x))
        return self.second(self.between(hidden)).square().mean()


class Branch(Sized):
    def between(self, x):
        return x * 2 if x.shape[1] > 40 else x


class OtherNumber(Sized):
    """The same operations on both sides, with another number."""

    def between(self, x):
        return torch.roll(x, 3 if x.shape[1] > 40 else 5, 1)


class Loop(Sized):
    def between(self, x):
        for _ in range(x.shape[1] // 16):
            x = torch.sin(x)
        return x


class Half(Sized):
    def between(self, x):
        return x[:, : x.shape[1] // 2]


class Padded(Sized):
    """To a multiple of 16."""

    def between(self, x):
        return functional.pad(x, (0, 0, 0, -x.shape[1] % 16))


class Positions(Sized):
    def between(self, x):
        return x + self.places[: x.shape[1]]


class Scaled(Sized):
    """A float that depends on the length, and is no function of it that is known."""

    def between(self, x):
        return x / math.sqrt(x.shape[1])


class Ranged(Sized):
    def between(self, x):
        return x * torch.arange(x.shape[1]).unsqueeze(-1) + x.flatten(1).sum() / x.numel()


class InPlace(Sized):
    def between(self, x):
        x = x.clone()
        x[:, 1:].mul_(2.0)
        x[:, -1].add_(1.0)
        return functional.relu_(x)


class Dropped(Sized):
    def between(self, x):
        return functional.dropout(x, 0.5)


class Seeded(Sized):
    """Long ones draw from a seed of their own."""

    def between(self, x):
        with torch.random.fork_rng(devices=[], enabled=x.shape[1] > 40):
            if x.shape[1] > 40:
                torch.manual_seed(42)
            return functional.dropout(x, 0.5)


class Dead(Sized):
    """Python decides by the shape of what is not used otherwise."""

    def between(self, x):
        pooled = functional.avg_pool1d(x.transpose(1, 2), 4, 3)
        return x * 2 if pooled.shape[-1] % 2 else x


class Twice(Sized):
    """Attributes of equal values, read on one side each."""

    def __init__(self):
        super().__init__()
        self.long = self.short = 2.0

    def between(self, x):
        return x * (self.long if x.shape[1] > 40 else self.short)


class Remembers(Sized):
    def between(self, x):
        self.length = x.shape[1]
        return x


class Attention(Sized):
    def between(self, x):
        heads = x.view(*x.shape[:2], 2, 4).transpose(1, 2)
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        return functional.scaled_dot_product_attention(heads, heads, heads, mask).transpose(1, 2).reshape(x.shape)


class Strided(nn.Module):
    """Convolutions with strides, normalisation, a pooling, upsampling; on (2, 3, size, size + 2)."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 4, 3, 2, 1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Conv2d(4, 4, 3, 2),
            nn.MaxPool2d(2, 2, ceil_mode=True),
        )

    def forward(self, x):
        hidden = self.body(x)
        return functional.interpolate(hidden, scale_factor=2, mode="nearest").square().mean()


class Masked(nn.Module):
    """A mask that Python looks at, as models of transformers do; `forward(x, mask)`."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, mask):
        x = self.layer(x)
        if not mask.all():
            x = x.masked_fill(~mask[..., None], 0.0)
        return torch.tanh(x).square().mean()


def sequences(length, batch=2):
    return (torch.randn(batch, length, WIDTH, generator=torch.Generator().manual_seed(length)),)


def images(size):
    return (torch.randn(2, 3, size, size + 2, generator=torch.Generator().manual_seed(size)),)


def padded(length):
    mask = torch.ones(2, length, dtype=torch.bool)
    mask[1, length - 1] = False
    return (*sequences(length), mask)
