# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Build a model of the zoo by its name, or from a configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tvm import ir

from tvm_distir.core.rewriting import gc_paused
from tvm_distir.hardware import SERVED_CAPACITY
from tvm_distir.support import ModelError, nearest

from . import (
    bert_model,
    cached_model,
    decoder_model,
    mlp_model,
    resnet_model,
    t5_model,
    unet_model,
    vit_model,
    whisper_model,
)
from .cached_config import ENTRY, CacheConfig, serving_config, split_serve_keys
from .configs import Config, configure
from .decoder_config import DecoderConfig
from .decoder_families import LlamaConfig, MoeConfig
from .gpt_config import GptConfig
from .sizes import SIZES
from .unet_config import UnetConfig

_OTHERS: Mapping[str, tuple[type[Config], Callable[[Any], ir.IRModule]]] = {
    "bert": (bert_model.BertConfig, bert_model.build),
    "vit": (vit_model.VitConfig, vit_model.build),
    "t5": (t5_model.T5Config, t5_model.build),
    "whisper": (whisper_model.WhisperConfig, whisper_model.build),
    "unet": (UnetConfig, unet_model.build),
    "resnet": (resnet_model.ResnetConfig, resnet_model.build),
    "mlp": (mlp_model.MlpConfig, mlp_model.build),
}
"""The configurations and builders of the models that are no decoders."""
_CONFIGS: Mapping[str, type[Config]] = {
    **{"gpt": GptConfig, "llama": LlamaConfig, "moe": MoeConfig},
    **{name: kind for name, (kind, _) in _OTHERS.items()},
}
"""The configurations of the models, where they are not :class:`.DecoderConfig`."""
_PRESETS: Mapping[str, Mapping[str, Config]] = {
    name: {size: _CONFIGS.get(name, DecoderConfig)(**keys) for size, keys in sizes.items()}
    for name, sizes in SIZES.items()
}
"""The configurations of each model by size, the default size first."""
_BUILDERS: Mapping[type[Config], Callable[[Any], ir.IRModule]] = {
    DecoderConfig: decoder_model.build,
    **dict(_OTHERS.values()),
}
NAMES = tuple(_PRESETS)
_NO_TOKENS = "it does not generate tokens one after the other"
_CROSS = "its decoder attends to an encoder, whose keys and values have no caches"
WITHOUT_SERVING: Mapping[str, str] = {
    **dict.fromkeys(("bert", "mlp", "resnet", "unet", "vit"), _NO_TOKENS),
    **dict.fromkeys(("t5", "whisper"), _CROSS),
}
"""Models without a serving step, and why."""


@gc_paused()
def build_keys(name: str, keys: Mapping[str, object]) -> ir.IRModule:
    """Build a model from keys: forward, or the serving step of a decoder."""
    if name in _OTHERS:
        return _OTHERS[name][1](config(name, keys))
    rest, caches = split_serve_keys(f"zoo:{name}", keys)
    if caches is not None:
        known = serving_config(f"zoo:{name}", served_config(name, rest), caches)
        return cached_model.build(known, caches)
    return decoder_model.build(_decoder(config(name, rest)))


def _decoder(known: DecoderConfig | GptConfig) -> DecoderConfig:
    return known.decoder if isinstance(known, GptConfig) else known


def config(name: str, keys: Mapping[str, object]) -> Any:
    """Return the configuration of a model, such as :class:`.GptConfig`, read from keys.

    Raises
    ------
    ModelError
        DIST0330 unknown name; DIST0331 unknown key or size, DIST0332 a value that makes no model.
    """
    _check_name(name)
    return configure(name, _PRESETS[name], keys)


def served_config(name: str, keys: Mapping[str, object]) -> DecoderConfig:
    """Return the configuration of a decoder that serves; few tokens load experts unevenly.

    Raises
    ------
    ModelError
        As :func:`config`.
    """
    known = _decoder(config(name, keys))
    if "capacity_factor" not in keys:
        return replace(known, capacity_factor=SERVED_CAPACITY)
    return known


def build_config(configuration: Config, caches: CacheConfig | None = None) -> ir.IRModule:
    """Build the model of a configuration, or the serving step of a decoder with caches."""
    if caches is None:
        return _BUILDERS[type(configuration)](configuration)
    if not isinstance(configuration, DecoderConfig):
        problem = "a model with an encoder has no serving step"
        remedy = "Remove the key entry=serve."
        raise ModelError("DIST0331", problem, location="config.json", remedy=remedy)
    return cached_model.build(serving_config("config.json", configuration, caches), caches)


def _check_name(name: str) -> None:
    if name not in _PRESETS:
        problem = f'the zoo has no model "{name}"'
        raise ModelError("DIST0330", problem, location=f"zoo:{name}", remedy=nearest(name, NAMES))


def build(name: str, keys: Mapping[str, object]) -> ir.IRModule:
    """Build a model of the zoo by name.

    Raises
    ------
    ModelError
        DIST0330 unknown name; DIST0331 a serving step of a model that has none; and those of
        :func:`.gpt` and the others.
    """
    _check_name(name)
    if ENTRY in keys and name in WITHOUT_SERVING:
        problem = f"{name} has no serving step: {WITHOUT_SERVING[name]}"
        remedy = f"Remove {ENTRY}, or choose a decoder."
        raise ModelError("DIST0331", problem, location=f"zoo:{name}", remedy=remedy)
    return build_keys(name, keys)
