"""Models that need nothing but torch: its own layers, composed as people compose them in training scripts."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tests.models import batches
from tests.models.model import Call, Loss, Model, classified, regressed, returned_loss

WIDTH = 32


class PaddedClassifier(nn.Module):
    """`nn.TransformerEncoder` over padded text, its mean over what is no padding, a class; dropout by default."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(batches.VOCABULARY, WIDTH, padding_idx=batches.PAD)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(WIDTH, batches.CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        padding = ids == batches.PAD
        states = self.encoder(self.words(ids), src_key_padding_mask=padding)
        states = states.masked_fill(padding[..., None], 0)
        return self.head(states.sum(1) / (~padding).sum(1, keepdim=True))


class Translator(nn.Module):
    """`nn.Transformer` with a causal mask and padding on both sides; returns scores of each next word."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(batches.VOCABULARY, WIDTH)
        self.body = nn.Transformer(WIDTH, 4, 2, 2, 64, batch_first=True)
        self.head = nn.Linear(WIDTH, batches.VOCABULARY)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1], dtype=self.head.weight.dtype)
        padding, gaps = source == batches.PAD, target == batches.PAD
        states = self.body(
            self.words(source), self.words(target), tgt_mask=causal, src_key_padding_mask=padding,
            tgt_key_padding_mask=gaps, memory_key_padding_mask=padding, tgt_is_causal=True,
        )  # fmt: skip
        return self.head(states)


class LanguageModel(nn.Module):
    """LSTM of two layers with dropout between them, input and output embedding tied; returns its loss and its state."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(batches.VOCABULARY, WIDTH)
        self.body = nn.LSTM(WIDTH, WIDTH, num_layers=2, dropout=0.2, batch_first=True)
        self.head = nn.Linear(WIDTH, batches.VOCABULARY)
        self.head.weight = self.words.weight

    def forward(self, ids: Tensor, targets: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        states, last = self.body(self.words(ids))
        return F.cross_entropy(self.head(states).flatten(0, 1), targets.flatten()), last


class PackedClassifier(nn.Module):
    """GRU in both directions over texts of different lengths, packed as torch's documentation shows."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(batches.VOCABULARY, WIDTH)
        self.body = nn.GRU(WIDTH, WIDTH, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * WIDTH, batches.CLASSES)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(self.words(ids), lengths, batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.body(packed)[0], batch_first=True)
        return self.head(states.mean(1))


class UnrolledDecoder(nn.Module):
    """A GRU cell, its own output fed back a few times: a recurrent forecast."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(4, WIDTH)
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, series: Tensor, horizon: int) -> Tensor:
        state = series.new_zeros(series.shape[0], WIDTH)
        for value in series.unbind(1):
            state = self.cell(value, state)
        forecast = []
        for _ in range(horizon):
            forecast.append(self.head(state))
            state = self.cell(forecast[-1], state)
        return torch.stack(forecast, 1)


def convolutions(inputs: int, outputs: int) -> nn.Sequential:
    """Two convolutions with batch norm and ReLU in place."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True),
    )  # fmt: skip


class UNet(nn.Module):
    """Two levels with skips, transposed convolutions upwards, dropout of channels at the bottom."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([convolutions(3, 8), convolutions(8, 16)])
        self.bottom = nn.Sequential(convolutions(16, 16), nn.Dropout2d(0.2))
        self.raise_ = nn.ModuleList([nn.ConvTranspose2d(16, 16, 2, 2), nn.ConvTranspose2d(16, 8, 2, 2)])
        self.up = nn.ModuleList([convolutions(32, 16), convolutions(16, 8)])
        self.head = nn.Conv2d(8, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for level in self.down:
            skips.append(level(x))
            x = F.max_pool2d(skips[-1], 2)
        x = self.bottom(x)
        for larger, level in zip(self.raise_, self.up, strict=True):
            x = level(torch.cat((skips.pop(), larger(x)), 1))
        return self.head(x)


class Residual(nn.Module):
    """A residual block."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)])
        self.short = nn.Identity() if stride == 1 else nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norms[0](self.first(x)), inplace=True)
        y = self.norms[1](self.second(y))
        y += self.short(x)
        return F.relu(y, inplace=True)


def residual_net() -> nn.Module:
    """A small residual net in one `nn.Sequential`, dropout before its head."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 1, 1), Residual(8, 8, 1), Residual(8, 16, 2), Residual(16, 32, 2), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Dropout(0.2), nn.Linear(32, batches.CLASSES),
    )  # fmt: skip


class VariationalAutoencoder(nn.Module):
    """Draws its code with `randn_like`; returns the loss, the reconstruction and the divergence by name."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 48), nn.GELU(), nn.Linear(48, 2 * 8))
        self.decoder = nn.Sequential(nn.Linear(8, 48), nn.GELU(), nn.Linear(48, 64))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        mean, spread = self.encoder(x).chunk(2, -1)
        code = mean + torch.randn_like(mean) * torch.exp(0.5 * spread)
        picture = self.decoder(code)
        divergence = -0.5 * (1 + spread - mean.square() - spread.exp()).sum(-1).mean()
        return {"loss": F.mse_loss(picture, x) + 1e-3 * divergence, "picture": picture, "divergence": divergence}


class GraphNet(nn.Module):
    """Messages along edges, added up at their ends by `index_add`; degrees are counted from the edges."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, WIDTH)
        self.messages = nn.ModuleList([nn.Linear(2 * WIDTH, WIDTH) for _ in range(2)])
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH) for _ in range(2)])
        self.head = nn.Linear(WIDTH, batches.CLASSES)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        begin, end = edges
        degree = x.new_zeros(x.shape[0]).index_add(0, end, x.new_ones(end.shape[0])).clamp(min=1)
        x = self.first(x)
        for message, norm in zip(self.messages, self.norms, strict=True):
            sent = F.relu(message(torch.cat((x[begin], x[end]), -1)))
            x = norm(x + torch.zeros_like(x).index_add(0, end, sent) / degree[:, None])
            x = F.dropout(x, 0.1, self.training)
        return self.head(x)


class Recommender(nn.Module):
    """Bags of categories by `nn.EmbeddingBag`, dense features, their products: click-through."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList([nn.EmbeddingBag(50, 16, mode="mean") for _ in range(3)])
        self.dense = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 16))
        self.head = nn.Sequential(nn.Linear(16 + 6, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1))

    def forward(self, dense: Tensor, categories: list[Tensor], offsets: list[Tensor], clicks: Tensor) -> Tensor:
        features = [self.dense(dense), *(b(c, o) for b, c, o in zip(self.bags, categories, offsets, strict=True))]
        stacked = torch.stack(features, 1)
        i, j = torch.triu_indices(len(features), len(features), 1).unbind(0)
        products = torch.bmm(stacked, stacked.mT)[:, i, j]
        score = self.head(torch.cat((features[0], products), 1)).squeeze(1)
        return F.binary_cross_entropy_with_logits(score, clicks)


class RoutedExperts(nn.Module):
    """A mixture of experts that picks each expert's tokens by `nonzero`: shapes follow the values."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 4)
        self.experts = nn.ModuleList(
            [nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH)) for _ in range(4)]
        )
        self.head = nn.Linear(WIDTH, batches.CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        share, choice = self.router(x).softmax(-1).max(-1)
        mixed = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            places = (choice == number).nonzero(as_tuple=True)[0]
            mixed[places] = expert(x[places]) * share[places, None]
        return self.head(x + mixed)


class SharedStack(nn.Module):
    """One attention layer used three times, its loss inside, an auxiliary loss at every use."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 4, dropout=0.1, batch_first=True)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        losses = []
        for _ in range(3):
            attended, _ = self.attention(x, x, x)
            x = self.norm(x + attended)
            losses.append(F.smooth_l1_loss(self.head(x), target))
        return torch.stack(losses).sum(), x


def sentences() -> Call:
    """Padded ids."""
    return Call((batches.text()["input_ids"],))


def sentence_pairs() -> Call:
    """Padded ids on both sides."""
    target = batches.tokens(length=10)
    target[1, 7:] = batches.PAD
    return Call((batches.text()["input_ids"], target))


def continued() -> Call:
    """Ids and the same one further."""
    ids = batches.tokens(length=13)
    return Call((ids[:, :-1].contiguous(), ids[:, 1:].contiguous()))


def graph() -> Call:
    """A random graph."""
    return Call((torch.randn(40, 8), torch.randint(40, (2, 120))))


def clicks() -> Call:
    """Bags of one to three categories, dense features, who clicked."""
    offsets = torch.arange(0, 32, 2)
    return Call(
        (
            torch.randn(16, 6), [torch.randint(50, (32,)) for _ in range(3)], [offsets] * 3,
            (torch.rand(16) < 0.3).float(),
        )
    )  # fmt: skip


def alone(name: str, factory: Callable[[], nn.Module], call: Callable[[], Call], loss: Loss, *tags: str) -> Model:
    """An entry."""
    return Model(name=f"torch-{name}", factory=factory, call=call, loss=loss, tags=frozenset(("torch", *tags)))


MODELS = (
    alone("encoder-padded", PaddedClassifier, sentences, classified, "encoder", "padded"),
    alone("transformer", Translator, sentence_pairs, classified, "seq2seq", "padded"),
    alone("lstm", LanguageModel, continued, returned_loss, "recurrent", "tied"),
    alone(
        "gru-packed", PackedClassifier, lambda: Call((batches.text()["input_ids"], torch.tensor(batches.LENGTHS))), classified,
        "recurrent", "data-dependent",
    ),
    alone("gru-unrolled", UnrolledDecoder, lambda: Call((torch.randn(6, 8, 4), 5)), regressed, "recurrent"),
    alone("unet", UNet, lambda: batches.picture(32), regressed, "vision", "batch-norm"),
    alone("resnet", residual_net, lambda: batches.picture(32), classified, "vision", "batch-norm"),
    alone("vae", VariationalAutoencoder, lambda: Call((torch.randn(32, 64),)), returned_loss, "random"),
    alone("graph", GraphNet, graph, classified, "scatter"),
    alone("recommender", Recommender, clicks, returned_loss, "embedding"),
    alone("experts", RoutedExperts, lambda: Call((torch.randn(48, WIDTH),)), classified, "data-dependent"),
    alone(
        "shared-attention", SharedStack, lambda: Call((torch.randn(4, 16, WIDTH), torch.randn(4, 16, WIDTH))), returned_loss,
        "shared",
    ),
)  # fmt: skip
