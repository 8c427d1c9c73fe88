"""Modules whose calls have many shapes, with batches of any size: what `bench_shapes` runs."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import torch
from attrs import frozen
from torch import nn

from remat.zoo import GPT2, UNet
from tests.models.operators import declare_torchvision_operators

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""Arguments of a call."""


@frozen
class Case:
    """A module and its calls.

    Attributes:
        make: the module; its forward returns the loss, or an object with a `loss`.
        call_at: a call of some sizes, the same for the same sizes.
    """

    make: Callable[[], nn.Module]
    call_at: Callable[..., Call]


class Block(nn.Module):
    """The basic block of ResNet-18; (batch, inputs, h, w) to (batch, width, h', w')."""

    def __init__(self, inputs, width, stride):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        same = inputs == width and stride == 1
        projection = nn.Sequential(nn.Conv2d(inputs, width, 1, stride, bias=False), nn.BatchNorm2d(width))
        self.shortcut = nn.Identity() if same else projection

    def forward(self, x):
        hidden = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(hidden)) + self.shortcut(x))


class ResNet18(nn.Module):
    """ResNet-18 of a quarter of the width for small images; ``forward(images, labels)`` is the mean cross entropy."""

    def __init__(self):
        super().__init__()
        widths = (16, 16, 32, 32, 64, 64, 128, 128)
        layers = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
        for before, width in zip((16, *widths), widths, strict=False):
            layers.append(Block(before, width, 1 if before == width else 2))
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))

    def forward(self, images, labels):
        return nn.functional.cross_entropy(self.body(images), labels)


class Recurrent(nn.Module):
    """An LSTM cell over time, which the trace unrolls; ``forward(x)``, x (batch, time, 16), is a mean."""

    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(16, 32)

    def forward(self, x):
        state, outputs = None, []
        for at in range(x.shape[1]):
            state = self.cell(x[:, at], state)
            outputs.append(state[0])
        return torch.stack(outputs).square().mean()


class Encoder(nn.Module):
    """A BERT-like encoder; ``forward(tokens, mask, targets)``, masks (batch, time) with True where there is a token: the loss."""

    def __init__(self, layers=4, width=64, heads=2, vocabulary=256, context=512):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.1, nn.functional.gelu, batch_first=True)
        self.layers = nn.ModuleList(copy.deepcopy(layer) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, drawn, mask, targets):
        hidden = self.tokens(drawn) + self.places.weight[: drawn.shape[1]]
        added = (
            torch.zeros(mask.shape, dtype=hidden.dtype).masked_fill(~mask, float("-inf")) if not mask.all() else None
        )
        for layer in self.layers:
            hidden = layer(hidden, src_key_padding_mask=added)
        return nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), targets.flatten())


class GraphNetwork(nn.Module):
    """Messages along edges, summed at the nodes (Gilmer et al., 2017); ``forward(nodes, edges, targets)`` is a cross entropy.

    Nodes (n, 16), edges (2, e) as sources and ends, targets (n,).
    """

    def __init__(self, layers=6, width=64):
        super().__init__()
        self.embed, self.head = nn.Linear(16, width), nn.Linear(width, 4)
        self.messages = nn.ModuleList(nn.Sequential(nn.Linear(2 * width, width), nn.GELU()) for _ in range(layers))
        self.updates = nn.ModuleList(nn.GRUCell(width, width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))

    def forward(self, nodes, edges, targets):
        hidden, (sources, ends) = self.embed(nodes), edges
        for message, update, norm in zip(self.messages, self.updates, self.norms, strict=True):
            sent = message(torch.cat([hidden[sources], hidden[ends]], 1))
            hidden = norm(update(torch.zeros_like(hidden).index_add(0, ends, sent), hidden))
        return nn.functional.cross_entropy(self.head(hidden), targets)


class DetectionHead(nn.Module):
    """A head over given boxes (Ren et al., 2015, in small); ``forward(images, boxes, owners, labels)`` is a loss.

    Images (batch, 3, h, w); boxes (k, 4) as center and half the size, in -1 to 1; the image of each (k,), its label (k,).
    """

    def __init__(self, width=16, points=5, classes=8):
        super().__init__()
        self.points, sizes = points, (3, width, 2 * width, 2 * width)
        pairs = itertools.pairwise(sizes)
        self.backbone = nn.Sequential(
            *(layer for a, b in pairs for layer in (nn.Conv2d(a, b, 3, 2, 1), nn.GroupNorm(4, b), nn.ReLU()))
        )
        self.head = nn.Sequential(nn.Linear(2 * width * points**2, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
        self.label, self.shift = nn.Linear(128, classes), nn.Linear(128, 4)

    def forward(self, images, boxes, owners, labels):
        steps = torch.linspace(-1, 1, self.points)
        across = boxes[:, None, None, 0] + boxes[:, None, None, 2] * steps[None, None, :]
        down = boxes[:, None, None, 1] + boxes[:, None, None, 3] * steps[None, :, None]
        grid = torch.stack(torch.broadcast_tensors(across, down), -1)
        crops = nn.functional.grid_sample(self.backbone(images)[owners], grid, align_corners=False)
        hidden = self.head(crops.flatten(1))
        return nn.functional.cross_entropy(self.label(hidden), labels) + (self.shift(hidden) - boxes).abs().mean()


# -- calls -------------------------------------------------------------------------------------------------------------


def drawn_tokens(length, batch):
    """Tokens (batch, length)."""
    return torch.randint(256, (batch, length), generator=torch.Generator().manual_seed(length))


def lengths_of(batch, length):
    """The lengths of the sequences of a batch, of which the last is half as long."""
    return torch.tensor([length] * (batch - 1) + [length - length // 2])


def padding(length, batch):
    """A mask (batch, length): True where there is a token."""
    return torch.arange(length) < lengths_of(batch, length)[:, None]


def gpt2_call(length, batch):
    """Tokens, and the same as targets."""
    tokens = drawn_tokens(length, batch)
    return (tokens, tokens), {}


def encoder_call(length, batch):
    """Tokens, mask and targets."""
    tokens = drawn_tokens(length, batch)
    return (tokens, padding(length, batch), tokens), {}


def bert_call(length, batch):
    """What a tokenizer and a collator give."""
    tokens = drawn_tokens(length, batch)
    return (), {"input_ids": tokens, "attention_mask": padding(length, batch).long(), "labels": tokens}


def t5_call(length, batch):
    """Likewise, with targets of a third of the length."""
    targets = drawn_tokens(max(2, length // 3), batch)
    return (), {**bert_call(length, batch)[1], "labels": targets}


def image_call(size, batch):
    """Images and labels."""
    generator = torch.Generator().manual_seed(1000 * batch + size)
    images = torch.randn(batch, 3, size, size, generator=generator)
    return (images, torch.randint(10, (batch,), generator=generator)), {}


def segmentation_call(size, batch):
    """Images and masks."""
    generator = torch.Generator().manual_seed(1000 * batch + size)
    images = torch.randn(batch, 3, size, size, generator=generator)
    return (images, torch.randint(2, (batch, 1, size, size), generator=generator).float()), {}


def sequence_call(length):
    """Sequences of vectors."""
    return (torch.randn(8, length, 16, generator=torch.Generator().manual_seed(length)),), {}


def graph_call(nodes, edges):
    """A graph at random."""
    generator = torch.Generator().manual_seed(nodes + edges)
    features = torch.randn(nodes, 16, generator=generator)
    pairs = torch.randint(nodes, (2, edges), generator=generator)
    return (features, pairs, torch.randint(4, (nodes,), generator=generator)), {}


def boxes_call(boxes, batch):
    """Images with so many boxes in all."""
    generator = torch.Generator().manual_seed(boxes)
    images, shapes = torch.randn(batch, 3, 64, 64, generator=generator), torch.rand(boxes, 4, generator=generator)
    owners = torch.randint(batch, (boxes,), generator=generator)
    return (images, shapes, owners, torch.randint(8, (boxes,), generator=generator)), {}


# -- cases -------------------------------------------------------------------------------------------------------------


def _bert():
    declare_torchvision_operators()
    from transformers import BertConfig, BertForMaskedLM

    sizes = {"vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 2}
    return BertForMaskedLM(BertConfig(**sizes, intermediate_size=256, max_position_embeddings=512))


def _t5():
    declare_torchvision_operators()
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"vocab_size": 256, "d_model": 64, "d_kv": 32, "d_ff": 256, "num_layers": 2, "num_heads": 2}
    tokens = {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}
    return T5ForConditionalGeneration(T5Config(**sizes, **tokens, use_cache=False))


LENGTHS = {
    "gpt2": Case(lambda: GPT2(layers=4, width=64, heads=2, context=512), gpt2_call),
    "encoder": Case(Encoder, encoder_call),
    "bert": Case(_bert, bert_call),
    "t5": Case(_t5, t5_call),
}
"""Models over lengths; `bert` and `t5` need transformers."""

_BATCHES = (24, 7, 20, 13, 9, 18, 11, 16, 22, 5)
_IMAGES = (88, 32, 64, 40, 24, 72, 56, 48, 16, 80)
KINDS = {
    "resnet18, batches": (Case(ResNet18, image_call), [(32, batch) for batch in _BATCHES]),
    "resnet18, images": (Case(ResNet18, image_call), [(size, 8) for size in _IMAGES]),
    "unet, batches": (Case(lambda: UNet(levels=3, channels=8), segmentation_call), [(32, batch) for batch in _BATCHES]),
    "unet, images": (Case(lambda: UNet(levels=3, channels=8), segmentation_call), [(size, 8) for size in _IMAGES]),
    "graph network": (Case(GraphNetwork, graph_call), [(40 * k + k % 7, 150 * k + 11 * (k % 5)) for k in
                      (12, 5, 9, 3, 11, 7, 4, 10, 6, 8)]),
    "detection head": (Case(DetectionHead, boxes_call), [(boxes, 4) for boxes in
                       (160, 57, 121, 90, 33, 148, 71, 109, 46, 136)]),
    "lstm": (Case(Recurrent, sequence_call), [(length,) for length in (16, 9, 12, 7, 14)]),
}  # fmt: skip
"""Other models over sizes, the largest first."""
