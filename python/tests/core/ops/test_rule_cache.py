# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Caches of rules and types hold where hashes meet: TVM's structural hashes of like nodes do."""

from __future__ import annotations

import itertools

import pytest
import tvm
import tvm_ffi
from tvm import relax

from tvm_distir.core.ops import lookup
from tvm_distir.core.ops.lookup import rule_of
from tvm_distir.core.propagation.graph.types import ModuleTypes

SHAPE = [8, 12, 12]


def scattered(axis: int) -> tvm.ir.Call:
    x, i, u = (
        relax.Var(n, relax.TensorType(SHAPE, d))
        for n, d in (("x", "float32"), ("i", "int64"), ("u", "float32"))
    )
    call = relax.op.scatter_elements(x, i, u, axis=axis, reduction="add")
    return relax.BlockBuilder().normalize(call)


def windowed(stride: int) -> tvm.ir.Call:
    x = relax.Var("x", relax.TensorType([1, 4, 9, 9], "float32"))
    call = relax.op.nn.max_pool2d(x, 3, strides=stride, padding=1)
    return relax.BlockBuilder().normalize(call)


def test_calls_of_one_hash_keep_their_own_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "_by_call", {})
    monkeypatch.setattr(lookup, "_by_shape", {})
    calls = [*map(scattered, (0, 1, 2)), *map(windowed, (1, 2))]
    alone = [rule_of(call) for call in calls]
    lookup._by_call.clear()
    lookup._by_shape.clear()
    monkeypatch.setattr(lookup, "_hash", lambda node, free: 0)
    for call, rule in [*zip(calls, alone), *zip(calls[::-1], alone[::-1])]:
        assert rule_of(call) == rule
    # The axis is whole: each of the three cuts the two other dims.
    cut = [{f.ins[0] for f in rule.factors} for rule in alone[:3]]
    assert cut == [{1, 2}, {0, 2}, {0, 1}]
    # What was found once is found again, not written anew.
    assert all(rule_of(call) is rule_of(call) for call in calls)


def test_types_of_one_hash_keep_their_own_dims() -> None:
    """[8, 6, 2] and [15, 4, 2] have one hash in apache-tvm 0.27.0, as many other pairs."""
    facts = ModuleTypes(tvm.IRModule())
    shapes = list(itertools.product(range(1, 17), repeat=3))
    types = [relax.TensorType(list(shape), "float32") for shape in shapes]
    assert len({tvm_ffi.structural_hash(ty) for ty in types}) < len(types)
    assert [facts.tensor(ty).shape for ty in types] == shapes
