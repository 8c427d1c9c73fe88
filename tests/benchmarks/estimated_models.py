"""The models of `make bench-estimates`: a module and the arguments of one training step, for any number of samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from attrs import frozen
from torch import Tensor, nn
from torch.nn import functional

from remat.zoo import MLP
from remat.zoo.odd import Frozen
from remat.zoo.regnet import RegNet
from tests.benchmarks.peers import CASES, GraphNet
from tests.models import batches
from tests.models.catalogue import model_named
from tests.models.model import Loss, classified, regressed, returned_loss
from tests.models.wide_entry import Step

WORDS = 512


@frozen(kw_only=True)
class Sized:
    """A model whose number of samples is an argument.

    Attributes:
        build: the module.
        call: the arguments of one step by name, for a number of samples.
        loss: from what the module returns.
        batch: the number of samples that is tried first.
    """

    build: Callable[[], nn.Module]
    call: Callable[[int], dict[str, Any]]
    loss: Loss = returned_loss
    batch: int = 2

    def step(self, batch: int) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
        """What `remat.estimate` takes of a factory."""
        return Step(self.build(), self.loss).train(), (), self.call(batch)


class Recurrent(nn.Module):
    """A language model of two layers of LSTM cells over time."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, width), nn.Linear(width, WORDS)
        self.body = nn.LSTM(width, width, num_layers=2, dropout=0.2, batch_first=True)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        scores = self.head(self.body(self.words(tokens))[0])
        return functional.cross_entropy(scores.flatten(0, 1), labels.flatten())


class Classifier(nn.Module):
    """`nn.TransformerEncoder` over text, its mean, a class."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, width), nn.Linear(width, 10)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.body(self.words(tokens)).mean(1))


def tokens(batch: int, length: int, words: int = WORDS) -> Tensor:
    return torch.randint(words, (batch, length))


def text(batch: int) -> dict[str, Any]:
    """Texts of one length with labels of their own."""
    return {"input_ids": tokens(batch, 96), "labels": tokens(batch, 96)}


def pictures(size: int, name: str = "pixel_values", classes: int = 10) -> Callable[[int], dict[str, Any]]:
    """Pictures with a class each."""
    return lambda batch: {name: torch.randn(batch, 3, size, size), "labels": torch.randint(classes, (batch,))}


def graphs(batch: int) -> dict[str, Any]:
    """Graphs of 250 nodes and 1000 edges, as one."""
    nodes, edges = 250 * batch, 1000 * batch
    ends = torch.randint(nodes, (2, edges))
    return {"x": torch.randn(nodes, 16), "edges": ends, "labels": torch.randint(8, (nodes,))}


def timm_model(name: str, size: int, batch: int = 2) -> Sized:
    """A model of timm's registry; the loss is outside."""

    def build() -> nn.Module:
        import timm

        return timm.create_model(name, num_classes=10)

    return Sized(build=build, call=lambda count: {"x": torch.randn(count, 3, size, size)}, loss=classified, batch=batch)


def mobilenet() -> nn.Module:
    from torchvision.models import mobilenet_v3_small

    return mobilenet_v3_small(num_classes=10)


def deberta() -> nn.Module:
    from transformers import DebertaV2Config, DebertaV2ForSequenceClassification

    sizes = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 512}
    relative = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 32}
    return DebertaV2ForSequenceClassification(DebertaV2Config(vocab_size=WORDS, **sizes, **relative))


def speech() -> nn.Module:
    from transformers import Wav2Vec2Config, Wav2Vec2ForSequenceClassification

    sizes = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 512}
    layers = {"conv_dim": (64,) * 7, "num_conv_pos_embedding_groups": 16, "mask_time_prob": 0.0, "layerdrop": 0.0}
    return Wav2Vec2ForSequenceClassification(Wav2Vec2Config(vocab_size=32, **sizes, **layers))


def peer(name: str, call: Callable[[int], dict[str, Any]], batch: int = 2) -> Sized:
    """A model of `make bench-peers`."""
    return Sized(build=CASES[name].build, call=call, batch=batch)


MODELS = {
    "MLP": Sized(
        build=lambda: MLP(layers=6, width=256), batch=512,
        call=lambda batch: {"x": torch.randn(batch, 256), "y": torch.randn(batch, 8)},
    ),
    "MLP, half frozen": Sized(
        build=lambda: Frozen(layers=4, width=256), batch=512,
        call=lambda batch: {"x": torch.randn(batch, 256), "y": torch.randn(batch, 256)},
    ),
    "LSTM": Sized(build=Recurrent, batch=4, call=lambda batch: {"tokens": tokens(batch, 64), "labels": tokens(batch, 64)}),
    "graph network": Sized(build=GraphNet, call=graphs, batch=2),
    "GPT-2": peer("gpt2", lambda batch: {"tokens": tokens(batch, 128, 256), "targets": tokens(batch, 128, 256)}),
    "BERT": peer("bert", text),
    "Llama": peer("llama", text),
    "T5": peer("t5", text),
    "DeBERTa": Sized(build=deberta, loss=classified, call=lambda batch: {
        "input_ids": tokens(batch, 64), "attention_mask": torch.ones(batch, 64, dtype=torch.long), "return_dict": False,
    }),
    "transformer encoder": Sized(build=Classifier, call=lambda batch: {"tokens": tokens(batch, 64)}, loss=classified),
    "encoder-decoder": peer("encoder-decoder", lambda batch: {
        "source": tokens(batch, 96, 256), "target": tokens(batch, 96, 256), "labels": tokens(batch, 96, 256),
    }),
    "Wav2Vec2": Sized(build=speech, batch=2, call=lambda batch: {
        "input_values": torch.randn(batch, 8000), "labels": tokens(batch, 1, 2)[:, 0],
    }),
    "ViT": peer("vit", pictures(96)),
    "MLP-Mixer": peer("mixer", pictures(96, "images"), 4),
    "ResNet-50": peer("resnet50", pictures(64, "images", 100)),
    "RegNet": Sized(
        build=lambda: RegNet(depths=(1, 1, 2, 1), widths=(24, 48, 96, 192), group=24, classes=10), call=pictures(96, "images"),
    ),
    "MobileNetV3": Sized(build=mobilenet, call=lambda batch: {"x": torch.randn(batch, 3, 96, 96)}, loss=classified, batch=4),
    "ConvNeXt": timm_model("convnext_atto", 64, batch=4),
    "EfficientNet": timm_model("efficientnet_b0", 64, batch=4),
    "U-Net": peer("unet", lambda batch: {"images": torch.randn(batch, 3, 96, 96), "masks": torch.randn(batch, 1, 96, 96)}),
    "diffusion U-Net": Sized(
        build=CASES["diffusion-unet"].build, loss=regressed,
        call=lambda batch: {"sample": torch.randn(batch, 3, 32, 32), "timestep": torch.arange(batch)},
    ),
    "autoencoder": Sized(
        build=lambda: model_named("diffusers-autoencoder-kl").factory(), loss=regressed,
        call=lambda batch: {"sample": batches.pictures(64, batch), "sample_posterior": True},
    ),
}  # fmt: skip
"""By the name that the page shows: every kind of layer that the catalogue has, small enough for many steps."""
