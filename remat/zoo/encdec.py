"""``nn.Transformer`` with embeddings and a head: the encoder's output is read by every layer of the decoder."""

from torch import Tensor, nn
from torch.nn import functional


class EncoderDecoder(nn.Module):
    """An encoder-decoder over tokens.

    ``forward(source, target)`` gives logits (batch, time, vocabulary); with ``labels`` the mean cross entropy (0-dim).
    """

    def __init__(
        self, *, layers: int = 6, width: int = 128, heads: int = 4, vocabulary: int = 256, dropout: float = 0.1
    ) -> None:
        """As many encoder as decoder layers, four times the width in the feed-forward parts."""
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.transformer = nn.Transformer(
            width, heads, layers, layers, dim_feedforward=4 * width, dropout=dropout, batch_first=True
        )
        self.head = nn.Linear(width, vocabulary)

    def forward(self, source: Tensor, target: Tensor, labels: Tensor | None = None) -> Tensor:
        """Logits without labels, the mean loss with them; the decoder sees earlier target positions only."""
        mask = nn.Transformer.generate_square_subsequent_mask(
            target.shape[1], device=target.device, dtype=self.embedding.weight.dtype
        )
        hidden = self.transformer(self.embedding(source), self.embedding(target), tgt_mask=mask, tgt_is_causal=True)
        logits = self.head(hidden)
        return logits if labels is None else functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
