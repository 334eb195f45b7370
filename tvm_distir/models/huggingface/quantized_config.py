# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Say of which type the weights of a quantized checkpoint are, and what applies that type.

The keys of ``quantization_config`` are those of ``transformers`` and of the libraries that it calls
for each ``quant_method``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tvm_distir.support import nearest

from .config_keys import ConfigKeys

KEYS = ("quantization_config", "compression_config")
"""The keys of a ``config.json`` that state how its weights are quantized."""
PROFILES: Mapping[str, str] = {
    "fp8": "serving-fp8",
    "fp8-block": "serving-fp8-block",
    "int4": "serving-int4",
    "int8": "fused-int8-weights",
    "nvfp4": "serving-nvfp4",
}
"""Kernel profiles whose weights have a type."""


class WeightType(NamedTuple):
    """Type of quantized weights: in words, and its key in :data:`PROFILES`; empty without one."""

    words: str
    key: str = ""


def quantization_note(reading: ConfigKeys, dtype: str) -> str:
    """Return a sentence on the quantization that a configuration asks for; empty without one.

    Parameters
    ----------
    reading : ConfigKeys
    dtype : str
        The dtype of the weights of the model that is built.

    Raises
    ------
    ModelError
        DIST0334 where the type of the weights cannot be told.
    """
    key = next((key for key in KEYS if reading.data.get(key) is not None), None)
    if key is None:
        return ""
    config = reading.data[key]
    method = config.get("quant_method") if isinstance(config, Mapping) else None
    read = _METHODS.get(str(method))
    kind = None if read is None else read(config)
    if kind is None:
        known = "" if read is not None else f" {nearest(str(method), _METHODS)}"
        raise reading.fault(
            f"the type of the weights cannot be told from {key} with quant_method {method!r}",
            f"Remove {key} for weights of {dtype}.{known}",
        )
    words = kind.words if kind.words.startswith(str(method)) else f"{method}, {kind.words}"
    note = f"{key} ({words}) is not applied: weights are {dtype}"
    profile = PROFILES.get(kind.key)
    if profile is None:
        return f"{note}, and no kernel profile has this type"
    serving = f", or in serving --quantize {kind.key}," * profile.startswith("serving-")
    return f"{note} unless --kernels {profile}{serving} is given"


def _fp8(config: Mapping[str, object]) -> WeightType:
    block = config.get("weight_block_size")
    if isinstance(block, list) and block:
        return WeightType(f"fp8, blocks of {' x '.join(map(str, block))}", "fp8-block")
    return WeightType("fp8", "fp8")


def _integers(config: Mapping[str, object]) -> WeightType | None:
    """Read weights of ``bits`` in groups, of which the activations are not quantized."""
    bits, group = config.get("bits", config.get("w_bit")), config.get("group_size")
    if not isinstance(bits, int):
        return None
    groups = f", groups of {group}" if isinstance(group, int) and group > 0 else ""
    return WeightType(f"int{bits}{groups}", f"int{bits}")


def _bitsandbytes(config: Mapping[str, object]) -> WeightType | None:
    if config.get("load_in_4bit"):
        return WeightType(str(config.get("bnb_4bit_quant_type", "fp4")))
    return WeightType("int8 with outliers") if config.get("load_in_8bit") else None


def _modelopt(config: Mapping[str, object]) -> WeightType | None:
    inner = config.get("quantization")
    algorithm = str((inner if isinstance(inner, Mapping) else config).get("quant_algo", ""))
    names = {"FP8": "fp8", "NVFP4": "nvfp4", "W4A16_AWQ": "int4", "MXFP8": ""}
    key = names.get(algorithm.upper())
    return None if key is None else WeightType(algorithm.lower(), key)


def _compressed(config: Mapping[str, Any]) -> WeightType | None:
    """Read the groups of layers of compressed-tensors."""
    groups = config.get("config_groups")
    kinds = {_of_group(group, config) for group in groups.values()} if groups else {None}
    if len(kinds) > 1 and None not in kinds:
        return WeightType(", ".join(sorted(kind.words for kind in kinds if kind is not None)))
    return kinds.pop() if len(kinds) == 1 else None


def _of_group(group: object, config: Mapping[str, object]) -> WeightType | None:
    if not isinstance(group, Mapping) or not isinstance(group.get("weights"), Mapping):
        return None
    weights = group["weights"]
    kind, bits = weights.get("type"), weights.get("num_bits")
    if kind == "float" and bits == 8:
        return _fp8({"weight_block_size": weights.get("block_structure")})
    if kind == "float" and bits == 4:
        is_nvfp4 = str(group.get("format") or config.get("format")).startswith("nvfp4")
        return WeightType("nvfp4", "nvfp4") if is_nvfp4 else WeightType("mxfp4")
    if kind != "int" or not isinstance(bits, int):
        return None
    if group.get("input_activations"):
        return WeightType(f"int{bits} with quantized activations")
    return _integers({"bits": bits, "group_size": weights.get("group_size")})


def _torchao(config: Mapping[str, object]) -> WeightType | None:
    text = str(config.get("quant_type", "")).lower()
    if "float8" in text:
        return WeightType("fp8", "fp8")
    bits = next((bits for bits in (4, 8) if f"int{bits}" in text), None)
    return None if bits is None else WeightType(f"int{bits}", f"int{bits}")


def _quanto(config: Mapping[str, object]) -> WeightType | None:
    kind = {"float8": "fp8"}.get(str(config.get("weights")), str(config.get("weights")))
    return WeightType(kind, kind) if kind in ("fp8", "int2", "int4", "int8") else None


_METHODS: Mapping[str, Callable[[Mapping[str, Any]], WeightType | None]] = {
    "auto-round": _integers,
    "awq": _integers,
    "bitsandbytes": _bitsandbytes,
    "compressed-tensors": _compressed,
    "eetq": lambda _: WeightType("int8", "int8"),
    "fbgemm_fp8": _fp8,
    "fp8": _fp8,
    "gptq": _integers,
    "modelopt": _modelopt,
    "mxfp4": lambda _: WeightType("mxfp4"),
    "quanto": _quanto,
    "torchao": _torchao,
}
"""What reads the type of weights, by ``quant_method``."""
