# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read the types in which a quantized checkpoint stores its weights.

The keys of ``quantization_config`` are those of ``transformers`` and of the libraries that it calls
for each ``quant_method``. ``quantization_methods.json`` has per method its reader, the keys with
modules that it skips, keys that are *neutral* to the bytes of weights, and keys that *require* a
value, or to be empty.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tvm_distir.support import nearest, shipped_data

from .config_keys import ConfigKeys

KEYS = ("quantization_config", "compression_config")
"""The keys of a ``config.json`` that state how its weights are quantized."""
Keys = Mapping[str, Any]
METHODS: Mapping[str, Keys] = shipped_data(__file__, "quantization_methods.json")
_OPERANDS = "operands"
_READ = ("quant_method", "bits", "w_bit", "group_size", "q_group_size", "zero_point", "quant_algo",
         "weight_block_size", "config_groups", "load_in_4bit", "load_in_8bit", "quant_type",
         "bnb_4bit_quant_type", "bnb_4bit_use_double_quant", "weights", "kv_cache_scheme",
         "kv_cache_quant_algo", "kv_cache_quant_method")  # fmt: skip


class QuantizedWeights(NamedTuple):
    """Weights as a checkpoint stores them.

    Attributes
    ----------
    words : str
        The type in words.
    kind : str
        The kind of weights as kernel profiles name it.
    bits : float or None
        Bits of an element with its share of the scales; None: those of the kind.
    dtype : str
        Type of the arithmetic where it is not that of the kind; ``operands``: that of the others.
    targets : tuple of str
        Regular expressions of the names of modules that are quantized; empty: all products.
    skipped : tuple of str
        Regular expressions of the names of modules that are not.
    keeps_head : bool
        Whether the head of the model is not quantized, unless ``skipped`` says so.
    """

    words: str
    kind: str
    bits: float | None = None
    dtype: str = ""
    targets: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    keeps_head: bool = True


def quantized_weights(reading: ConfigKeys) -> QuantizedWeights | None:
    """Return how the weights of a configuration are quantized; None where they are not.

    Raises
    ------
    ModelError
        DIST0334 where the type of the weights cannot be told, and for keys that may change their
        bytes and are unknown, by name.
    """
    key = next((key for key in KEYS if reading.data.get(key) is not None), None)
    if key is None:
        return None
    config = reading.data[key]
    method = str(config.get("quant_method")) if isinstance(config, Mapping) else "None"
    known = METHODS.get(method)
    read = None if known is None else _READERS[known["reader"]](_flat(config))
    if known is None or read is None:
        remedy = f"Remove {key} for weights of {reading.dtype}, or state the type: --quantize."
        hint = "" if known is not None else f" {nearest(method, METHODS)}"
        stated = f"{key} with quant_method {method!r}"
        raise reading.fault(f"the type of the weights cannot be told from {stated}", remedy + hint)
    config, skip = _flat(config), ("modules_to_not_convert", *known.get("skip", ()))
    unread = set(config) - {*_READ, *known.get("neutral", ()), *skip}
    for name in sorted(unread):
        usual = known.get("require", {}).get(name, reading)
        if usual is reading or (config[name] or usual) != usual:
            raise reading.fault(
                f"{key} has a key that may change the bytes of weights: {name}={config[name]!r}",
                "Remove it if it does not, or state the type of the weights: --quantize.",
            )
    names = [str(entry) for name in skip for entry in config.get(name) or ()]
    caches = any(config.get(name) for name in _READ if name.startswith("kv_cache"))
    words = read.words if read.words.startswith(method) else f"{method}, {read.words}"
    hint = "; it has scales of narrow caches, --kv-dtype sets their type"
    return read._replace(
        words=words + hint * caches,
        skipped=tuple(pattern for name in names for pattern in [_pattern(name, method)]),
    )


def _flat(config: Keys) -> dict[str, Any]:
    """Return the keys of a configuration, of ModelOpt also those in ``quantization``."""
    inner = config.get("quantization")
    return {**config, **inner} if isinstance(inner, Mapping) else dict(config)


def _pattern(name: str, method: str) -> str:
    """Return a regular expression of the names of modules that an entry of a list means."""
    for wrapped in ("model.language_model.", "language_model.model.", "language_model."):
        name = name.replace(wrapped, "model." if wrapped.count("model.") > 1 else "")
    if method == "compressed-tensors":
        return f"{name[3:]}.*" if name.startswith("re:") else rf"{re.escape(name)}(\..*)?"
    if method == "modelopt":
        return rf"{fnmatch.translate(name)[4:-3]}(\..*)?"
    try:
        re.compile(name)
    except re.error:
        name = re.escape(name)
    return rf"(.*\.)?{name}(\..*)?"


def _fp8(config: Keys) -> QuantizedWeights:
    block = config.get("weight_block_size")
    if isinstance(block, list) and len(block) == 2:
        words = f"fp8, blocks of {' x '.join(map(str, block))}"
        usual = block == [128, 128]
        return QuantizedWeights(
            words, "fp8-block", None if usual else 8 + 32 / (block[0] * block[1])
        )
    return QuantizedWeights("fp8", "fp8")


def _integers(config: Keys) -> QuantizedWeights | None:
    """Read weights of ``bits`` in groups, with zero points; activations are not quantized."""
    bits = config.get("bits", config.get("w_bit"))
    group = config.get("group_size", config.get("q_group_size"))
    if not isinstance(bits, int) or not 0 < bits < 16:
        return None
    if not isinstance(group, int) or group <= 0:
        return QuantizedWeights(f"int{bits}", f"int{bits}", bits, keeps_head=_keeps_head(config))
    zeros = bits if config.get("zero_point", True) else 0
    words = f"int{bits}, groups of {group}"
    keeps = _keeps_head(config)
    return QuantizedWeights(words, f"int{bits}", bits + (16 + zeros) / group, keeps_head=keeps)


def _keeps_head(config: Keys) -> bool:
    return not config.get("lm_head")


def _bitsandbytes(config: Keys) -> QuantizedWeights | None:
    if config.get("load_in_4bit"):
        kind = str(config.get("bnb_4bit_quant_type", "fp4"))
        double = bool(config.get("bnb_4bit_use_double_quant"))
        bits = 4 + 8 / 64 + 32 / (64 * 256) if double else 4.5
        return QuantizedWeights(kind, kind, bits) if kind in ("nf4", "fp4") else None
    return QuantizedWeights("int8", "int8") if config.get("load_in_8bit") else None


def _modelopt(config: Keys) -> QuantizedWeights | None:
    algorithm = str(config.get("quant_algo", "")).upper()
    names = {
        "FP8": ("fp8", ""), "NVFP4": ("nvfp4", ""), "W4A16_NVFP4": ("nvfp4", _OPERANDS),
        "W4A16_AWQ": ("int4", ""), "MXFP8": ("mxfp8", ""), "FP8_PB_WO": ("fp8-block", ""),
    }  # fmt: skip
    if algorithm not in names:
        return None
    kind, dtype = names[algorithm]
    return QuantizedWeights(algorithm.lower(), kind, None, dtype, keeps_head=False)


def _compressed(config: Keys) -> QuantizedWeights | None:
    """Read the groups of layers of compressed-tensors, whose weights are of one type."""
    groups = config.get("config_groups")
    kinds = [_of_group(group, config) for group in groups.values()] if groups else []
    targets: list[str] = []
    for group in groups.values() if groups else ():
        for name in group.get("targets", ["Linear"]) if isinstance(group, Mapping) else ():
            targets += [".*" if name == "Linear" else _pattern(str(name), "compressed-tensors")]
    if not kinds or kinds[0] is None or any(kind != kinds[0] for kind in kinds):
        return None
    return kinds[0]._replace(targets=tuple(targets), keeps_head=False)


def _of_group(group: object, config: Keys) -> QuantizedWeights | None:
    if not isinstance(group, Mapping) or not isinstance(group.get("weights"), Mapping):
        return None
    weights, dynamic = group["weights"], group.get("input_activations")
    kind, bits = weights.get("type", "int"), weights.get("num_bits")
    dtype = "" if dynamic else _OPERANDS
    if kind == "float" and bits == 8:
        return _fp8({"weight_block_size": weights.get("block_structure")})._replace(dtype=dtype)
    if kind == "float" and bits == 4:
        is_mx = "mxfp4" in str(group.get("format") or config.get("format"))
        name = "mxfp4" if is_mx or weights.get("group_size") == 32 else "nvfp4"
        return QuantizedWeights(name, name, None, dtype)
    if kind != "int" or not isinstance(bits, int):
        return None
    if dynamic:
        return QuantizedWeights("int8 with int8 activations", "w8a8") if bits == 8 else None
    zero_point = not weights.get("symmetric", True)
    return _integers({**weights, "bits": bits, "zero_point": zero_point})


def _torchao(config: Keys) -> QuantizedWeights | None:
    kind = config.get("quant_type")
    if isinstance(kind, Mapping):
        kind = kind.get("default") if set(kind) == {"default"} else None
    name = str(kind.get("_type") if isinstance(kind, Mapping) else kind).lower().replace("_", "")
    data = kind.get("_data") if isinstance(kind, Mapping) else None
    values = {**(data or {}), **(config.get("quant_type_kwargs") or {})}
    if "float8" in name:
        return QuantizedWeights("fp8", "fp8", None, _OPERANDS * ("weightonly" in name))
    if "int4weightonly" in name:
        return _integers({"bits": 4, "group_size": values.get("group_size", 128)})
    if "int8weightonly" in name:
        return QuantizedWeights("int8", "int8")
    return QuantizedWeights("int8", "w8a8") if "int8dynamicactivationint8" in name else None


def _quanto(config: Keys) -> QuantizedWeights | None:
    kind = {"float8": "fp8"}.get(str(config.get("weights")), str(config.get("weights")))
    known = {"fp8": 8.0, "int8": 8.0, "int4": 4.125, "int2": 2.125}
    return QuantizedWeights(kind, kind, known[kind], _OPERANDS) if kind in known else None


_READERS: Mapping[str, Callable[[Keys], QuantizedWeights | None]] = {
    "bitsandbytes": _bitsandbytes,
    "compressed": _compressed,
    "fp8": _fp8,
    "int8": lambda _: QuantizedWeights("int8", "int8"),
    "integers": _integers,
    "modelopt": _modelopt,
    "mxfp4": lambda _: QuantizedWeights("mxfp4", "mxfp4"),
    "quanto": _quanto,
    "torchao": _torchao,
}
"""What reads the type of weights, by the ``reader`` of a method."""
