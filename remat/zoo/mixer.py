"""An MLP-Mixer: layers that mix patches, then channels (Tolstikhin et al., 2021)."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from remat.errors import BadArgument


class MixerBlock(nn.Module):
    """Two residual branches, one over patches and one over channels; (batch, patches, width) to the same."""

    def __init__(self, patches: int, width: int, dropout: float) -> None:
        """Half the width inside the patch branch, four times the width inside the channel branch."""
        super().__init__()
        self.patch_norm, self.channel_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.over_patches = self._mlp(patches, width // 2, dropout)
        self.over_channels = self._mlp(width, 4 * width, dropout)

    @staticmethod
    def _mlp(size: int, inside: int, dropout: float) -> nn.Module:
        return nn.Sequential(
            nn.Linear(size, inside), nn.GELU(), nn.Dropout(dropout), nn.Linear(inside, size), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Mix patches, then channels."""
        x = x + self.over_patches(self.patch_norm(x).transpose(1, 2)).transpose(1, 2)
        x = x + self.over_channels(self.channel_norm(x))
        return x


class Mixer(nn.Module):
    """Patches, blocks, a norm and a linear head over their mean; the defaults are Mixer-B/16 on 224 pixels.

    ``forward(images)`` gives logits (batch, classes), ``forward(images, labels)`` the mean cross entropy (0-dim).
    """

    def __init__(
        self,
        *,
        layers: int = 12,
        width: int = 768,
        patch: int = 16,
        image: int = 224,
        classes: int = 1000,
        dropout: float = 0.0,
    ) -> None:
        """`patch` must divide `image`."""
        super().__init__()
        if image % patch:
            raise BadArgument("Z-ARG", f"patch {patch} does not divide image {image}.", fix="give one that does.")
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.blocks = nn.ModuleList(MixerBlock((image // patch) ** 2, width, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Logits without labels, the mean loss with them."""
        x = self.patches(images).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        logits = self.head(torch.mean(self.norm(x), dim=1))
        return logits if labels is None else functional.cross_entropy(logits, labels)
