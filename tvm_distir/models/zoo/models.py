# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Build each model of the zoo, with the keys of its configuration."""

from __future__ import annotations

from collections.abc import Callable

from tvm import ir

from .building import build_keys
from .sizes import SIZES


def gpt(**keys: object) -> ir.IRModule:
    """Build a GPT-2 style decoder, ``main(input_ids, *weights) -> logits``.

    Weights are named ``wte.weight``, ``wpe.weight``, ``h.<i>.ln_1.weight``, ``.bias``,
    ``h.<i>.attn.{q,k,v,o}_proj.weight`` (out, in) and ``.bias``, ``h.<i>.ln_2``,
    ``h.<i>.mlp.{up,down}_proj``, ``ln_f``. The LM head is the token table, transposed.

    Parameters
    ----------
    **keys
        ``size``: tiny, gpt2 (default), gpt2-medium, gpt2-large, gpt2-xl, gpt3-6.7b, gpt3-13b,
        gpt3-175b; and any field of :class:`.GptConfig`, which overrides that of the size.
        Batch is 16; seq is 128 for GPT-2 sizes (give ``seq=1024`` for the full context),
        2048 for GPT-3's. ``entry="serve"``: as :func:`llama`.

    Raises
    ------
    ModelError
        DIST0331 unknown key or size, DIST0332 a value that makes no model.
    """
    return build_keys("gpt", keys)


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
        field of :class:`.LlamaConfig`, which overrides that of the size. Batch is 16, seq 2048,
        dtype bfloat16 (tiny: seq 16, float32). With ``entry="serve"`` it is the step of a serving
        engine, :mod:`.cached_model`, with the fields of :class:`.CacheConfig`.

    Raises
    ------
    ModelError
        DIST0331 unknown key or size, DIST0332 a value that makes no model.
    """
    return build_keys("llama", keys)


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
        ``size``: tiny, bert-base (default), bert-large; and any field of :class:`.BertConfig`,
        which overrides that of the size. Batch is 16, seq 128.

    Raises
    ------
    ModelError
        DIST0331 unknown key or size, DIST0332 a value that makes no model.
    """
    return build_keys("bert", keys)


def vit(**keys: object) -> ir.IRModule:
    """Build a Vision Transformer, ``main(images, *weights) -> logits``.

    Weights are named ``embed``, ``class_token``, ``places``, ``layers.<i>.ln_1``,
    ``layers.<i>.attn.{q,k,v,o}_proj``, ``layers.<i>.ln_2``, ``layers.<i>.mlp.{up,down}_proj``,
    ``norm``, ``head``.

    Parameters
    ----------
    **keys
        ``size``: tiny, vit-b16 (default), vit-l16, vit-h14; and any field of :class:`.VitConfig`,
        which overrides that of the size. Batch is 16.

    Raises
    ------
    ModelError
        DIST0331 unknown key or size, DIST0332 a value that makes no model.
    """
    return build_keys("vit", keys)


def t5(**keys: object) -> ir.IRModule:
    """Build a T5, ``main(input_ids, decoder_input_ids, *weights) -> logits``.

    Weights are named ``shared``, ``encoder.relative``, ``encoder.layers.<i>.ln_1``,
    ``.self_attn.{q,k,v,o}_proj``, ``.mlp.{gate,up,down}_proj``, ``encoder.norm``, and those of the
    decoder likewise, with ``.cross_attn``.

    Parameters
    ----------
    **keys
        ``size``: tiny, small, base (default), large, 3b, 11b, flan-base, flan-large, flan-xl,
        flan-xxl; and any field of :class:`.T5Config`, which overrides that of the size. Batch is
        16, seq 512, decoder_seq 128.

    Raises
    ------
    ModelError
        DIST0331 unknown key or size, DIST0332 a value that makes no model.
    """
    return build_keys("t5", keys)


def whisper(**keys: object) -> ir.IRModule:
    """Build a Whisper, ``main(input_features, decoder_input_ids, *weights) -> logits``.

    Weights are named ``encoder.conv1``, ``encoder.layers.<i>.self_attn.{q,k,v,o}_proj``,
    ``.mlp.{up,down}_proj``, and those of the decoder likewise, with ``.encoder_attn``.

    Parameters
    ----------
    **keys
        ``size``: tiny, tiny-39m, base, small (default), medium, large-v2, large-v3; and any field
        of :class:`.WhisperConfig`, which overrides that of the size. Batch is 16, seq 448.

    Raises
    ------
    ModelError
        DIST0331 unknown key or size, DIST0332 a value that makes no model.
    """
    return build_keys("whisper", keys)


def moe(**keys: object) -> ir.IRModule:
    """Build a Mixtral style mixture of experts, ``main(input_ids, *weights) -> logits``.

    Weights are named as those of :func:`llama`, but ``layers.<i>.mlp.router.weight`` (in, experts)
    and ``layers.<i>.mlp.{gate,up,down}_proj`` (experts, in, out).

    Parameters
    ----------
    **keys
        ``size``: tiny, mixtral-8x7b (default), mixtral-8x22b; and any field of
        :class:`.MoeConfig`, which overrides that of the size. Batch is 16, seq 2048, dtype bfloat16
        (tiny: batch 4, seq 16, float32). ``entry="serve"``: as :func:`llama`.

    Raises
    ------
    ModelError
        DIST0331 unknown key or size, DIST0332 a value that makes no model.
    """
    return build_keys("moe", keys)


def unet(**keys: object) -> ir.IRModule:
    """Build a diffusion U-Net, ``main(sample, timesteps, text, *weights) -> noise``.

    Without ``text`` when ``context`` is 0.

    Parameters
    ----------
    **keys
        ``size``: tiny, sd-unet (default; that of Stable Diffusion 1); and any field of
        :class:`.UnetConfig`, which overrides that of the size. Batch is 2 (tiny: 4).

    Raises
    ------
    ModelError
        DIST0331 unknown key or size, DIST0332 a value that makes no model.
    """
    return build_keys("unet", keys)


def resnet(**keys: object) -> ir.IRModule:
    """Build a ResNet for inference, ``main(images, *weights) -> logits``.

    Weights are named ``stem``, ``blocks.<i>.convs.<j>``, ``blocks.<i>.shortcut``, each with
    ``conv`` and ``norm``; and ``head``.

    Parameters
    ----------
    **keys
        ``size``: tiny, resnet18, resnet34, resnet50 (default), resnet101, resnet152; and any
        field of :class:`.ResnetConfig`, which overrides that of the size. Batch is 16 (tiny: 4).

    Raises
    ------
    ModelError
        DIST0331 unknown key or size, DIST0332 a value that makes no model.
    """
    return build_keys("resnet", keys)


def mlp(**keys: object) -> ir.IRModule:
    """Build linear layers with a ReLU between them, ``main(x, *weights) -> y``.

    Weights are named ``layers.<i>.linear`` and ``head``.

    Parameters
    ----------
    **keys
        ``size``: tiny, base (default); and any field of :class:`.MlpConfig`, which overrides the
        size's value.

    Raises
    ------
    ModelError
        DIST0331 unknown key or size, DIST0332 a value that makes no model.
    """
    return build_keys("mlp", keys)


def _family(name: str) -> Callable[..., ir.IRModule]:
    """Return the function that builds a decoder of a family."""

    def make(**keys: object) -> ir.IRModule:
        return build_keys(name, keys)

    make.__name__ = make.__qualname__ = name
    make.__doc__ = f"""Build a decoder of the family, ``main(input_ids, *weights) -> logits``.

    Weights are named as those of :func:`llama`, with norms, biases, latent projections and experts
    where the family has them (:class:`.DecoderConfig`).

    Parameters
    ----------
    **keys
        ``size``: {", ".join(SIZES[name])} (the first by default); and any field of
        :class:`.DecoderConfig`, which overrides that of the size. Batch is 16, seq 4096, dtype
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
