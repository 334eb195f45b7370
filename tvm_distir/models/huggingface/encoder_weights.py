# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Rename weights of BERT, ViT, T5 and Whisper to those of the zoo's models.

Checkpoints have the names of the version of ``transformers`` that wrote them; ViT has two sets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tvm_distir.models.zoo.bert_model import BertConfig
from tvm_distir.models.zoo.configs import Config
from tvm_distir.models.zoo.t5_model import T5Config
from tvm_distir.models.zoo.vit_model import VitConfig
from tvm_distir.models.zoo.whisper_model import WhisperConfig
from tvm_distir.support import ModelError

Array = npt.NDArray[Any]

_PROJECTIONS = {"query": "q_proj", "key": "k_proj", "value": "v_proj"}
_T5_PROJECTIONS = {name: f"{name}_proj" for name in "qkvo"}
_T5_BLOCK = {"wi": "up_proj", "wi_0": "gate_proj", "wi_1": "up_proj", "wo": "down_proj"}
_ATTENTIONS = {"SelfAttention": "self_attn", "EncDecAttention": "cross_attn"}

Renaming = tuple[str, Any]
"""A pattern of a whole name, and the name: a template, a function of the match, or None for a
tensor that another one is, or that nothing reads."""

_BERT: tuple[Renaming, ...] = (
    (r"bert\.embeddings\.word_embeddings\.(\w+)", r"embeddings.tokens.\1"),
    (r"bert\.embeddings\.position_embeddings\.(\w+)", r"embeddings.positions.\1"),
    (r"bert\.embeddings\.token_type_embeddings\.(\w+)", r"embeddings.types.\1"),
    (r"bert\.embeddings\.LayerNorm\.(\w+)", r"embeddings.norm.\1"),
    (
        r"bert\.encoder\.layer\.(\d+)\.attention\.self\.(query|key|value)\.(\w+)",
        lambda m: f"layers.{m[1]}.attn.{_PROJECTIONS[m[2]]}.{m[3]}",
    ),
    (r"bert\.encoder\.layer\.(\d+)\.attention\.output\.dense\.(\w+)", r"layers.\1.attn.o_proj.\2"),
    (
        r"bert\.encoder\.layer\.(\d+)\.attention\.output\.LayerNorm\.(\w+)",
        r"layers.\1.attn_norm.\2",
    ),
    (r"bert\.encoder\.layer\.(\d+)\.intermediate\.dense\.(\w+)", r"layers.\1.mlp.up_proj.\2"),
    (r"bert\.encoder\.layer\.(\d+)\.output\.dense\.(\w+)", r"layers.\1.mlp.down_proj.\2"),
    (r"bert\.encoder\.layer\.(\d+)\.output\.LayerNorm\.(\w+)", r"layers.\1.mlp_norm.\2"),
    (r"cls\.predictions\.transform\.dense\.(\w+)", r"mlm.dense.\1"),
    (r"cls\.predictions\.transform\.LayerNorm\.(\w+)", r"mlm.norm.\1"),
    (r"cls\.predictions\.bias", "mlm.bias"),
    (r"bert\.pooler\.dense\.(\w+)", r"classify.pooler.\1"),
    (r"classifier\.(\w+)", r"classify.classifier.\1"),
    (r"cls\.predictions\.decoder\.\w+|bert\.embeddings\.position_ids", None),
    (r"cls\.seq_relationship\.\w+", None),
)
_VIT: tuple[Renaming, ...] = (
    (r"vit\.embeddings\.cls_token", "class_token"),
    (r"vit\.embeddings\.position_embeddings", "places"),
    (r"vit\.embeddings\.patch_embeddings\.projection\.(\w+)", r"embed.\1"),
    (r"vit\.layers\.(\d+)\.attention\.(\w+)\.(\w+)", r"layers.\1.attn.\2.\3"),
    (
        r"vit\.encoder\.layer\.(\d+)\.attention\.attention\.(query|key|value)\.(\w+)",
        lambda m: f"layers.{m[1]}.attn.{_PROJECTIONS[m[2]]}.{m[3]}",
    ),
    (r"vit\.encoder\.layer\.(\d+)\.attention\.output\.dense\.(\w+)", r"layers.\1.attn.o_proj.\2"),
    (r"vit\.(?:encoder\.layer|layers)\.(\d+)\.layernorm_before\.(\w+)", r"layers.\1.ln_1.\2"),
    (r"vit\.(?:encoder\.layer|layers)\.(\d+)\.layernorm_after\.(\w+)", r"layers.\1.ln_2.\2"),
    (r"vit\.layers\.(\d+)\.mlp\.fc1\.(\w+)", r"layers.\1.mlp.up_proj.\2"),
    (r"vit\.layers\.(\d+)\.mlp\.fc2\.(\w+)", r"layers.\1.mlp.down_proj.\2"),
    (r"vit\.encoder\.layer\.(\d+)\.intermediate\.dense\.(\w+)", r"layers.\1.mlp.up_proj.\2"),
    (r"vit\.encoder\.layer\.(\d+)\.output\.dense\.(\w+)", r"layers.\1.mlp.down_proj.\2"),
    (r"vit\.layernorm\.(\w+)", r"norm.\1"),
    (r"classifier\.(\w+)", r"head.\1"),
    (r"vit\.pooler\..*", None),
)
_T5: tuple[Renaming, ...] = (
    (r"shared\.weight", "shared.weight"),
    (r"(encoder|decoder)\.embed_tokens\.weight", None),
    (
        r"(\w+)\.block\.0\.layer\.0\.SelfAttention\.relative_attention_bias\.weight",
        r"\1.relative.weight",
    ),
    (r".*EncDecAttention\.relative_attention_bias\.weight", None),
    (
        r"(\w+)\.block\.(\d+)\.layer\.\d\.(SelfAttention|EncDecAttention)\.([qkvo])\.weight",
        lambda m: f"{m[1]}.layers.{m[2]}.{_ATTENTIONS[m[3]]}.{_T5_PROJECTIONS[m[4]]}.weight",
    ),
    (
        r"(\w+)\.block\.(\d+)\.layer\.(\d)\.layer_norm\.weight",
        lambda m: f"{m[1]}.layers.{m[2]}.ln_{int(m[3]) + 1}.weight",
    ),
    (
        r"(\w+)\.block\.(\d+)\.layer\.\d\.DenseReluDense\.(wi|wi_0|wi_1|wo)\.weight",
        lambda m: f"{m[1]}.layers.{m[2]}.mlp.{_T5_BLOCK[m[3]]}.weight",
    ),
    (r"(encoder|decoder)\.final_layer_norm\.weight", r"\1.norm.weight"),
    (r"lm_head\.weight", "lm_head.weight"),
)
_WHISPER: tuple[Renaming, ...] = (
    (r"model\.(.*)\.out_proj\.(\w+)", r"\1.o_proj.\2"),
    (r"model\.(.*)\.fc1\.(\w+)", r"\1.mlp.up_proj.\2"),
    (r"model\.(.*)\.fc2\.(\w+)", r"\1.mlp.down_proj.\2"),
    (r"model\.(.*)", r"\1"),
    (r"proj_out\.weight", None),
)
_TABLES: Mapping[type, tuple[Renaming, ...]] = {
    BertConfig: _BERT,
    T5Config: _T5,
    VitConfig: _VIT,
    WhisperConfig: _WHISPER,
}


def renamed_weights(config: Config, state: Mapping[str, Array]) -> dict[str, Array]:
    """Return the weights of a model with an encoder by the names of its parameters.

    Raises
    ------
    ModelError
        DIST0335 for a tensor that belongs to no weight of the model.
    """
    out: dict[str, Array] = {}
    for name, value in state.items():
        ours = _renamed(name, _TABLES[type(config)])
        if ours == "lm_head.weight" and isinstance(config, T5Config) and config.tied:
            continue
        if ours is not None:
            out[ours] = np.asarray(value)
    return out


def _renamed(name: str, table: tuple[Renaming, ...]) -> str | None:
    for pattern, ours in table:
        match = re.fullmatch(pattern, name)
        if match is None:
            continue
        if ours is None:
            return None
        return str(ours(match) if callable(ours) else match.expand(ours))
    problem = "the tensor belongs to no weight of the model"
    remedy = "Give the weights of the model that config.json describes."
    raise ModelError("DIST0335", problem, location=name, remedy=remedy)
