"""Models of timm, called as its training script calls them: pictures in, scores out, the loss outside."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import timm
from timm.models.mlp_mixer import MlpMixer
from torch import nn

from tests.models import batches
from tests.models.model import Model, classified


def pictures(name: str, size: int, *tags: str, **sizes: Any) -> Model:
    """An entry from the name that timm's registry has for an architecture."""
    return seen(name, lambda: timm.create_model(name, num_classes=batches.CLASSES, **sizes), size, *tags)


def seen(name: str, factory: Callable[[], nn.Module], size: int, *tags: str) -> Model:
    """An entry for square pictures of a size."""
    call = partial(batches.picture, size)
    return Model(
        name=f"timm-{name}", factory=factory, call=call, loss=classified, tags=frozenset(("timm", "vision", *tags))
    )


VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4}

MIXER = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "num_blocks": 2, "drop_rate": 0.1}

MODELS = (
    pictures("test_resnet", 48, "batch-norm", drop_rate=0.1),
    pictures("test_convnext", 48, "drop-path", drop_path_rate=0.1),
    pictures("test_efficientnet", 48, "batch-norm", "drop-path", drop_path_rate=0.1, drop_rate=0.1),
    pictures("test_nfnet", 48, drop_rate=0.1),
    pictures("test_byobnet", 48, "batch-norm", drop_rate=0.1),
    pictures("vit_small_patch16_224", 32, "drop-path", drop_path_rate=0.1, drop_rate=0.1, **VIT),
    pictures(
        "swin_tiny_patch4_window7_224", 32, "drop-path", img_size=32, embed_dim=16, depths=(2, 2), num_heads=(2, 4),
        window_size=4,
    ),
    seen("mixer", lambda: MlpMixer(num_classes=batches.CLASSES, **MIXER), 32),
)  # fmt: skip
