# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Transformers of any size, built in memory without weights: ``gpt`` and ``llama``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import ir

from ...errors import ModelError, nearest
from . import gpt_model, llama_model
from .configs import (
    GPT_DEFAULT_SIZE,
    GPT_PRESETS,
    LLAMA_DEFAULT_SIZE,
    LLAMA_PRESETS,
    GptConfig,
    LlamaConfig,
    configure,
)

__all__ = ["NAMES", "GptConfig", "LlamaConfig", "build", "gpt", "llama"]

NAMES = ("gpt", "llama")


def gpt(**keys: Any) -> ir.IRModule:
    """Build a GPT-2 style decoder, ``main(input_ids, *weights) -> logits``.

    Weights are named ``wte.weight``, ``wpe.weight``, ``h.<i>.ln_1.weight``, ``.bias``,
    ``h.<i>.attn.{q,k,v,o}_proj.weight`` (out, in) and ``.bias``, ``h.<i>.ln_2``,
    ``h.<i>.mlp.{up,down}_proj``, ``ln_f``. The LM head is the token table, transposed.

    Parameters
    ----------
    **keys
        ``size``: tiny, gpt2 (default), gpt2-medium, gpt2-large, gpt2-xl, gpt3-6.7b, gpt3-13b,
        gpt3-175b; and any field of :class:`GptConfig`, which overrides the size's own.
        Batch is 16; seq is 128 for GPT-2 sizes (give ``seq=1024`` for the full context),
        2048 for GPT-3's.

    Raises
    ------
    ModelError
        DIST0331 unknown key or size, DIST0332 a value that makes no model.
    """
    return gpt_model.build(configure("gpt", GPT_PRESETS, GPT_DEFAULT_SIZE, keys))


def llama(**keys: Any) -> ir.IRModule:
    """Build a Llama style decoder, ``main(input_ids, *weights) -> logits``.

    Weights are named ``embed_tokens.weight``, ``layers.<i>.input_layernorm.weight``,
    ``layers.<i>.self_attn.{q,k,v,o}_proj.weight`` (out, in),
    ``layers.<i>.post_attention_layernorm.weight``,
    ``layers.<i>.mlp.{gate,up,down}_proj.weight``, ``norm.weight``, ``lm_head.weight``.

    Parameters
    ----------
    **keys
        ``size``: tiny, 7b, 13b, 70b (Llama 2), 8b (default), 3-70b, 405b (Llama 3); and any
        field of :class:`LlamaConfig`, which overrides the size's own. Batch is 16, seq 2048,
        dtype bfloat16 (tiny: seq 16, float32).

    Raises
    ------
    ModelError
        DIST0331 unknown key or size, DIST0332 a value that makes no model.
    """
    return llama_model.build(configure("llama", LLAMA_PRESETS, LLAMA_DEFAULT_SIZE, keys))


def build(name: str, keys: Mapping[str, Any]) -> ir.IRModule:
    """Build a model of the zoo by name.

    Raises
    ------
    ModelError
        DIST0330 unknown name; and those of :func:`gpt` and :func:`llama`.
    """
    makers = {"gpt": gpt, "llama": llama}
    if name not in makers:
        raise ModelError(
            "DIST0330",
            f'the zoo has no model "{name}"',
            place=f"zoo:{name}",
            remedy=nearest(name, NAMES),
        )
    return makers[name](**keys)
