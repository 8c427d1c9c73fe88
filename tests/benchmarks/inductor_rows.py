"""The rows of `bench_peers --inductor`: Inductor as it is, with a budget of activations, and with our plan inside, at one peak.

The models are small: every row compiles its kernels anew. Inductor draws its own random numbers, so its rows with a budget are
judged against Inductor without one, which draws the same; ours draws what eager draws, and is judged against the bare module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import remat.exec
from remat.integrations.compile_backend import backend, regions
from remat.zoo import GPT2, UNet
from tests.benchmarks.peers import Case

BUDGETS = (0.5,)
OURS = "remat, Inductor"
WITHOUT = "Inductor"


def _bert() -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(
        BertConfig(
            vocab_size=256, hidden_size=128, num_hidden_layers=3, num_attention_heads=4, intermediate_size=512,
            max_position_embeddings=64, attn_implementation="eager",
        )
    )  # fmt: skip


def _resnet18() -> nn.Module:
    from transformers import ResNetConfig, ResNetForImageClassification

    return ResNetForImageClassification(
        ResNetConfig(
            embedding_size=16, hidden_sizes=[16, 32, 64, 128], depths=[2, 2, 2, 2], layer_type="basic", num_labels=10,
        )
    )  # fmt: skip


def _tokens(*shape: int) -> torch.Tensor:
    return torch.randint(256, shape)


def _none(_module: nn.Module) -> tuple[nn.Module, ...]:
    return ()


CASES = {
    "gpt2": Case(
        build=lambda: GPT2(layers=4, width=128, heads=4, context=64),
        call=lambda: {"tokens": _tokens(4, 64), "targets": _tokens(4, 64)},
        layers=_none,
    ),
    "bert": Case(
        build=_bert, call=lambda: {"input_ids": (tokens := _tokens(4, 64)), "labels": tokens}, layers=_none
    ),
    "unet": Case(
        build=lambda: UNet(channels=8),
        call=lambda: {"images": torch.randn(2, 3, 64, 64), "masks": torch.randn(2, 1, 64, 64)},
        layers=_none,
    ),
    "resnet18": Case(
        build=_resnet18,
        call=lambda: {"pixel_values": torch.randn(4, 3, 64, 64), "labels": torch.randint(10, (4,))},
        layers=_none,
    ),
}  # fmt: skip


def by_inductor(module: nn.Module, budget: float = 1.0) -> nn.Module:
    """A module that Inductor compiles at its first call, with a value of `activation_memory_budget`."""

    def compile_fx(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        with torch._functorch.config.patch(activation_memory_budget=budget):
            return torch._inductor.compile(graph, inputs)

    return torch.compile(module, backend=compile_fx)


def ours(module: nn.Module, budget: int, seconds: float, inner: str) -> nn.Module:
    """A module behind the door."""
    options = {"budget": budget, "inner": inner, "seconds": seconds, "on_uncapturable": "raise"}
    return torch.compile(module, backend=backend, options=options)


def facts_of_ours(budget: int) -> dict[str, Any]:
    """What the report says of the region that was compiled last."""
    report = remat.exec.report(regions()[-1])
    return {"asked": budget, "budget": report.budget, "predicted": report.predicted_peak, "trials": report.inner}
