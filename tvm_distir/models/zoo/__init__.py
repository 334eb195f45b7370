# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Build models of any size without weights: transformers, convolutional nets, MLPs.

Examples
--------
>>> mod = td.zoo.build("gpt", {"size": "tiny"})
>>> mod["main"].ret_ty
R.Tensor((16, 16, 503), dtype="float32")
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

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
from .bert_model import BertConfig
from .cached_config import ENTRY, CacheConfig, serving_config, split_serve_keys
from .configs import Config, configure
from .decoder_config import DecoderConfig
from .decoder_families import FAMILIES, LlamaConfig, MoeConfig
from .gpt_config import GPT_PRESETS, GptConfig
from .mlp_model import MlpConfig
from .resnet_model import ResnetConfig
from .t5_model import T5Config
from .unet_config import UnetConfig
from .vit_model import VitConfig
from .whisper_model import WhisperConfig

__all__ = [
    "NAMES",
    "WITHOUT_SERVING",
    "BertConfig",
    "CacheConfig",
    "DecoderConfig",
    "GptConfig",
    "LlamaConfig",
    "MlpConfig",
    "MoeConfig",
    "ResnetConfig",
    "T5Config",
    "UnetConfig",
    "VitConfig",
    "WhisperConfig",
    "bert",
    "build",
    "build_config",
    "config",
    "deepseek",
    "falcon",
    "gemma",
    "gpt",
    "gpt_oss",
    "llama",
    "llama3",
    "mistral",
    "mixtral",
    "mlp",
    "moe",
    "olmo",
    "phi",
    "qwen2",
    "qwen3",
    "resnet",
    "serving_config",
    "split_serve_keys",
    "t5",
    "unet",
    "vit",
    "whisper",
]


def gpt(**keys: object) -> ir.IRModule:
    """Build a GPT-2 style decoder, ``main(input_ids, *weights) -> logits``.

    Weights are named ``wte.weight``, ``wpe.weight``, ``h.<i>.ln_1.weight``, ``.bias``,
    ``h.<i>.attn.{q,k,v,o}_proj.weight`` (out, in) and ``.bias``, ``h.<i>.ln_2``,
    ``h.<i>.mlp.{up,down}_proj``, ``ln_f``. The LM head is the token table, transposed.

    Parameters
    ----------
    **keys
        ``size``: tiny, gpt2 (default), gpt2-medium, gpt2-large, gpt2-xl, gpt3-6.7b, gpt3-13b,
        gpt3-175b; and any field of :class:`GptConfig`, which overrides that of the size.
        Batch is 16; seq is 128 for GPT-2 sizes (give ``seq=1024`` for the full context),
        2048 for GPT-3's. ``entry="serve"``: as :func:`llama`.

    Raises
    ------
    ModelError
        DIST0331 unknown key or size, DIST0332 a value that makes no model.
    """
    return _built("gpt", keys)


def llama(**keys: object) -> ir.IRModule:
    """Build a Llama style decoder, ``main(input_ids, *weights) -> logits``.

    Weights are named ``embed_tokens.weight``, ``layers.<i>.input_layernorm.weight``,
    ``layers.<i>.self_attn.{q,k,v,o}_proj.weight`` (out, in),
    ``layers.<i>.post_attention_layernorm.weight``,
    ``layers.<i>.mlp.{gate,up,down}_proj.weight``, ``norm.weight``, ``lm_head.weight``.

    Parameters
    ----------
    **keys
        ``size``: tiny, 7b, 13b, 70b (Llama 2), 8b (default), 3-70b, 405b (Llama 3); and any
        field of :class:`LlamaConfig`, which overrides that of the size. Batch is 16, seq 2048,
        dtype bfloat16 (tiny: seq 16, float32). With ``entry="serve"`` it is the step of a serving
        engine, :mod:`.cached_model`, with the fields of :class:`CacheConfig`.

    Raises
    ------
    ModelError
        DIST0331 unknown key or size, DIST0332 a value that makes no model.
    """
    return _built("llama", keys)


def bert(**keys: object) -> ir.IRModule:
    """Build a BERT encoder.

    ``main(input_ids, token_type_ids, attention_mask, *weights) -> logits``.
    Weights are named ``embeddings.{tokens,positions,types}.weight``, ``embeddings.norm``,
    ``layers.<i>.attn.{q,k,v,o}_proj``, ``layers.<i>.attn_norm``,
    ``layers.<i>.mlp.{up,down}_proj``, ``layers.<i>.mlp_norm``, and ``mlm.{dense,norm,bias}`` or
    ``classify.{pooler,classifier}``.

    Parameters
    ----------
    **keys
        ``size``: tiny, bert-base (default), bert-large; and any field of :class:`BertConfig`,
        which overrides that of the size. Batch is 16, seq 128.

    Raises
    ------
    ModelError
        DIST0331 unknown key or size, DIST0332 a value that makes no model.
    """
    return bert_model.build(config("bert", keys))


def vit(**keys: object) -> ir.IRModule:
    """Build a Vision Transformer, ``main(images, *weights) -> logits``.

    Weights are named ``embed``, ``class_token``, ``places``, ``layers.<i>.ln_1``,
    ``layers.<i>.attn.{q,k,v,o}_proj``, ``layers.<i>.ln_2``, ``layers.<i>.mlp.{up,down}_proj``,
    ``norm``, ``head``.

    Parameters
    ----------
    **keys
        ``size``: tiny, vit-b16 (default), vit-l16, vit-h14; and any field of :class:`VitConfig`,
        which overrides that of the size. Batch is 16.

    Raises
    ------
    ModelError
        DIST0331 unknown key or size, DIST0332 a value that makes no model.
    """
    return vit_model.build(config("vit", keys))


def t5(**keys: object) -> ir.IRModule:
    """Build a T5, ``main(input_ids, decoder_input_ids, *weights) -> logits``.

    Weights are named ``shared``, ``encoder.relative``, ``encoder.layers.<i>.ln_1``,
    ``.self_attn.{q,k,v,o}_proj``, ``.mlp.{gate,up,down}_proj``, ``encoder.norm``, and those of the
    decoder likewise, with ``.cross_attn``.

    Parameters
    ----------
    **keys
        ``size``: tiny, small, base (default), large, 3b, 11b, flan-base, flan-large, flan-xl,
        flan-xxl; and any field of :class:`T5Config`, which overrides that of the size. Batch is 16,
        seq 512, decoder_seq 128.

    Raises
    ------
    ModelError
        DIST0331 unknown key or size, DIST0332 a value that makes no model.
    """
    return t5_model.build(config("t5", keys))


def whisper(**keys: object) -> ir.IRModule:
    """Build a Whisper, ``main(input_features, decoder_input_ids, *weights) -> logits``.

    Weights are named ``encoder.conv1``, ``encoder.layers.<i>.self_attn.{q,k,v,o}_proj``,
    ``.mlp.{up,down}_proj``, and those of the decoder likewise, with ``.encoder_attn``.

    Parameters
    ----------
    **keys
        ``size``: tiny, tiny-39m, base, small (default), medium, large-v2, large-v3; and any field
        of :class:`WhisperConfig`, which overrides that of the size. Batch is 16, seq 448.

    Raises
    ------
    ModelError
        DIST0331 unknown key or size, DIST0332 a value that makes no model.
    """
    return whisper_model.build(config("whisper", keys))


def moe(**keys: object) -> ir.IRModule:
    """Build a Mixtral style mixture of experts, ``main(input_ids, *weights) -> logits``.

    Weights are named as those of :func:`llama`, but ``layers.<i>.mlp.router.weight`` (in, experts)
    and ``layers.<i>.mlp.{gate,up,down}_proj`` (experts, in, out).

    Parameters
    ----------
    **keys
        ``size``: tiny, mixtral-8x7b (default), mixtral-8x22b; and any field of
        :class:`MoeConfig`, which overrides that of the size. Batch is 16, seq 2048, dtype bfloat16
        (tiny: batch 4, seq 16, float32). ``entry="serve"``: as :func:`llama`.

    Raises
    ------
    ModelError
        DIST0331 unknown key or size, DIST0332 a value that makes no model.
    """
    return _built("moe", keys)


def unet(**keys: object) -> ir.IRModule:
    """Build a diffusion U-Net, ``main(sample, timesteps, text, *weights) -> noise``.

    Without ``text`` when ``context`` is 0.

    Parameters
    ----------
    **keys
        ``size``: tiny, sd-unet (default; that of Stable Diffusion 1); and any field of
        :class:`UnetConfig`, which overrides that of the size. Batch is 2 (tiny: 4).

    Raises
    ------
    ModelError
        DIST0331 unknown key or size, DIST0332 a value that makes no model.
    """
    return unet_model.build(config("unet", keys))


def resnet(**keys: object) -> ir.IRModule:
    """Build a ResNet for inference, ``main(images, *weights) -> logits``.

    Weights are named ``stem``, ``blocks.<i>.convs.<j>``, ``blocks.<i>.shortcut``, each with
    ``conv`` and ``norm``; and ``head``.

    Parameters
    ----------
    **keys
        ``size``: tiny, resnet18, resnet34, resnet50 (default), resnet101, resnet152; and any
        field of :class:`ResnetConfig`, which overrides that of the size. Batch is 16 (tiny: 4).

    Raises
    ------
    ModelError
        DIST0331 unknown key or size, DIST0332 a value that makes no model.
    """
    return resnet_model.build(config("resnet", keys))


def mlp(**keys: object) -> ir.IRModule:
    """Build linear layers with a ReLU between them, ``main(x, *weights) -> y``.

    Weights are named ``layers.<i>.linear`` and ``head``.

    Parameters
    ----------
    **keys
        ``size``: tiny, base (default); and any field of :class:`MlpConfig`, which overrides the
        size's value.

    Raises
    ------
    ModelError
        DIST0331 unknown key or size, DIST0332 a value that makes no model.
    """
    return mlp_model.build(config("mlp", keys))


def _family(name: str) -> Callable[..., ir.IRModule]:
    """Return the function that builds a decoder of a family."""

    def make(**keys: object) -> ir.IRModule:
        return _built(name, keys)

    make.__name__ = make.__qualname__ = name
    make.__doc__ = f"""Build a decoder of the family, ``main(input_ids, *weights) -> logits``.

    Weights are named as those of :func:`llama`, with norms, biases, latent projections and experts
    where the family has them (:class:`DecoderConfig`).

    Parameters
    ----------
    **keys
        ``size``: {", ".join(FAMILIES[name])} (the first by default); and any field of
        :class:`DecoderConfig`, which overrides that of the size. Batch is 16, seq 4096, dtype
        bfloat16 (tiny: batch 4, seq 16, float32). ``entry="serve"``: as :func:`llama`.

    Raises
    ------
    ModelError
        DIST0331 unknown key or size, DIST0332 a value that makes no model.
    """
    return make


deepseek = _family("deepseek")
falcon = _family("falcon")
gemma = _family("gemma")
gpt_oss = _family("gpt_oss")
llama3 = _family("llama3")
mistral = _family("mistral")
mixtral = _family("mixtral")
olmo = _family("olmo")
phi = _family("phi")
qwen2 = _family("qwen2")
qwen3 = _family("qwen3")


_DECODERS = (
    *(llama, moe, deepseek, falcon, gemma, gpt_oss, llama3, mistral, mixtral, olmo, phi, qwen2),
    *(qwen3,),
)


class _Model(NamedTuple):
    """Builder of a model, and its configurations by size, the default size first."""

    make: Callable[..., ir.IRModule]
    presets: Mapping[str, Any]


_MODELS = {
    make.__name__: _Model(make, presets)
    for make, presets in (
        (gpt, GPT_PRESETS),
        (bert, bert_model.PRESETS),
        (vit, vit_model.PRESETS),
        (t5, t5_model.PRESETS),
        (whisper, whisper_model.PRESETS),
        (unet, unet_model.PRESETS),
        (resnet, resnet_model.PRESETS),
        (mlp, mlp_model.PRESETS),
    )
} | {make.__name__: _Model(make, FAMILIES[make.__name__]) for make in _DECODERS}

NAMES = tuple(_MODELS)
_NO_TOKENS = "it does not generate tokens one after the other"
_CROSS = "its decoder attends to an encoder, whose keys and values have no caches"
WITHOUT_SERVING: Mapping[str, str] = {
    **dict.fromkeys(("bert", "mlp", "resnet", "unet", "vit"), _NO_TOKENS),
    **dict.fromkeys(("t5", "whisper"), _CROSS),
}
"""Models without a serving step, and why."""


@gc_paused()
def _built(name: str, keys: Mapping[str, object]) -> ir.IRModule:
    """Build a decoder from keys: forward, or its serving step."""
    rest, caches = split_serve_keys(f"zoo:{name}", keys)
    if caches is not None:
        known = serving_config(f"zoo:{name}", served_config(name, rest), caches)
        return cached_model.build(known, caches)
    return decoder_model.build(_decoder(config(name, rest)))


def _decoder(known: DecoderConfig | GptConfig) -> DecoderConfig:
    return known.decoder if isinstance(known, GptConfig) else known


def config(name: str, keys: Mapping[str, object]) -> Any:
    """Return the configuration of a model, such as :class:`GptConfig`, read from keys.

    Raises
    ------
    ModelError
        DIST0330 unknown name; DIST0331 unknown key or size, DIST0332 a value that makes no model.
    """
    _check_name(name)
    return configure(name, _MODELS[name].presets, keys)


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


_BUILDERS: Mapping[type, Callable[[Any], ir.IRModule]] = {
    DecoderConfig: decoder_model.build,
    BertConfig: bert_model.build,
    VitConfig: vit_model.build,
    T5Config: t5_model.build,
    WhisperConfig: whisper_model.build,
}


def build_config(configuration: Config, caches: CacheConfig | None = None) -> ir.IRModule:
    """Build the model of a configuration, or the serving step of a decoder with caches."""
    if caches is None:
        return _BUILDERS[type(configuration)](configuration)
    if not isinstance(configuration, DecoderConfig):
        raise ModelError(
            "DIST0331",
            "a model with an encoder has no serving step",
            place="config.json",
            remedy="Remove the key entry=serve.",
        )
    return cached_model.build(serving_config("config.json", configuration, caches), caches)


def _check_name(name: str) -> None:
    if name not in _MODELS:
        raise ModelError(
            "DIST0330",
            f'the zoo has no model "{name}"',
            place=f"zoo:{name}",
            remedy=nearest(name, NAMES),
        )


def build(name: str, keys: Mapping[str, object]) -> ir.IRModule:
    """Build a model of the zoo by name.

    Raises
    ------
    ModelError
        DIST0330 unknown name; DIST0331 a serving step of a model that has none; and those of
        :func:`gpt` and the others.
    """
    _check_name(name)
    if ENTRY in keys and name in WITHOUT_SERVING:
        problem = f"{name} has no serving step: {WITHOUT_SERVING[name]}"
        remedy = f"Remove {ENTRY}, or choose a decoder."
        raise ModelError("DIST0331", problem, place=f"zoo:{name}", remedy=remedy)
    return _MODELS[name].make(**keys)
