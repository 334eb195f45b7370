# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Time models of ``gpu_cases.py`` as modules of transformers, eager and by torch.compile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

MODES = ("eager", "compiled")
COMPILE_S = 45.0
"""Time that compiling a model may take: none is compiled when less is left."""


def _gpt2(layers: int, width: int, heads: int) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    dropouts = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(
        GPT2Config(n_layer=layers, n_embd=width, n_head=heads, use_cache=False, **dropouts)
    )


def _llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=128256,
            hidden_size=2048,
            intermediate_size=8192,
            num_hidden_layers=16,
            num_attention_heads=32,
            num_key_value_heads=8,
            rope_theta=500000.0,
            use_cache=False,
        )
    )


def _cases(few: bool) -> Iterator[tuple[str, Callable[[], Any], tuple[tuple[str, int], ...]]]:
    """Yield a name, a maker and the batch of the forward pass and of the training step."""
    if few:
        yield "tiny", lambda: _gpt2(2, 64, 4), (("forward", 2), ("train", 2))
        return
    yield "gpt2", lambda: _gpt2(12, 768, 12), (("forward", 8), ("train", 8))
    yield "medium", lambda: _gpt2(24, 1024, 16), (("forward", 8), ("train", 4))
    yield "llama-1b", _llama, (("forward", 4), ("train", 2))


def measured(
    device: str, few: bool, left_s: Callable[[], float], timed_s: Callable[..., float]
) -> Iterator[tuple[str, float]]:
    """Yield ``model step mode`` and the seconds of a step, in bfloat16 at 1,024 positions."""
    import torch

    positions = 64 if few else 1024
    for mode in MODES:
        for name, make, steps in _cases(few):
            if left_s() < (COMPILE_S if mode == "compiled" else 0.0):
                continue
            with torch.device(device):  # random weights are made there
                model = make().to(torch.bfloat16)
            runner = torch.compile(model) if mode == "compiled" else model
            for step, batch in steps:
                tokens = torch.randint(0, 100, (batch, positions), device=device)
                yield f"{name} {step} {mode}", timed_s(_step(runner, model, step, tokens), device)
            del model, runner
            torch._dynamo.reset()
            if device == "cuda":
                torch.cuda.empty_cache()


def _step(runner: Any, model: Any, step: str, tokens: Any) -> Callable[[], Any]:
    import torch

    if step == "forward":
        model.eval()

        def forward() -> Any:
            with torch.no_grad():
                return runner(tokens).logits

        return forward
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), fused=tokens.is_cuda)

    def train() -> Any:
        loss = runner(tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return train
