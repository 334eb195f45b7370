# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Serving steps of the zoo's decoders against the models forward, by execution.

A prompt is filled in chunks, then tokens are decoded; pages lie in any order, and prompts have
different lengths. The logits must be those of the model on the tokens so far.
"""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest

import tvm_distir as td
from tvm_distir.execution.runtime.engines.registry import run
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.models import load_model
from tvm_distir.performance.program.exporter import export
from tvm_distir.support.errors.tree import ModelError, PlanError

FAMILIES = (
    "gpt",
    "llama",
    "moe",
    *"llama3 mistral mixtral qwen2 qwen3 gemma phi deepseek gpt_oss".split(),
)
BATCH, PAGE, COLUMNS, LENGTHS = 2, 4, 3, (3, 6)
CHUNKS = 3
NO_DROP = {"moe", "mixtral", "deepseek", "gpt_oss"}


def model_text(family, **keys):
    keys = {"size": "tiny", **({"capacity_factor": 0} if family in NO_DROP else {}), **keys}
    return f"zoo:{family}?" + ",".join(f"{key}={value}" for key, value in keys.items())


def weights_of(mod):
    names = [str(n) for n in mod["main"].attrs["dist.param_names"]]
    return dict(zip(names, draw_inputs(mod, seed=3), strict=True))


def serve(local, known, tokens, pages, lengths, caches):
    """Run a step of ``tokens``; return the logits and the caches."""
    inputs = {**known, **caches, "input_ids": tokens, "pages": pages, "lengths": lengths}
    names = [str(n) for n in local.names]
    logits, *new = run(local.module, [inputs[name] for name in names])
    return logits, dict(zip(caches, new, strict=True))


class Step:
    """A distributed step and the names of its parameters."""

    def __init__(self, text, mesh=None, strategy=None):
        mod = load_model(text).mod
        plan = td.planning.make_plan(mod, strategy or "data_parallel", mesh or {"dp": 1})
        self.mod, self.module = mod, td.distribute(mod, plan)
        self.names = mod["main"].attrs["dist.param_names"]


def decoded(family, mesh=None, strategy=None, **more):
    """Fill and decode two requests of different lengths; return the logits, and the model's."""
    keys = {"entry": "serve", "page": PAGE, "pages": 11, **more}
    fill = Step(model_text(family, batch=1, seq=CHUNKS, past=COLUMNS * PAGE - CHUNKS, **keys))
    step = Step(
        model_text(family, batch=BATCH, seq=1, past=COLUMNS * PAGE - 1, **keys), mesh, strategy
    )
    plain = load_model(model_text(family, batch=1, seq=COLUMNS * PAGE)).mod
    known = weights_of(plain)
    rng = np.random.default_rng(7)
    tokens = rng.integers(0, 500, (BATCH, COLUMNS * PAGE)).astype("int32")
    pages = rng.permutation(11)[: BATCH * COLUMNS].reshape(BATCH, COLUMNS).astype("int32")
    shapes = {
        str(n): p.ty
        for n, p in zip(step.names, step.mod["main"].params, strict=True)
        if str(n).endswith("_cache")
    }
    caches = {
        name: np.zeros([int(n) for n in ty.shape], str(ty.dtype)) for name, ty in shapes.items()
    }
    for b, length in enumerate(LENGTHS):
        for at in range(0, length, CHUNKS):
            chunk, begin = tokens[b : b + 1, at : at + CHUNKS], np.array([at], "int32")
            _, caches = serve(fill, known, chunk, pages[b : b + 1], begin, caches)
    new = np.stack([tokens[b, [length]] for b, length in enumerate(LENGTHS)])
    got, _ = serve(step, known, new, pages, np.array(LENGTHS, "int32"), caches)
    forward = Step(model_text(family, batch=BATCH, seq=COLUMNS * PAGE))
    (out,) = run(forward.module, [{**known, "input_ids": tokens}[str(n)] for n in forward.names])
    return got, np.stack([out[b, length] for b, length in enumerate(LENGTHS)])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_served_model_is_the_model(family):
    np.testing.assert_allclose(*decoded(family), rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize(
    ("mesh", "strategy"),
    [({"tp": 2}, "megatron"), ({"tp": 8}, "megatron"), ({"cp": 2}, "context_parallel"),
     ({"tp": 2}, "tensor_parallel")],
)  # fmt: skip
def test_a_sharded_step_serves_the_same(mesh, strategy):
    """Also with more devices than heads of keys (tp=8 for 4 of them)."""
    np.testing.assert_allclose(*decoded("llama3", mesh, strategy), rtol=2e-3, atol=2e-4)


SHARDED = [
    ("llama3", "tensor_parallel", {"tp": 2}, "S[3]"),
    ("llama3", "megatron", {"tp": 2}, "S[3]"),
    ("llama3", "megatron", {"tp": 8}, "S[3], R"),
    ("llama3", "data_parallel", {"dp": 4}, "S[0]"),
    ("llama3", "fsdp", {"dp": 4}, "S[0]"),
    ("mixtral", "expert_parallel", {"ep": 4}, "S[0]"),
    ("llama3", "context_parallel", {"cp": 2}, "S[2]"),
    ("qwen3", "data_parallel+megatron", {"dp": 2, "tp": 2}, "S[0], S[3]"),
]


@pytest.mark.parametrize(("family", "strategy", "mesh", "placement"), SHARDED)
def test_caches_are_placed_and_verified(family, strategy, mesh, placement):
    mod = load_model(model_text(family, entry="serve", batch=4, seq=1, past=63, pools=4)).mod
    plan = td.planning.make_plan(mod, strategy, mesh)
    local = td.distribute(mod, plan)
    ends = local["main"].attrs["dist.io"]
    caches = [end for end in ends["inputs"] if re.search("k_cache", str(end["name"]))]
    assert len(caches) == 2
    assert {str(end["placement"]) for end in (*caches, *ends["outputs"][1:])} == {placement}
    assert td.verify(mod, plan, dist=local).equal


def test_full_caches_are_never_silent():
    """One pool cannot be divided by requests; one head of keys is on every device."""
    mod = load_model(model_text("llama3", entry="serve", batch=4, seq=1)).mod
    with pytest.raises(PlanError, match=r"DIST0234.*pools.*pools=4"):
        td.planning.make_plan(mod, "data_parallel", {"dp": 4})
    mod = load_model(model_text("deepseek", entry="serve", batch=4, seq=1)).mod
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        td.planning.make_plan(mod, "megatron", {"tp": 2})
    assert any("stores 3 caches in full" in str(w.message) for w in caught)


def test_a_cache_takes_its_memory_once():
    """The result takes the memory of the cache: a step adds less than one page table of rows."""
    text = model_text("llama3", entry="serve", batch=4, seq=1, past=4095)
    mod = load_model(text).mod
    local = td.distribute(mod, td.planning.make_plan(mod, "megatron", {"tp": 1}))
    sizes = [
        int(np.prod([int(n) for n in p.ty.shape])) * np.dtype(str(p.ty.dtype)).itemsize
        for p in mod["main"].params
    ]
    peak = td.simulate(export(local), td.System.load("dgx-h100")).peak_memory_bytes
    caches = sum(sizes[3:7])
    assert sum(sizes) <= peak < sum(sizes) + caches / 10


@pytest.mark.parametrize(
    ("text", "why"),
    [("llama3?size=tiny,entry=train", "DIST0331.*entry"),
     ("bert?size=tiny,entry=serve", "DIST0331.*bert has no serving step.*generate"),
     ("t5?size=tiny,entry=serve", "DIST0331.*t5 has no serving step.*encoder"),
     ("gpt?size=tiny,entry=serve,past=64", "DIST0332.*positions=64.*positions=80"),
     ("llama3?size=tiny,entry=serve,batch=4,pools=3", "DIST0332.*pools"),
     ("llama3?size=tiny,entry=serve,kv_dtype=float9", "DIST0332.*float9")],
)  # fmt: skip
def test_wrong_keys_are_refused(text, why):
    with pytest.raises(ModelError, match=why):
        load_model(f"zoo:{text}")
