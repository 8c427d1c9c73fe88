"""The wide zoo: convolutions with dense, nested and U-shaped skips, in three dimensions, and very deep; torch alone."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.models.model import Call, classified, regressed, returned_loss
from tests.models.wide_entry import alone


def normed(inputs: int, outputs: int, *, space: int = 2, stride: int = 1) -> nn.Sequential:
    """A convolution of width 3 with batch norm and ReLU, in two or three dimensions."""
    convolution, norm = (nn.Conv2d, nn.BatchNorm2d) if space == 2 else (nn.Conv3d, nn.BatchNorm3d)
    return nn.Sequential(convolution(inputs, outputs, 3, stride, 1, bias=False), norm(outputs), nn.ReLU())


class NestedUNet(nn.Module):
    """U-Net++: every node of a triangle reads all nodes of its row and one below; losses on four outputs (Zhou et al., 2018)."""

    def __init__(self, width: int, levels: int) -> None:
        super().__init__()
        self.levels, self.nodes = levels, nn.ModuleDict()
        widths = [width << i for i in range(levels)]
        for i in range(levels):
            for j in range(levels - i):
                inputs = (3 if i == 0 else widths[i - 1]) if j == 0 else j * widths[i] + widths[i + 1]
                self.nodes[f"{i}{j}"] = nn.Sequential(normed(inputs, widths[i]), normed(widths[i], widths[i]))
        self.heads = nn.ModuleList([nn.Conv2d(width, 1, 1) for _ in range(levels - 1)])

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        rows: list[list[Tensor]] = [[] for _ in range(self.levels)]
        for j in range(self.levels):
            for i in range(self.levels - j):
                if j == 0:
                    x = self.nodes[f"{i}0"](x if i == 0 else F.max_pool2d(x, 2))
                    rows[i].append(x)
                else:
                    below = F.interpolate(rows[i + 1][j - 1], scale_factor=2)
                    rows[i].append(self.nodes[f"{i}{j}"](torch.cat((*rows[i], below), 1)))
        outputs = [head(y) for head, y in zip(self.heads, rows[0][1:], strict=True)]
        return torch.stack([F.binary_cross_entropy_with_logits(y, mask) for y in outputs]).sum()


class DenseStages(nn.Module):
    """Stages in which each layer reads all before it (Huang et al., 2017)."""

    def __init__(self, growth: int, layers: tuple[int, ...]) -> None:
        super().__init__()
        channels = 2 * growth
        self.first, self.stages, self.between = nn.Conv2d(3, channels, 3, 1, 1), nn.ModuleList(), nn.ModuleList()
        for count in layers:
            stage = [self._layer(channels + i * growth, growth) for i in range(count)]
            channels = (channels + count * growth) // 2
            self.stages.append(nn.ModuleList(stage))
            self.between.append(
                nn.Sequential(nn.BatchNorm2d(2 * channels), nn.ReLU(), nn.Conv2d(2 * channels, channels, 1))
            )
        self.head = nn.Linear(channels, 10)

    @staticmethod
    def _layer(inputs: int, growth: int) -> nn.Sequential:
        return nn.Sequential(
            nn.BatchNorm2d(inputs), nn.ReLU(), nn.Conv2d(inputs, 4 * growth, 1, bias=False),
            nn.BatchNorm2d(4 * growth), nn.ReLU(), nn.Conv2d(4 * growth, growth, 3, 1, 1, bias=False),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for stage, between in zip(self.stages, self.between, strict=True):
            for layer in stage:
                x = torch.cat((x, layer(x)), 1)
            x = F.avg_pool2d(between(x), 2)
        return self.head(x.mean((2, 3)))


class VolumeUNet(nn.Module):
    """A U-Net of 3-d convolutions over a volume (Cicek et al., 2016)."""

    def __init__(self, width: int, levels: int) -> None:
        super().__init__()
        widths = [width << i for i in range(levels)]
        pairs = list(zip([1, *widths], widths, strict=False))
        self.down = nn.ModuleList([nn.Sequential(normed(a, b, space=3), normed(b, b, space=3)) for a, b in pairs])
        upwards = list(zip(widths[1:], widths, strict=False))[::-1]
        self.raise_ = nn.ModuleList([nn.ConvTranspose3d(a, b, 2, 2) for a, b in upwards])
        self.up = nn.ModuleList([nn.Sequential(normed(2 * b, b, space=3), normed(b, b, space=3)) for _, b in upwards])
        self.head = nn.Conv3d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips: list[Tensor] = []
        for i, level in enumerate(self.down):
            skips.append(level(F.max_pool3d(skips[-1], 2) if i else x))
        x = skips.pop()
        for larger, level in zip(self.raise_, self.up, strict=True):
            x = level(torch.cat((skips.pop(), larger(x)), 1))
        return self.head(x)


class Bottleneck(nn.Module):
    """A residual block, in two or three dimensions; wide where `inner` is the outer width."""

    def __init__(self, inputs: int, outputs: int, stride: int, space: int) -> None:
        super().__init__()
        self.first, self.second = (
            normed(inputs, outputs, space=space, stride=stride),
            normed(outputs, outputs, space=space)[:2],
        )
        convolution = nn.Conv2d if space == 2 else nn.Conv3d
        self.short = nn.Identity() if inputs == outputs else convolution(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.second(self.first(x)) + self.short(x))


class Residuals(nn.Module):
    """Three or four stages of equal residual blocks, over pictures or films."""

    def __init__(self, widths: tuple[int, ...], blocks: int, space: int, channels: int) -> None:
        super().__init__()
        self.first = normed(channels, widths[0], space=space)
        pairs = list(zip((widths[0], *widths), widths, strict=False))
        self.body = nn.Sequential(
            *(
                Bottleneck(a if i == 0 else b, b, 2 if i == 0 and a != b else 1, space)
                for a, b in pairs
                for i in range(blocks)
            )
        )
        self.head = nn.Linear(widths[-1], 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.first(x)).flatten(2).mean(2))


class Hourglasses(nn.Module):
    """U-shaped nets in a row, a loss after each, its heatmap read by the next (Newell et al., 2016)."""

    def __init__(self, width: int, count: int, levels: int) -> None:
        super().__init__()
        self.first = normed(3, width, stride=2)
        self.sides = nn.ModuleList([nn.ModuleList([normed(width, width) for _ in range(levels)]) for _ in range(count)])
        self.inner = nn.ModuleList([nn.ModuleList([normed(width, width) for _ in range(levels)]) for _ in range(count)])
        self.outer = nn.ModuleList([nn.ModuleList([normed(width, width) for _ in range(levels)]) for _ in range(count)])
        self.heat = nn.ModuleList([nn.Conv2d(width, 16, 1) for _ in range(count)])
        self.back = nn.ModuleList([nn.Conv2d(16, width, 1) for _ in range(count)])

    def forward(self, x: Tensor, heat: Tensor) -> Tensor:
        x, losses = self.first(x), []
        for glass, (head, back) in enumerate(zip(self.heat, self.back, strict=True)):
            y = self._glass(x, glass, 0)
            guess = head(y)
            losses.append(F.mse_loss(guess, heat))
            x = x + y + back(guess)
        return torch.stack(losses).sum()

    def _glass(self, x: Tensor, glass: int, level: int) -> Tensor:
        low = self.inner[glass][level](F.max_pool2d(x, 2))
        if level + 1 < len(self.inner[glass]):
            low = self._glass(low, glass, level + 1)
        return self.sides[glass][level](x) + F.interpolate(self.outer[glass][level](low), scale_factor=2)


class Fractal(nn.Module):
    """A block is a convolution beside two smaller fractals in a row, joined by their mean (Larsson et al., 2017)."""

    def __init__(self, inputs: int, outputs: int, columns: int) -> None:
        super().__init__()
        self.short = normed(inputs, outputs)
        deep = columns > 1
        self.deep = (
            nn.Sequential(Fractal(inputs, outputs, columns - 1), Fractal(outputs, outputs, columns - 1))
            if deep
            else None
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.short(x) if self.deep is None else (self.short(x) + self.deep(x)) / 2


class Coupling(nn.Module):
    """A layer of a normalizing flow: half of the channels scale and shift the other half (Dinh et al., 2017)."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.randn(channels, channels))
        half = channels // 2
        self.net = nn.Sequential(
            nn.Conv2d(half, width, 3, 1, 1),
            nn.ReLU(),
            nn.Conv2d(width, width, 1),
            nn.ReLU(),
            nn.Conv2d(width, channels, 3, 1, 1),
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a, b = F.conv2d(x, self.mix[:, :, None, None]).chunk(2, 1)
        scale, shift = self.net(a).chunk(2, 1)
        scale = torch.tanh(scale)
        return torch.cat((a, b * scale.exp() + shift), 1), scale.sum((1, 2, 3))


class Flow(nn.Module):
    """Coupling layers, and the likelihood of pictures under them."""

    def __init__(self, channels: int, width: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Coupling(channels, width) for _ in range(depth)])

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = torch.zeros(())
        for layer in self.layers:
            x, volume = layer(x)
            total = total + volume
        return (x.square().sum((1, 2, 3)) / 2 - total).mean()


def fractals() -> nn.Module:
    """Three fractals with pooling between them."""
    widths = (3, 64, 128, 256)
    blocks = [nn.Sequential(Fractal(a, b, 4), nn.MaxPool2d(2)) for a, b in itertools.pairwise(widths)]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10))


def films() -> Call:
    """Short films."""
    return Call((torch.randn(4, 3, 16, 64, 64),))


def masked() -> Call:
    """Pictures with masks."""
    return Call((torch.randn(8, 3, 128, 128), torch.rand(8, 1, 128, 128)))


MODELS = (
    alone("nested-unet", lambda: NestedUNet(32, 5), masked, returned_loss, "nested-skips"),
    alone("dense", lambda: DenseStages(32, (8, 12, 8)), lambda: Call((torch.randn(32, 3, 64, 64),)), classified, "dense"),
    alone("volume-unet", lambda: VolumeUNet(24, 4), lambda: Call((torch.randn(2, 1, 64, 64, 64),)), regressed, "3d", "u-shaped"),
    alone("film-residual", lambda: Residuals((48, 96, 192, 384), 3, 3, 3), films, classified, "3d"),
    alone("deep-residual", lambda: Residuals((32, 64, 128), 24, 2, 3), lambda: Call((torch.randn(64, 3, 32, 32),)), classified,
          "deep-equal"),
    alone("hourglasses", lambda: Hourglasses(128, 4, 4), lambda: Call((torch.randn(8, 3, 128, 128), torch.rand(8, 16, 64, 64))),
          returned_loss, "u-shaped"),
    alone("fractal", fractals, lambda: Call((torch.randn(32, 3, 64, 64),)), classified, "tree"),
    alone("flow", lambda: Flow(12, 128, 24), lambda: Call((torch.randn(32, 12, 32, 32),)), returned_loss, "deep-equal"),
)  # fmt: skip
