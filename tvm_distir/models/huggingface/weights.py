# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Convert weights of ``transformers`` to those of the zoo's models."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tvm_distir.models.zoo.configs import Config
from tvm_distir.models.zoo.decoder_config import DecoderConfig
from tvm_distir.support import ModelError

from .encoder_weights import renamed_weights

Array = npt.NDArray[Any]


def convert_weights(config: Config, state: Mapping[str, Array]) -> dict[str, Array]:
    """Return the weights of a model by the names of its parameters.

    Parameters
    ----------
    config : Config
    state : mapping of str to array
        Tensors by the names of the state dictionary of the model's class, whose experts are
        stacked, ``experts.gate_up_proj``.

    Returns
    -------
    dict of str to array
        Joint projections are split (``qkv_proj``, ``gate_up_proj``), and weights of experts and
        routers are transposed to (experts, in, out) and (in, experts).

    Raises
    ------
    ModelError
        DIST0335 for a tensor that belongs to no weight of the model.
    """
    if not isinstance(config, DecoderConfig):
        return renamed_weights(config, state)
    out: dict[str, Array] = {}
    for name, value in _stacked_experts(state).items():
        if name.endswith("rotary_emb.inv_freq"):  # old files hold what is computed
            continue
        plain = _plain_name(name)
        if config.tied and plain == "lm_head.weight":
            continue
        stem, _, leaf = plain.rpartition(".")
        tail = plain.split(".mlp." if ".mlp." in plain else ".self_attn.")[-1]
        convert = _CONVERSIONS.get(tail)
        if convert is not None:
            out.update(convert(config, stem, np.asarray(value)))
        elif leaf in ("weight", "bias", "sinks"):
            out[plain] = np.asarray(value)
        else:
            problem = "the tensor belongs to no weight of the model"
            remedy = "Give the weights of the model that config.json describes."
            raise ModelError("DIST0335", problem, location=name, remedy=remedy)
    return out


_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(\w+)\.weight")
_EXPERT_PARTS = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}


def _stacked_experts(state: Mapping[str, Array]) -> dict[str, Array]:
    """Stack the weights of single experts, as files hold them, as the model's class does."""
    out: dict[str, Array] = {}
    parts: dict[str, dict[str, dict[int, Array]]] = {}
    for name, value in state.items():
        match = _EXPERT.fullmatch(name)
        if match is None:
            out[name] = value
            continue
        part = _EXPERT_PARTS.get(match[3], match[3])
        parts.setdefault(match[1], {}).setdefault(part, {})[int(match[2])] = np.asarray(value)
    for stem, by_part in parts.items():
        stacked = {part: np.stack([v[i] for i in sorted(v)]) for part, v in by_part.items()}
        out[f"{stem}.gate_up_proj"] = np.concatenate(
            [stacked["gate_proj"], stacked["up_proj"]], axis=1
        )
        out[f"{stem}.down_proj"] = stacked["down_proj"]
    return out


def _plain_name(name: str) -> str:
    """Return the name of a weight as most classes write it; Falcon's have others."""
    plain = name.removeprefix("model.").replace("block_sparse_moe.", "mlp.")
    if not name.startswith("transformer."):
        return plain
    for theirs, ours in _FALCON_NAMES:
        plain = plain.replace(theirs, ours)
    return plain


_FALCON_NAMES = (
    ("transformer.word_embeddings", "embed_tokens"), ("transformer.ln_f", "norm"),
    ("transformer.h.", "layers."), ("self_attention.dense", "self_attn.o_proj"),
    ("self_attention.", "self_attn."), ("dense_h_to_4h", "up_proj"),
    ("dense_4h_to_h", "down_proj"), ("ln_attn", "input_layernorm"), ("ln_mlp", "mlp_layernorm"),
)  # fmt: skip


Conversion = Callable[[DecoderConfig, str, Array], dict[str, Array]]


def _block(stem: str) -> str:
    return stem.split(".mlp")[0] + ".mlp"


def _moved(leaf: str, change: Callable[[Array], Array] = np.asarray) -> Conversion:
    """Return a conversion to a leaf of the block."""
    return lambda _, stem, value: {f"{_block(stem)}.{leaf}": change(value)}


def _experts_gate_up(config: DecoderConfig, stem: str, value: Array) -> dict[str, Array]:
    """Split (experts, 2 inner, hidden); GPT-OSS has (experts, hidden, 2 inner), interleaved."""
    block = _block(stem)
    if config.expert_bias:
        return {f"{block}.gate_proj": value[..., ::2], f"{block}.up_proj": value[..., 1::2]}
    gate, up = np.split(value, 2, axis=1)
    return {
        f"{block}.gate_proj": gate.transpose(0, 2, 1),
        f"{block}.up_proj": up.transpose(0, 2, 1),
    }


def _experts_down(config: DecoderConfig, stem: str, value: Array) -> dict[str, Array]:
    value = value if config.expert_bias else value.transpose(0, 2, 1)
    return {f"{_block(stem)}.down_proj": value}


def _gate_up_bias(_: DecoderConfig, stem: str, value: Array) -> dict[str, Array]:
    block, value = _block(stem), value[:, None]
    return {f"{block}.gate_bias": value[..., ::2], f"{block}.up_bias": value[..., 1::2]}


def _joint_qkv(config: DecoderConfig, stem: str, value: Array) -> dict[str, Array]:
    """Split the rows (heads + 2 kv_heads) of Phi 3's projection."""
    width = config.plain_width
    ends = [config.heads * width, (config.heads + config.kv_heads) * width]
    block = stem.removesuffix(".qkv_proj")
    names = ("q_proj", "k_proj", "v_proj")
    parts = np.split(value, ends)
    return {f"{block}.{name}.weight": part for name, part in zip(names, parts, strict=True)}


def _grouped_qkv(config: DecoderConfig, stem: str, value: Array) -> dict[str, Array]:
    """Split the rows of Falcon's projection: per key head its queries, the key and the value."""
    width, kv_heads = config.plain_width, config.kv_heads
    queries = config.heads // kv_heads
    rows = value.reshape(kv_heads, queries + 2, width, -1)
    block = stem.removesuffix(".query_key_value")
    parts = (rows[:, :queries], rows[:, queries : queries + 1], rows[:, queries + 1 :])
    return {
        f"{block}.{name}.weight": part.reshape(-1, value.shape[1])
        for name, part in zip(("q_proj", "k_proj", "v_proj"), parts, strict=True)
    }


def _joint_gate_up(_: DecoderConfig, stem: str, value: Array) -> dict[str, Array]:
    gate, up = np.split(value, 2)
    block = stem.removesuffix(".gate_up_proj")
    return {f"{block}.gate_proj.weight": gate, f"{block}.up_proj.weight": up}


_CONVERSIONS: Mapping[str, Conversion] = {
    "gate.weight": _moved("router.weight", np.transpose),
    "router.weight": _moved("router.weight", np.transpose),
    "router.bias": _moved("router.bias"),
    "gate.e_score_correction_bias": _moved("router.correction"),
    "experts.gate_up_proj": _experts_gate_up,
    "experts.down_proj": _experts_down,
    "experts.gate_up_proj_bias": _gate_up_bias,
    "experts.down_proj_bias": _moved("down_bias", lambda value: value[:, None]),
    "qkv_proj.weight": _joint_qkv,
    "query_key_value.weight": _grouped_qkv,
    "gate_up_proj.weight": _joint_gate_up,
}
