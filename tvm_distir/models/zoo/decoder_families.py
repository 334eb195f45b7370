# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the published sizes of decoders by family.

Families: Llama 2 (Touvron et al. 2023, table 1), Llama 3 (Grattafiori et al. 2024, table 3),
Mistral (Jiang et al. 2023), Mixtral (Jiang et al. 2024), Qwen 2.5 and Qwen 3 (Yang et al. 2024,
2025), Gemma 2 and 3 (Gemma Team 2024, 2025), Phi 3 (Abdin et al. 2024), OLMo 2 (OLMo et al. 2024),
Falcon (Almazrouei et al. 2023), DeepSeek-V2 and V3 (DeepSeek-AI 2024), GPT-OSS (OpenAI 2025). The
sizes are those of the ``config.json`` that each of them publishes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from .decoder_config import DecoderConfig


@dataclass(frozen=True)
class LlamaConfig(DecoderConfig):
    """Configuration of a Llama, with the sequences of its training."""

    seq: int = 2048


@dataclass(frozen=True)
class MoeConfig(LlamaConfig):
    """Configuration of a Mixtral, whose tokens products with one-hot tables move to experts."""

    vocab: int = 32000
    theta: float = 1e6
    experts: int = 8
    top_k: int = 2
    dispatch: str = "one_hot"
    capacity_factor: float = 1.25


_LLAMA2 = LlamaConfig(vocab=32000, theta=10000.0)
_TINY = DecoderConfig(
    layers=2, hidden=64, heads=8, kv_heads=4, ffn=96, vocab=512, batch=4, seq=16, dtype="float32",
    theta=10000.0,
)  # fmt: skip
_LLAMA3 = DecoderConfig(rotary_scaling="llama3", rotary_factor=8.0)
_LLAMA32 = replace(
    _LLAMA3, layers=28, hidden=3072, heads=24, head_dim=128, ffn=8192, tied=1, rotary_factor=32.0
)
_MISTRAL = DecoderConfig(vocab=32768, theta=1e6)
_MIXTRAL = replace(_MISTRAL, vocab=32000, experts=8, top_k=2, expert_ffn=14336)
_QWEN = DecoderConfig(vocab=151936, theta=1e6, eps=1e-6, seq=4096)
_QWEN2 = replace(_QWEN, qkv_bias=1)
_QWEN3 = replace(_QWEN, qk_norm=1, head_dim=128)
_GEMMA2 = DecoderConfig(
    layers=42, hidden=3584, heads=16, kv_heads=8, head_dim=256, ffn=14336, vocab=256000, eps=1e-6,
    theta=10000.0, activation="gelu_tanh", tied=1, norm_offset=1, post_norms=1, embed_scale=1,
    window=4096, window_period=2, score_cap=50.0, logit_cap=30.0, query_width=256.0,
)  # fmt: skip
_GEMMA3 = replace(
    _GEMMA2, layers=62, hidden=5376, heads=32, kv_heads=16, head_dim=128, ffn=21504, vocab=262208,
    theta=1e6, local_theta=10000.0, rotary_scaling="linear", rotary_factor=8.0, qk_norm=1,
    window=1024, window_period=6, score_cap=0.0, logit_cap=0.0, query_width=168.0,
)  # fmt: skip
_DEEPSEEK_V2_LITE = DecoderConfig(
    layers=27, hidden=2048, heads=16, kv_heads=16, ffn=10944, vocab=102400, eps=1e-6,
    theta=10000.0, rotary_interleaved=1, rotary_scaling="yarn", rotary_factor=40.0,
    rotary_positions=4096, rotary_low=1.0, rotary_high=32.0, rotary_mscale=0.707,
    rotary_mscale_all=0.707, kv_rank=512, nope_dim=128, rope_dim=64, v_dim=128, experts=64,
    top_k=6, expert_ffn=1408, shared_ffn=2816, dense_layers=1, routing="softmax_all",
)  # fmt: skip
_DEEPSEEK_V2 = replace(
    _DEEPSEEK_V2_LITE, layers=60, hidden=5120, heads=128, kv_heads=128, ffn=12288, q_rank=1536,
    experts=160, expert_ffn=1536, shared_ffn=3072, expert_groups=8, top_groups=3,
    routing_scale=16.0,
)  # fmt: skip
_DEEPSEEK_V3 = replace(
    _DEEPSEEK_V2_LITE, layers=61, hidden=7168, heads=128, kv_heads=128, ffn=18432, vocab=129280,
    rotary_mscale=1.0, rotary_mscale_all=1.0, q_rank=1536, experts=256, top_k=8, expert_ffn=2048,
    shared_ffn=2048, dense_layers=3, routing="sigmoid", expert_groups=8, top_groups=4,
    routing_scale=2.5,
)  # fmt: skip
_GPT_OSS = DecoderConfig(
    layers=24, hidden=2880, heads=64, kv_heads=8, head_dim=64, ffn=2880, vocab=201088,
    theta=150000.0, rotary_scaling="yarn", rotary_factor=32.0, rotary_positions=4096,
    rotary_low=1.0, rotary_high=32.0, rotary_rounded=0, qkv_bias=1, o_bias=1, sinks=1, window=128,
    window_period=2, experts=32, top_k=4, expert_ffn=2880, expert_bias=1, swiglu_limit=7.0,
)  # fmt: skip

_OLMO2 = DecoderConfig(
    kv_heads=32, ffn=11008, vocab=100352, eps=1e-6, pre_norms=0, post_norms=1, joint_qk_norm=1
)
_FALCON = DecoderConfig(
    layers=32, hidden=4544, heads=71, kv_heads=1, ffn=18176, vocab=65024, seq=2048, theta=10000.0,
    activation="gelu", tied=1, norm="layer", gated=0, parallel=1,
)  # fmt: skip

_TINY_EXPERTS = replace(_TINY, experts=4, top_k=2, expert_ffn=48)

FAMILIES: Mapping[str, Mapping[str, DecoderConfig]] = {
    "llama": {
        "8b": LlamaConfig(),
        "7b": replace(_LLAMA2, kv_heads=32, ffn=11008),
        "13b": replace(_LLAMA2, layers=40, hidden=5120, heads=40, kv_heads=40, ffn=13824),
        "70b": replace(_LLAMA2, layers=80, hidden=8192, heads=64, ffn=28672),
        "3-70b": LlamaConfig(layers=80, hidden=8192, heads=64, ffn=28672),
        "405b": LlamaConfig(layers=126, hidden=16384, heads=128, ffn=53248),
        "tiny": LlamaConfig(
            layers=2, hidden=64, heads=8, kv_heads=4, ffn=128, vocab=512, seq=16, dtype="float32",
            theta=10000.0,
        ),
    },
    "moe": {
        "mixtral-8x7b": MoeConfig(),
        "mixtral-8x22b": MoeConfig(layers=56, hidden=6144, heads=48, ffn=16384),
        "tiny": MoeConfig(
            layers=2, hidden=64, heads=8, kv_heads=4, ffn=96, vocab=512, batch=4, seq=16,
            dtype="float32", theta=10000.0, experts=4,
        ),
    },
    "llama3": {
        "3.1-8b": _LLAMA3,
        "3-8b": DecoderConfig(),
        "3-70b": DecoderConfig(layers=80, hidden=8192, heads=64, ffn=28672),
        "3.1-70b": replace(_LLAMA3, layers=80, hidden=8192, heads=64, ffn=28672),
        "3.1-405b": replace(_LLAMA3, layers=126, hidden=16384, heads=128, ffn=53248),
        "3.2-1b": replace(_LLAMA32, layers=16, hidden=2048, heads=32, head_dim=64),
        "3.2-3b": _LLAMA32,
        "tiny": replace(_TINY, rotary_scaling="llama3", rotary_factor=8.0, rotary_positions=8),
    },
    "mistral": {
        "7b": _MISTRAL,
        "nemo-12b": replace(_MISTRAL, layers=40, hidden=5120, head_dim=128, vocab=131072),
        "tiny": replace(_TINY, window=4),
    },
    "mixtral": {
        "8x7b": _MIXTRAL,
        "8x22b": replace(
            _MIXTRAL, layers=56, hidden=6144, heads=48, expert_ffn=16384, vocab=32768
        ),
        "tiny": _TINY_EXPERTS,
    },
    "qwen2": {
        "7b": replace(
            _QWEN2, layers=28, hidden=3584, heads=28, kv_heads=4, ffn=18944, vocab=152064
        ),
        "32b": replace(_QWEN2, layers=64, hidden=5120, heads=40, ffn=27648, vocab=152064),
        "72b": replace(_QWEN2, layers=80, hidden=8192, heads=64, ffn=29568, vocab=152064),
        "tiny": replace(_TINY, qkv_bias=1),
    },
    "qwen3": {
        "8b": replace(_QWEN3, layers=36, hidden=4096, ffn=12288),
        "32b": replace(_QWEN3, layers=64, hidden=5120, heads=64, ffn=25600),
        "30b-a3b": replace(
            _QWEN3, layers=48, hidden=2048, kv_heads=4, ffn=6144, experts=128, top_k=8,
            expert_ffn=768,
        ),
        "235b-a22b": replace(
            _QWEN3, layers=94, hidden=4096, heads=64, kv_heads=4, ffn=12288, experts=128, top_k=8,
            expert_ffn=1536,
        ),
        "tiny": replace(_TINY, qk_norm=1, head_dim=16),
    },
    "gemma": {
        "2-9b": _GEMMA2,
        "2-27b": replace(
            _GEMMA2, layers=46, hidden=4608, heads=32, kv_heads=16, head_dim=128, ffn=36864,
            query_width=144.0,
        ),
        "3-27b": _GEMMA3,
        "tiny": replace(
            _TINY, head_dim=16, tied=1, norm_offset=1, post_norms=1, embed_scale=1, window=4,
            window_period=2, score_cap=50.0, logit_cap=30.0, activation="gelu_tanh",
        ),
    },
    "olmo": {
        "2-7b": _OLMO2,
        "2-13b": replace(_OLMO2, layers=40, hidden=5120, heads=40, kv_heads=40, ffn=13824),
        "2-32b": replace(_OLMO2, layers=64, hidden=5120, heads=40, kv_heads=8, ffn=27648),
        "tiny": replace(_TINY, pre_norms=0, post_norms=1, joint_qk_norm=1),
    },
    "falcon": {
        "7b": _FALCON,
        "40b": replace(
            _FALCON, layers=60, hidden=8192, heads=128, kv_heads=8, ffn=32768, parallel_norms=2
        ),
        "tiny": replace(
            _TINY, kv_heads=1, activation="gelu", tied=1, norm="layer", gated=0, parallel=1
        ),
    },
    "phi": {
        "3-mini": DecoderConfig(
            hidden=3072, kv_heads=32, ffn=8192, vocab=32064, theta=10000.0, window=2047
        ),
        "4": DecoderConfig(
            layers=40, hidden=5120, heads=40, kv_heads=10, ffn=17920, vocab=100352, theta=250000.0
        ),
        "tiny": replace(_TINY, rotary_share=0.5),
    },
    "deepseek": {
        "v2-lite": _DEEPSEEK_V2_LITE,
        "v2": _DEEPSEEK_V2,
        "v3": _DEEPSEEK_V3,
        "tiny": replace(
            _TINY_EXPERTS, layers=3, kv_heads=8, q_rank=24, kv_rank=16, nope_dim=8, rope_dim=4,
            v_dim=8, shared_ffn=48, dense_layers=1, routing="sigmoid", expert_groups=2,
            top_groups=1, routing_scale=2.5, rotary_interleaved=1,
        ),
    },
    "gpt_oss": {
        "20b": _GPT_OSS,
        "120b": replace(_GPT_OSS, layers=36, experts=128),
        "tiny": replace(
            _TINY_EXPERTS, qkv_bias=1, o_bias=1, sinks=1, window=4, window_period=2, expert_bias=1,
            swiglu_limit=7.0,
        ),
    },
}  # fmt: skip
"""Published sizes by family, the default size first."""
