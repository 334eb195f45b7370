# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Starts and dones as two packed calls: what is compiled, its storage, its results."""

from __future__ import annotations

import pytest
import tvm
from tvm import relax

import tvm_distir as td
from tvm_distir.core import is_done, outline_branches, started_op
from tvm_distir.execution.runtime.program.async_calls import split_starts
from tvm_distir.execution.runtime.program.joining import same_bits
from tvm_distir.execution.runtime.program.lowered import LoweredProgram, entry_module
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.planning import strategies as strategy

PLANNING = (
    "LegalizeOps",
    "RewriteDataflowReshape",
    "ToNonDataflow",
    "RemovePurityChecking",
    "CallTIRRewrite",
    "StaticPlanBlockMemory",
    "LowerAllocTensor",
    "KillAfterLastUse",
)


@pytest.fixture(scope="module")
def overlapped():
    """A ZeRO-3 step whose collectives are split, and its inputs."""
    net = td.zoo.gpt(vocab=64, layers=2, hidden=32, heads=4, seq=8, batch=8)
    mod = td.train_step(net, optimizer="adamw")
    plan = strategy.make_plan(mod, "zero:stage=3+megatron", {"dp": 2, "tp": 2})
    return td.distribute(mod, plan, overlap="dgx-a100"), draw_inputs(mod, seed=2)


def bindings_of(mod):
    functions = [fn for fn in mod.functions.values() if isinstance(fn, relax.Function)]
    return [b for fn in functions for block in fn.body.blocks for b in block.bindings]


def called(binding):
    """The name of the packed function or op that a binding calls, empty for others."""
    value = binding.value
    if not isinstance(value, tvm.ir.Call):
        return ""
    if str(getattr(value.op, "name", "")) == "relax.call_dps_packed":
        return str(value.args[0].global_symbol)
    return str(getattr(value.op, "name", "") or getattr(value.op, "global_symbol", ""))


def test_every_start_and_done_becomes_a_call(overlapped):
    mod, _ = overlapped
    before = bindings_of(mod)
    starts = sum(started_op(b.value) is not None for b in before)
    names = [called(b) for b in bindings_of(split_starts(outline_branches(mod)))]
    calls = [name for name in names if name.startswith("tvm_distir.ccl.")]
    assert starts > 10
    assert sum(name.endswith("_start") for name in calls) == starts
    assert calls.count("tvm_distir.ccl.done") == sum(is_done(b.value) for b in before)
    assert not [name for name in names if name.startswith("relax.dist.collective_done")]


def test_a_module_without_starts_is_left_as_it_is():
    mod = td.zoo.gpt(vocab=64, layers=1, hidden=32, heads=4, seq=8, batch=8)
    dist = td.distribute(mod, strategy.make_plan(mod, "megatron", {"tp": 2}))
    assert split_starts(dist) is dist


def test_no_storage_in_flight_is_handed_out_or_freed(overlapped):
    """TVM's planner sees the operand of a start read by its done."""
    mod, _ = overlapped
    program = LoweredProgram(mod)
    module = entry_module(program.mod, program.entries[0].function)
    with tvm.target.Target("llvm"):
        passes = [getattr(relax.transform, name)() for name in PLANNING]
        planned = tvm.transform.Sequential(passes)(module)
    pairs = made = 0
    for fn in planned.functions.values():
        if not isinstance(fn, relax.Function):
            continue
        storage, flying = {}, {}
        for binding in (b for block in fn.body.blocks for b in block.bindings):
            name, value = called(binding), binding.value
            if name.endswith("alloc_tensor"):
                storage[binding.var] = value.args[0]
                taken = [s for _, s in flying.values() if s is not None]
                assert not any(s.same_as(value.args[0]) for s in taken), binding
            elif name.endswith(("kill_tensor", "kill_object", "kill_storage")):
                held = [v for pair in flying.values() for v in pair if v is not None]
                assert not any(v.same_as(value.args[0]) for v in held), binding
            elif name.endswith("_start") and int(value.args[-2].value) == 0:
                flying[value.args[-1]] = (value.args[0], storage.get(value.args[0]))
                pairs, made = pairs + 1, made + (value.args[0] in storage)
            elif name == "tvm_distir.ccl.done":
                flying.pop(value.args[0], None)
        assert not flying
    assert pairs > 10
    assert made > 5


def test_engines_that_do_not_overlap_give_the_same_bits(overlapped):
    mod, inputs = overlapped
    want = td.run(mod, inputs, engine="virtual")
    engines = (td.runtime.ThreadsEngine(), td.runtime.ThreadsEngine(collectives="python"))
    for engine in engines:
        got = engine.run(mod, inputs)
        assert all(same_bits(a, b) for a, b in zip(got, want, strict=True))
