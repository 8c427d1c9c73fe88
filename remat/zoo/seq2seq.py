"""An encoder-decoder with its attention written out: the form whose activations rematerialization is about.

Pre-norm blocks of Vaswani et al., 2017, with fused projections; every decoder layer reads the encoder's output.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from remat.errors import BadArgument


class Attention(nn.Module):
    """Multi-head attention, of a sequence to itself or to another; (batch, time, width) to the same."""

    def __init__(self, width: int, heads: int, dropout: float, *, to_another: bool = False) -> None:
        """Refuse a width that the heads do not divide."""
        super().__init__()
        if width % heads:
            raise BadArgument("Z-ARG", f"width {width} is not a multiple of heads {heads}.", fix="give one that is.")
        self.heads = heads
        self.to_another = to_another
        if to_another:
            self.query, self.key_value = nn.Linear(width, width), nn.Linear(width, 2 * width)
        else:
            self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.attention_dropout = nn.Dropout(dropout)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, other: Tensor | None = None, hidden: Tensor | None = None) -> Tensor:
        """Attend from `x` to `other` (to itself without), not to the positions that `hidden` marks."""
        width = x.shape[-1]
        if self.to_another:
            source = x if other is None else other
            parts = (self.query(x), *self.key_value(source).split(width, dim=-1))
        else:
            parts = self.qkv(x).split(width, dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, width // self.heads)).transpose(1, 2) for part in parts)
        scores = q @ k.transpose(-2, -1) / math.sqrt(width // self.heads)
        if hidden is not None:
            scores = scores.masked_fill(hidden, float("-inf"))
        weights = self.attention_dropout(functional.softmax(scores, dim=-1))
        mixed: Tensor = self.dropout(self.out((weights @ v).transpose(1, 2).flatten(2)))
        return mixed


def _feed(width: int, dropout: float) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout))


class EncoderLayer(nn.Module):
    """Two residual branches: attention and feed-forward; (batch, time, width) to the same."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        """Four times the width inside the feed-forward part."""
        super().__init__()
        self.attention_norm, self.attention = nn.LayerNorm(width), Attention(width, heads, dropout)
        self.feed_norm, self.feed = nn.LayerNorm(width), _feed(width, dropout)

    def forward(self, x: Tensor) -> Tensor:
        """One branch after the other."""
        x = x + self.attention(self.attention_norm(x))
        x = x + self.feed(self.feed_norm(x))
        return x


class DecoderLayer(nn.Module):
    """Three residual branches: attention to itself, to the memory, and feed-forward; (batch, time, width) to the same."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        """Four times the width inside the feed-forward part."""
        super().__init__()
        self.attention_norm, self.attention = nn.LayerNorm(width), Attention(width, heads, dropout)
        self.cross_norm, self.cross = nn.LayerNorm(width), Attention(width, heads, dropout, to_another=True)
        self.feed_norm, self.feed = nn.LayerNorm(width), _feed(width, dropout)

    def forward(self, x: Tensor, memory: Tensor, hidden: Tensor) -> Tensor:
        """One branch after the other; `memory` is the encoder's output."""
        x = x + self.attention(self.attention_norm(x), hidden=hidden)
        x = x + self.cross(self.cross_norm(x), memory)
        x = x + self.feed(self.feed_norm(x))
        return x


class Seq2Seq(nn.Module):
    """As many encoder as decoder layers between embeddings of their own and a head.

    ``forward(source, target)`` gives logits (batch, time, vocabulary); with ``labels`` the mean cross entropy (0-dim).
    """

    hidden: Tensor

    def __init__(
        self, *, layers: int = 6, width: int = 512, heads: int = 8, vocabulary: int = 8000, context: int = 256,
        dropout: float = 0.1,
    ) -> None:  # fmt: skip
        """`context` is the longest target."""
        super().__init__()
        self.source, self.target = nn.Embedding(vocabulary, width), nn.Embedding(vocabulary, width)
        self.encoder = nn.ModuleList(EncoderLayer(width, heads, dropout) for _ in range(layers))
        self.encoder_norm = nn.LayerNorm(width)
        self.decoder = nn.ModuleList(DecoderLayer(width, heads, dropout) for _ in range(layers))
        self.decoder_norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)
        self.register_buffer("hidden", torch.ones(context, context, dtype=torch.bool).triu(1), persistent=False)

    def forward(self, source: Tensor, target: Tensor, labels: Tensor | None = None) -> Tensor:
        """Logits without labels, the mean loss with them; the decoder sees earlier target positions only."""
        memory = self.source(source)
        for layer in self.encoder:
            memory = layer(memory)
        memory = self.encoder_norm(memory)
        time = target.shape[1]
        x, hidden = self.target(target), self.hidden[:time, :time]
        for layer in self.decoder:
            x = layer(x, memory, hidden)
        logits = self.head(self.decoder_norm(x))
        return logits if labels is None else functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
