# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The registry: look-up, caching, users' rules, and what the rules say of single calls."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import ir, relax, tirx
from tvm.relax.distributed import DTensorType

from tvm_distir.core.ir.mesh import device_mesh
from tvm_distir.core.ir.types import as_dtensor
from tvm_distir.core.ops import lookup, registry
from tvm_distir.core.ops.draft import Draft
from tvm_distir.core.ops.lookup import rule_of, work_of
from tvm_distir.core.ops.match import describe_factor
from tvm_distir.core.ops.registry import register_sharding_rule
from tvm_distir.execution.rule_validation.cases import var
from tvm_distir.support.errors.tree import PropagationError

op = relax.op


def normal(call):
    return relax.BlockBuilder().normalize(call)


def texts(rule):
    return [describe_factor(f) for f in rule.factors]


@pytest.fixture
def clean_registry(monkeypatch):
    monkeypatch.setattr(registry, "_known", dict(registry._known))
    yield
    lookup._by_call.clear()
    lookup._by_shape.clear()


def test_same_variable_twice_gives_the_rule_of_two():
    x, y = var(4, 6), var(4, 6)
    assert texts(rule_of(normal(op.add(x, x)))) == texts(rule_of(normal(op.add(x, y))))


def test_equal_calls_share_one_rule_and_different_ones_do_not():
    first = rule_of(normal(op.sum(var(4, 6), axis=0)))
    assert rule_of(normal(op.sum(var(4, 6), axis=0))) is first
    assert texts(rule_of(normal(op.sum(var(4, 6), axis=1)))) != texts(first)
    assert texts(rule_of(normal(op.sum(var(4, 1), axis=0)))) != texts(first)


def test_a_target_shape_is_part_of_the_signature():
    x = var(4, 6)
    assert texts(rule_of(normal(op.reshape(x, (2, 12))))) == ["S(0) -> S(0)"]
    assert texts(rule_of(normal(op.reshape(x, (4, 2, 3))))) == ["S(0) -> S(0)", "S(1) -> S(1)"]


def test_constants_are_operands():
    constant = relax.const(np.zeros((6, 2), "float32"))
    rule = rule_of(normal(op.matmul(var(4, 6), constant)))
    assert texts(rule) == ["S(1), S(0) -> P(sum)", "S(0), R -> S(0)", "R, S(1) -> S(1)"]
    assert rule.in_bytes == (96, 48)


def test_dtensor_operands_count_with_their_whole_shape():
    mesh = device_mesh({"tp": 2})
    x, w = (
        relax.Var("x", as_dtensor(relax.TensorType(list(s), "float32"), mesh, labels))
        for s, labels in (((4, 6), (1,)), ((6, 2), (0,)))
    )
    assert isinstance(x.ty, DTensorType)
    rule = rule_of(normal(op.matmul(x, w)))
    assert rule.factors == rule_of(normal(op.matmul(var(4, 6), var(6, 2)))).factors


def test_symbolic_dims_stay_those_of_the_call():
    rules = []
    for name in ("n", "m"):
        n = tirx.Var(name, "int64")
        x = relax.Var("x", relax.TensorType([n, 6], "float32"))
        rule = rule_of(normal(op.nn.relu(x)))
        assert rule.factors[0].size.same_as(n) and not rule.factors[0].uneven
        assert rule.factors[1].size == 6 and rule.factors[1].uneven
        rules.append(rule)
    assert rules[0].flops == 1024 * 6  # an unknown extent counts 1024


def test_symbolic_reshape_matches_dims_one_to_one():
    n = tirx.Var("n", "int64")

    def reshaped(shape, target):
        x = relax.Var("x", relax.TensorType(shape, "float32"))
        return rule_of(normal(op.reshape(x, relax.ShapeExpr(target))))

    assert texts(reshaped([1, n, 4096], [1, n, 32, 128])) == ["S(1) -> S(1)", "S(2) -> S(2)"]
    merged = reshaped([2, n, 4], [2 * n, 4])
    assert texts(merged) == ["S(0) -> S(0)", "S(2) -> S(1)"]
    assert merged.factors[0].size == 2  # blocks of n rows each
    split = reshaped([n * 4, 6], [n, 4, 6])
    assert texts(split) == ["S(0) -> S(0)", "S(1) -> S(2)"]
    assert split.factors[0].size.same_as(n)


def test_dims_of_extent_one_are_never_cut():
    rule = rule_of(normal(op.add(var(1, 6), var(1, 6))))
    assert texts(rule) == ["S(1), S(1) -> S(1)"]
    assert rule.why_replicated == {
        "in0.dim0": "its extent is 1",
        "in1.dim0": "its extent is 1",
        "out0.dim0": "its extent is 1",
    }


def test_leading_part_of_a_split_dim():
    rule = rule_of(normal(op.reshape(var(12, 5), (4, 3, 5))))
    assert [(describe_factor(f), f.size, f.uneven) for f in rule.factors] == [
        ("S(0) -> S(0)", 4, False),
        ("S(1) -> S(2)", 5, True),
    ]
    assert "leading part" in rule.why_replicated["out0.dim1"]


def test_every_dim_is_in_one_factor_or_has_a_reason():
    calls = [
        op.nn.conv2d(var(2, 4, 8, 8), var(4, 4, 3, 3)),
        op.nn.attention(*(var(2, 4, 6, 2) for _ in range(3)), causal_mask="TopLeft"),
        op.take(var(6, 4), var(3, dtype="int64"), axis=0),
        op.nn.batch_norm(var(2, 4, 3), *(var(4) for _ in range(4)), axis=1),
        op.split(var(4, 6), 2, axis=1),
    ]
    for call in calls:
        call = normal(call)
        rule = rule_of(call)
        for side, ranks in (("ins", rule.factors[0].ins), ("outs", rule.factors[0].outs)):
            for i in range(len(ranks)):
                cut = [getattr(f, side)[i] for f in rule.factors]
                cut = [d for d in cut if d is not None]
                assert len(set(cut)) == len(cut)
                prefix = f"{side[:-1]}{i}.dim"
                whole = [int(k.removeprefix(prefix)) for k in rule.why_replicated if prefix in k]
                assert sorted([*cut, *whole]) == list(range(len(cut) + len(whole)))
        assert all(rule.why_replicated.values())


@pytest.mark.parametrize(
    ("call", "flops", "kernel_class"),
    [
        (op.matmul(var(3, 4, 6), var(6, 2)), 2 * 3 * 4 * 6 * 2, "matmul"),
        (op.nn.conv2d(var(2, 4, 8, 8), var(6, 4, 3, 3)), 2 * (2 * 6 * 6 * 6) * 4 * 9, "conv"),
        (
            op.nn.conv2d(var(2, 4, 8, 8), var(4, 2, 3, 3), groups=2),
            2 * (2 * 4 * 6 * 6) * 2 * 9,
            "conv",
        ),
        (op.nn.relu(var(4, 6)), 24, "memory"),
        (op.reshape(var(4, 6), (24,)), 0, "view"),
        (op.take(var(6, 4), var(3, dtype="int64"), axis=0), 0, "gather"),
    ],
)
def test_work(call, flops, kernel_class):
    work = work_of(normal(call))
    assert (work.flops, work.kernel_class) == (flops, kernel_class)


def test_bytes_are_those_moved():
    rows = work_of(normal(op.take(var(600, 4), var(3, dtype="int64"), axis=0)))
    assert rows.in_bytes == (3 * 4 * 4, 3 * 8) and rows.out_bytes == (3 * 4 * 4,)
    assert work_of(normal(op.reshape(var(4, 6), (24,)))).in_bytes == (0,)
    half = work_of(normal(op.nn.relu(var(4, 6, dtype="float16"))))
    assert half.in_bytes == (48,)
    assert work_of(normal(op.less(var(4), var(4)))).out_bytes == (4,)  # bool: one byte


def test_a_user_s_rule_replaces_one_only_on_request(clean_registry):
    def rows(call):
        draft = Draft(call)
        draft.tie({0: 0}, {0: 0})
        return draft

    with pytest.raises(PropagationError, match="DIST0406"):
        register_sharding_rule("relax.nn.relu")(rows)
    assert len(rule_of(normal(op.nn.relu(var(4, 6)))).factors) == 2
    register_sharding_rule("relax.nn.relu", override=True)(rows)
    assert texts(rule_of(normal(op.nn.relu(var(4, 6))))) == ["S(0) -> S(0)"]


@pytest.mark.parametrize(
    "write",
    [
        lambda draft: draft.tie({0: 2}, {0: 0}),
        lambda draft: draft.tie({1: 0}, {0: 0}),
        lambda draft: draft.tie({0: 0}, {0: 1}),
        lambda draft: (draft.tie({0: 0}, {0: 0}), draft.tie({0: 0}, {})),
        lambda draft: draft.tie({0: 0}, {0: 0}, "average"),
        lambda draft: draft.tie({0: 0}, {0: 0}, "sum"),
        lambda draft: draft.linear((3,)),
    ],
)
def test_rules_that_contradict_the_call_are_refused(clean_registry, write):
    def faulty(call):
        draft = Draft(call)
        write(draft)
        return draft

    register_sharding_rule("relax.nn.relu", override=True)(faulty)
    with pytest.raises(PropagationError, match=r"DIST0403 rule of relax\.nn\.relu"):
        rule_of(normal(op.nn.relu(var(4, 6))))


PLUGIN = """
from tvm_distir.core.ops import SAME_OP, Draft, register_sharding_rule

@register_sharding_rule("relax.unique", local=SAME_OP)
def rows(call):
    draft = Draft(call)
    draft.tie({0: 0}, {0: 0})
    return draft
"""


def test_an_entry_point_of_another_package_gives_rules(clean_registry, install):
    call = op.unique(var(6))
    result = relax.TensorType([6], "float32")
    with pytest.raises(PropagationError, match=r"DIST0401 relax\.unique.*depends on the values"):
        rule_of(call, None, result)
    install(
        "rules_of_a_plugin", PLUGIN, f"[{registry.ENTRY_POINT_GROUP}]\nmine = rules_of_a_plugin\n"
    )
    registry.load_entry_points.cache_clear()
    try:
        assert texts(rule_of(call, None, result)) == ["S(0) -> S(0)"]
    finally:
        registry.load_entry_points.cache_clear()


def test_an_entry_point_that_cannot_be_loaded_is_named(install):
    install("broken", "", f"[{registry.ENTRY_POINT_GROUP}]\nmine = no_such_module_here\n")
    registry.load_entry_points.cache_clear()
    try:
        with pytest.raises(PropagationError, match=r"DIST0404.*mine.*no_such_module_here"):
            rule_of(normal(op.nn.relu(var(4, 6))))
    finally:
        registry.load_entry_points.cache_clear()


def test_an_op_without_a_rule_is_named():
    call = op.call_pure_packed if hasattr(op, "call_pure_packed") else relax.call_pure_packed
    packed = call("f", var(4), ty_args=[relax.TensorType([4], "float32")])
    with pytest.raises(PropagationError, match=r"DIST0401 relax\.call_pure_packed"):
        rule_of(packed)


def test_a_call_of_a_function_is_no_op_call():
    call = ir.Call(ir.GlobalVar("layer"), [var(4)])
    with pytest.raises(
        PropagationError, match=r"DIST0401 layer: the callee is a function, not an op"
    ):
        rule_of(call)


def test_an_unknown_shape_is_an_error():
    x = relax.Var("x", relax.TensorType(None, "float32", ndim=2))
    with pytest.raises(PropagationError, match=r"DIST0402 relax\.nn\.relu"):
        rule_of(normal(op.nn.relu(x)))
