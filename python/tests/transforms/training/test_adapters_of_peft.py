# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Adapters against PEFT: loss, gradients, a step of AdamW, and the merged weights."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the extra torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
peft = pytest.importorskip("peft", reason="peft is not installed")

import tvm_distir as td  # noqa: E402
from tvm_distir.execution.runtime.engines.reference import Reference  # noqa: E402
from tvm_distir.transforms import merge_adapters  # noqa: E402

RATE, DECAY = 1e-2, 0.1
LLAMA = dict(
    hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, vocab_size=64,
)  # fmt: skip
GPT2 = dict(n_embd=32, n_layer=2, n_head=4, vocab_size=64, n_positions=16)
CASES = {
    "llama": (transformers.LlamaForCausalLM, transformers.LlamaConfig, LLAMA, "q_proj+down_proj"),
    "gpt2": (transformers.GPT2LMHeadModel, transformers.GPT2Config, GPT2, "c_attn+mlp.c_proj"),
}


class Logits(torch.nn.Module):
    """The logits of a model as its only output."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids):
        return self.model(input_ids=ids, use_cache=False).logits


def name_of(name):
    """The name of a parameter of PEFT as that of an exported model."""
    name = name.removeprefix("base_model.model.").replace(".base_layer", "").replace(".default", "")
    return f"model.{name}"


@pytest.fixture(scope="module", params=CASES)
def case(request):
    """A model of PEFT with its first step, and the step of the imported model."""
    kind, config, sizes, targets = CASES[request.param]
    torch.manual_seed(0)
    model = kind(config(**sizes, attn_implementation="eager")).eval()
    ids, wanted = torch.randint(0, 64, (2, 8)), torch.randint(0, 64, (2, 8))
    program = torch.export.export(Logits(model), (ids,))
    mod = td.from_exported_program(program)
    options = peft.LoraConfig(
        r=4, lora_alpha=8, target_modules=targets.split("+"), lora_dropout=0.0,
        fan_in_fan_out=request.param == "gpt2",
    )  # fmt: skip
    with warnings.catch_warnings(action="ignore"):
        adapted = peft.get_peft_model(model, options)
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.1)
    lora = f"r=4,alpha=8,targets={targets}"
    step = td.train_step(mod, optimizer="adamw", lora=lora, rate=RATE, decay=DECAY)
    before = {name_of(n): p.detach().numpy().copy() for n, p in adapted.named_parameters()}
    before |= {name_of(n): p.numpy().copy() for n, p in adapted.named_buffers()}
    trained = {name_of(n): p for n, p in adapted.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(trained.values(), lr=RATE, weight_decay=DECAY)
    logits = adapted(input_ids=ids).logits
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, 64), wanted.reshape(-1))
    loss.backward()
    optimizer.step()
    given = {"ids": ids.numpy(), "targets": wanted.numpy().astype("int32"), **before}
    given.setdefault("model.lm_head.weight", given.get("model.transformer.wte.weight"))
    return adapted, step, given, loss, trained


def inputs_of(step, given):
    names = [str(n) for n in step["main"].attrs["dist.param_names"]]
    params = dict(zip(names, step["main"].params, strict=True))
    states = [n for n in names if n == "step" or n.endswith((".m", ".v"))]
    types = {n: params[n].ty for n in states}
    zeros = {n: np.zeros([int(d) for d in t.shape], str(t.dtype)) for n, t in types.items()}
    return [{**given, **zeros}[name] for name in names]


def test_a_step_is_that_of_peft(case):
    _, step, given, loss, trained = case
    notes = step["main"].attrs["dist.training"]
    updated = list(map(str, notes["updated"]))
    results = dict(
        zip(["loss", *updated], Reference(step).run(inputs_of(step, given)), strict=True)
    )
    np.testing.assert_allclose(results["loss"], loss.item(), rtol=1e-5)
    assert set(map(str, notes["gradients"])) == set(trained)
    for name, weight in trained.items():
        grad = weight.grad.numpy()
        # from zero, the first moment is a tenth of the gradient
        np.testing.assert_allclose(results[f"{name}.m"] * 10, grad, rtol=1e-3, atol=1e-5)
        near = np.abs(grad) > 1e-4  # where the gradient is not rounding alone
        np.testing.assert_allclose(
            results[name][near], weight.detach().numpy()[near], rtol=1e-4, atol=1e-5
        )


def test_merged_weights_are_those_of_peft(case):
    adapted, step, given, _, trained = case
    values = {**given, **{n: w.detach().numpy() for n, w in trained.items()}}
    merged = merge_adapters(step, values)
    with warnings.catch_warnings(action="ignore"):
        plain = adapted.merge_and_unload()
    for name, weight in plain.named_parameters():
        np.testing.assert_allclose(
            merged[f"model.{name}"], weight.detach().numpy(), rtol=1e-5, atol=1e-6
        )


def test_a_sharded_step_is_that_of_one_device(case):
    _, step, given, _, _ = case
    inputs = inputs_of(step, given)
    expected = Reference(step).run(inputs)
    for strategy, mesh in (("fsdp", {"dp": 2}), ("tensor_parallel", {"tp": 2})):
        plan = td.planning.make_plan(step, strategy, mesh)
        for one, other in zip(td.run(td.distribute(step, plan), inputs), expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-3, atol=2e-4)
