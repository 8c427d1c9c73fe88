"""Models of transformers that see, hear and forecast, called with what processors and feature extractors return."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tests.models import batches
from tests.models.model import Call
from tests.models.transformers_text import SPECIAL, hugging_face

TOWER = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
VIT = TOWER | {"image_size": 32, "patch_size": 8, "num_labels": batches.CLASSES}
SWIN = {
    "image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4,
    "num_labels": batches.CLASSES,
}  # fmt: skip
CONVNEXT = {
    "hidden_sizes": [8, 16, 16, 32],
    "depths": [1, 1, 1, 1],
    "num_labels": batches.CLASSES,
    "drop_path_rate": 0.1,
}
RESNET = {"embedding_size": 8, "hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1], "num_labels": batches.CLASSES}
SEGFORMER = {
    "depths": [1, 1, 1, 1], "hidden_sizes": [8, 8, 16, 16], "num_attention_heads": [1, 1, 2, 2], "decoder_hidden_size": 16,
    "num_labels": 5,
}  # fmt: skip
DETR = {
    "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_queries": 6, "num_labels": 5, "use_timm_backbone": False,
    "use_pretrained_backbone": False, "backbone": None,
    "backbone_config": {
        "model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1],
        "out_features": ["stage4"],
    },
}  # fmt: skip
CLIP = {
    "text_config": TOWER | {"vocab_size": batches.VOCABULARY, "max_position_embeddings": 32} | SPECIAL,
    "vision_config": TOWER | {"image_size": 32, "patch_size": 8},
    "projection_dim": 16,
}
SPEECH = TOWER | {
    "vocab_size": 32, "conv_dim": [16, 16, 16], "conv_stride": [5, 4, 2], "conv_kernel": [10, 4, 3],
    "num_feat_extract_layers": 3, "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2,
    "mask_time_length": 4, "pad_token_id": 0,
}  # fmt: skip
WHISPER = {
    "vocab_size": batches.VOCABULARY, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_mel_bins": 20,
    "max_source_positions": 32, "max_target_positions": 24, "decoder_start_token_id": 1, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
PATCHTST = {
    "num_input_channels": 3, "context_length": 32, "prediction_length": 8, "patch_length": 8, "patch_stride": 8,
    "d_model": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 64,
}  # fmt: skip
SERIES = {
    "prediction_length": 6, "context_length": 12, "lags_sequence": [1, 2, 3], "num_time_features": 2, "d_model": 16,
    "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32, "decoder_ffn_dim": 32,
}  # fmt: skip


def contrastive() -> Call:
    """Pictures and their padded texts, each text with its end; the model is asked for its loss."""
    text = batches.text()
    text["input_ids"][torch.arange(4), text["attention_mask"].sum(1) - 1] = 2
    return Call(kwargs=text | {"pixel_values": batches.pictures(), "return_loss": True})


def segmentation() -> Call:
    """Pictures with a class for each pixel."""
    return Call(kwargs={"pixel_values": batches.pictures(64, 2), "labels": torch.randint(5, (2, 64, 64))})


def detection() -> Call:
    """Pictures of different sizes, padded, with the boxes and classes of the objects on each."""
    mask = torch.ones(2, 64, 64, dtype=torch.long)
    mask[1, :, 48:] = 0
    boxes = torch.tensor([[0.5, 0.5, 0.2, 0.2], [0.3, 0.4, 0.2, 0.3]])
    labels = [
        {"class_labels": torch.tensor([1, 2]), "boxes": boxes},
        {"class_labels": torch.tensor([3]), "boxes": boxes[:1]},
    ]
    return Call(kwargs={"pixel_values": batches.pictures(64, 2), "pixel_mask": mask, "labels": labels})


def unlabelled_detection() -> Call:
    """The same pictures without their objects: the loss is computed outside."""
    kwargs = detection().kwargs
    del kwargs["labels"]
    return Call(kwargs=kwargs)


def query_loss(out: Any) -> Tensor:
    """Every query to a fixed class and box: a criterion of one's own with a fixed assignment."""
    classes = torch.arange(out.logits[..., 0].numel()).view(out.logits.shape[:-1]) % out.logits.shape[-1]
    return nn.functional.cross_entropy(out.logits.mT, classes) + (out.pred_boxes - 0.5).abs().mean()


def dictation() -> Call:
    """Spectra of speech with padded texts as labels."""
    return Call(kwargs={"input_features": torch.randn(3, 20, 64), "labels": batches.translation().kwargs["labels"][:3]})


def sound_classification() -> Call:
    """Spectra of sounds with a class each."""
    return Call(kwargs={"input_values": torch.randn(3, 32, 16), "labels": torch.arange(3)})


def forecast() -> Call:
    """Windows of series with what comes after them."""
    return Call(kwargs={"past_values": torch.randn(4, 32, 3), "future_values": torch.randn(4, 8, 3)})


def lagged_forecast() -> Call:
    """Windows of series, with dates as features and gaps in what was observed."""
    past = 15
    return Call(
        kwargs={
            "past_values": torch.randn(4, past),
            "past_time_features": torch.randn(4, past, 2),
            "past_observed_mask": (torch.rand(4, past) < 0.9).float(),
            "future_values": torch.randn(4, 6),
            "future_time_features": torch.randn(4, 6, 2),
        }
    )


big_pictures = partial(batches.picture_classification, 64, 2)

VISION = (
    hugging_face("vit", "ViTForImageClassification", "ViTConfig", VIT, batches.picture_classification, "vision"),
    hugging_face("dinov2", "Dinov2ForImageClassification", "Dinov2Config", VIT, batches.picture_classification, "vision"),
    hugging_face("swin", "SwinForImageClassification", "SwinConfig", SWIN, batches.picture_classification, "vision", "drop-path"),
    hugging_face("convnext", "ConvNextForImageClassification", "ConvNextConfig", CONVNEXT, big_pictures, "vision", "drop-path"),
    hugging_face("resnet", "ResNetForImageClassification", "ResNetConfig", RESNET, big_pictures, "vision", "batch-norm"),
    hugging_face(
        "segformer", "SegformerForSemanticSegmentation", "SegformerConfig", SEGFORMER, segmentation, "vision", "batch-norm",
        "drop-path",
    ),
    hugging_face(
        "detr", "DetrForObjectDetection", "DetrConfig", DETR, detection, "vision", "padded", "data-dependent",
        types=(torch.float32,),
    ),
    hugging_face(
        "detr-own-loss", "DetrForObjectDetection", "DetrConfig", DETR, unlabelled_detection, "vision", "padded",
        loss=query_loss,
    ),
    hugging_face("clip", "CLIPModel", "CLIPConfig", CLIP, contrastive, "vision", "text", "padded"),
)  # fmt: skip

AUDIO = (
    hugging_face(
        "wav2vec2", "Wav2Vec2ForCTC", "Wav2Vec2Config", SPEECH, batches.transcription, "audio", "padded",
        "python-random", "data-dependent",
    ),
    hugging_face(
        "hubert", "HubertForCTC", "HubertConfig", SPEECH, batches.transcription, "audio", "padded", "python-random",
        "data-dependent",
    ),
    hugging_face("whisper", "WhisperForConditionalGeneration", "WhisperConfig", WHISPER, dictation, "audio", "seq2seq", "cache"),
    hugging_face(
        "ast", "ASTForAudioClassification", "ASTConfig",
        TOWER | {"patch_size": 8, "frequency_stride": 8, "time_stride": 8, "max_length": 32, "num_mel_bins": 16, "num_labels": 4},
        sound_classification, "audio",
    ),
)  # fmt: skip

SERIES_MODELS = (
    hugging_face("patchtst", "PatchTSTForPrediction", "PatchTSTConfig", PATCHTST, forecast, "series", "batch-norm"),
    hugging_face(
        "time-series-transformer", "TimeSeriesTransformerForPrediction", "TimeSeriesTransformerConfig", SERIES,
        lagged_forecast, "series", "cache",
    ),
)  # fmt: skip

MODELS = (*VISION, *AUDIO, *SERIES_MODELS)
