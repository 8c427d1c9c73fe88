"""Neural operators: FNO (Li et al., 2021) and the U-shaped U-NO (Rahman et al., 2023), on square grids."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class SpectralConv(nn.Module):
    """Learned matrices on the lowest `modes` frequencies of both axes; (batch, inputs, n, n) to (batch, outputs, m, m)."""

    def __init__(self, inputs: int, outputs: int, modes: int) -> None:
        """One complex matrix per kept frequency; the two signs of the first axis have their own."""
        super().__init__()
        self.modes = modes
        scale = 1 / (inputs * outputs)
        shape = (inputs, outputs, modes, modes)
        self.positive = nn.Parameter(scale * torch.randn(shape, dtype=torch.cfloat))
        self.negative = nn.Parameter(scale * torch.randn(shape, dtype=torch.cfloat))

    def forward(self, x: Tensor, size: int) -> Tensor:
        """The filtered field on a grid of `size` points a side."""
        modes = self.modes
        spectrum = torch.fft.rfft2(x, norm="forward")
        low = torch.einsum("bixy,ioxy->boxy", spectrum[..., :modes, :modes], self.positive)
        high = torch.einsum("bixy,ioxy->boxy", spectrum[..., -modes:, :modes], self.negative)
        gap = low.new_zeros((*low.shape[:2], size - 2 * modes, modes))
        field: Tensor = torch.fft.irfft2(torch.cat([low, gap, high], dim=-2), s=(size, size), norm="forward")
        return field


class OperatorBlock(nn.Module):
    """The sum of a spectral convolution and a pointwise one on a resampled grid, then GELU."""

    def __init__(self, inputs: int, outputs: int, modes: int) -> None:
        """`modes` at most half the smaller of the two grids."""
        super().__init__()
        self.spectral = SpectralConv(inputs, outputs, modes)
        self.pointwise = nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor, size: int) -> Tensor:
        """The block's field on a grid of `size` points a side."""
        skip = self.pointwise(x)
        if size != x.shape[-1]:
            skip = functional.interpolate(skip, size=(size, size), mode="bilinear", align_corners=True)
        return functional.gelu(self.spectral(x, size) + skip)


class FNO(nn.Module):
    """Lift, blocks on one grid, project.

    ``forward(fields)`` gives fields; ``forward(fields, targets)`` their mean square error.
    """

    def __init__(self, *, blocks: int = 6, width: int = 64, modes: int = 16, inputs: int = 3, outputs: int = 1) -> None:
        """`inputs` and `outputs` are channels of the fields."""
        super().__init__()
        self.lift = nn.Conv2d(inputs, width, 1)
        self.blocks = nn.ModuleList(OperatorBlock(width, width, modes) for _ in range(blocks))
        self.project = nn.Sequential(nn.Conv2d(width, 2 * width, 1), nn.GELU(), nn.Conv2d(2 * width, outputs, 1))

    def forward(self, fields: Tensor, targets: Tensor | None = None) -> Tensor:
        """Fields without targets, the mean square error with them."""
        x = self.lift(fields)
        for block in self.blocks:
            x = block(x, x.shape[-1])
        out = self.project(x)
        return out if targets is None else functional.mse_loss(out, targets)


class UNO(nn.Module):
    """A U of operator blocks: the grid halves and channels double going down; going up, each level joins its twin's field.

    ``forward(fields)`` gives fields; ``forward(fields, targets)`` their mean square error.
    """

    def __init__(self, *, levels: int = 4, width: int = 32, modes: int = 8, inputs: int = 3, outputs: int = 1) -> None:
        """`levels` blocks down, one at the bottom, `levels` up; modes halve with the grid."""
        super().__init__()
        wide = [width * 2**level for level in range(levels + 1)]
        modes_at = [max(1, modes // 2**level) for level in range(levels + 1)]
        self.lift = nn.Conv2d(inputs, width, 1)
        self.down = nn.ModuleList(OperatorBlock(wide[i], wide[i + 1], modes_at[i + 1]) for i in range(levels))
        self.bottom = OperatorBlock(wide[-1], wide[-1], modes_at[-1])
        self.up = nn.ModuleList(
            OperatorBlock(2 * wide[i + 1], wide[i], modes_at[i + 1]) for i in reversed(range(levels))
        )
        self.project = nn.Sequential(nn.Conv2d(2 * width, 2 * width, 1), nn.GELU(), nn.Conv2d(2 * width, outputs, 1))

    def forward(self, fields: Tensor, targets: Tensor | None = None) -> Tensor:
        """Fields without targets, the mean square error with them."""
        x = start = self.lift(fields)
        skips = []
        for block in self.down:
            x = block(x, x.shape[-1] // 2)
            skips.append(x)
        x = self.bottom(x, x.shape[-1])
        for block, skip in zip(self.up, reversed(skips), strict=True):
            x = block(torch.cat([x, skip], dim=1), 2 * x.shape[-1])
        out = self.project(torch.cat([x, start], dim=1))
        return out if targets is None else functional.mse_loss(out, targets)
