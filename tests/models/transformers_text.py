"""Models of transformers that read text, called with what a tokenizer and a collator return: masks, labels, default caches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import transformers

from tests.models import batches
from tests.models.model import TYPES, Call, Loss, Model, returned_loss

SIZES = {
    "vocab_size": batches.VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
"""The names that most configurations have for their sizes; where one has others, its entry says them."""
SPECIAL = {"pad_token_id": batches.PAD, "bos_token_id": 1, "eos_token_id": 2}
GROUPED = SIZES | SPECIAL | {"num_key_value_heads": 2, "head_dim": 8}
"""Decoders with fewer heads for keys and values than for queries."""


def hugging_face(
    name: str,
    model: str,
    config: str,
    sizes: dict[str, Any],
    call: Callable[[], Call],
    *tags: str,
    loss: Loss = returned_loss,
    types: tuple[torch.dtype, ...] = TYPES,
) -> Model:
    """An entry from the names of a model's class and its configuration's."""
    return Model(
        name=f"hf-{name}",
        factory=lambda: getattr(transformers, model)(getattr(transformers, config)(**sizes)),
        call=call,
        loss=loss,
        tags=frozenset(("transformers", *tags)),
        types=types,
    )


def causal(name: str, model: str, config: str, sizes: dict[str, Any], *tags: str) -> Model:
    """A decoder that learns to continue padded text, its cache as it is by default."""
    return hugging_face(name, model, config, sizes, batches.language_modelling, "causal", "padded", "cache", *tags)


def causal_unpadded(name: str, model: str, config: str, sizes: dict[str, Any], *tags: str) -> Model:
    """The same with texts of one length: the mask is all ones."""
    call = partial(batches.language_modelling, padded=False)
    return hugging_face(f"{name}-unpadded", model, config, sizes, call, "causal", "cache", *tags)


def masked(name: str, model: str, config: str, sizes: dict[str, Any], *tags: str) -> Model:
    """An encoder that learns to fill gaps in padded text."""
    return hugging_face(name, model, config, sizes, batches.masked_language_modelling, "encoder", "padded", *tags)


def classifier(name: str, model: str, config: str, sizes: dict[str, Any], *tags: str) -> Model:
    """An encoder that learns classes of padded texts."""
    return hugging_face(name, model, config, sizes, batches.text_classification, "encoder", "padded", *tags)


def translator(name: str, model: str, config: str, sizes: dict[str, Any], *tags: str) -> Model:
    """An encoder-decoder that learns from padded pairs, its cache as it is by default."""
    return hugging_face(name, model, config, sizes, batches.translation, "seq2seq", "padded", "cache", *tags)


GPT2 = {"vocab_size": batches.VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64} | SPECIAL
MIXTRAL = GROUPED | {"num_local_experts": 4}
BART = {
    "vocab_size": batches.VOCABULARY, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 64,
    "decoder_start_token_id": 2, "forced_eos_token_id": 2, **SPECIAL,
}  # fmt: skip
T5 = {
    "vocab_size": batches.VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4,
    "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1,
}  # fmt: skip

CAUSAL = (
    causal("gpt2", "GPT2LMHeadModel", "GPT2Config", GPT2, "tied"),
    causal_unpadded("gpt2", "GPT2LMHeadModel", "GPT2Config", GPT2, "tied"),
    causal("llama", "LlamaForCausalLM", "LlamaConfig", GROUPED),
    causal_unpadded("llama", "LlamaForCausalLM", "LlamaConfig", GROUPED),
    causal("mistral", "MistralForCausalLM", "MistralConfig", GROUPED | {"sliding_window": 8}),
    causal("qwen2", "Qwen2ForCausalLM", "Qwen2Config", GROUPED),
    causal_unpadded("qwen3", "Qwen3ForCausalLM", "Qwen3Config", GROUPED),
    causal("gemma", "GemmaForCausalLM", "GemmaConfig", GROUPED, "tied"),
    causal("gemma2", "Gemma2ForCausalLM", "Gemma2Config", GROUPED, "tied"),
    hugging_face(
        "mixtral", "MixtralForCausalLM", "MixtralConfig", MIXTRAL, batches.language_modelling, "causal", "padded", "cache",
        "experts", types=(torch.float32, torch.bfloat16),
    ),
    causal(
        "mixtral-eager", "MixtralForCausalLM", "MixtralConfig", MIXTRAL | {"experts_implementation": "eager"}, "experts",
        "data-dependent",
    ),
    causal(
        "opt", "OPTForCausalLM", "OPTConfig", SIZES | SPECIAL | {"ffn_dim": 64, "word_embed_proj_dim": 32}, "tied"
    ),
    causal("gpt-neox", "GPTNeoXForCausalLM", "GPTNeoXConfig", SIZES | SPECIAL),
    causal("falcon", "FalconForCausalLM", "FalconConfig", SIZES | SPECIAL, "tied"),
    causal("phi", "PhiForCausalLM", "PhiConfig", SIZES | SPECIAL),
    causal(
        "bloom", "BloomForCausalLM", "BloomConfig",
        {"vocab_size": batches.VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 4} | SPECIAL, "tied",
    ),
    causal_unpadded(
        "rwkv", "RwkvForCausalLM", "RwkvConfig",
        {"vocab_size": batches.VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "context_length": 64},
        "recurrent",
    ),
    causal(
        "mamba", "MambaForCausalLM", "MambaConfig",
        {"vocab_size": batches.VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4, **SPECIAL},
        "recurrent", "tied",
    ),
)  # fmt: skip

XLNET = {"vocab_size": batches.VOCABULARY, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64} | SPECIAL
DISTILBERT = {"vocab_size": batches.VOCABULARY, "dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 4}
LONGFORMER = SIZES | SPECIAL | {"attention_window": 8}

ENCODERS = (
    masked("bert", "BertForMaskedLM", "BertConfig", SIZES, "tied"),
    hugging_face(
        "bert-unpadded", "BertForSequenceClassification", "BertConfig", SIZES,
        partial(batches.text_classification, padded=False), "encoder",
    ),
    masked("roberta", "RobertaForMaskedLM", "RobertaConfig", SIZES | SPECIAL | {"max_position_embeddings": 66}, "tied"),
    classifier("distilbert", "DistilBertForSequenceClassification", "DistilBertConfig", DISTILBERT),
    masked("albert", "AlbertForMaskedLM", "AlbertConfig", SIZES | {"embedding_size": 16}, "tied", "shared"),
    classifier("electra", "ElectraForSequenceClassification", "ElectraConfig", SIZES | {"embedding_size": 16}),
    classifier("deberta", "DebertaForSequenceClassification", "DebertaConfig", SIZES),
    classifier(
        "deberta-v2", "DebertaV2ForSequenceClassification", "DebertaV2Config",
        SIZES | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8},
    ),
    classifier("xlnet", "XLNetForSequenceClassification", "XLNetConfig", XLNET),
    hugging_face(
        "longformer", "LongformerForSequenceClassification", "LongformerConfig", LONGFORMER,
        batches.text_classification, "encoder", "padded", "data-dependent",
    ),
    masked("modernbert", "ModernBertForMaskedLM", "ModernBertConfig", SIZES | SPECIAL | {"cls_token_id": 1, "sep_token_id": 2}),
    hugging_face(
        "funnel", "FunnelForQuestionAnswering", "FunnelConfig",
        {"vocab_size": batches.VOCABULARY, "block_sizes": [1, 1], "d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 64},
        batches.question_answering, "encoder", "padded",
    ),
)  # fmt: skip

SEQ2SEQ = (
    translator("t5", "T5ForConditionalGeneration", "T5Config", T5, "tied"),
    translator("bart", "BartForConditionalGeneration", "BartConfig", BART, "tied"),
    translator("marian", "MarianMTModel", "MarianConfig", BART, "tied"),
)

MODELS = (*CAUSAL, *ENCODERS, *SEQ2SEQ)
