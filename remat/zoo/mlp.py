"""A multi-layer perceptron with dropout: the smallest model whose gradients depend on random numbers."""

from torch import Tensor, nn
from torch.nn import functional


class MLP(nn.Module):
    """``layers`` hidden layers of ``width``; ``forward(x, y)`` gives the mean squared error (0-dim), ``forward(x)`` the output.

    ``x`` is (batch, width) and ``y`` (batch, outputs).
    """

    def __init__(self, *, layers: int = 4, width: int = 64, outputs: int = 8, dropout: float = 0.2) -> None:
        """Hidden layers are linear, ReLU, dropout."""
        super().__init__()
        hidden = [module for _ in range(layers) for module in (nn.Linear(width, width), nn.ReLU(), nn.Dropout(dropout))]
        self.body = nn.Sequential(*hidden)
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """Output without a target, the mean squared error with one."""
        out = self.head(self.body(x))
        return out if y is None else functional.mse_loss(out, y)
