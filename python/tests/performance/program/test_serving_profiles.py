# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Profiles of serving engines: joined kernels, and the memory of quantized weights."""

from __future__ import annotations

import dataclasses
import math

import pytest

from tvm_distir.hardware.systems.system import System
from tvm_distir.performance.fusion.grouped import grouped
from tvm_distir.performance.fusion.joined_kernels import joined
from tvm_distir.performance.fusion.profile import Profile
from tvm_distir.performance.program.parts import Function, Op, Value
from tvm_distir.performance.program.program import Program
from tvm_distir.performance.simulation.simulator import simulate
from tvm_distir.planning.serving.served_model import ServedModel
from tvm_distir.support import HardwareError

BITS = {"serving:weights=fp8": 8.0, "serving:weights=nvfp4": 4.5, "serving:weights=int4": 4.125}


def step(family: str = "llama3", strategy: str = "megatron", **mesh: int) -> Program:
    """Return the program of a step of 8 requests behind 100 tokens, not grouped."""
    served = ServedModel(
        f"zoo:{family}?size=tiny,dtype=bfloat16", strategy, mesh, System.load("b200-serving")
    )
    return served.study(8, 1, 100).program


def single(name: str, number: int, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> Op:
    """Return a kernel of 10 bytes."""
    return Op(name, "compute", "k", inputs, outputs, 1, 5, 5, True, "memory", "float16")


def test_query_key_and_value_are_a_single_product() -> None:
    program = step(tp=2)
    apart = dataclasses.replace(Profile.load("serving"), joined=())
    before, after = grouped(program, apart), grouped(program, "serving")
    after.check()
    for name, fn in after.functions.items():
        old = before.functions[name]
        for key in ("flops", "bytes_written"):
            assert sum(getattr(op, key) for op in fn.ops) == sum(getattr(o, key) for o in old.ops)
        assert sorted(v for op in fn.ops for v in op.outputs) == sorted(
            v for op in old.ops for v in op.outputs
        )
    layer = after.functions["layer"]
    products = [op for op in layer.ops if op.kernel_class == "matmul"]
    assert [len(op.outputs) for op in products] == [3, 1, 2, 1]  # q k v, o, gate up, down
    operand = layer.values[products[0].inputs[0]].bytes
    weights = sum(layer.values[v].bytes for v in products[0].inputs[1:])
    assert products[0].bytes_read == operand + weights
    assert sum(op.op == "relax.dist.kv_append" for op in layer.ops) == 1
    system = System.load("b200-serving")
    assert simulate(program, system).time_s < simulate(program, system, kernels=apart).time_s


def test_kernels_that_depend_on_each_other_stay_apart() -> None:
    """Of a and b that feed c and d crosswise, only pairs without a cycle are joined."""
    values = tuple(Value(f"v{k}", (5,), "float16", 10) for k in range(6))
    ops = (
        single("a", 0, (0,), (1,)),
        single("other", 1, (1,), (2,))._replace(op="other"),
        single("b", 2, (2,), (3,)),
        single("c", 3, (0,), (4,)),
        single("other2", 4, (4, 3), (5,))._replace(op="other"),
    )
    fn = Function(0, (0,), ops, (5,), values)
    program = dataclasses.replace(step(tp=1), functions={"main": fn}, entries=())
    new = joined(program, ["k", "other"]).functions["main"]
    known = {0}
    for op in new.ops:
        assert known.issuperset(op.inputs)
        known.update(op.outputs)
    assert known == set(range(6))
    assert [len(op.outputs) for op in new.ops if op.op == "k"] == [1, 2]


@pytest.mark.parametrize("kernels", BITS)
@pytest.mark.parametrize("family", ["llama3", "mixtral"])
def test_quantized_weights_take_their_bits_of_memory(kernels: str, family: str) -> None:
    strategy, mesh = (
        ("megatron", {"tp": 2}) if family == "llama3" else ("expert_parallel", {"ep": 2})
    )
    program = step(family, strategy, **mesh)
    weights = [value for _, _, value in program.inputs() if value.role == "weight"]
    expected = 0
    for value in weights:
        narrow = "_proj" in value.name
        expected += math.ceil(value.bytes * BITS[kernels] / 16) if narrow else value.bytes
    new = grouped(program, kernels)
    stored = [value for _, _, value in new.inputs() if value.role == "weight"]
    assert sum(value.bytes for value in stored) == expected
    assert expected < sum(value.bytes for value in weights)


def test_experts_that_get_no_tokens_are_not_read_in_any_type() -> None:
    """Of 16 experts, a token of each of 2 devices reads few: half the bytes in float8."""
    served = ServedModel(
        "zoo:mixtral?size=tiny,dtype=bfloat16,experts=16", "expert_parallel", {"ep": 2},
        System.load("b200-serving"),
    )  # fmt: skip
    program = served.study(2, 1, 0).program
    wide, narrow = (
        [op for fn in grouped(program, name).functions.values() for op in fn.ops]
        for name in ("serving", "serving:weights=fp8")
    )
    experts = [
        (old, new)
        for old, new in zip(wide, narrow, strict=True)
        if old.op == "relax.dist.expert_matmul"
    ]
    assert experts
    values = grouped(program, "serving").functions["layer"].values
    for old, new in experts:
        inputs = [value for value in old.inputs if len(values[value].shape) == 3]
        operand, *weights = (values[value].bytes for value in inputs)
        assert old.bytes_read - operand < sum(weights)
        assert new.bytes_read == operand + (old.bytes_read - operand) / 2


def test_weights_of_experts_are_quantized_as_others_are() -> None:
    """Profiles that quantize both operands store the weights of experts in their bits, too."""
    program = step("mixtral", "megatron", tp=2)
    before, after = (
        {v.name: v.bytes for _, _, v in grouped(program, name).inputs() if ".mlp." in v.name}
        for name in ("fused", "fused-nvfp4")
    )
    experts = [name for name in before if name.endswith("_proj")]
    assert experts
    assert all(after[name] == math.ceil(before[name] * 4.5 / 16) for name in experts)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_lies_around_products_of_experts_takes_no_time_of_its_own() -> None:
    """Routing, rows of slots and their sum; other work, and what a collective parts, keeps its."""
    changed = {}
    for family, strategy in (("deepseek", "megatron"), ("mixtral", "expert_parallel")):
        program = step(family, strategy, **{"tp" if strategy == "megatron" else "ep": 2})
        apart = dataclasses.replace(Profile.load("serving"), experts="written")
        before, after = (grouped(program, profile) for profile in (apart, "serving"))
        layer = after.functions["layer"]
        pairs = list(zip(before.functions["layer"].ops, layer.ops, strict=True))
        changed[family] = {old.name.rstrip("0123456789") for old, new in pairs if old != new}
        assert {old.name for old, new in pairs if old == new} >= {
            op.name for op in layer.ops if op.kind == "collective" or op.kernel_class == "matmul"
        }
        assert all(new.kernel_class == "view" for old, new in pairs if old != new)
        assert pairs[-1][0] == pairs[-1][1]  # the addition to the residual stream
    assert {"dispatched", "returned", "combined"} <= changed["deepseek"]
    assert not any(name.startswith("rms_norm") for name in changed["deepseek"])
    assert {"dispatched", "returned", "combined"}.isdisjoint(changed["mixtral"])
    assert changed["mixtral"]


@pytest.mark.quick
@pytest.mark.parametrize(
    ("name", "new"),
    [
        ("serving-fp8-block", "serving:weights=fp8-block"),
        ("fused-int4-weights", "fused:weights=int4"),
    ],
)
def test_earlier_names_of_profiles_are_refused_with_the_new_ones(name: str, new: str) -> None:
    with pytest.raises(HardwareError, match=f'DIST0701 .*written "{new}"'):
        Profile.load(name)
    assert Profile.load(new).name == new
