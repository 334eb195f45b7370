#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Families of models of `transformers`, small and with random weights, for `torch_families.py`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
import transformers as hf

VOCABULARY, TOKENS, BATCH = 512, 16, 4

ENCODER = dict(
    num_hidden_layers=2, hidden_size=64, intermediate_size=128, num_attention_heads=4
) | dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
DECODER = dict(
    num_hidden_layers=2, hidden_size=64, intermediate_size=128, num_attention_heads=8
) | dict(num_key_value_heads=4, vocab_size=VOCABULARY, max_position_embeddings=64)
PAIR = dict(d_model=64, encoder_layers=2, decoder_layers=2, vocab_size=VOCABULARY) | {
    f"{side}_{key}": value
    for side in ("encoder", "decoder")
    for key, value in (("attention_heads", 4), ("ffn_dim", 128))
}
TEXT = ("input_ids",)
IMAGE = ("pixel_values",)
BOTH = ("input_ids", "decoder_input_ids")
Family = tuple[str, str, dict[str, Any], tuple[str, ...]]

FAMILIES: dict[str, Family] = {
    "gpt2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        dict(n_layer=2, n_embd=64, n_head=4, vocab_size=VOCABULARY, n_positions=64),
        TEXT,
    ),
    "llama": ("LlamaForCausalLM", "LlamaConfig", DECODER, TEXT),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", DECODER, TEXT),
    "mistral": ("MistralForCausalLM", "MistralConfig", DECODER | dict(sliding_window=8), TEXT),
    "gemma3": (
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        DECODER | dict(head_dim=8, sliding_window=8),
        TEXT,
    ),
    "mixtral": (
        "MixtralForCausalLM",
        "MixtralConfig",
        DECODER | dict(num_local_experts=4, num_experts_per_tok=2),
        TEXT,
    ),
    "qwen3_moe": (
        "Qwen3MoeForCausalLM",
        "Qwen3MoeConfig",
        DECODER | dict(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32),
        TEXT,
    ),
    "olmoe": (
        "OlmoeForCausalLM",
        "OlmoeConfig",
        DECODER | dict(num_experts=8, num_experts_per_tok=2, eos_token_id=1),
        TEXT,
    ),
    "gpt_oss": (
        "GptOssForCausalLM",
        "GptOssConfig",
        DECODER | dict(num_local_experts=4, num_experts_per_tok=2, head_dim=16, sliding_window=8),
        TEXT,
    ),
    "deepseek_v3": (
        "DeepseekV3ForCausalLM",
        "DeepseekV3Config",
        DECODER
        | dict(num_hidden_layers=3, num_key_value_heads=8)
        | dict(n_routed_experts=8, n_group=2, topk_group=1)
        | dict(num_experts_per_tok=2, moe_intermediate_size=32, q_lora_rank=32, kv_lora_rank=16)
        | dict(qk_rope_head_dim=8, v_head_dim=8, qk_nope_head_dim=8, first_k_dense_replace=1),
        TEXT,
    ),
    "opt": (
        "OPTForCausalLM",
        "OPTConfig",
        dict(num_hidden_layers=2, hidden_size=64, ffn_dim=128, num_attention_heads=4)
        | dict(vocab_size=VOCABULARY, max_position_embeddings=64, word_embed_proj_dim=64),
        TEXT,
    ),
    "bert": ("BertForMaskedLM", "BertConfig", ENCODER | dict(vocab_size=VOCABULARY), TEXT),
    "roberta": (
        "RobertaForMaskedLM",
        "RobertaConfig",
        ENCODER | dict(vocab_size=VOCABULARY, max_position_embeddings=64),
        TEXT,
    ),
    "t5": (
        "T5ForConditionalGeneration",
        "T5Config",
        dict(num_layers=3, d_model=64, d_ff=128, num_heads=4, d_kv=16, vocab_size=VOCABULARY),
        BOTH,
    ),
    "whisper": (
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        PAIR
        | dict(num_mel_bins=16, max_source_positions=16, max_target_positions=16)
        | dict(pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1),
        ("input_features", "decoder_input_ids"),
    ),
    "vit": (
        "ViTForImageClassification",
        "ViTConfig",
        ENCODER | dict(image_size=32, patch_size=8),
        IMAGE,
    ),
    "clip": (
        "CLIPModel",
        "CLIPConfig",
        dict(
            text_config=dict(DECODER, num_attention_heads=4),
            vision_config=dict(ENCODER, image_size=32, patch_size=8),
            projection_dim=32,
        ),
        ("input_ids", "pixel_values"),
    ),
    "mamba": (
        "MambaForCausalLM",
        "MambaConfig",
        dict(num_hidden_layers=2, hidden_size=32, state_size=8, vocab_size=VOCABULARY),
        TEXT,
    ),
    "resnet": (
        "ResNetForImageClassification",
        "ResNetConfig",
        dict(depths=[2, 2], hidden_sizes=[32, 64], embedding_size=16),
        IMAGE,
    ),
    "convnext": (
        "ConvNextForImageClassification",
        "ConvNextConfig",
        dict(depths=[1, 1, 2, 1], hidden_sizes=[8, 16, 32, 64]),
        IMAGE,
    ),
}
"""Class, configuration, its keys, and what the model takes."""

CACHED = ("gpt2", "llama", "qwen2", "mistral", "gemma3", "mixtral", "qwen3_moe", "olmoe")
CACHED += ("gpt_oss", "deepseek_v3", "opt")
PAIRS = ("t5", "whisper")
STATES = ("mamba",)
DECODES = (*CACHED, *PAIRS, *STATES)
EAGER = ("resnet", "convnext", "mamba", "gpt_oss")
"""Without a choice of how attention is written."""


class Whole(torch.nn.Module):
    """A model of tensors alone."""

    def __init__(self, model: Any, names: tuple[str, ...], generates: bool) -> None:
        super().__init__()
        self.model, self.names = model, names
        self.options = {"use_cache": False} if generates else {}

    def forward(self, *values: torch.Tensor) -> Any:
        """The logits, or what the model gives first."""
        inputs = dict(zip(self.names, values, strict=True))
        return self.model(**inputs, **self.options, return_dict=False)[0]


class Step(torch.nn.Module):
    """One token behind a cache: keys and values go in and come out."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, token: torch.Tensor, *past: torch.Tensor) -> Any:
        """Logits, then keys and values by layer."""
        cache = filled(self.model.config, past, TOKENS - 1)
        out = self.model(input_ids=token, past_key_values=cache, use_cache=True)
        return (out.logits, *kept(out.past_key_values))


class PairStep(torch.nn.Module):
    """One token of a decoder beside an encoder: what it keeps of that one goes in."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, token: torch.Tensor, encoded: torch.Tensor, *past: torch.Tensor) -> Any:
        """Logits, then the decoder's own keys and values by layer."""
        half = len(past) // 2
        local = filled(self.model.config, past[:half], TOKENS // 2 - 1)
        cross = filled(self.model.config, past[half:], encoded.shape[1])
        cache = hf.EncoderDecoderCache(local, cross)
        whole = hf.modeling_outputs.BaseModelOutput(last_hidden_state=encoded)
        options = dict(encoder_outputs=whole, past_key_values=cache, use_cache=True)
        out = self.model(decoder_input_ids=token, **options)
        return (out.logits, *kept(out.past_key_values.self_attention_cache))


class StateStep(torch.nn.Module):
    """One token behind states of a fixed size: of each layer's convolution, and its own."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, token: torch.Tensor, *past: torch.Tensor) -> Any:
        """Logits, then the states by layer."""
        cache = hf.DynamicCache(config=self.model.config)
        pairs = zip(cache.layers, past[::2], past[1::2], strict=True)
        for layer, rows, state in pairs:
            layer.lazy_initialization(conv_states=rows, recurrent_states=state)
            layer.conv_states[0], layer.recurrent_states[0] = rows.clone(), state.clone()
            layer.has_previous_state[0] = True
        out = self.model(input_ids=token, cache_params=cache, use_cache=True)
        return (out.logits, *states(out.cache_params))


def filled(config: Any, past: Sequence[torch.Tensor], seen: int) -> Any:
    """A cache of keys and values, layer by layer, of so many tokens; windows keep fewer."""
    cache = hf.DynamicCache(config=config)
    for layer, keys, values in zip(cache.layers, past[::2], past[1::2], strict=True):
        layer.lazy_initialization(keys, values)
        layer.keys, layer.values = keys, values
        if hasattr(layer, "cumulative_length"):
            layer.cumulative_length = seen
    return cache


def kept(cache: Any) -> list[torch.Tensor]:
    """Keys and values of a cache, layer by layer."""
    return [value for layer in cache.layers for value in (layer.keys, layer.values)]


def states(cache: Any) -> list[torch.Tensor]:
    """States of a cache, layer by layer."""
    return [
        value for each in cache.layers for value in (each.conv_states[0], each.recurrent_states[0])
    ]


def build(name: str) -> Any:
    """A family's model."""
    kind, configuration, keys, _ = FAMILIES[name]
    config = getattr(hf, configuration)(**keys)
    if name not in EAGER:
        config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    return getattr(hf, kind)(config).eval()


Made = tuple[torch.nn.Module, tuple[torch.Tensor, ...]]


def prefill(name: str) -> Made:
    """The model, and what it is given."""
    return Whole(build(name), FAMILIES[name][3], name in DECODES), tuple(
        sample_inputs(name).values()
    )


def sample_inputs(name: str) -> dict[str, torch.Tensor]:
    """The inputs of a model, by name."""
    makers: dict[str, Callable[[], torch.Tensor]] = {
        "input_ids": lambda: torch.randint(3, VOCABULARY, (BATCH, TOKENS)),
        "decoder_input_ids": lambda: torch.randint(3, VOCABULARY, (BATCH, TOKENS // 2)),
        "pixel_values": lambda: torch.randn(BATCH, 3, 32, 32),
        "input_features": lambda: torch.randn(BATCH, 16, 32),
    }
    return {key: makers[key]() for key in FAMILIES[name][3]}


def decode(name: str) -> Made:
    """One step, and the cache of the tokens before it, which the prefill has made.

    Raises
    ------
    SystemExit
        The step's logits are not those of the last token without a cache: it is used wrongly.
    """
    whole, values = prefill(name)
    model, inputs = whole.model, dict(zip(whole.names, values, strict=True))
    ids = values[-1]
    inputs[whole.names[-1]] = ids[:, :-1]
    step: torch.nn.Module
    with torch.no_grad():
        out = model(**inputs, use_cache=True)
        if name in STATES:
            step, past = StateStep(model), (ids[:, -1:], *states(out.cache_params))
        elif name in PAIRS:
            caches = out.past_key_values
            stored = [*kept(caches.self_attention_cache), *kept(caches.cross_attention_cache)]
            step, past = PairStep(model), (ids[:, -1:], out.encoder_last_hidden_state, *stored)
        else:
            step, past = Step(model), (ids[:, -1:], *kept(out.past_key_values))
        past = tuple(value.clone() for value in past)
        apart = (step(*past)[0][:, -1] - whole(*values)[:, -1]).abs().max()
    if apart > 1e-4:
        raise SystemExit(f"{name}: a step behind the cache is {apart:.0e} apart from none")
    return step.eval(), past
