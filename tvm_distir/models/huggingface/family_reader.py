# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read what the ``config.json`` of each family of models has, as ``families.json`` lists it.

A family has *keys* under other names than most; *requires* values of keys that it supports with
these only, the first by default; *ignores* keys that others imply; requires that all *layers* have
a kind of attention; and has *fields* of its configuration, each a reader of :data:`_READERS` with a
key (``a|b``: a, or b where it is missing) and a default, which may be a field that was read before:
``=heads``. Its *values* do not depend on keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypedDict

from tvm_distir.models.zoo.bert_model import BertConfig
from tvm_distir.models.zoo.configs import Config
from tvm_distir.models.zoo.decoder_config import DecoderConfig
from tvm_distir.models.zoo.t5_model import T5Config
from tvm_distir.models.zoo.vit_model import VitConfig
from tvm_distir.models.zoo.whisper_model import WhisperConfig
from tvm_distir.support import shipped_data

from .config_keys import ConfigKeys


class ModelFamily(TypedDict, total=False):
    """Describe how the configurations of a family are read."""

    keys: dict[str, str]
    require: dict[str, list[object]]
    ignore: list[str]
    layers: str
    fields: dict[str, tuple[str, str, object]]
    values: dict[str, object]


Families = Mapping[str, ModelFamily | str]
_FAMILIES = shipped_data(__file__, "families.json")
DECODERS: Families = _FAMILIES["decoders"]
ENCODERS: Families = _FAMILIES["encoders"]
"""The families by model type; a text is the family that is read in the same way."""
_ENCODER_CONFIGS: Mapping[str, type[Config]] = {
    "bert": BertConfig, "t5": T5Config, "vit": VitConfig, "whisper": WhisperConfig,
}  # fmt: skip
_BERT_HEADS = {"BertForMaskedLM": "mlm", "BertForSequenceClassification": "classify"}

Fields = dict[str, Any]
"""The fields of a configuration that have been read."""
Reader = Callable[[ConfigKeys, str, Any, Fields], object]
"""A function of the keys, a key, a default and the fields, which reads a field."""


def decoder_config(kind: str, reading: ConfigKeys, common: DecoderConfig) -> DecoderConfig:
    """Return the configuration of a decoder, from that of the keys that all families have.

    Raises
    ------
    ModelError
        DIST0334 for a key that is missing, or whose value is not supported.
    """
    return DecoderConfig(**_read(kind, DECODERS, reading, dict(vars(common))))


def usual_keys(kind: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the keys of a configuration by the names that most families have."""
    family = DECODERS.get(kind, {})
    others = family.get("keys", {}) if not isinstance(family, str) else {}
    renamed = {theirs: ours for ours, theirs in others.items() if theirs in data}
    return {renamed.get(key, key): value for key, value in data.items()}


def encoder_config(kind: str, reading: ConfigKeys) -> Config:
    """Return the configuration of a model with an encoder; raises as :func:`decoder_config`."""
    return _ENCODER_CONFIGS[kind](**_read(kind, ENCODERS, reading, {"dtype": reading.dtype}))


def _read(kind: str, families: Families, reading: ConfigKeys, known: Fields) -> Fields:
    family = families[kind]
    if isinstance(family, str):
        return _read(family, families, reading, known)
    for key, values in family.get("require", {}).items():
        reading.require(key, *values)
    for key in family.get("ignore", ()):
        reading.get(key)
    if any(layer != family["layers"] for layer in _layer_types(reading, family)):
        remedy = f"Known: {family['layers']} only."
        raise reading.fault("layer_types mixes kinds of attention", remedy)
    for name, (reader, key, usual) in family.get("fields", {}).items():
        if isinstance(usual, str) and usual.startswith("="):
            usual = known[usual.removeprefix("=")]
        known[name] = _READERS[reader](reading, key, usual, known)
    known |= family.get("values", {})
    return known | _OTHERS[kind](reading, known) if kind in _OTHERS else known


def _layer_types(reading: ConfigKeys, family: ModelFamily) -> list[str]:
    return list(reading.get("layer_types", [])) if "layers" in family else []


def _number(reading: ConfigKeys, key: str, usual: float | None, known: Fields) -> object:
    first, _, other = key.partition("|")
    return reading.number(first, reading.get(other) if other else usual)


def _classes(reading: ConfigKeys, key: str, usual: int, _: Fields) -> int:
    labels = reading.data.get("id2label")
    return len(labels) if isinstance(labels, Mapping) else int(reading.number(key, usual))


def _period(reading: ConfigKeys, key: str, usual: int, known: Fields) -> int:
    """Return after how many layers one has no window, from ``layer_types`` where they are given."""
    default = int(reading.number(key, usual)) if key else usual
    kinds, layers = list(reading.get("layer_types", [])), known["layers"]
    if not kinds:
        return default
    full = [number for number, kind in enumerate(kinds) if kind == "full_attention"]
    period = full[0] + 1 if full else 0
    if len(kinds) != layers or full != (list(range(period - 1, layers, period)) if full else []):
        raise reading.fault("layer_types is not periodic", "Export the model by torch.export.")
    return period


_READERS: Mapping[str, Reader] = {
    "number": _number,
    "float": lambda reading, key, usual, _: float(reading.number(key, usual)),
    "flag": lambda reading, key, usual, _: reading.flag(key, bool(usual)),
    "text": lambda reading, key, usual, _: str(reading.get(key, usual)),
    "cap": lambda reading, key, *_: float(reading.get(key) or 0.0),
    "field": lambda _, name, usual, known: known[name] or usual,
    "inverse": lambda reading, key, usual, _: 1 / float(reading.number(key, usual)),
    "inverse_square": lambda reading, key, usual, _: float(reading.number(key, usual)) ** -2,
    "routing": lambda reading, key, usual, _: (
        "softmax" if reading.flag(key, bool(usual)) else "softmax_all"
    ),
    "classes": _classes,
    "period": _period,
}
"""Readers by name; ``field`` is a field that was read before, or the default where it is 0."""


def _bert(reading: ConfigKeys, known: Fields) -> Fields:
    names = reading.data.get("architectures") or ["BertForMaskedLM"]
    head = next((_BERT_HEADS[name] for name in names if name in _BERT_HEADS), "mlm")
    return {"head": head, "seq": min(512, known["positions"])}


def _falcon(reading: ConfigKeys, known: Fields) -> Fields:
    grouped = reading.flag("new_decoder_architecture")
    single = reading.flag("multi_query", True)
    return {
        "kv_heads": known["kv_heads"] if grouped else 1 if single else known["heads"],
        "ffn": reading.number("ffn_hidden_size", 4 * known["hidden"]),
        "parallel_norms": int(reading.number("num_ln_in_parallel_attn", 2 if grouped else 1)),
    }


def _deepseek(reading: ConfigKeys, known: Fields) -> Fields:
    return {"shared_ffn": known["expert_ffn"] * int(reading.number("n_shared_experts", 0))}


def _deepseek_v2(reading: ConfigKeys, known: Fields) -> Fields:
    greedy = reading.get("topk_method", "greedy") == "greedy"
    groups = {"expert_groups": 1, "top_groups": 1} if greedy else {}
    return {**_deepseek(reading, known), **groups}


_OTHERS: Mapping[str, Callable[[ConfigKeys, Fields], Fields]] = {
    "bert": _bert, "falcon": _falcon, "deepseek_v2": _deepseek_v2, "deepseek_v3": _deepseek,
    "glm4_moe": _deepseek, "dots1": _deepseek,
}  # fmt: skip
"""Fields of families that depend on several keys."""
