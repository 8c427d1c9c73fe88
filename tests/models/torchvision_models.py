"""Models of torchvision, with small backbones, called as its reference scripts call them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torchvision.models import detection, mobilenet_v3_small
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.optical_flow import raft

from tests.models import batches
from tests.models.model import TYPES, Call, Loss, Model, classified, summed


class Backbone(nn.Module):
    """Two levels of features."""

    out_channels = 32

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 7, 4, 3), nn.BatchNorm2d(32), nn.ReLU())
        self.next = nn.Sequential(nn.Conv2d(32, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU())

    def forward(self, x: Tensor) -> OrderedDict[str, Tensor]:
        fine = self.stem(x)
        return OrderedDict(fine=fine, coarse=self.next(fine))


def fcos() -> nn.Module:
    """FCOS over two levels; its transform resizes to 64 pixels."""
    anchors = AnchorGenerator(sizes=((8,), (16,)), aspect_ratios=((1.0,),) * 2)
    return detection.FCOS(Backbone(), num_classes=4, anchor_generator=anchors, min_size=64, max_size=64)


def small_raft() -> nn.Module:
    """RAFT with small encoders, a correlation of two levels."""
    return raft.RAFT(
        feature_encoder=raft.FeatureEncoder(
            block=raft.ResidualBlock, layers=(8, 8, 8, 8, 16), norm_layer=nn.InstanceNorm2d
        ),
        context_encoder=raft.FeatureEncoder(
            block=raft.ResidualBlock, layers=(8, 8, 8, 8, 24), norm_layer=nn.BatchNorm2d
        ),
        corr_block=raft.CorrBlock(num_levels=2, radius=2),
        update_block=raft.UpdateBlock(
            motion_encoder=raft.MotionEncoder(
                in_channels_corr=50, corr_layers=(16,), flow_layers=(16, 8), out_channels=16
            ),
            recurrent_block=raft.RecurrentBlock(
                input_size=16 + 8, hidden_size=16, kernel_size=((1, 5), (5, 1)), padding=((0, 2), (2, 0))
            ),
            flow_head=raft.FlowHead(in_channels=16, hidden_size=16),
        ),
    )


def flow_loss(out: list[Tensor]) -> Tensor:
    """The weighted error of every refinement, as torchvision's reference does it."""
    weights = [0.8 ** (len(out) - 1 - at) for at in range(len(out))]
    return torch.stack([weight * (flow - 1).abs().mean() for weight, flow in zip(weights, out, strict=True)]).sum()


def objects() -> Call:
    """Pictures of two sizes with the boxes and classes on each."""
    sides = ((64, 64), (64, 48))
    boxes = torch.tensor([[4.0, 6.0, 30.0, 40.0], [10.0, 8.0, 44.0, 36.0]])
    targets = [{"boxes": boxes[: at + 1], "labels": torch.arange(at + 1) + 1} for at in range(len(sides))]
    return Call(([torch.rand(3, *side) for side in sides], targets))


def frames() -> Call:
    """Two frames of two films; RAFT needs 128 pixels or more."""
    return Call((torch.randn(2, 3, 128, 128), torch.randn(2, 3, 128, 128)), {"num_flow_updates": 2})


def seen(
    name: str,
    factory: Callable[[], nn.Module],
    call: Callable[[], Call],
    loss: Loss,
    *tags: str,
    types: tuple[torch.dtype, ...] = TYPES,
) -> Model:
    """An entry."""
    return Model(
        name=f"torchvision-{name}", factory=factory, call=call, loss=loss,
        tags=frozenset(("torchvision", "vision", "batch-norm", *tags)), types=types,
    )  # fmt: skip


MODELS = (
    seen("fcos", fcos, objects, summed, "data-dependent"),
    seen("raft", small_raft, frames, flow_loss, "state", types=(torch.float32,)),
    seen(
        "mobilenet",
        lambda: mobilenet_v3_small(num_classes=batches.CLASSES, width_mult=0.25),
        lambda: batches.picture(48),
        classified,
    ),
)
