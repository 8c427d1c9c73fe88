"""The seven models of the exactness and memory suites, in two sizes, each with a sample of a training call."""

from collections.abc import Callable

import torch
from attrs import frozen
from torch import Tensor, nn

from remat.errors import BadArgument
from remat.zoo.encdec import EncoderDecoder
from remat.zoo.gpt2 import GPT2
from remat.zoo.mlp import MLP
from remat.zoo.odd import Frozen, InPlaceViews
from remat.zoo.resnet import ResNet
from remat.zoo.unet import UNet

SIZES = ("small", "medium")
"""`small`: a step takes milliseconds. `medium`: an unwrapped step holds at least 16 MiB in float32."""


@frozen
class Case:
    """A model and a training call of it.

    Attributes:
        name: for tables.
        build: creates the module; weights are drawn from the global generator.
        sample: creates the arguments of one call, which returns the loss (alone or first).
        tied: names of parameters used in several places, whose gradients are sums of several terms.
    """

    name: str
    build: Callable[[], nn.Module]
    sample: Callable[[], tuple[Tensor, ...]]
    tied: tuple[str, ...] = ()

    def instantiate(
        self, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu", seed: int = 0
    ) -> tuple[nn.Module, tuple[Tensor, ...]]:
        """Module and sample from a seed, on a device, with floating-point tensors of one type; restores the global generator."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module, sample = self.build(), self.sample()
        return module.to(device=device, dtype=dtype), tuple(_moved(tensor, dtype, device) for tensor in sample)


def _moved(tensor: Tensor, dtype: torch.dtype, device: torch.device | str) -> Tensor:
    moved = tensor.detach().to(device=device, dtype=dtype if tensor.is_floating_point() else None)
    return moved.requires_grad_(tensor.requires_grad)


def cases(size: str = "small") -> tuple[Case, ...]:
    """The seven models in one of `SIZES`.

    Raises:
        BadArgument: Z-ARG, for another size.
    """
    if size not in SIZES:
        raise BadArgument("Z-ARG", f"size {size!r} is not one of {', '.join(SIZES)}.", fix="give one of them.")
    big = size == "medium"
    rows, width = (2048, 256) if big else (96, 16)
    heads = 4
    batch, time, model, words = (8, 64, 128, 256) if big else (4, 12, 16, 32)
    pictures, pixels = (24, 64) if big else (3, 32)
    stages, wide = ((1, 1, 1, 1), 16) if big else ((1, 1), 8)
    levels, channels = (3, 16) if big else (2, 4)
    layers = 3 if big else 2

    def vectors(inputs: bool = False) -> tuple[Tensor, Tensor]:
        return torch.randn(rows, width, requires_grad=inputs), torch.randn(rows, width)

    def tokens(count: int) -> tuple[Tensor, ...]:
        return tuple(torch.randint(words, (batch, time)) for _ in range(count))

    return (
        Case(
            "mlp",
            lambda: MLP(layers=6 if big else 4, width=width, outputs=8),
            lambda: (torch.randn(rows, width), torch.randn(rows, 8)),
        ),
        Case(
            "gpt2",
            lambda: GPT2(layers=layers, width=model, heads=heads, vocabulary=words, context=time),
            lambda: tokens(2),
            tied=("tokens.weight",),
        ),
        Case(
            "resnet",
            lambda: ResNet(blocks=stages, width=wide, classes=10),
            lambda: (torch.randn(pictures, 3, pixels, pixels), torch.randint(10, (pictures,))),
        ),
        Case(
            "unet",
            lambda: UNet(levels=levels, channels=channels),
            lambda: (torch.randn(pictures, 3, pixels, pixels), torch.randn(pictures, 1, pixels, pixels)),
        ),
        Case(
            "encoder-decoder",
            lambda: EncoderDecoder(layers=2 if big else 1, width=model, heads=heads, vocabulary=words),
            lambda: tokens(3),
        ),
        Case("frozen", lambda: Frozen(layers=3, width=width), lambda: vectors(inputs=True)),
        Case("in-place", lambda: InPlaceViews(layers=6, width=width), vectors),
    )
