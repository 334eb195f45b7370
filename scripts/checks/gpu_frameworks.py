# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Time models of ``gpu_cases.py`` as modules of transformers, eager and by torch.compile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gpu_cases import FrameworkStep

MODES = ("eager", "compiled")
COMPILE_S = 40.0
"""Time that compiling a model may take: none is compiled when less is left."""


def _gpt2(layers: int, width: int, heads: int) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    dropouts = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(
        GPT2Config(n_layer=layers, n_embd=width, n_head=heads, use_cache=False, **dropouts)
    )


def _llama(layers: int, width: int, inner: int) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=128256,
            hidden_size=width,
            intermediate_size=inner,
            num_hidden_layers=layers,
            num_attention_heads=32,
            num_key_value_heads=8,
            max_position_embeddings=8192,
            rope_theta=500000.0,
            use_cache=False,
        )
    )


MAKERS: dict[str, Callable[[], Any]] = {
    "tiny": lambda: _gpt2(2, 64, 4),
    "gpt2": lambda: _gpt2(12, 768, 12),
    "medium": lambda: _gpt2(24, 1024, 16),
    "llama-1b": lambda: _llama(16, 2048, 8192),
    "llama-8b-2": lambda: _llama(2, 4096, 14336),
    "llama-8b-4": lambda: _llama(4, 4096, 14336),
}
"""Models by their names in :data:`gpu_cases.FRAMEWORK_STEPS`."""


def measured(
    steps: Iterable[FrameworkStep],
    device: str,
    left_s: Callable[[], float],
    timed_s: Callable[..., float],
) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield ``model step mode`` with the seconds of a step and the largest memory, in bfloat16.

    Blocks of layers are compiled one by one, as torchtitan compiles them. ``peak_bytes`` is what
    tensors take at the most, and ``reserved_bytes`` what the allocator takes.
    """
    import torch

    steps = list(steps)
    for mode in MODES:
        for step in steps:
            if mode not in step.modes or left_s() < (COMPILE_S if mode == "compiled" else 0.0):
                continue
            torch.manual_seed(0)
            with torch.device(device):  # random weights are made there
                model = MAKERS[step.model]().to(torch.bfloat16)
            if mode == "compiled":
                for layer in _layers(model):
                    layer.compile()
            if step.recompute:
                model.gradient_checkpointing_enable({"use_reentrant": False})
            tokens = torch.randint(0, 100, (step.batch, step.positions), device=device)
            call = _step(model, step, tokens)
            if device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            result = {"measured_s": timed_s(call, device)}
            if device == "cuda":
                result["peak_bytes"] = torch.cuda.max_memory_allocated()
                result["reserved_bytes"] = torch.cuda.max_memory_reserved()
            yield f"{step.name} {mode}", result
            del model, call
            torch._dynamo.reset()
            if device == "cuda":
                torch.cuda.empty_cache()


def _layers(model: Any) -> Any:
    base = model.base_model
    return base.h if hasattr(base, "h") else base.layers


def _step(model: Any, step: FrameworkStep, tokens: Any) -> Callable[[], Any]:
    import torch

    if not step.train:
        model.eval()

        def forward() -> Any:
            with torch.no_grad():
                return model(tokens).logits

        return forward
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), fused=tokens.is_cuda)

    def train() -> Any:
        loss = model(tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return train
