# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Convert weights of ``transformers`` to those of the zoo's models."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tvm_distir.models.zoo.configs import Config
from tvm_distir.models.zoo.decoder_config import DecoderConfig
from tvm_distir.support import ModelError, shipped_data

from .encoder_weights import renamed_weights

Array = npt.NDArray[Any]
RENAMES: Mapping[str, list[tuple[str, str]]] = shipped_data(__file__, "weight_renames.json")
"""What replaces parts of names, in order, where a name has a mark, such as ``gpt_neox.``."""
COMPUTED = ("rotary_emb.inv_freq", *(f".{x}.{y}" for x in ("attn", "self_attn")
            for y in ("bias", "masked_bias")))  # fmt: skip
"""Ends of names of what old files hold although it is computed."""


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
    for name, plain, value in _renamed(_stacked_experts(state)):
        if plain.endswith(COMPUTED):
            continue
        if config.tied and plain == "lm_head.weight":
            continue
        stem, _, leaf = plain.rpartition(".")
        convert = _CONVERSIONS.get(re.split(r"\.mlp\.|\.self_attn\.|\.attn\.", plain)[-1])
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


def _renamed(state: Mapping[str, Array]) -> Iterator[tuple[str, str, Array]]:
    """Yield names, the names that most classes write, and weights; matrices of GPT-2 transposed."""
    pairs = [pair for mark, pairs in RENAMES.items() if any(mark in n for n in state)
             for pair in pairs]  # fmt: skip
    is_gpt2 = any("wte.weight" in name for name in state)
    for name, value in state.items():
        value = np.transpose(value) if is_gpt2 and ".c_" in name else value
        plain = name.removeprefix("model.").replace("block_sparse_moe.", "mlp.")
        for theirs, ours in pairs:
            plain = plain.replace(theirs, ours)
        yield name, plain, value


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
    """Split the rows (heads + 2 kv_heads) of Phi 3's projection, and of GPT-2's."""
    width = config.plain_width
    ends = [config.heads * width, (config.heads + config.kv_heads) * width]
    return _projections(stem, np.split(value, ends))


def _grouped_qkv(config: DecoderConfig, stem: str, value: Array) -> dict[str, Array]:
    """Split the rows of Falcon's projection: per key head its queries, the key and the value."""
    width, kv_heads = config.plain_width, config.kv_heads
    queries = config.heads // kv_heads
    rows = value.reshape(kv_heads, queries + 2, width, *value.shape[1:])
    parts = (rows[:, :queries], rows[:, queries : queries + 1], rows[:, queries + 1 :])
    return _projections(stem, [part.reshape(-1, *value.shape[1:]) for part in parts])


def _projections(stem: str, parts: Sequence[Array]) -> dict[str, Array]:
    """Name the parts of a joint projection, weights or biases."""
    block, leaf = stem.rpartition(".")[0], "bias" if parts[0].ndim == 1 else "weight"
    names = (f"{block}.{letter}_proj.{leaf}" for letter in "qkv")
    return dict(zip(names, parts, strict=True))


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
    "c_attn.weight": _joint_qkv,
    "c_attn.bias": _joint_qkv,
    "qkv_proj.weight": _joint_qkv,
    "query_key_value.weight": _grouped_qkv,
    "query_key_value.bias": _grouped_qkv,
    "gate_up_proj.weight": _joint_gate_up,
}
