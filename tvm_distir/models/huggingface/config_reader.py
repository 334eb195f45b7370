# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read ``config.json`` of the Hugging Face hub as a configuration of the zoo.

The meaning of each key is that of the model's class in ``transformers``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

from tvm_distir.models.zoo.configs import Config, convert_key
from tvm_distir.models.zoo.decoder_config import DecoderConfig
from tvm_distir.support import ModelError, nearest

from .config_keys import ConfigKeys
from .encoder_configs import ENCODERS
from .quantized_config import KEYS, quantization_note

OF_WHOLE_MODEL = ("model_type", "dtype", "torch_dtype", *KEYS)
"""Keys of a multimodal model that hold for its decoder, unless this says otherwise."""

_ACTIVATIONS = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}  # fmt: skip
_ROTARY = {"default": "none", "linear": "linear", "llama3": "llama3", "yarn": "yarn"}


def read_config(data: Any, place: str, keys: Mapping[str, Any] | None = None) -> Config:
    """Return the configuration of a model from the content of its ``config.json``.

    Parameters
    ----------
    data : mapping
        The content; of a multimodal model the decoder's part, ``text_config``, is read.
    place : str
        The file, for messages.
    keys : mapping, optional
        Fields of the configuration that override it, such as ``batch`` and ``seq``.

    Raises
    ------
    ModelError
        DIST0334 for what is no configuration, an unknown ``model_type``, each key that changes
        the graph and is unknown, by name, and quantized weights whose type cannot be told;
        DIST0332 for sizes or a dtype that make no model.

    Warns
    -----
    UserWarning
        For a ``quantization_config``, which is not applied.
    """
    if not isinstance(data, Mapping) or not isinstance(data.get("model_type"), str):
        raise ModelError(
            "DIST0334",
            "the file has no model_type",
            place=place,
            remedy="Give the config.json of a model.",
        )
    reading = ConfigKeys(_of_decoder(data), place)
    kind = str(reading.data["model_type"])
    if kind not in MODEL_TYPES:
        raise reading.fault(
            f'the model type "{kind}" is not known',
            f"{nearest(kind, MODEL_TYPES)} Export it by torch.export or ONNX instead.",
        )
    config: Any = (
        ENCODERS[kind](reading) if kind in ENCODERS else _FAMILIES[kind](reading, _common(reading))
    )
    if reading.unread:
        names = ", ".join(sorted(reading.unread))
        raise reading.fault(
            f"keys that may change the graph are not known: {names}",
            "Remove them if they do not matter, or export the model by torch.export.",
        )
    for field in fields(config):
        value = getattr(config, field.name)
        if isinstance(field.default, int) and not isinstance(value, int):
            raise reading.fault(f"{field.name} is not an integer: {value!r}", "Correct it.")
    if isinstance(config, DecoderConfig):
        bound = reading.number("max_position_embeddings", config.seq)
        config = replace(config, seq=min(config.seq, int(bound)))
    known = {field.name: type(getattr(config, field.name)) for field in fields(config)}
    for key in keys or {}:
        if key not in known:
            raise reading.fault(f'there is no key "{key}"', nearest(key, known))
    changes = {key: convert_key(place, key, text, known[key]) for key, text in (keys or {}).items()}
    config = replace(config, **changes)
    for problem, remedy in config.faults():
        raise ModelError("DIST0332", problem, place=place, remedy=remedy)
    result: Config = config
    for note in config_notes(data, place, result):
        warnings.warn(f"{place}: {note}", stacklevel=1)
    return result


def config_notes(data: Mapping[str, Any], place: str, config: Config) -> tuple[str, ...]:
    """Return what a ``config.json`` asks for that its configuration does not have, as sentences.

    Raises
    ------
    ModelError
        DIST0334 for quantized weights whose type cannot be told.
    """
    reading = ConfigKeys(_of_decoder(data), place)
    note = quantization_note(reading, getattr(config, "dtype", reading.dtype))
    return (note,) if note else ()


def _of_decoder(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the keys of the decoder of a multimodal model, or those of any other model."""
    if not isinstance(data.get("text_config"), Mapping):
        return data
    return {**{key: data[key] for key in OF_WHOLE_MODEL if key in data}, **data["text_config"],
            "model_type": data["model_type"]}  # fmt: skip


def _common(reading: ConfigKeys) -> DecoderConfig:
    heads, hidden = reading.number("num_attention_heads"), reading.number("hidden_size")
    falcon = reading.data["model_type"] == "falcon"
    word = str(reading.get("hidden_activation") or reading.get("hidden_act", "silu"))
    reading.get("hidden_act")
    if word not in _ACTIVATIONS:
        raise reading.fault(f'the activation "{word}" is not known', nearest(word, _ACTIVATIONS))
    config = DecoderConfig(
        layers=reading.number("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=reading.number("num_key_value_heads", heads),
        head_dim=reading.number("head_dim", 0),
        ffn=reading.number("intermediate_size", 4 * hidden if falcon else None),
        vocab=reading.number("vocab_size"),
        eps=float(reading.number("rms_norm_eps", 1e-6)),
        activation=_ACTIVATIONS[word],
        tied=reading.flag("tie_word_embeddings"),
        dtype=reading.dtype,
    )
    return _with_rotary(reading, config)


def _with_rotary(reading: ConfigKeys, config: DecoderConfig) -> DecoderConfig:
    """Read the rotary embedding, which version 5 of transformers writes as one entry."""
    scaling = dict(reading.get("rope_scaling") or {})
    together = dict(reading.get("rope_parameters") or {})
    by_layer = together.get("full_attention"), together.get("sliding_attention")
    local_theta = float(reading.number("rope_local_base_freq", 0.0))
    if isinstance(by_layer[0], Mapping) and isinstance(by_layer[1], Mapping):
        together = dict(by_layer[0])
        local_theta = float(by_layer[1].get("rope_theta", local_theta))
    scaling = {**scaling, **together}
    theta = float(scaling.pop("rope_theta", None) or reading.number("rope_theta", 10000.0))
    reading.get("rope_theta")
    share = float(
        scaling.pop("partial_rotary_factor", None) or reading.number("partial_rotary_factor", 1.0)
    )
    reading.get("partial_rotary_factor")
    kind = str(scaling.pop("rope_type", None) or scaling.pop("type", None) or "default")
    scaling.pop("type", None)
    if kind not in _ROTARY:
        raise reading.fault(
            f'the scaling "{kind}" of the rotary embedding is not known', nearest(kind, _ROTARY)
        )
    config = replace(
        config,
        theta=theta,
        local_theta=local_theta,
        rotary_share=share,
        rotary_scaling=_ROTARY[kind],
        rotary_factor=float(scaling.pop("factor", 1.0) or 1.0),
        rotary_positions=int(
            scaling.pop("original_max_position_embeddings", None)
            or reading.data.get("original_max_position_embeddings")
            or reading.data.get("max_position_embeddings")
            or config.rotary_positions
        ),
    )
    if kind == "llama3":
        config = replace(
            config,
            rotary_low=_required(reading, scaling, "low_freq_factor"),
            rotary_high=_required(reading, scaling, "high_freq_factor"),
        )
    elif kind == "yarn":
        config = replace(
            config,
            rotary_low=float(scaling.pop("beta_slow", None) or 1.0),
            rotary_high=float(scaling.pop("beta_fast", None) or 32.0),
            rotary_mscale=float(scaling.pop("mscale", None) or 0.0),
            rotary_mscale_all=float(scaling.pop("mscale_all_dim", None) or 0.0),
            rotary_rounded=int(scaling.pop("truncate", True)),
        )
    if unknown := [key for key, value in scaling.items() if value is not None]:
        raise reading.fault(
            f"keys of the rotary embedding are not known: {', '.join(sorted(unknown))}",
            "Export the model by torch.export instead.",
        )
    return config


def _required(reading: ConfigKeys, scaling: dict[str, Any], key: str) -> float:
    """Take a number of the scaling of the rotary embedding, which must be there."""
    value = scaling.pop(key, None)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise reading.fault(
            f"{key} of the rotary embedding is not a number: {value!r}",
            "Give the config.json that the model publishes.",
        )
    return float(value)


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
    whole = [number for number, kind in enumerate(kinds) if kind == "full_attention"]
    period = whole[0] + 1 if whole else 0
    if len(kinds) != layers or whole != (list(range(period - 1, layers, period)) if whole else []):
        raise reading.fault("layer_types is not periodic", "Export the model by torch.export.")
    return period


_FAMILIES: Mapping[str, Callable[[ConfigKeys, DecoderConfig], DecoderConfig]] = {
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

MODEL_TYPES = (*_FAMILIES, *ENCODERS)
