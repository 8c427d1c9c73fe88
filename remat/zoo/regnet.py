"""A RegNet: stages of bottlenecks with grouped 3x3 convolutions and squeeze-excitation (Radosavovic et al., 2020)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from remat.errors import BadArgument


class SqueezeExcitation(nn.Module):
    """Scale each channel by what two small layers make of all channels' means; shapes stay."""

    def __init__(self, channels: int, squeezed: int) -> None:
        """Two 1x1 convolutions with a rectifier between."""
        super().__init__()
        self.down = nn.Conv2d(channels, squeezed, 1)
        self.up = nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """The input, scaled channel by channel."""
        weights = self.up(functional.relu(self.down(functional.adaptive_avg_pool2d(x, 1))))
        return x * torch.sigmoid(weights)


class Block(nn.Module):
    """1x1, grouped 3x3, squeeze-excitation, 1x1, with a shortcut; (batch, inputs, h, w) to (batch, width, h', w')."""

    def __init__(self, inputs: int, width: int, group: int, stride: int) -> None:
        """Groups of `group` channels; the squeeze keeps a quarter of the input's channels."""
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, groups=width // group, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.squeeze = SqueezeExcitation(width, max(1, inputs // 4))
        self.conv3, self.norm3 = nn.Conv2d(width, width, 1, bias=False), nn.BatchNorm2d(width)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != width:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, width, 1, stride=stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        """Sum of the branch and the shortcut, rectified."""
        branch = functional.relu(self.norm1(self.conv1(x)))
        branch = self.squeeze(functional.relu(self.norm2(self.conv2(branch))))
        return functional.relu(self.norm3(self.conv3(branch)) + self.shortcut(x))


class RegNet(nn.Module):
    """A stem, stages of blocks and a linear head; the defaults are the depths and widths of RegNetY-32GF.

    ``forward(images)`` gives logits (batch, classes), ``forward(images, labels)`` the mean cross entropy (0-dim).
    """

    def __init__(
        self,
        *,
        depths: Sequence[int] = (2, 5, 12, 1),
        widths: Sequence[int] = (232, 696, 1392, 3712),
        group: int = 232,
        classes: int = 1000,
    ) -> None:
        """Each stage halves the picture; `group` must divide every width."""
        super().__init__()
        if any(width % group for width in widths):
            what = f"group {group} does not divide every width of {tuple(widths)}."
            raise BadArgument("Z-ARG", what, fix="give one that does.")
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU())
        blocks, inputs = [], 32
        for depth, width in zip(depths, widths, strict=True):
            for index in range(depth):
                blocks.append(Block(inputs, width, group, stride=2 if index == 0 else 1))
                inputs = width
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, classes)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Logits without labels, the mean loss with them."""
        features = functional.adaptive_avg_pool2d(self.blocks(self.stem(images)), 1).flatten(1)
        logits = self.head(features)
        return logits if labels is None else functional.cross_entropy(logits, labels)
