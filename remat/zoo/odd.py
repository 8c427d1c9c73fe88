"""Two models that are small but awkward: frozen parts with input gradients, and in-place operations with views."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class Frozen(nn.Module):
    """A frozen feature extractor between two trained layers; gradients flow through it to the input.

    ``x`` is (batch, width) and may require a gradient; ``forward(x, y)`` gives the mean squared error (0-dim).
    """

    def __init__(self, *, layers: int = 3, width: int = 64) -> None:
        """Every parameter of ``features`` has ``requires_grad`` off."""
        super().__init__()
        self.inward = nn.Linear(width, width)
        self.features = nn.Sequential(
            *(module for _ in range(layers) for module in (nn.Linear(width, width), nn.LayerNorm(width), nn.GELU()))
        )
        self.features.requires_grad_(False)
        self.outward = nn.Linear(width, width)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """Output without a target, the mean squared error with one."""
        out = self.outward(self.features(self.inward(x)) + x)
        return out if y is None else functional.mse_loss(out, y)


class InPlaceViews(nn.Module):
    """In-place arithmetic on activations and on views of them, a counter buffer that the output depends on.

    ``x`` is (batch, width); ``forward(x, y)`` gives the loss and a view of the last hidden state.
    """

    calls: Tensor
    level: Tensor

    def __init__(self, *, layers: int = 3, width: int = 64) -> None:
        """``calls`` counts training calls, ``level`` is a running mean that the forward reads before it changes it."""
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("level", torch.zeros(width))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Change halves of each hidden state in place, then compare with the target."""
        hidden = x
        for linear in self.linears:
            hidden = linear(hidden)
            half = hidden.shape[1] // 2
            left, right = hidden[:, :half], hidden[:, half:]
            left.mul_(0.5).add_(right)
            functional.relu_(right)
            hidden = torch.tanh(hidden).t().contiguous().t() - self.level
        if self.training:
            self.calls += 1
            self.level.mul_(0.9).add_(hidden.detach().mean(0), alpha=0.1)
        scale = 1 + 0.1 * self.calls.to(hidden.dtype)
        return functional.mse_loss(hidden * scale, y), hidden.view(-1, hidden.shape[-1])[:, ::2]
