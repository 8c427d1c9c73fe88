"""The wide zoo: architectures of timm at their own sizes, with batches large enough that activations decide the peak."""

from __future__ import annotations

from functools import partial

import timm

from tests.models import batches
from tests.models.model import Model, classified


def pictures(name: str, size: int, *tags: str, batch: int = 32) -> Model:
    """An entry from the name that timm's registry has for an architecture."""
    return Model(
        name=f"timm-{name}",
        factory=lambda: timm.create_model(name, num_classes=100),
        call=partial(batches.picture, size, batch),
        loss=classified,
        tags=frozenset(("timm", "vision", *tags)),
    )


MODELS = (
    pictures("densenet121", 128, "dense", batch=16),
    pictures("hrnet_w18_small", 128, "nested-skips"),
    pictures("dla34", 128, "tree"),
    pictures("efficientnet_b0", 128),
    pictures("swin_tiny_patch4_window7_224", 224, batch=16),
    pictures("convnext_tiny", 128),
    pictures("cspdarknet53", 128),
    pictures("res2net50_26w_4s", 128, "nested-skips"),
    pictures("coat_lite_tiny", 224, "cross-attention", batch=16),
    pictures("xcit_nano_12_p16_224", 224, "deep-equal", batch=16),
)
