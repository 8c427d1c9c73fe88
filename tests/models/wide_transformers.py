"""The wide zoo: architectures of transformers, large enough that activations decide the peak."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from tests.models.model import Call, classified
from tests.models.transformers_text import hugging_face

WORDS = 8192
SIZES = {
    "vocab_size": WORDS, "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 8,
    "max_position_embeddings": 512,
}  # fmt: skip
GROUPED = SIZES | {"num_key_value_heads": 2, "head_dim": 64, "use_cache": False}
T5 = {
    "vocab_size": WORDS, "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 4, "num_heads": 8, "use_cache": False,
    "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1,
}  # fmt: skip
MAMBA = {"vocab_size": WORDS, "hidden_size": 256, "num_hidden_layers": 2, "state_size": 8, "use_cache": False}
SEGFORMER = {"depths": [2, 2, 2, 2], "hidden_sizes": [32, 64, 160, 256], "decoder_hidden_size": 256, "num_labels": 20}
TOWER = {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 6, "num_attention_heads": 6}
CLIP = {
    "text_config": TOWER | {"vocab_size": WORDS, "max_position_embeddings": 64},
    "vision_config": TOWER | {"image_size": 128, "patch_size": 16},
    "projection_dim": 256,
}
VIT = TOWER | {"image_size": 128, "num_labels": 20}
DEBERTA = SIZES | {
    "num_hidden_layers": 6, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 64,
}  # fmt: skip
SPEECH = TOWER | {"vocab_size": 32, "num_conv_pos_embedding_groups": 16, "mask_time_prob": 0.0, "layerdrop": 0.0}


def labelled(batch: int, length: int) -> Callable[[], Call]:
    """Texts of one length with labels of their own length."""

    def call() -> Call:
        ids = torch.randint(WORDS, (batch, length))
        return Call(kwargs={"input_ids": ids, "labels": torch.randint(WORDS, (batch, length))})

    return call


def classed(batch: int, length: int) -> Call:
    """Texts of one length; the loss is outside."""
    ids, mask = torch.randint(WORDS, (batch, length)), torch.ones(batch, length, dtype=torch.long)
    return Call(kwargs={"input_ids": ids, "attention_mask": mask, "return_dict": False})


def captioned() -> Call:
    """Pictures with captions; the loss compares all pairs."""
    pictures, ids = torch.randn(64, 3, 128, 128), torch.randint(WORDS, (64, 64))
    return Call(kwargs={"input_ids": ids, "pixel_values": pictures, "return_loss": True})


def segmented() -> Call:
    """Pictures with a class for each pixel."""
    return Call(kwargs={"pixel_values": torch.randn(8, 3, 256, 256), "labels": torch.randint(20, (8, 256, 256))})


def seen() -> Call:
    """Pictures with a class each."""
    return Call(kwargs={"pixel_values": torch.randn(32, 3, 128, 128), "labels": torch.randint(20, (32,))})


def spoken() -> Call:
    """Waves with a class each."""
    return Call(kwargs={"input_values": torch.randn(8, 32000), "labels": torch.randint(2, (8,))})


MODELS = (
    hugging_face("bert", "BertForMaskedLM", "BertConfig", SIZES, labelled(16, 256), "encoder", "tied"),
    hugging_face("t5", "T5ForConditionalGeneration", "T5Config", T5, labelled(16, 192), "seq2seq", "tied"),
    hugging_face("llama", "LlamaForCausalLM", "LlamaConfig", GROUPED, labelled(8, 256), "causal"),
    hugging_face("mixtral", "MixtralForCausalLM", "MixtralConfig", GROUPED | {"num_local_experts": 4, "num_hidden_layers": 4},
                 labelled(32, 256), "causal", "experts"),
    hugging_face("mamba", "MambaForCausalLM", "MambaConfig", MAMBA, labelled(32, 32), "state-space", "recurrent"),
    hugging_face("mamba2", "Mamba2ForCausalLM", "Mamba2Config",
                 MAMBA | {"num_heads": 8, "head_dim": 64, "state_size": 32, "chunk_size": 64, "n_groups": 1}, labelled(8, 256),
                 "state-space"),
    hugging_face("deberta-v2", "DebertaV2ForSequenceClassification", "DebertaV2Config",
                 DEBERTA,
                 partial(classed, 8, 256), "encoder", loss=classified),
    hugging_face("clip", "CLIPModel", "CLIPConfig", CLIP, captioned, "two-tower"),
    hugging_face("segformer", "SegformerForSemanticSegmentation", "SegformerConfig", SEGFORMER, segmented, "vision", "u-shaped"),
    hugging_face("wav2vec2", "Wav2Vec2ForSequenceClassification", "Wav2Vec2Config", SPEECH, spoken, "speech"),
    hugging_face("vit-msn", "ViTMSNForImageClassification", "ViTMSNConfig", VIT, seen, "vision"),
)  # fmt: skip
