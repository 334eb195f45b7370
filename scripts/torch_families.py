#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Import families of models of `transformers` and distribute them.

    scripts/torch_families.py [FAMILY...] [--decode] [--no-plans]

Each is built from a small configuration with random weights (nothing is downloaded), exported,
imported, compared with torch, and distributed over four devices by data_parallel, tensor_parallel
and both, each verified. ``--decode``: one token behind a cache of 15 for those that generate.
Needs the extra `torch` and the package `transformers`. Exits with 1 where anything differs.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import numpy as np
import torch
import transformers as hf
from tvm.relax import Function

import tvm_distir as td
from tvm_distir.errors import DistIRError
from tvm_distir.frontend import load_weights
from tvm_distir.runtime import Reference

PLANS = {
    "data_parallel": {"dp": 4},
    "tensor_parallel": {"tp": 4},
    "data_parallel+tensor_parallel": {"dp": 2, "tp": 2},
}
VOCABULARY, TOKENS, BATCH = 512, 16, 4
TOLERANCE = 1e-5

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
    "deepseek_v3": (
        "DeepseekV3ForCausalLM",
        "DeepseekV3Config",
        DECODER
        | dict(num_key_value_heads=8, n_routed_experts=8, n_group=2, topk_group=1)
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
        dict(num_layers=2, d_model=64, d_ff=128, num_heads=4, d_kv=16, vocab_size=VOCABULARY),
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

CACHED = ("gpt2", "llama", "qwen2", "mistral", "gemma3", "mixtral", "deepseek_v3", "opt")
EAGER = ("resnet", "convnext", "mamba")
"""Without a choice of how attention is written."""


class Whole(torch.nn.Module):
    """A model of tensors alone."""

    def __init__(self, model: Any, names: tuple[str, ...], generates: bool) -> None:
        super().__init__()
        self.model, self.names = model, names
        self.options = {"use_cache": False} if generates else {}

    def forward(self, *values: torch.Tensor) -> Any:
        """The logits, or what the model gives first."""
        given = dict(zip(self.names, values, strict=True))
        return self.model(**given, **self.options, return_dict=False)[0]


class Step(torch.nn.Module):
    """One token behind a cache: keys and values go in and come out."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, token: torch.Tensor, *past: torch.Tensor) -> Any:
        """Logits, then keys and values by layer."""
        pairs = zip(past[::2], past[1::2], strict=True)
        cache = hf.DynamicCache(tuple(pairs))
        out = self.model(input_ids=token, past_key_values=cache, use_cache=True)
        return (out.logits, *kept(out.past_key_values))


def kept(cache: Any) -> list[torch.Tensor]:
    """Keys and values of a cache, layer by layer."""
    return [value for layer in cache.layers for value in (layer.keys, layer.values)]


def build(name: str) -> tuple[Any, Any]:
    """A family's model and its configuration."""
    kind, configuration, keys, _ = FAMILIES[name]
    config = getattr(hf, configuration)(**keys)
    if name not in EAGER:
        config._attn_implementation = "sdpa"
    if name in ("mixtral", "deepseek_v3"):
        config._experts_implementation = "batched_mm"
    torch.manual_seed(0)
    return getattr(hf, kind)(config).eval(), config


def prefill(name: str) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """The model, and what it is given."""
    model, _ = build(name)
    makers: dict[str, Callable[[], torch.Tensor]] = {
        "input_ids": lambda: torch.randint(3, VOCABULARY, (BATCH, TOKENS)),
        "decoder_input_ids": lambda: torch.randint(3, VOCABULARY, (BATCH, TOKENS // 2)),
        "pixel_values": lambda: torch.randn(BATCH, 3, 32, 32),
        "input_features": lambda: torch.randn(BATCH, 16, 32),
    }
    names = FAMILIES[name][3]
    generates = name in (*CACHED, "mamba", "t5", "whisper")
    return Whole(model, names, generates), tuple(makers[key]() for key in names)


def decode(name: str) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """One step, and the cache of the tokens before it."""
    model, _ = build(name)
    ids = torch.randint(3, VOCABULARY, (BATCH, TOKENS))
    with torch.no_grad():
        past = model(input_ids=ids[:, :-1], use_cache=True).past_key_values
    return Step(model).eval(), (ids[:, -1:], *kept(past))


def judge(name: str, form: str, plans: bool) -> bool:
    """Import, compare and distribute one family; print its row."""
    model, values = (prefill if form == "prefill" else decode)(name)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = model(*values)
        program = torch.export.export(model, values)
    start_s = time.process_time()
    flat = td.from_exported_program(program)
    took_s = time.process_time() - start_s
    mod = td.transform.OutlineRepeatedLayers()(flat)
    weights = load_weights(program)
    names = [str(n) for n in flat["main"].attrs["dist.param_names"]][len(values) :]
    inputs = [value.numpy() for value in values] + [weights[n] for n in names]
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    found = Reference(flat).run(inputs)
    error = max(_distance(a, b.numpy()) for a, b in zip(found, wanted, strict=True))
    good, verdicts = error <= TOLERANCE, []
    for text, mesh in PLANS.items() if plans else ():
        try:
            plan = td.strategy.make_plan(mod, text, mesh)
            equal = td.verify(mod, plan, inputs=inputs, locate=False).equal
            verdicts.append("equal" if equal else "DIFFERS")
        except DistIRError as fault:
            equal = False
            verdicts.append(f"{fault.code} {fault.place}")
        good &= equal
    layers = [f"{n} {count(f)}" for n, f in functions(mod).items() if n != "main"]
    row = [name, form, f"{took_s:.1f} s", str(count(flat["main"])), ", ".join(layers) or "-"]
    print(" | ".join([*row, f"{error:.0e}", *verdicts]), flush=True)
    return bool(good)


def _distance(found: Any, wanted: Any) -> float:
    scale = max(float(np.abs(wanted).max()), 1e-6)
    return float(np.abs(np.asarray(found) - wanted).max()) / scale


def functions(mod: Any) -> dict[str, Any]:
    """Relax functions by name."""
    found = {str(gv.name_hint): fn for gv, fn in mod.functions.items()}
    return {name: fn for name, fn in found.items() if isinstance(fn, Function)}


def count(fn: Any) -> int:
    """How many bindings a function has."""
    return sum(len(block.bindings) for block in fn.body.blocks)


def main() -> int:
    """Judge the families asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("families", nargs="*", metavar="FAMILY", help="default: all")
    parser.add_argument("--decode", action="store_true", help="one token behind a cache")
    parser.add_argument("--no-plans", action="store_true", help="import and compare only")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.families if name not in FAMILIES]
    if unknown:
        parser.error(f"no family {', '.join(unknown)}; known: {', '.join(FAMILIES)}")
    names = arguments.families or list(FAMILIES)
    forms = [(n, "prefill") for n in names]
    if arguments.decode:
        forms += [(n, "decode") for n in names if n in CACHED]
    print("family | form | import | bindings | layers | error | " + " | ".join(PLANS))
    good = [judge(name, form, not arguments.no_plans) for name, form in forms]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
