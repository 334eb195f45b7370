# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Tiny configurations of the newest families of `transformers`, for ``newest_models.py``."""

from __future__ import annotations

import re
from typing import Any

NEWEST = {
    "5.24.0": (
        "apertus1p5 beam dory dots3_note exaone flint gradium_phonon_tts granite_docling hy_v4_vl"
        " inkling2 inkling2_loop internlm3 iquestcoder jev lara_mini lfm3 lfm3_vl minicpm_ocr"
        " mistral_large4 nemotron3_5_transcribe_asr_audio omniasr omniasr_ctc pocket_tts"
        " pocket_tts_audio_tokenizer sarvam_mla sarvam_moe ultravbert wavtokenizer"
    ),
    "5.20.0": (
        "bailing_hybrid canary embedding_gemma2 fun_asr_nano glm5_next gte hy_v4"
        " hyperclovax_vision_v2 kimi_linear kolibri1 minicpmv4_7 molmo2 moss_transcribe_diarize"
        " muse_spark nemotron3_diarization nemotron_h_omni neomme neucodec pp_doclayout_v4"
        " ultrabert unlimited_ocr vibevoice"
    ),
    "5.16.0": (
        "axk1 axk2 cohere_compass cosmos3_edge esmc esmfold2 granite_speech5_ctc granite_swa"
        " granitemoe_swa hunyuan_vl inkling_mm_model kimi_k25 mimo_v2_flash minicpm3 muse_glimmer"
        " muse_glimmer_assistant nemotron3_5_asr nemotron_asr_streaming qwen3_asr qwen4_exp radio"
        " step3p7 tipsv2 tipsv2_dpt videoprism xcodec2 zaya"
    ),
    "5.12.0": (
        "cosmos3_omni deepseek_ocr2 deepseek_v32 diffusion_gemma gemma4_unified"
        " gemma4_unified_assistant glmga mellum minimax_m3_vl pp_lcnet_v4 pp_ocrv6_medium_det"
        " pp_ocrv6_small_det pp_ocrv6_small_rec pp_ocrv6_tiny_rec sapiens2"
    ),
    "5.9.0": "cohere2_moe hrm_text hyperclovax rf_detr",
    "5.8.0": "deepseek_v4 exaone4_5 gemma4_assistant granite4_vision",
}
"""One ``model_type`` for each of the 100 newest folders of models of transformers 5.24, by the
first of these releases (of 5.0, 5.7 and those here) that has its folder; of the oldest one by name
the first four of six."""

LAYERS = re.compile(r"(^|_)(num_(hidden_)?layers|layers|depth|num_blocks)$")
SIZES = (  # the first pattern that matches the whole key
    (r".*experts_per_tok(en)?|moe_topk|moe_k|top_k", 2),
    (r"(n|num)_(expert_)?groups?|num_expert_group|topk_group", 1),
    (r"(n_routed|num|num_local|moe_num|n)_experts", 4),
    (r"index_n_heads|linear_num_key_heads|linear_num_value_heads|mamba_num_heads", 2),
    (r".*(num_|n_|attention_|self_|cross_)heads|linear_num_heads|num_sliding_attention_heads", 4),
    (r"qk_rope_head_dim", 8),
    (r"qk_head_dim", 24),
    (r"head_dim|.*_head_dim|dim_head|.*_lora_rank|attention_head_dim", 16),
    (r"index_topk.*|sliding_window(_size)?|index_block_size|chunk_size|attention_chunk_size", 8),
    (r"(unpadded_)?vocab_size|ngram_vocab_size_base|head_out_channels", 512),
    (r"max_position_embeddings|model_max_length|max_source_positions", 128),
    (r"codebook_size", 64),
    (r".*(intermediate_size|ffn_dim|mlp_dim)", 96),
    (r"(hidden_size|d_model|embed_dim|embedding_dim|n_embd|hidden_dim|dim|.*_hidden_size)", 64),
    (r"(out|output|projection|proj|input|projector)_(hidden_)?(dim|size)", 64),
    (r"condition_dim|codebook_dim|upsample_groups|adapter_(in|out)_dim|adapter_input_size", 64),
    (r"ssm_state_size|linear_(key|value)_head_dim", 16),
    (r"num_filters", 4),
    (r"num_queries", 20),
)
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
CHANGES: dict[str, dict[str, Any]] = {
    "dory": {"n_input_layers": 2, "n_recurrent_layers": 4, "n_output_layers": 2,
             "num_hidden_layers": 8, "initializer_range": 1.0,  # the scales of queries divide by it
             "layer_types": ["sliding_attention", "mlp", "full_attention", "mlp"] * 2},
    "fun_asr_nano": {"adaptor_config": {"intermediate_size": 16}},
    "molmo2": {"adapter_config": {"vision_feature_layer": [1, 0]}},
    "cohere_compass": {"text_config": {"rope_parameters": {"full_attention": _ROPE,
                                                           "sliding_attention": _ROPE}}},
    "hunyuan_vl": {"text_config": {"head_dim": 16,
                                   "rope_parameters": {**_ROPE, "mrope_section": [2, 2, 2, 2]}}},
    "glmga": {"text_config": {"rope_parameters": {**_ROPE, "mrope_section": [2, 3, 3]}}},
    "neucodec": {"quantization_dim": 128},
    "xcodec2": {"quantization_dim": 128},
    "step3p7": {"text_config": {"sliding_window": 8}},
    "sapiens2": {"num_key_value_heads_per_layer": [4, 4]},
    "rf_detr": {"backbone_config": {"image_size": 224}},
    "deepseek_ocr2": {"text_config": {"mlp_layer_types": ["dense", "sparse"],
                                      "num_experts_per_tok": 2}},
    "granite4_vision": {"downsample_rate": "1/2", "deepstack_layer_map": [[-1, 0]],
                        "spatial_target_layers": [1]},
    "gemma4_assistant": {"text_config": {"hidden_size_per_layer_input": 0,
                                         "vocab_size_per_layer_input": 0}},
    "muse_spark": {"audio_config": {"hidden_sizes": [16, 32], "patch_sizes": [16, 6],
                                    "depths": [2, 2]}},
    "apertus1p5": {"image_token_offset": 300, "audio_token_offset": 364},
    "dots3_note": {"text_config": {"head_dim": 24}},
    "glm5_next": {"text_config": {"index_kpool": 4}},
    "qwen4_exp": {"text_config": {"indexer_n_heads": 2, "indexer_kv_heads": 1,
                                  "indexer_head_dim": 16, "indexer_budget": 8,
                                  "indexer_compress_ratio": 4}},
    "diffusion_gemma": {"text_config": {"num_experts": 4, "top_k_experts": 2,
                                        "moe_intermediate_size": 32}},
    "pp_ocrv6_medium_det": {
        "kernel_list": [3, 2, 2],
        "intraclass_block_config": {
            "reduce_channel": [1, 1, 0], "return_channel": [1, 1, 0],
            **{f"vertical_long_to_small_conv_{name}ratio": [[2 * n + 1, 1], [1, 1], [n, 0]]
               for n, name in ((3, "long"), (2, "mid"), (1, "short"))},
            **{f"horizontal_small_to_long_conv_{name}ratio": [[1, 2 * n + 1], [1, 1], [0, n]]
               for n, name in ((3, "long"), (2, "mid"), (1, "short"))},
            **{f"symmetric_conv_long_{name}ratio": [[2 * n + 1] * 2, [1, 1], [n, n]]
               for n, name in ((3, "long"), (2, "mid"), (1, "short"))},
        },
    },
    "cosmos3_edge": {"text_config": {"rope_parameters": {"mrope_section": [4, 2, 2]}}},
}  # fmt: skip
"""What the defaults of a class lack, or what of them depends on other sizes."""


def tiny(kind: str, config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of a family with small sizes."""
    return _merged(shrunk(config), CHANGES.get(kind, {}))


def _merged(config: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    result = dict(config)
    for key, value in changes.items():
        old = config.get(key)
        result[key] = _merged(old, value) if isinstance(old, dict) and old else value
    return result


def shrunk(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration with small sizes, and few layers that hold each kind of layer."""
    dropped = {"id2label", "label2id"}
    config = {k: v for k, v in config.items() if k not in dropped}
    counts = [k for k in config if LAYERS.search(k) and isinstance(config[k], int)]
    count = config[min(counts, key=lambda k: k != "num_hidden_layers")] if counts else 0
    kinds = [v for k, v in config.items() if k.endswith(("layer_types", "block_type"))]
    needed = [_until_all(v) for v in kinds if isinstance(v, list) and len(v) == count]
    layers = min(max([*needed, 2]), 6)
    if "stage_names" in config and count and len(config["stage_names"]) == count + 1:
        layers = max(layers, len(config["out_features"]))
        config = {k: v for k, v in config.items() if k not in ("stage_names", "out_features")}
        config["out_indices"] = list(range(layers - len(config["out_indices"]) + 1, layers + 1))
    rope_dim = config.get("qk_rope_head_dim") or config.get("head_dim") or 0
    result = {key: _value(key, value, config, (count, layers)) for key, value in config.items()}
    rope = config.get("rope_parameters")
    if isinstance(rope, dict):
        new = result.get("qk_rope_head_dim") or result.get("head_dim") or 16
        result["rope_parameters"] = _rope(rope, (rope_dim or 4 * new, new))
    return result


def _value(key: str, value: Any, config: dict[str, Any], layers: tuple[int, int]) -> Any:
    """Return the small value of a key; ``layers`` are as many as there were, and will be."""
    count, new = layers
    if key == "head_dim" and value == config.get("qk_rope_head_dim"):  # of the rotated part
        key = "qk_rope_head_dim"
    if key == "per_layer_config" and isinstance(value, dict):
        return {k: shrunk(v) for k, v in value.items() if int(k) < new}
    if isinstance(value, dict):
        return shrunk(value)
    if isinstance(value, list) and count and len(value) == count:
        return _kept(value, new)
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    if LAYERS.search(key):
        return min(value, new)
    if re.fullmatch(r".*(key_value|kv)(_attention)?_heads", key):
        heads = [v for k, v in config.items() if k in ("num_attention_heads", "num_heads")]
        return min(value, 4 if value in heads else 2)
    if re.fullmatch(r".*token_(id|index)|.*_id", key) and value >= 256:
        return 256 + value % 251
    size = next((size for pattern, size in SIZES if re.fullmatch(pattern, key)), value)
    return min(value, size)


def _until_all(kinds: list[Any]) -> int:
    """Return how many first layers hold each kind."""
    return max(kinds.index(kind) for kind in dict.fromkeys(kinds)) + 1 if kinds else 0


def _kept(values: list[Any], count: int) -> list[Any]:
    """Return as many values, with each that occurs where there is place."""
    first = values[:count]
    if not all(isinstance(value, str) for value in values):
        return first
    missing = [v for v in dict.fromkeys(values) if v not in first][: count - 1]
    return first[: count - len(missing)] + missing


def _rope(rope: dict[str, Any], dims: tuple[int, int]) -> dict[str, Any]:
    """Return rotary parameters with sections for a smaller head."""
    result = {k: _rope(v, dims) if isinstance(v, dict) else v for k, v in rope.items()}
    sections = rope.get("mrope_section")
    if isinstance(sections, list):
        small = [max(size * dims[1] // dims[0], 1) for size in sections]
        small[0] += max(sum(sections) * dims[1] // dims[0] - sum(small), 0)
        result["mrope_section"] = small
    return result
