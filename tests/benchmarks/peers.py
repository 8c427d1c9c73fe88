"""What others do to a training step that is too large, and the models it is done to: the rows of `make bench-peers`.

A method takes a module and gives one that holds less. The layers that are checkpointed are those that a user would name: the
repeated blocks of the model.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from attrs import field, frozen
from torch import Tensor, nn
from torch._dynamo.backends.debugging import aot_eager_decomp_partition
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from remat.zoo import GPT2, ResNet, UNet
from remat.zoo.mixer import Mixer
from remat.zoo.seq2seq import Seq2Seq

Layers = Callable[[nn.Module], Iterable[nn.Module]]


def itself(out: Any) -> Tensor:
    """The loss of a model that returns it."""
    return getattr(out, "loss", out)


@frozen(kw_only=True)
class Case:
    """A model of the table.

    Attributes:
        build: the module, in training mode, from the global generator of torch.
        call: the arguments of one step, by name.
        layers: what a user checkpoints.
        loss: from what the module returns.
    """

    build: Callable[[], nn.Module]
    call: Callable[[], dict[str, Any]]
    layers: Layers
    loss: Callable[[Any], Tensor] = field(default=itself)


# -- models ------------------------------------------------------------------------------------------------------------


def _bert() -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(
        BertConfig(
            vocab_size=512, hidden_size=192, num_hidden_layers=6, num_attention_heads=6, intermediate_size=768,
            max_position_embeddings=128,
        )
    )  # fmt: skip


def _padded() -> dict[str, Any]:
    tokens, mask = torch.randint(512, (4, 96)), torch.ones(4, 96, dtype=torch.long)
    mask[1, 64:] = 0
    return {"input_ids": tokens, "attention_mask": mask, "labels": tokens}


def _llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=512, hidden_size=192, num_hidden_layers=6, num_attention_heads=6, num_key_value_heads=2,
            intermediate_size=512, max_position_embeddings=128, attention_dropout=0.1, use_cache=False,
        )
    )  # fmt: skip


def _t5() -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    return T5ForConditionalGeneration(
        T5Config(
            vocab_size=512, d_model=128, d_kv=32, d_ff=512, num_layers=4, num_heads=4, use_cache=False,
            decoder_start_token_id=0, pad_token_id=0, eos_token_id=1,
        )
    )  # fmt: skip


def _vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(
        ViTConfig(
            hidden_size=192, num_hidden_layers=6, num_attention_heads=6, intermediate_size=768, image_size=96, patch_size=8,
            hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1, num_labels=10,
        )
    )  # fmt: skip


def _diffusion() -> nn.Module:
    from diffusers import UNet2DModel

    return UNet2DModel(
        sample_size=32, in_channels=3, out_channels=3, block_out_channels=(32, 64, 64), norm_num_groups=8, layers_per_block=2,
        down_block_types=("DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D"), attention_head_dim=8,
    )  # fmt: skip


class GraphNet(nn.Module):
    """Messages along edges, added up at their ends; node classes as the loss."""

    def __init__(self, *, layers: int = 8, width: int = 64, dropout: float = 0.1) -> None:
        super().__init__()
        self.first = nn.Linear(16, width)
        self.layers = nn.ModuleList(MessagePassing(width, dropout) for _ in range(layers))
        self.head = nn.Linear(width, 8)

    def forward(self, x: Tensor, edges: Tensor, labels: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x, edges)
        return nn.functional.cross_entropy(self.head(x), labels)


class MessagePassing(nn.Module):
    """A message of both ends along each edge, the sum at its end, a residual."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.message = nn.Sequential(nn.Linear(2 * width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.norm, self.dropout = nn.LayerNorm(width), nn.Dropout(dropout)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        begin, end = edges
        sent = self.message(torch.cat((x[begin], x[end]), -1))
        return self.norm(x + self.dropout(torch.zeros_like(x).index_add(0, end, sent)))


def _tokens(*shape: int, words: int = 256) -> Tensor:
    return torch.randint(words, shape)


CASES = {
    "gpt2": Case(
        build=lambda: GPT2(layers=8, width=192, heads=6),
        call=lambda: {"tokens": _tokens(4, 128), "targets": _tokens(4, 128)},
        layers=lambda module: module.blocks,
    ),
    "bert": Case(build=_bert, call=_padded, layers=lambda module: module.bert.encoder.layer),
    "llama": Case(build=_llama, call=_padded, layers=lambda module: module.model.layers),
    "t5": Case(build=_t5, call=_padded, layers=lambda module: (*module.encoder.block, *module.decoder.block)),
    "vit": Case(
        build=_vit,
        call=lambda: {"pixel_values": torch.randn(4, 3, 96, 96), "labels": _tokens(4, words=10)},
        layers=lambda module: _named(module, "ViTLayer"),
    ),
    "resnet50": Case(
        build=lambda: ResNet(width=32),
        call=lambda: {"images": torch.randn(8, 3, 96, 96), "labels": _tokens(8, words=100)},
        layers=lambda module: _named(module, "Bottleneck"),
    ),
    "unet": Case(
        build=lambda: UNet(channels=16),
        call=lambda: {"images": torch.randn(4, 3, 96, 96), "masks": torch.randn(4, 1, 96, 96)},
        layers=lambda module: (*module.down, module.bottom, *module.merge),
    ),
    "mixer": Case(
        build=lambda: Mixer(layers=8, width=192, patch=8, image=96, classes=10, dropout=0.1),
        call=lambda: {"images": torch.randn(4, 3, 96, 96), "labels": _tokens(4, words=10)},
        layers=lambda module: module.blocks,
    ),
    "encoder-decoder": Case(
        build=lambda: Seq2Seq(layers=4, width=192, heads=6, vocabulary=256, context=96),
        call=lambda: {"source": _tokens(4, 96), "target": _tokens(4, 96), "labels": _tokens(4, 96)},
        layers=lambda module: (*module.encoder, *module.decoder),
    ),
    "diffusion-unet": Case(
        build=_diffusion,
        call=lambda: {"sample": torch.randn(4, 3, 32, 32), "timestep": torch.tensor([10, 200, 500, 900])},
        layers=lambda module: _named(module, "ResnetBlock2D"),
        loss=lambda out: out.sample.square().mean(),
    ),
    "graph-net": Case(
        build=GraphNet,
        call=lambda: {
            "x": torch.randn(1000, 16), "edges": _tokens(2, 4000, words=1000), "labels": _tokens(1000, words=8),
        },
        layers=lambda module: module.layers,
    ),
}  # fmt: skip


def _named(module: nn.Module, kind: str) -> list[nn.Module]:
    """The inner modules of a class, by its name."""
    found = [inner for inner in module.modules() if type(inner).__name__ == kind]
    assert found, f"no {kind} inside"
    return found


# -- methods -----------------------------------------------------------------------------------------------------------


def per_layer(module: nn.Module, layers: Layers) -> nn.Module:
    """`torch.utils.checkpoint`, not reentrant, around each layer: by the package's own switch where it has one."""
    if hasattr(module, "gradient_checkpointing_enable"):  # transformers
        module.gradient_checkpointing_enable({"use_reentrant": False})
    elif hasattr(module, "enable_gradient_checkpointing"):  # diffusers
        module.enable_gradient_checkpointing()
    else:
        for layer in layers(module):
            layer.forward = functools.partial(checkpoint, layer.forward, use_reentrant=False)
    return module


SAVED = (
    torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm, torch.ops.aten.convolution,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu,
)  # fmt: skip
"""Selective checkpointing keeps what is dear to compute, as its tutorial does."""


def selective(module: nn.Module, layers: Layers) -> nn.Module:
    """Selective activation checkpointing around each layer: products and convolutions are kept, all else is run again."""
    contexts = functools.partial(create_selective_checkpoint_contexts, _policy)
    for layer in layers(module):
        layer.forward = functools.partial(checkpoint, layer.forward, use_reentrant=False, context_fn=contexts)
    return module


def _policy(_context: Any, operation: Any, *_: Any, **__: Any) -> CheckpointPolicy:
    kept = getattr(operation, "overloadpacket", operation) in SAVED
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def partitioned(module: nn.Module, budget: float) -> nn.Module:
    """AOTAutograd's min-cut partition and its knapsack over activations, run by eager's own kernels.

    Args:
        module: to be compiled at its first call.
        budget: of `activation_memory_budget`, between the inputs alone (0) and what the min-cut keeps (1).
    """

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        with torch._functorch.config.patch(activation_memory_budget=budget):
            return aot_eager_decomp_partition(graph, inputs)

    return torch.compile(module, backend=backend)
