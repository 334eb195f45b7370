# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read ``config.json`` of models with an encoder: BERT, ViT, T5 and Whisper."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tvm_distir.models.zoo.bert_model import BertConfig
from tvm_distir.models.zoo.configs import Config
from tvm_distir.models.zoo.t5_model import T5Config
from tvm_distir.models.zoo.vit_model import VitConfig
from tvm_distir.models.zoo.whisper_model import WhisperConfig

from .config_keys import ConfigKeys

_BERT_HEADS = {"BertForMaskedLM": "mlm", "BertForSequenceClassification": "classify"}


def _classes(reading: ConfigKeys) -> int:
    """Return the number of classes, which the labels count."""
    labels = reading.data.get("id2label")
    return len(labels) if isinstance(labels, Mapping) else int(reading.number("num_labels", 2))


def _bert(reading: ConfigKeys) -> BertConfig:
    """Read a BERT; its head is that of the class in ``architectures``, by default ``mlm``."""
    reading.require("hidden_act", "gelu")
    reading.require("position_embedding_type", "absolute")
    reading.require("is_decoder", False)
    reading.require("tie_word_embeddings", True)
    names = reading.data.get("architectures") or ["BertForMaskedLM"]
    head = next((_BERT_HEADS[name] for name in names if name in _BERT_HEADS), "mlm")
    positions = reading.number("max_position_embeddings", 512)
    return BertConfig(
        layers=reading.number("num_hidden_layers"),
        hidden=reading.number("hidden_size"),
        heads=reading.number("num_attention_heads"),
        ffn=reading.number("intermediate_size"),
        vocab=reading.number("vocab_size"),
        positions=positions,
        types=reading.number("type_vocab_size", 2),
        head=head,
        classes=_classes(reading),
        seq=min(512, positions),
        dtype=reading.dtype,
        eps=float(reading.number("layer_norm_eps", 1e-12)),
    )


def _vit(reading: ConfigKeys) -> VitConfig:
    reading.require("hidden_act", "gelu")
    reading.require("qkv_bias", True)
    return VitConfig(
        layers=reading.number("num_hidden_layers"),
        hidden=reading.number("hidden_size"),
        heads=reading.number("num_attention_heads"),
        ffn=reading.number("intermediate_size"),
        image=reading.number("image_size", 224),
        patch=reading.number("patch_size", 16),
        channels=reading.number("num_channels", 3),
        classes=_classes(reading),
        dtype=reading.dtype,
        eps=float(reading.number("layer_norm_eps", 1e-12)),
    )


def _t5(reading: ConfigKeys) -> T5Config:
    """Read a T5; without the key of version 5, results are scaled if embeddings are tied."""
    reading.get("is_gated_act"), reading.get("dense_act_fn")
    tied = reading.flag("tie_word_embeddings", True)
    layers = reading.number("num_layers")
    return T5Config(
        layers=layers,
        decoder_layers=reading.number("num_decoder_layers", layers),
        hidden=reading.number("d_model"),
        heads=reading.number("num_heads"),
        head_dim=reading.number("d_kv"),
        ffn=reading.number("d_ff"),
        vocab=reading.number("vocab_size"),
        buckets=reading.number("relative_attention_num_buckets", 32),
        distance=reading.number("relative_attention_max_distance", 128),
        feed_forward=str(reading.get("feed_forward_proj", "relu")),
        tied=tied,
        scaled=reading.flag("scale_decoder_outputs", bool(tied)),
        dtype=reading.dtype,
        eps=float(reading.number("layer_norm_epsilon", 1e-6)),
    )


def _whisper(reading: ConfigKeys) -> WhisperConfig:
    reading.require("activation_function", "gelu")
    reading.require("scale_embedding", False)
    reading.require("use_weighted_layer_sum", False)
    reading.require("tie_word_embeddings", True)
    reading.get("num_hidden_layers")
    positions = reading.number("max_target_positions", 448)
    return WhisperConfig(
        layers=reading.number("encoder_layers"),
        decoder_layers=reading.number("decoder_layers"),
        hidden=reading.number("d_model"),
        heads=reading.number("encoder_attention_heads"),
        decoder_heads=reading.number("decoder_attention_heads"),
        ffn=reading.number("encoder_ffn_dim"),
        decoder_ffn=reading.number("decoder_ffn_dim"),
        vocab=reading.number("vocab_size"),
        mels=reading.number("num_mel_bins", 80),
        frames=reading.number("max_source_positions", 1500),
        positions=positions,
        seq=positions,
        dtype=reading.dtype,
    )


ENCODERS: Mapping[str, Callable[[ConfigKeys], Config]] = {
    "bert": _bert,
    "t5": _t5,
    "vit": _vit,
    "whisper": _whisper,
}
"""The reader of each ``model_type``."""
