# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write logits of small models of `transformers`, with which the tests compare the zoo's models.

``python scripts/peers/transformers_references.py [NAME...]`` needs torch and transformers. Weights
are drawn by ``python/tests/models/drawn_weights.py`` from their names, so that only shapes are
stored.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python" / "tests" / "models"))
OUT = ROOT / "python" / "tests" / "models" / "transformers_data"

from drawn_weights import drawn_weights  # noqa: E402

SIZES: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "vocab_size": 64, "max_position_embeddings": 64, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4,
    "v_head_dim": 8, "n_routed_experts": 8, "first_k_dense_replace": 1,
}  # fmt: skip
GROUPS: dict[str, Any] = {
    "n_routed_experts": 8, "n_shared_experts": 2, "first_k_dense_replace": 1, "n_group": 2,
    "topk_group": 1,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 8,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "beta_fast": 32, "beta_slow": 1,
    "original_max_position_embeddings": 16,
}  # fmt: skip
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"attention_bias": True, "tie_word_embeddings": True}),
    "llama3": ("Llama", {"rope_parameters": LLAMA3}),
    "mistral": ("Mistral", {"sliding_window": 5, "head_dim": 16}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "qwen3_moe": ("Qwen3Moe", {**EXPERTS, "num_experts": 8, "norm_topk_prob": True}),
    "qwen3_moe_all": ("Qwen3Moe", {**EXPERTS, "num_experts": 8, "norm_topk_prob": False}),
    "gemma2": ("Gemma2", {"head_dim": 16, "sliding_window": 5, "query_pre_attn_scalar": 24}),
    "gemma3": (
        "Gemma3",
        {"head_dim": 16, "sliding_window": 5, "num_hidden_layers": 7},
    ),
    "olmo": ("Olmo", {}),
    "olmo2": ("Olmo2", {}),
    "falcon": ("Falcon", {"bias": False, "alibi": False}),
    "falcon_grouped": (
        "Falcon",
        {"bias": False, "alibi": False, "new_decoder_architecture": True, "num_kv_heads": 2},
    ),
    "phi3": (
        "Phi3",
        {
            "sliding_window": 7,
            "rope_parameters": {
                "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5,
            },
        },
    ),
    "deepseek_v2": (
        "DeepseekV2",
        {**EXPERTS, **LATENT, "n_shared_experts": 2, "q_lora_rank": None, "topk_method": "greedy"},
    ),
    "deepseek_v2_groups": (
        "DeepseekV2",
        {
            **EXPERTS, **LATENT, "n_shared_experts": 1, "q_lora_rank": 24, "n_group": 4,
            "topk_group": 2, "topk_method": "group_limited_greedy", "routed_scaling_factor": 4.0,
            "num_hidden_layers": 2,
        },
    ),
    "deepseek_v3": (
        "DeepseekV3",
        {
            **EXPERTS, **LATENT, "n_shared_experts": 1, "q_lora_rank": 24, "n_group": 4,
            "topk_group": 2, "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
        },
    ),
    "gpt_oss": (
        "GptOss",
        {
            "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 5,
            "rope_parameters": {**YARN, "truncate": False},
        },
    ),
    "olmoe": ("Olmoe", {"num_experts": 8, "num_experts_per_tok": 2}),
    "flex_olmo": ("FlexOlmo", {"num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": True}),
    "olmo3": ("Olmo3", {"sliding_window": 5, "num_hidden_layers": 5}),
    "gemma": ("Gemma", {"head_dim": 16}),
    "glm": ("Glm", {"head_dim": 16, "attention_bias": True}),
    "glm4": ("Glm4", {"head_dim": 16, "attention_bias": True}),
    "glm4_moe": ("Glm4Moe", {**EXPERTS, **GROUPS, "head_dim": 16, "use_qk_norm": True,
                             "attention_bias": True, "routed_scaling_factor": 2.5}),
    "dots1": ("Dots1", {**EXPERTS, **GROUPS, "head_dim": 16, "norm_topk_prob": True}),
    "stablelm": ("StableLm", {"use_qkv_bias": True}),
    "starcoder2": ("Starcoder2", {"sliding_window": 5}),
    "gpt_neox": ("GPTNeoX", {}),
    "gpt2": ("GPT2LMHead", {"activation_function": "gelu_new"}),
    "seed_oss": ("SeedOss", {"head_dim": 16}),
    "ernie4_5": ("Ernie4_5", {"head_dim": 16, "use_bias": True}),
    "helium": ("Helium", {"head_dim": 8}),
    "granite": (
        "Granite",
        {
            "embedding_multiplier": 12.0, "residual_multiplier": 0.25, "logits_scaling": 8.0,
            "attention_multiplier": 0.125,
        },
    ),
    "cohere": ("Cohere", {"logit_scale": 0.25}),
    "qwen2_moe": (
        "Qwen2Moe", {**EXPERTS, "num_experts": 8, "shared_expert_intermediate_size": 24},
    ),
    "kimi_k2": (
        "DeepseekV3",
        {
            **EXPERTS, **LATENT, "n_shared_experts": 1, "q_lora_rank": 24, "n_group": 1,
            "topk_group": 1, "num_hidden_layers": 2,
        },
    ),
}  # fmt: skip


ENCODER: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
}  # fmt: skip
T5: dict[str, Any] = {
    "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": 64,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 10,
}  # fmt: skip
WHISPER: dict[str, Any] = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": 4,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 40, "vocab_size": 64,
    "num_mel_bins": 8, "max_source_positions": 12, "max_target_positions": 12, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
}  # fmt: skip
TOKENS = {"vocab_size": 64, "max_position_embeddings": 16}
ENCODER_CASES: dict[str, tuple[str, str, dict[str, Any], tuple[str, ...]]] = {
    "bert": (
        "BertForMaskedLM",
        "Bert",
        {**ENCODER, **TOKENS},
        ("input_ids", "token_type_ids", "attention_mask"),
    ),
    "bert_classifier": (
        "BertForSequenceClassification",
        "Bert",
        {**ENCODER, **TOKENS, "architectures": ["BertForSequenceClassification"], "num_labels": 3},
        ("input_ids", "token_type_ids", "attention_mask"),
    ),
    "vit": (
        "ViTForImageClassification",
        "ViT",
        {**ENCODER, "image_size": 16, "patch_size": 8, "num_labels": 5},
        ("pixel_values",),
    ),
    "t5": ("T5ForConditionalGeneration", "T5", T5, ("input_ids", "decoder_input_ids")),
    "t5_gated": (
        "T5ForConditionalGeneration",
        "T5",
        {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        ("input_ids", "decoder_input_ids"),
    ),
    "whisper": (
        "WhisperForConditionalGeneration",
        "Whisper",
        WHISPER,
        ("input_features", "decoder_input_ids"),
    ),
}
"""The class, the family, its keys and what it reads."""


def encoder_model(kind: str, family: str, keys: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return a model with an encoder, and its configuration as data."""
    config = getattr(transformers, f"{family}Config")(**keys)
    config._attn_implementation = "eager"
    model = getattr(transformers, kind)(config).eval()
    return model, json.loads(config.to_json_string(use_diff=False))


def sampled_inputs(names: tuple[str, ...], config: Any) -> dict[str, Any]:
    """Return inputs of two samples, by name."""
    rng = np.random.default_rng(0)
    mask = np.ones((2, 12), "int32")
    mask[1, 9:] = 0
    created: dict[str, Any] = {
        "input_ids": rng.integers(0, 64, (2, 12)).astype("int32"),
        "decoder_input_ids": rng.integers(0, 64, (2, 7)).astype("int32"),
        "token_type_ids": rng.integers(0, 2, (2, 12)).astype("int32"),
        "attention_mask": mask,
        "pixel_values": rng.normal(size=(2, 3, 16, 16)).astype("float32"),
        "input_features": rng.normal(size=(2, 8, 24)).astype("float32"),
    }
    return {name: created[name] for name in names}


def own_shapes(model: Any) -> dict[str, list[int]]:
    """Return the shapes of the weights, without those that are another one."""
    seen: set[int] = set()
    shapes = {}
    for name, value in model.state_dict().items():
        if value.data_ptr() not in seen:
            seen.add(value.data_ptr())
            shapes[name] = list(value.shape)
    return shapes


def write_encoders() -> None:
    """Write the cases of models with an encoder."""
    for name, (kind, family, keys, inputs) in ENCODER_CASES.items():
        model, config = encoder_model(kind, family, keys)
        shapes = own_shapes(model)
        state = {key: torch.from_numpy(v) for key, v in drawn_weights(shapes).items()}
        model.load_state_dict(state, strict=False)
        model.tie_weights()
        values = sampled_inputs(inputs, config)
        with torch.no_grad():
            args = {key: torch.from_numpy(v) for key, v in values.items()}
            logits = model(**{k: v.long() if "in" in str(v.dtype) else v for k, v in args.items()})
        about = {"source": f"transformers {transformers.__version__}, {kind}, float32"}
        text = json.dumps({**about, "config": config, "shapes": shapes}, indent=1)
        (OUT / f"{name}.json").write_text(text + "\n")
        np.savez_compressed(OUT / f"{name}.npz", **values, logits=logits.logits.numpy())
        print(f"{name}: {tuple(logits.logits.shape)}")


def model_of(kind: str, keys: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return a model of `transformers` and its configuration as data."""
    config_name = (
        f"{kind}TextConfig" if kind == "Gemma3" else f"{kind.removesuffix('LMHead')}Config"
    )
    config = getattr(transformers, config_name)(**{**SIZES, **keys})
    config._attn_implementation = "eager"
    model_name = f"{kind}Model" if kind.endswith("LMHead") else f"{kind}ForCausalLM"
    model = getattr(transformers, model_name)(config).eval()
    return model, json.loads(config.to_json_string(use_diff=False))


def main(names: list[str]) -> None:
    """Write a JSON file (configuration, shapes) and logits per model: of these names, or of all."""
    OUT.mkdir(exist_ok=True)
    if not names:
        write_encoders()
    ids = np.random.default_rng(0).integers(0, SIZES["vocab_size"], (2, 12))
    for name, (kind, keys) in CASES.items():
        if names and name not in names:
            continue
        model, config = model_of(kind, keys)
        shapes = own_shapes(model)
        state = {key: torch.from_numpy(v) for key, v in drawn_weights(shapes).items()}
        model.load_state_dict(state, strict=False)
        model.tie_weights()
        with torch.no_grad():
            logits = model(torch.from_numpy(ids)).logits.numpy()
        about = {
            "source": f"transformers {transformers.__version__}, {type(model).__name__}, float32"
        }
        config |= {"model_type": name} if name == "kimi_k2" else {}  # of its own code, not a class
        text = json.dumps({**about, "config": config, "shapes": shapes}, indent=1)
        (OUT / f"{name}.json").write_text(text + "\n")
        np.savez_compressed(OUT / f"{name}.npz", ids=ids.astype("int32"), logits=logits)
        print(f"{name}: {logits.shape}")


if __name__ == "__main__":
    main(sys.argv[1:])
