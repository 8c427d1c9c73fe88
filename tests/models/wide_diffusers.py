"""The wide zoo: architectures of diffusers, smaller than their releases, larger than the catalogue's."""

from __future__ import annotations

from functools import partial

import torch

from tests.models.diffusers_models import (
    AUTOENCODER,
    CONDITIONED,
    DIT,
    SD3,
    autoencoding,
    caption,
    captioned,
    classes,
    diffusion,
    pooled_captions,
    steps,
)
from tests.models.model import Call

WIDE = {"sample_size": 32, "block_out_channels": (128, 256), "layers_per_block": 2, "norm_num_groups": 32}
UNET = CONDITIONED | WIDE | {"attention_head_dim": 8, "cross_attention_dim": 256}
FILM = WIDE | {
    "in_channels": 4, "out_channels": 4, "layers_per_block": 1, "cross_attention_dim": 256, "attention_head_dim": 32,
    "down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"), "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D"),
}  # fmt: skip
LARGE_DIT = DIT | {
    "num_attention_heads": 8, "attention_head_dim": 48, "num_layers": 8, "sample_size": 32, "norm_num_groups": 32,
    "norm_type": "ada_norm_zero",
}  # fmt: skip
LARGE_SD3 = SD3 | {
    "sample_size": 32, "num_layers": 6, "attention_head_dim": 48, "num_attention_heads": 8, "joint_attention_dim": 256,
    "caption_projection_dim": 384, "pooled_projection_dim": 256, "pos_embed_max_size": 32,
}  # fmt: skip


def films() -> Call:
    """Latent films with steps and captions."""
    return Call((torch.randn(2, 4, 8, 32, 32), steps(2)), {"encoder_hidden_states": caption(256, 2, 32)})


MODELS = (
    diffusion("unet2d-condition", "UNet2DConditionModel", UNET, partial(captioned, 32, 8, 64, 256), "u-shaped"),
    diffusion("autoencoder-kl", "AutoencoderKL", AUTOENCODER | {"block_out_channels": (64, 128), "norm_num_groups": 32},
              partial(autoencoding, 96, 8), "u-shaped"),
    diffusion("dit", "DiTTransformer2DModel", LARGE_DIT, partial(classes, 32, 16), "deep-equal"),
    diffusion("sd3", "SD3Transformer2DModel", LARGE_SD3, partial(pooled_captions, 32, 8, 64, 256), "cross-attention"),
    diffusion("unet3d", "UNet3DConditionModel", FILM, films, "3d", "u-shaped"),
)  # fmt: skip
