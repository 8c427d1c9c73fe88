"""A decoder-only transformer in plain torch: classic softmax attention, dropout, tied embeddings.

The attention is written out (fused qkv split into views, ``masked_fill`` with minus infinity, explicit softmax, dropout on
the probabilities): the form whose activations rematerialization is about. Layout: Radford et al., 2019.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from remat.errors import BadArgument


class CausalAttention(nn.Module):
    """Multi-head attention over a causal mask; input and output are (batch, time, width)."""

    hidden: Tensor

    def __init__(self, width: int, heads: int, context: int, dropout: float) -> None:
        """Refuse a width that the heads do not divide."""
        super().__init__()
        if width % heads:
            raise BadArgument("Z-ARG", f"width {width} is not a multiple of heads {heads}.", fix="give one that is.")
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.attention_dropout = nn.Dropout(dropout)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("hidden", torch.ones(context, context, dtype=torch.bool).triu(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Attend from each position to itself and the earlier ones."""
        batch, time, width = x.shape
        q, k, v = (
            part.view(batch, time, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=2)
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(width // self.heads)
        scores = scores.masked_fill(self.hidden[:time, :time], float("-inf"))
        weights = self.attention_dropout(functional.softmax(scores, dim=-1))
        mixed: Tensor = (weights @ v).transpose(1, 2).contiguous().view(batch, time, width)
        mixed = self.dropout(self.out(mixed))
        return mixed


class Block(nn.Module):
    """Pre-norm attention and feed-forward with residuals; (batch, time, width) to the same."""

    def __init__(self, width: int, heads: int, context: int, dropout: float) -> None:
        """Four times the width inside the feed-forward part, as in the original."""
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = CausalAttention(width, heads, context, dropout)
        self.feed_norm = nn.LayerNorm(width)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Two residual branches, one after the other."""
        x = x + self.attention(self.attention_norm(x))
        x = x + self.feed(self.feed_norm(x))
        return x


class GPT2(nn.Module):
    """Token and position embeddings, blocks, a final norm and a head tied to the token embedding.

    ``forward(tokens)`` gives logits (batch, time, vocabulary); ``forward(tokens, targets)`` gives the mean cross entropy (0-dim).
    """

    def __init__(
        self, *, layers: int = 12, width: int = 256, heads: int = 8, vocabulary: int = 256, context: int = 128,
        dropout: float = 0.1,
    ) -> None:  # fmt: skip
        """Weights from a normal distribution of deviation 0.02, residual outputs scaled down by depth."""
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, context, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                scale = math.sqrt(2 * layers) if name.endswith(("out.weight", "feed.2.weight")) else 1.0
                nn.init.normal_(parameter, std=0.02 / scale)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """Logits without targets, the mean loss with them."""
        time = tokens.shape[1]
        x = self.tokens(tokens) + self.positions(torch.arange(time, device=tokens.device))
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        if targets is None:
            return logits
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
