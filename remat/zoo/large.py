"""Factories of models as large as those that are planned, not trained, here: a module and the arguments of one training step.

Call them through `remat.exec.capture_without_weights` (or `remat capture`), which allocates nothing: most would not fit this
machine. The sizes are those of the graphs that the planner's benchmark uses.
"""

import torch
from torch import Tensor, nn

from remat.zoo.gpt2 import GPT2
from remat.zoo.mixer import Mixer
from remat.zoo.operators import FNO, UNO
from remat.zoo.regnet import RegNet
from remat.zoo.resnet import ResNet
from remat.zoo.seq2seq import Seq2Seq
from remat.zoo.unet import UNet

Sample = tuple[nn.Module, tuple[Tensor, ...]]


def gpt(
    layers: int = 24,
    *,
    width: int = 1024,
    batch: int = 4,
    time: int = 512,
    vocabulary: int = 50257,
    dropout: float = 0.1,
) -> Sample:
    """A GPT of any depth, with heads of 64 channels and a loss."""
    model = GPT2(
        layers=layers, width=width, heads=max(1, width // 64), vocabulary=vocabulary, context=time, dropout=dropout
    )
    return model, (_tokens(vocabulary, batch, time), _tokens(vocabulary, batch, time))


def gpt12() -> Sample:
    """12 layers of width 768, batch 8, 512 tokens: about 700 nodes."""
    return gpt(12, width=768, batch=8)


def gpt24(batch: int = 4) -> Sample:
    """24 layers of width 1024, 512 tokens: about 1300 nodes."""
    return gpt(24, batch=batch)


def gpt96() -> Sample:
    """96 layers of width 1024, batch 4, 512 tokens: about 5000 nodes."""
    return gpt(96)


def gpt400() -> Sample:
    """400 layers of width 1024, batch 4, 512 tokens: about 20 000 nodes."""
    return gpt(400)


def encdec(
    layers: int = 6, *, width: int = 512, batch: int = 32, time: int = 256, vocabulary: int = 8000, dropout: float = 0.1
) -> Sample:
    """An encoder-decoder with as many encoder as decoder layers, heads of 64 channels and a loss."""
    model = Seq2Seq(
        layers=layers, width=width, heads=max(1, width // 64), vocabulary=vocabulary, context=time, dropout=dropout
    )
    return model, tuple(_tokens(vocabulary, batch, time) for _ in range(3))


def encdec6() -> Sample:
    """6 + 6 layers of width 512, batch 32, 256 tokens: about 900 nodes."""
    return encdec(6)


def encdec36() -> Sample:
    """36 + 36 layers of width 512, batch 16, 256 tokens: about 5000 nodes."""
    return encdec(36, batch=16)


def resnet101(batch: int = 32, image: int = 224) -> Sample:
    """ResNet-101 with a loss over 1000 classes."""
    return ResNet(blocks=(3, 4, 23, 3), width=64, classes=1000), _pictures(batch, image)


def regnet(batch: int = 32, image: int = 224) -> Sample:
    """The depths and widths of RegNetY-32GF with a loss over 1000 classes."""
    return RegNet(), _pictures(batch, image)


def mixer(batch: int = 64, image: int = 224, dropout: float = 0.1) -> Sample:
    """Mixer-B/16 with dropout and a loss over 1000 classes."""
    return Mixer(image=image, dropout=dropout), _pictures(batch, image)


def unet(batch: int = 8, image: int = 256) -> Sample:
    """A U-Net of 4 levels from 64 channels, with a loss over its one output channel."""
    fields = (torch.randn(batch, 3, image, image), torch.randn(batch, 1, image, image))
    return UNet(levels=4, channels=64), fields


def fno(batch: int = 8, grid: int = 256) -> Sample:
    """An FNO of 6 blocks of width 64 with 24 modes a side."""
    return FNO(blocks=6, width=64, modes=24), _fields(batch, grid)


def uno(batch: int = 8, grid: int = 256) -> Sample:
    """A U-NO of 9 spectral blocks with skips, from width 64 and 24 modes a side."""
    return UNO(levels=4, width=64, modes=24), _fields(batch, grid)


def _tokens(vocabulary: int, batch: int, time: int) -> Tensor:
    return torch.randint(0, vocabulary, (batch, time))


def _pictures(batch: int, image: int) -> tuple[Tensor, ...]:
    return torch.randn(batch, 3, image, image), torch.randint(0, 1000, (batch,))


def _fields(batch: int, grid: int) -> tuple[Tensor, ...]:
    return torch.randn(batch, 3, grid, grid), torch.randn(batch, 1, grid, grid)
