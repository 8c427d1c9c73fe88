"""A residual convolutional network with batch normalisation and bottleneck blocks (layout of ResNet-50; He et al., 2016)."""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions, each normalised, with a shortcut; (batch, inputs, h, w) to (batch, 4 * width, h', w')."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        """The shortcut is a convolution where shape changes, the identity elsewhere."""
        super().__init__()
        self.conv1, self.norm1 = _conv(inputs, width, 1), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = _conv(width, width, 3, stride), nn.BatchNorm2d(width)
        self.conv3, self.norm3 = _conv(width, 4 * width, 1), nn.BatchNorm2d(4 * width)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != 4 * width:
            self.shortcut = nn.Sequential(_conv(inputs, 4 * width, 1, stride), nn.BatchNorm2d(4 * width))

    def forward(self, x: Tensor) -> Tensor:
        """Sum of the branch and the shortcut, rectified."""
        branch: Tensor = self.relu(self.norm1(self.conv1(x)))
        branch = self.relu(self.norm2(self.conv2(branch)))
        branch = self.norm3(self.conv3(branch))
        branch += self.shortcut(x)
        branch = self.relu(branch)
        return branch


class ResNet(nn.Module):
    """A stem, four stages of bottleneck blocks and a linear head; ``blocks=(3, 4, 6, 3)`` and ``width=64`` is ResNet-50.

    ``forward(images)`` gives logits (batch, classes), ``forward(images, labels)`` the mean cross entropy (0-dim).
    """

    def __init__(self, *, blocks: Sequence[int] = (3, 4, 6, 3), width: int = 64, classes: int = 100) -> None:
        """Each stage doubles the width and, from the second on, halves the picture."""
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        )  # fmt: skip
        stages, inputs = [], width
        for stage, count in enumerate(blocks):
            wide = width * 2**stage
            for index in range(count):
                stages.append(Bottleneck(inputs, wide, stride=2 if stage and index == 0 else 1))
                inputs = 4 * wide
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(inputs, classes)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Logits without labels, the mean loss with them."""
        features = functional.adaptive_avg_pool2d(self.stages(self.stem(images)), 1)
        logits = self.head(features.flatten(1))
        return logits if labels is None else functional.cross_entropy(logits, labels)
