# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read the rotary embedding of a ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tvm_distir.models.zoo.decoder_config import DecoderConfig
from tvm_distir.support import nearest

from .config_keys import ConfigKeys

_ROTARY = {"default": "none", "linear": "linear", "llama3": "llama3", "yarn": "yarn"}


def with_rotary(reading: ConfigKeys, config: DecoderConfig) -> DecoderConfig:
    """Read the rotary embedding, which version 5 of transformers writes as one entry.

    Raises
    ------
    ModelError
        DIST0334 for a scaling that is not known, and for its unknown or missing keys.
    """
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
    config = replace(config, theta=theta, local_theta=local_theta, rotary_share=share)
    config = _scaled(reading, config, scaling)
    if unknown := [key for key, value in scaling.items() if value is not None]:
        raise reading.fault(
            f"keys of the rotary embedding are not known: {', '.join(sorted(unknown))}",
            "Export the model by torch.export instead.",
        )
    return config


def _scaled(reading: ConfigKeys, config: DecoderConfig, scaling: dict[str, Any]) -> DecoderConfig:
    """Take the keys of the scaling of positions out of a dictionary."""
    kind = str(scaling.pop("rope_type", None) or scaling.pop("type", None) or "default")
    scaling.pop("type", None)
    if kind not in _ROTARY:
        raise reading.fault(
            f'the scaling "{kind}" of the rotary embedding is not known', nearest(kind, _ROTARY)
        )
    config = replace(
        config,
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
        return replace(
            config,
            rotary_low=_required(reading, scaling, "low_freq_factor"),
            rotary_high=_required(reading, scaling, "high_freq_factor"),
        )
    if kind == "yarn":
        return replace(
            config,
            rotary_low=float(scaling.pop("beta_slow", None) or 1.0),
            rotary_high=float(scaling.pop("beta_fast", None) or 32.0),
            rotary_mscale=float(scaling.pop("mscale", None) or 0.0),
            rotary_mscale_all=float(scaling.pop("mscale_all_dim", None) or 0.0),
            rotary_rounded=int(scaling.pop("truncate", True)),
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
