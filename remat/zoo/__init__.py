"""Models of the demo, the suites and the benchmarks: plain torch, sizes as arguments, nothing of the library inside."""

from remat.zoo.catalog import Case, cases
from remat.zoo.encdec import EncoderDecoder
from remat.zoo.gpt2 import GPT2
from remat.zoo.mlp import MLP
from remat.zoo.odd import Frozen, InPlaceViews
from remat.zoo.resnet import ResNet
from remat.zoo.unet import UNet

__all__ = ["GPT2", "MLP", "Case", "EncoderDecoder", "Frozen", "InPlaceViews", "ResNet", "UNet", "cases"]
