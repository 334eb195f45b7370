# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Keys, presets and checks of the zoo's models.

Architectures: GPT-2 (Radford et al. 2019, table 2), GPT-3 (Brown et al. 2020, table 2.1),
Llama 2 (Touvron et al. 2023, table 1) and Llama 3 (Grattafiori et al. 2024, table 3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from ...errors import ModelError, nearest

DTYPES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class GptConfig:
    """A GPT-2 style decoder.

    Attributes
    ----------
    layers, hidden, heads, ffn, vocab : int
        Sizes; ``ffn`` 0 means four times ``hidden``.
    positions : int
        Rows of the learned position table; ``seq`` cannot exceed it.
    batch, seq : int
        Samples and tokens per sample of the data input ``input_ids``.
    dtype : str
        Of weights and activations: float32, float16 or bfloat16.
    nested : int
        1: a layer is a private function; 0: everything stands in ``main``.
    """

    layers: int = 12
    hidden: int = 768
    heads: int = 12
    ffn: int = 0
    vocab: int = 50257
    positions: int = 1024
    batch: int = 16
    seq: int = 128
    dtype: str = "float32"
    nested: int = 1

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.hidden // self.heads

    @property
    def ffn_dim(self) -> int:
        """Width of the hidden layer of the feed-forward block."""
        return self.ffn or 4 * self.hidden


@dataclass(frozen=True)
class LlamaConfig:
    """A Llama style decoder.

    Attributes
    ----------
    layers, hidden, heads, kv_heads, ffn, vocab : int
        Sizes; ``kv_heads`` divides ``heads`` (grouped-query attention).
    batch, seq : int
        Samples and tokens per sample of the data input ``input_ids``.
    dtype : str
        Of weights and activations: float32, float16 or bfloat16.
    theta : float
        Base of the rotary position embedding.
    eps : float
        Epsilon of RMSNorm.
    nested : int
        1: a layer is a private function; 0: everything stands in ``main``.
    """

    layers: int = 32
    hidden: int = 4096
    heads: int = 32
    kv_heads: int = 8
    ffn: int = 14336
    vocab: int = 128256
    batch: int = 16
    seq: int = 2048
    dtype: str = "bfloat16"
    theta: float = 500000.0
    eps: float = 1e-5
    nested: int = 1

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.hidden // self.heads


Config = TypeVar("Config", GptConfig, LlamaConfig)

GPT_DEFAULT_SIZE = "gpt2"
GPT_PRESETS: dict[str, GptConfig] = {
    "tiny": GptConfig(2, 64, 4, vocab=503, positions=64, seq=16),
    "gpt2": GptConfig(),
    "gpt2-medium": GptConfig(24, 1024, 16),
    "gpt2-large": GptConfig(36, 1280, 20),
    "gpt2-xl": GptConfig(48, 1600, 25),
    "gpt3-6.7b": GptConfig(32, 4096, 32, positions=2048, seq=2048, dtype="float16"),
    "gpt3-13b": GptConfig(40, 5120, 40, positions=2048, seq=2048, dtype="float16"),
    "gpt3-175b": GptConfig(96, 12288, 96, positions=2048, seq=2048, dtype="float16"),
}

LLAMA_DEFAULT_SIZE = "8b"
_LLAMA2 = LlamaConfig(vocab=32000, theta=10000.0)
LLAMA_PRESETS: dict[str, LlamaConfig] = {
    "tiny": LlamaConfig(2, 64, 8, 4, 128, 512, seq=16, dtype="float32", theta=10000.0),
    "7b": replace(_LLAMA2, kv_heads=32, ffn=11008),
    "13b": replace(_LLAMA2, layers=40, hidden=5120, heads=40, kv_heads=40, ffn=13824),
    "70b": replace(_LLAMA2, layers=80, hidden=8192, heads=64, ffn=28672),
    "8b": LlamaConfig(),
    "3-70b": LlamaConfig(layers=80, hidden=8192, heads=64, ffn=28672),
    "405b": LlamaConfig(layers=126, hidden=16384, heads=128, ffn=53248),
}


def configure(
    name: str, presets: Mapping[str, Config], default_size: str, keys: Mapping[str, Any]
) -> Config:
    """Preset with single keys overridden.

    Parameters
    ----------
    name : str
        Of the model, for messages.
    presets : mapping of str to config
        The sizes.
    default_size : str
        The size when ``keys`` names none.
    keys : mapping
        ``size`` and any field; values may be texts (as in a ``zoo:`` string).

    Raises
    ------
    ModelError
        DIST0331 unknown key or size, DIST0332 a value that makes no model.
    """
    rest = dict(keys)
    size = str(rest.pop("size", default_size)).lower()
    if size not in presets:
        raise ModelError(
            "DIST0331",
            f'the zoo\'s {name} has no size "{size}"',
            place=f"zoo:{name}",
            remedy=nearest(size, presets),
        )
    base = presets[size]
    types: dict[str, type] = {f.name: type(getattr(base, f.name)) for f in fields(base)}
    values: dict[str, Any] = {}
    for key, value in rest.items():
        if key not in types:
            raise ModelError(
                "DIST0331",
                f'the zoo\'s {name} has no key "{key}"',
                place=f"zoo:{name}",
                remedy=nearest(key, [*types, "size"]),
            )
        values[key] = _convert(name, key, value, types[key])
    config = replace(base, **values)
    _check(name, config)
    return config


def _convert(name: str, key: str, value: Any, kind: type) -> Any:
    if kind is str:
        return str(value)
    try:
        number = kind(value) if not isinstance(value, float) else kind(str(value))
    except (TypeError, ValueError) as error:
        word = "an integer" if kind is int else "a number"
        raise ModelError(
            "DIST0332", f"{key}={value!r} is not {word}", place=f"zoo:{name}", remedy="Fix it."
        ) from error
    return number


def _check(name: str, config: GptConfig | LlamaConfig) -> None:
    def refuse(what: str, remedy: str) -> None:
        raise ModelError("DIST0332", what, place=f"zoo:{name}", remedy=remedy)

    may_be_zero = {"ffn"} if isinstance(config, GptConfig) else set()
    for field in fields(config):
        value = getattr(config, field.name)
        if field.name == "nested":
            if value not in (0, 1):
                refuse(f"nested={value}", "Give 0 or 1.")
        elif not isinstance(value, str) and (
            value < 0 or (value == 0 and field.name not in may_be_zero)
        ):
            refuse(f"{field.name}={value} is not positive", "Give a positive number.")
    if config.dtype not in DTYPES:
        refuse(f'unknown dtype "{config.dtype}"', nearest(config.dtype, DTYPES))
    if config.hidden % config.heads:
        refuse(
            f"hidden={config.hidden} is not divisible by heads={config.heads}",
            "Choose heads that divide hidden.",
        )
    if isinstance(config, GptConfig) and config.seq > config.positions:
        refuse(
            f"seq={config.seq} exceeds positions={config.positions}",
            f"Add positions={config.seq}.",
        )
    if isinstance(config, LlamaConfig):
        if config.heads % config.kv_heads:
            refuse(
                f"heads={config.heads} is not divisible by kv_heads={config.kv_heads}",
                "Choose kv_heads that divide heads.",
            )
        if config.head_dim % 2:
            refuse(
                f"the head width {config.head_dim} is odd: rotary embedding needs pairs",
                "Choose hidden and heads with an even quotient.",
            )
