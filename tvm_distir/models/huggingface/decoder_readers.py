# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read what the ``config.json`` of each family of decoders has besides the common keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from tvm_distir.models.zoo.decoder_config import DecoderConfig

from .config_keys import ConfigKeys


def _llama(reading: ConfigKeys, config: DecoderConfig) -> DecoderConfig:
    bias = reading.flag("attention_bias")
    reading.require("mlp_bias", False)
    return replace(config, qkv_bias=bias, o_bias=bias)


def _mistral(reading: ConfigKeys, config: DecoderConfig) -> DecoderConfig:
    return replace(config, window=reading.number("sliding_window", 0))


def _mixtral(reading: ConfigKeys, config: DecoderConfig) -> DecoderConfig:
    return replace(
        _mistral(reading, config),
        experts=reading.number("num_local_experts"),
        top_k=reading.number("num_experts_per_tok"),
        expert_ffn=config.ffn,
        capacity_factor=0.0,
    )


def _qwen2(reading: ConfigKeys, config: DecoderConfig) -> DecoderConfig:
    reading.require("use_sliding_window", False)
    reading.get("sliding_window")
    _all_of(reading, "full_attention")
    return replace(config, qkv_bias=1)


def _qwen3(reading: ConfigKeys, config: DecoderConfig) -> DecoderConfig:
    bias = reading.flag("attention_bias")
    reading.require("use_sliding_window", False)
    reading.get("sliding_window")
    _all_of(reading, "full_attention")
    return replace(config, qk_norm=1, qkv_bias=bias, o_bias=bias)


def _qwen3_moe(reading: ConfigKeys, config: DecoderConfig) -> DecoderConfig:
    reading.require("decoder_sparse_step", 1)
    reading.require("mlp_only_layers", [])
    return replace(
        _qwen3(reading, config),
        experts=reading.number("num_experts", reading.get("num_local_experts")),
        top_k=reading.number("num_experts_per_tok"),
        expert_ffn=reading.number("moe_intermediate_size"),
        routing="softmax" if reading.flag("norm_topk_prob") else "softmax_all",
        capacity_factor=0.0,
    )


def _gemma2(reading: ConfigKeys, config: DecoderConfig) -> DecoderConfig:
    bias = reading.flag("attention_bias")
    return replace(
        config,
        tied=reading.flag("tie_word_embeddings", True),
        head_dim=config.head_dim or 256,
        qkv_bias=bias,
        o_bias=bias,
        norm_offset=1,
        post_norms=1,
        embed_scale=1,
        window=reading.number("sliding_window", 0),
        window_period=_period(reading, config.layers, 2),
        query_width=float(reading.number("query_pre_attn_scalar", 256)),
        score_cap=float(reading.get("attn_logit_softcapping") or 0.0),
        logit_cap=float(reading.get("final_logit_softcapping") or 0.0),
    )


def _gemma3(reading: ConfigKeys, config: DecoderConfig) -> DecoderConfig:
    default = int(reading.number("sliding_window_pattern", 6))
    config = replace(_gemma2(reading, config), qk_norm=1, local_theta=config.local_theta or 1e4)
    return replace(config, window_period=_period(reading, config.layers, default))


def _olmo2(reading: ConfigKeys, config: DecoderConfig) -> DecoderConfig:
    reading.require("attention_bias", False)
    return replace(config, pre_norms=0, post_norms=1, joint_qk_norm=1)


def _olmo(reading: ConfigKeys, config: DecoderConfig) -> DecoderConfig:
    reading.require("attention_bias", False)
    reading.require("clip_qkv", None)
    return replace(config, norm="plain", eps=1e-5)


def _falcon(reading: ConfigKeys, config: DecoderConfig) -> DecoderConfig:
    reading.require("alibi", False)
    reading.require("bias", False)
    reading.require("parallel_attn", True)
    reading.require("activation", "gelu")
    grouped = reading.flag("new_decoder_architecture")
    single = reading.flag("multi_query", True)
    kv_heads = reading.number("num_kv_heads", config.heads)
    if not grouped:
        kv_heads = 1 if single else config.heads
    return replace(
        config,
        kv_heads=kv_heads,
        ffn=reading.number("ffn_hidden_size", 4 * config.hidden),
        eps=float(reading.number("layer_norm_epsilon", 1e-5)),
        activation="gelu",
        tied=reading.flag("tie_word_embeddings", True),
        norm="layer",
        gated=0,
        parallel=1,
        parallel_norms=int(reading.number("num_ln_in_parallel_attn", 2 if grouped else 1)),
    )


def _phi3(reading: ConfigKeys, config: DecoderConfig) -> DecoderConfig:
    return replace(config, window=reading.number("sliding_window", 0))


def _latent(reading: ConfigKeys, config: DecoderConfig) -> DecoderConfig:
    reading.require("attention_bias", False)
    reading.require("moe_layer_freq", 1)
    reading.get("head_dim"), reading.get("qk_head_dim")
    expert = reading.number("moe_intermediate_size")
    return replace(
        config,
        head_dim=0,
        rotary_share=1.0,
        q_rank=reading.number("q_lora_rank", 0),
        kv_rank=reading.number("kv_lora_rank"),
        nope_dim=reading.number("qk_nope_head_dim"),
        rope_dim=reading.number("qk_rope_head_dim"),
        v_dim=reading.number("v_head_dim"),
        rotary_interleaved=reading.flag("rope_interleave", True),
        experts=reading.number("n_routed_experts", reading.get("num_local_experts")),
        top_k=reading.number("num_experts_per_tok"),
        expert_ffn=expert,
        shared_ffn=expert * int(reading.number("n_shared_experts", 0)),
        dense_layers=reading.number("first_k_dense_replace", 0),
        expert_groups=reading.number("n_group", 1),
        top_groups=reading.number("topk_group", 1),
        routing_scale=float(reading.number("routed_scaling_factor", 1.0)),
        capacity_factor=0.0,
    )


def _deepseek_v2(reading: ConfigKeys, config: DecoderConfig) -> DecoderConfig:
    config = _latent(reading, config)
    reading.require("topk_method", "greedy", "group_limited_greedy")
    if reading.get("topk_method", "greedy") == "greedy":
        config = replace(config, expert_groups=1, top_groups=1)
    reading.require("norm_topk_prob", False)
    reading.require("scoring_func", "softmax")
    reading.require("mlp_bias", False)
    return replace(config, routing="softmax_all")


def _deepseek_v3(reading: ConfigKeys, config: DecoderConfig) -> DecoderConfig:
    config = _latent(reading, config)
    reading.require("topk_method", "noaux_tc")
    reading.require("norm_topk_prob", True)
    reading.require("scoring_func", "sigmoid")
    return replace(config, routing="sigmoid")


def _gpt_oss(reading: ConfigKeys, config: DecoderConfig) -> DecoderConfig:
    bias = reading.flag("attention_bias", True)
    reading.require("swiglu_alpha", 1.702)
    return replace(
        config,
        qkv_bias=bias,
        o_bias=bias,
        sinks=1,
        window=reading.number("sliding_window", 0),
        window_period=_period(reading, config.layers, 2),
        experts=reading.number("num_local_experts"),
        top_k=reading.number("num_experts_per_tok"),
        expert_ffn=config.ffn,
        expert_bias=1,
        swiglu_limit=float(reading.number("swiglu_limit", 7.0)),
        capacity_factor=0.0,
    )


def _all_of(reading: ConfigKeys, kind: str) -> None:
    """Refuse layers of another kind of attention."""
    kinds = reading.get("layer_types", [])
    if any(layer != kind for layer in kinds):
        raise reading.fault("layer_types mixes kinds of attention", f"Known: {kind} only.")


def _period(reading: ConfigKeys, layers: int, default: int) -> int:
    """Return after how many layers one has no window, from ``layer_types`` where they are given."""
    kinds = list(reading.get("layer_types", []))
    if not kinds:
        return default
    full = [number for number, kind in enumerate(kinds) if kind == "full_attention"]
    period = full[0] + 1 if full else 0
    if len(kinds) != layers or full != (list(range(period - 1, layers, period)) if full else []):
        raise reading.fault("layer_types is not periodic", "Export the model by torch.export.")
    return period


DECODERS: Mapping[str, Callable[[ConfigKeys, DecoderConfig], DecoderConfig]] = {
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen3": lambda reading, config: _qwen3(
        reading, replace(config, head_dim=config.head_dim or 128)
    ),
    "qwen3_moe": _qwen3_moe,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gemma3_text": _gemma3,
    "olmo": _olmo,
    "olmo2": _olmo2,
    "falcon": _falcon,
    "phi3": _phi3,
    "deepseek_v2": _deepseek_v2,
    "deepseek_v3": _deepseek_v3,
    "gpt_oss": _gpt_oss,
}
