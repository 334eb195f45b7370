# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write logits of small models of `transformers`, with which the tests compare the zoo's decoders.

``python scripts/peers/transformers_references.py`` needs torch and transformers. Weights are drawn
by ``python/tests/models/drawn_weights.py`` from their names, so that only shapes are stored.
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
}  # fmt: skip


def model_of(kind: str, keys: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return a model of `transformers` and its configuration as data."""
    config_name = f"{kind}TextConfig" if kind == "Gemma3" else f"{kind}Config"
    config = getattr(transformers, config_name)(**{**SIZES, **keys})
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    return model, json.loads(config.to_json_string(use_diff=False))


def main() -> None:
    """Write a JSON file (configuration, shapes) and logits per model."""
    OUT.mkdir(exist_ok=True)
    ids = np.random.default_rng(0).integers(0, SIZES["vocab_size"], (2, 12))
    for name, (kind, keys) in CASES.items():
        model, config = model_of(kind, keys)
        shapes = {key: list(value.shape) for key, value in model.state_dict().items()}
        state = {key: torch.from_numpy(v) for key, v in drawn_weights(shapes).items()}
        model.load_state_dict(state)
        with torch.no_grad():
            logits = model(torch.from_numpy(ids)).logits.numpy()
        about = {"source": f"transformers {transformers.__version__}, {kind}ForCausalLM, float32"}
        text = json.dumps({**about, "config": config, "shapes": shapes}, indent=1)
        (OUT / f"{name}.json").write_text(text + "\n")
        np.savez_compressed(OUT / f"{name}.npz", ids=ids.astype("int32"), logits=logits)
        print(f"{name}: {logits.shape}")


if __name__ == "__main__":
    main()
