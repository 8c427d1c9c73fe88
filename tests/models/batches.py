"""Training calls as tokenizers, image processors and feature extractors make them, small; drawn from torch's generator."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.models.model import Call

VOCABULARY = 96
LENGTHS = (16, 11, 14, 7)
"""Tokens of each text of a padded batch; all are padded to the longest, on the right."""
IGNORED = -100
"""The label that Hugging Face's losses leave out."""
PAD = 0
CLASSES = 10


def tokens(batch: int = len(LENGTHS), length: int = max(LENGTHS)) -> Tensor:
    """Ids of a batch; none is special (0 to 4 stay free for padding, begin, end and the like)."""
    return torch.randint(5, VOCABULARY, (batch, length))


def mask_of(padded: bool) -> Tensor:
    """A tokenizer's attention mask: 1 for tokens, 0 for padding; all ones for texts of one length."""
    lengths = torch.tensor(LENGTHS if padded else (max(LENGTHS),) * len(LENGTHS))
    return (torch.arange(max(LENGTHS)) < lengths[:, None]).long()


def text(padded: bool = True) -> dict[str, Tensor]:
    """What a tokenizer returns."""
    mask = mask_of(padded)
    return {"input_ids": tokens().masked_fill(mask == 0, PAD), "attention_mask": mask}


def language_modelling(padded: bool = True) -> Call:
    """Text with itself as labels, padding left out: a collator's batch for causal models."""
    batch = text(padded)
    return Call(kwargs=batch | {"labels": batch["input_ids"].masked_fill(batch["attention_mask"] == 0, IGNORED)})


def masked_language_modelling(padded: bool = True) -> Call:
    """Text with every fourth token to predict."""
    batch = text(padded)
    chosen = (torch.rand(batch["input_ids"].shape) < 0.25) & (batch["attention_mask"] == 1)
    chosen[:, 0] = True
    labels = batch["input_ids"].masked_fill(~chosen, IGNORED)
    return Call(kwargs=batch | {"input_ids": batch["input_ids"].masked_fill(chosen, 4), "labels": labels})


def text_classification(padded: bool = True) -> Call:
    """Text with a class each."""
    batch = text(padded)
    return Call(kwargs=batch | {"labels": torch.arange(len(LENGTHS)) % 2})


def question_answering(padded: bool = True) -> Call:
    """Text with the begin and end of an answer each."""
    places = torch.arange(len(LENGTHS))
    return Call(kwargs=text(padded) | {"start_positions": places, "end_positions": places + 2})


def translation(padded: bool = True) -> Call:
    """Text with a shorter text as labels: a collator's batch for encoder-decoders."""
    labels = tokens(length=10)
    if padded:
        labels[1, 7:] = IGNORED
        labels[3, 5:] = IGNORED
    return Call(kwargs=text(padded) | {"labels": labels})


def pictures(size: int = 32, batch: int = 4) -> Tensor:
    """Normalized pictures."""
    return torch.randn(batch, 3, size, size)


def picture_classification(size: int = 32, batch: int = 4) -> Call:
    """Pictures with a class each, as Hugging Face's models take them."""
    return Call(kwargs={"pixel_values": pictures(size, batch), "labels": torch.arange(batch) % CLASSES})


def picture(size: int = 32, batch: int = 4) -> Call:
    """Pictures alone, as timm's and torchvision's models take them."""
    return Call((pictures(size, batch),))


def speech(batch: int = 3, samples: int = 1600) -> dict[str, Any]:
    """What a feature extractor returns for waves of different lengths."""
    lengths = torch.tensor([samples - 300 * at for at in range(batch)])
    mask = (torch.arange(samples) < lengths[:, None]).long()
    return {"input_values": torch.randn(batch, samples) * mask, "attention_mask": mask}


def transcription() -> Call:
    """Speech with texts of different lengths as labels, for CTC."""
    labels = torch.randint(5, 32, (3, 4))
    labels[1, 3:] = IGNORED
    return Call(kwargs=speech() | {"labels": labels})
