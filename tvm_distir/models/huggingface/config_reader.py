# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read ``config.json`` of the Hugging Face hub as a configuration of the zoo.

The meaning of each key is that of the model's class in ``transformers``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from tvm_distir.models.zoo.configs import Config, convert_key
from tvm_distir.models.zoo.decoder_config import DecoderConfig
from tvm_distir.support import ModelError, nearest

from .config_keys import ConfigKeys
from .family_reader import DECODERS, ENCODERS, decoder_config, encoder_config, usual_keys
from .quantized_config import KEYS
from .rotary_keys import with_rotary

MODEL_KEYS = ("model_type", "dtype", "torch_dtype", *KEYS)
"""Keys of a multimodal model that hold for its decoder, unless this says otherwise."""

_FOUR_TIMES = ("falcon", "gpt2")
"""Families whose feed-forward blocks are usually four times as wide as the model."""
_ACTIVATIONS = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}  # fmt: skip


def read_config(data: Any, location: str, keys: Mapping[str, Any] | None = None) -> Config:
    """Return the configuration of a model from the content of its ``config.json``.

    Parameters
    ----------
    data : mapping
        The content; of a multimodal model the decoder's part, ``text_config``, is read.
    location : str
        The file, for messages.
    keys : mapping, optional
        Fields of the configuration that override it, such as ``batch`` and ``seq``.

    Raises
    ------
    ModelError
        DIST0334 for what is no configuration, an unknown ``model_type``, each key that changes
        the graph and is unknown, by name; ``quantization_config`` is read by
        :func:`tvm_distir.models.stored_weights.stored_weights`;
        DIST0332 for sizes or a dtype that make no model.
    """
    if not isinstance(data, Mapping) or not isinstance(data.get("model_type"), str):
        remedy = "Give the config.json of a model."
        raise ModelError("DIST0334", "the file has no model_type", location=location, remedy=remedy)
    decoder = of_decoder(data)
    kind = str(decoder["model_type"])
    reading = ConfigKeys(usual_keys(kind, decoder), location)
    if kind not in MODEL_TYPES:
        raise reading.fault(
            f'the model type "{kind}" is not known',
            f"{nearest(kind, MODEL_TYPES)} Export it by torch.export or ONNX instead, or install "
            'transformers and the extra: pip install "tvm_distir[torch]" transformers.',
        )
    config: Any = (
        encoder_config(kind, reading)
        if kind in ENCODERS
        else decoder_config(kind, reading, _common(reading))
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
    changes = {
        key: convert_key(location, key, text, known[key]) for key, text in (keys or {}).items()
    }
    config = replace(config, **changes)
    for problem, remedy in config.faults():
        raise ModelError("DIST0332", problem, location=location, remedy=remedy)
    result: Config = config
    return result


def of_decoder(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the keys of the decoder of a multimodal model, or those of any other model."""
    if not isinstance(data.get("text_config"), Mapping):
        return data
    return {**{key: data[key] for key in MODEL_KEYS if key in data}, **data["text_config"],
            "model_type": data["model_type"]}  # fmt: skip


def _common(reading: ConfigKeys) -> DecoderConfig:
    heads, hidden = reading.number("num_attention_heads"), reading.number("hidden_size")
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
        ffn=reading.number(
            "intermediate_size", 4 * hidden if reading.data["model_type"] in _FOUR_TIMES else None
        ),
        vocab=reading.number("vocab_size"),
        eps=float(reading.number("rms_norm_eps", 1e-6)),
        activation=_ACTIVATIONS[word],
        tied=reading.flag("tie_word_embeddings"),
        dtype=reading.dtype,
    )
    return with_rotary(reading, config)


MODEL_TYPES = (*DECODERS, *ENCODERS)
