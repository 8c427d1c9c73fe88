"""A U-Net: an encoder, a decoder, and skips between them that live for a long time (Ronneberger et al., 2015)."""

import torch
from torch import Tensor, nn
from torch.nn import functional


def _double(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True),
    )  # fmt: skip


class UNet(nn.Module):
    """``levels`` halvings of the picture and as many doublings, joined by skips.

    ``forward(images)`` gives (batch, outputs, h, w), ``forward(images, masks)`` the mean squared error (0-dim); height and width
    must be multiples of ``2**levels``.
    """

    def __init__(self, *, levels: int = 4, channels: int = 16, inputs: int = 3, outputs: int = 1) -> None:
        """The number of channels doubles at each level."""
        super().__init__()
        wide = [channels * 2**level for level in range(levels + 1)]
        self.down = nn.ModuleList(_double(inputs if i == 0 else wide[i - 1], wide[i]) for i in range(levels))
        self.bottom = _double(wide[-2], wide[-1])
        self.up = nn.ModuleList(nn.ConvTranspose2d(wide[i + 1], wide[i], 2, stride=2) for i in reversed(range(levels)))
        self.merge = nn.ModuleList(_double(2 * wide[i], wide[i]) for i in reversed(range(levels)))
        self.head = nn.Conv2d(channels, outputs, 1)

    def forward(self, images: Tensor, masks: Tensor | None = None) -> Tensor:
        """Prediction without masks, the mean loss with them."""
        x, skips = images, []
        for block in self.down:
            x = block(x)
            skips.append(x)
            x = functional.max_pool2d(x, 2)
        x = self.bottom(x)
        for up, merge, skip in zip(self.up, self.merge, reversed(skips), strict=True):
            x = merge(torch.cat([skip, up(x)], dim=1))
        out = self.head(x)
        return out if masks is None else functional.mse_loss(out, masks)
