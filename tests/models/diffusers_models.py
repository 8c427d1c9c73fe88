"""Models of diffusers, called as training loops call them: noisy samples, timesteps, the loss outside against the noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import diffusers
import torch

from tests.models.model import Call, Model, regressed

UNET = {
    "sample_size": 16, "in_channels": 3, "out_channels": 3, "layers_per_block": 1, "block_out_channels": (8, 16),
    "norm_num_groups": 4, "attention_head_dim": 4,
}  # fmt: skip
CONDITIONED = UNET | {
    "in_channels": 4, "out_channels": 4, "cross_attention_dim": 16,
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"), "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
}  # fmt: skip
AUTOENCODER = {
    "sample_size": 32, "block_out_channels": (8, 16), "layers_per_block": 1, "norm_num_groups": 4, "latent_channels": 4,
    "down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2,
}  # fmt: skip
DIT = {
    "num_attention_heads": 2, "attention_head_dim": 8, "in_channels": 4, "num_layers": 2, "sample_size": 8, "patch_size": 2,
    "norm_num_groups": 4, "num_embeds_ada_norm": 10, "out_channels": 4,
}  # fmt: skip
PIXART = DIT | {"cross_attention_dim": 16, "caption_channels": 16, "num_embeds_ada_norm": 1000}
SD3 = {
    "sample_size": 8, "patch_size": 2, "in_channels": 4, "out_channels": 4, "num_layers": 2, "attention_head_dim": 8,
    "num_attention_heads": 2, "joint_attention_dim": 16, "caption_projection_dim": 16, "pooled_projection_dim": 16,
    "pos_embed_max_size": 8,
}  # fmt: skip
FLUX = {
    "patch_size": 1, "in_channels": 4, "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16,
    "num_attention_heads": 2, "joint_attention_dim": 16, "pooled_projection_dim": 16, "axes_dims_rope": (4, 4, 8),
}  # fmt: skip
BATCH = 4
WORDS = 6


def noisy(channels: int, size: int, batch: int = BATCH) -> torch.Tensor:
    """Samples with noise."""
    return torch.randn(batch, channels, size, size)


def steps(batch: int = BATCH) -> torch.Tensor:
    """A step of the noise's schedule for each sample."""
    return torch.randint(1000, (batch,))


def caption(width: int = 16, batch: int = BATCH, words: int = WORDS) -> torch.Tensor:
    """What a text encoder makes of captions."""
    return torch.randn(batch, words, width)


def denoising(channels: int, size: int, batch: int = BATCH) -> Callable[[], Call]:
    """Samples and steps."""
    return lambda: Call((noisy(channels, size, batch), steps(batch)))


def captioned(size: int = 16, batch: int = BATCH, words: int = WORDS, width: int = 16) -> Call:
    """Latents, steps and captions."""
    return Call((noisy(4, size, batch), steps(batch)), {"encoder_hidden_states": caption(width, batch, words)})


def classes(size: int = 8, batch: int = BATCH) -> Call:
    """Latents with steps and classes."""
    return Call((noisy(4, size, batch),), {"timestep": steps(batch), "class_labels": torch.randint(10, (batch,))})


def masked_captions() -> Call:
    """Latents with steps and padded captions."""
    mask = (torch.arange(WORDS) < torch.tensor([6, 4, 5, 2])[:, None]).long()
    kwargs = {"encoder_hidden_states": caption(), "encoder_attention_mask": mask, "timestep": steps()}
    return Call((noisy(4, 8),), kwargs | {"added_cond_kwargs": {"resolution": None, "aspect_ratio": None}})


def pooled_captions(size: int = 8, batch: int = BATCH, words: int = WORDS, width: int = 16) -> Call:
    """Latents with steps, captions and their summaries."""
    states = caption(width, batch, words)
    kwargs = {
        "encoder_hidden_states": states,
        "pooled_projections": torch.randn(batch, width),
        "timestep": steps(batch),
    }
    return Call((noisy(4, size, batch),), kwargs)


def packed_latents() -> Call:
    """Latents as a row of patches, with the place of each patch and word."""
    kwargs: dict[str, Any] = {
        "hidden_states": torch.randn(BATCH, 16, 4), "timestep": torch.rand(BATCH), "guidance": None,
        "pooled_projections": torch.randn(BATCH, 16), "encoder_hidden_states": caption(),
        "txt_ids": torch.zeros(WORDS, 3), "img_ids": torch.cartesian_prod(torch.zeros(1), *[torch.arange(4.0)] * 2),
    }  # fmt: skip
    return Call(kwargs=kwargs)


def autoencoding(size: int = 32, batch: int = BATCH) -> Call:
    """Pictures; the posterior is sampled, as it is in training."""
    return Call((torch.randn(batch, 3, size, size),), {"sample_posterior": True})


def diffusion(name: str, model: str, sizes: dict[str, Any], call: Callable[[], Call], *tags: str) -> Model:
    """An entry from the name of a model's class."""
    return Model(
        name=f"diffusers-{name}",
        factory=lambda: getattr(diffusers, model)(**sizes),
        call=call,
        loss=regressed,
        tags=frozenset(("diffusers", "vision", *tags)),
    )


MODELS = (
    diffusion("unet2d", "UNet2DModel", UNET | {
        "down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
    }, denoising(3, 16)),
    diffusion("unet2d-condition", "UNet2DConditionModel", CONDITIONED, captioned, "cross-attention"),
    diffusion("autoencoder-kl", "AutoencoderKL", AUTOENCODER, autoencoding, "random"),
    diffusion("dit", "DiTTransformer2DModel", DIT | {"norm_type": "ada_norm_zero"}, classes, "random"),
    diffusion("pixart", "PixArtTransformer2DModel", PIXART | {"norm_type": "ada_norm_single", "num_embeds_ada_norm": 1000},
              masked_captions, "padded", "cross-attention"),
    diffusion("sd3", "SD3Transformer2DModel", SD3, pooled_captions, "cross-attention"),
    diffusion("flux", "FluxTransformer2DModel", FLUX, packed_latents, "cross-attention"),
)  # fmt: skip
