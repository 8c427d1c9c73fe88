"""Small models and texts for the scripts: what a language-model user has, made here without a download."""

from __future__ import annotations

import torch
from torch import nn

WORDS = 96
LENGTH = 32


def tokenizer():
    """A tokenizer of numbered words, with padding."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: at for at, word in enumerate(["<pad>", "<end>", *(f"w{at}" for at in range(WORDS))])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="<end>", model_max_length=LENGTH
    )


def texts(count=32):
    """Texts of different lengths, the longest of `LENGTH` words."""
    generator = torch.Generator().manual_seed(0)

    def text(words):
        return " ".join(f"w{at}" for at in torch.randint(WORDS, (words,), generator=generator).tolist())

    return [text(LENGTH if at % 4 == 0 else 8 + at % 16) for at in range(count)]


def gpt2(seed=0):
    """A GPT-2 of two layers, dropout as by default."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(seed)
    config = GPT2Config(n_layer=2, n_embd=48, n_head=2, vocab_size=WORDS + 2, n_positions=LENGTH)
    return GPT2LMHeadModel(config)


class Classifier(nn.Module):
    """A net that returns scores; its loss is outside."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        layers = [layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1))]
        self.body = nn.Sequential(*layers, nn.Linear(64, 10))

    def forward(self, x):
        return self.body(x)


def pictures(count=256):
    """Inputs and classes."""
    generator = torch.Generator().manual_seed(0)
    return torch.utils.data.TensorDataset(
        torch.randn(count, 64, generator=generator), torch.randint(10, (count,), generator=generator)
    )
