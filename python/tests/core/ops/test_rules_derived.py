# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Rules derived from TIR: what they find, what they refuse, and that what they find holds."""

from __future__ import annotations

import pytest
import tvm
from tvm import ir, relax, te, tirx, topi
from tvm.script import tirx as T

from tvm_distir.core.ops.derive.derivation import derive_call
from tvm_distir.core.ops.lookup import rule_of
from tvm_distir.core.ops.match import describe_factor
from tvm_distir.core.ops.signature import call_shape
from tvm_distir.execution.rule_validation.cases import Case, var
from tvm_distir.execution.rule_validation.draws import index_below
from tvm_distir.execution.rule_validation.proof import prove
from tvm_distir.support.errors.tree import PropagationError


def tir_call(kernel, shapes, dtypes, out_shape):
    """A call_tir of a TE kernel, with the module that holds it."""
    tensors = [te.placeholder(s, t, f"a{i}") for i, (s, t) in enumerate(zip(shapes, dtypes))]
    result = kernel(*tensors, out_shape)
    mod = ir.IRModule({"kernel": te.create_prim_func([*tensors, result])})
    args = [var(*s, dtype=t) for s, t in zip(shapes, dtypes)]
    out = relax.TensorType(list(out_shape), result.dtype)
    return relax.call_tir(mod.get_global_var("kernel"), args, out), mod


def tir_case(name, kernel, shapes, out_shape, dtypes=None, **more):
    dtypes = dtypes or ["float32"] * len(shapes)
    call, mod = tir_call(kernel, shapes, dtypes, out_shape)

    return Case(name, call, mod=mod, **more)


def k_matmul(a, b, out):
    return topi.matmul(a, b)


def k_mlp(a, b, c, out):
    return topi.nn.relu(topi.add(topi.matmul(a, b), c))


def k_scaled(a, out):
    return topi.multiply(topi.sum(a, axis=1), tirx.const(0.5, "float32"))


def k_twice(a, b, out):
    return topi.matmul(topi.matmul(a, b), b)


def k_gram(a, out):
    k = te.reduce_axis((0, a.shape[1]), "k")
    return te.compute(out, lambda i, j: te.sum(a[i, k] * a[j, k], axis=k))


def k_reshape(a, out):
    return topi.reshape(a, out)


def k_shifted(a, out):
    return te.compute(
        out, lambda i, j: te.if_then_else(j > 0, a[i, j - 1], tirx.const(0.0, "float32"))
    )


def k_gather(a, index, out):
    return te.compute(out, lambda i, j: a[index[i], j])


def k_position(a, out):
    return te.compute(out, lambda i, j: a[i, j] + j.astype("float32"))


def k_reversed(a, out):
    n = a.shape[1]
    return te.compute(out, lambda i, j: a[i, n - 1 - j])


def k_diagonal(a, out):
    return te.compute(out, lambda i: a[i, i])


def k_pairs(a, out):
    return te.compute(out, lambda i, j: a[i, 2 * j] + a[i, 2 * j + 1])


def k_wrapped(a, b, out):
    n = b.shape[0]
    return te.compute(out, lambda i: a[i] + b[i % n])


def k_norm(a, out):
    total = topi.sum(topi.multiply(a, a), axis=1, keepdims=True)
    return topi.divide(a, total + tirx.const(1.0, "float32"))


def k_last(a, out):
    return te.compute(out, lambda i: a[i, 3])


CASES = {
    "matmul": (
        tir_case("matmul", k_matmul, [(4, 6), (6, 2)], (4, 2)),
        {"S(0), R -> S(0)", "R, S(1) -> S(1)", "S(1), S(0) -> P(sum)"},
        {(0,), (1,)},
    ),
    "relu after a reduction": (
        tir_case("relu after a reduction", k_mlp, [(4, 6), (6, 2), (2,)], (4, 2)),
        {"S(0), R, R -> S(0)", "R, S(1), S(0) -> S(1)"},
        set(),
    ),
    "scaled after a reduction": (
        tir_case("scaled after a reduction", k_scaled, [(4, 6)], (4,)),
        {"S(0) -> S(0)", "S(1) -> P(sum)"},
        {(0,)},
    ),
    "two products": (
        tir_case("two products", k_twice, [(4, 6), (6, 6)], (4, 6)),
        {"S(0), R -> S(0)"},
        {(0,)},
    ),
    "one tensor twice": (
        tir_case("one tensor twice", k_gram, [(4, 6)], (4, 4)),
        {"S(1) -> P(sum)"},
        set(),
    ),
    "maximum": (
        tir_case("maximum", lambda a, out: topi.max(a, axis=0), [(4, 6)], (6,)),
        {"S(1) -> S(0)", "S(0) -> P(max)"},
        set(),
    ),
    "product": (
        tir_case("product", lambda a, out: topi.prod(a, axis=0), [(4, 6)], (6,)),
        {"S(1) -> S(0)", "S(0) -> P(prod)"},
        set(),
    ),
    "softmax": (
        tir_case("softmax", lambda a, out: topi.nn.softmax(a), [(4, 6)], (4, 6), tolerance=1e-6),
        {"S(0) -> S(0)"},
        set(),
    ),
    "merged dims": (
        tir_case("merged dims", k_reshape, [(4, 6, 2)], (24, 2)),
        {"S(0) -> S(0)", "S(2) -> S(1)"},
        {(0,)},
    ),
    "split dims": (
        tir_case("split dims", k_reshape, [(12, 2)], (6, 2, 2)),
        {"S(0) -> S(0)", "S(1) -> S(2)"},
        {(0,)},
    ),
    "shifted": (tir_case("shifted", k_shifted, [(4, 6)], (4, 6)), {"S(0) -> S(0)"}, {(0,)}),
    "gathered": (
        tir_case(
            "gathered",
            k_gather,
            [(4, 6), (2,)],
            (2, 6),
            ["float32", "int64"],
            draws={1: index_below(4)},
        ),
        {"S(1), R -> S(1)", "R, S(0) -> S(0)"},
        {(0,)},
    ),
    "position in the value": (
        tir_case("position in the value", k_position, [(4, 6)], (4, 6)),
        {"S(0) -> S(0)"},
        set(),
    ),
    "reversed": (tir_case("reversed", k_reversed, [(4, 6)], (4, 6)), {"S(0) -> S(0)"}, {(0,)}),
    "diagonal": (tir_case("diagonal", k_diagonal, [(4, 4)], (4,)), set(), {(0,)}),
    "neighbours in a block": (
        tir_case("neighbours in a block", k_pairs, [(4, 12)], (4, 6)),
        {"S(0) -> S(0)", "S(1) -> S(1)"},
        {(0,)},
    ),
    "wrapped": (
        tir_case("wrapped", k_wrapped, [(12,), (3,)], (12,)),
        {"S(0), R -> S(0)"},
        {(0, 1)},
    ),
    "reduced and used again": (
        tir_case("reduced and used again", k_norm, [(4, 6)], (4, 6), tolerance=1e-6),
        {"S(0) -> S(0)"},
        set(),
    ),
    "one column": (tir_case("one column", k_last, [(4, 6)], (4,)), {"S(0) -> S(0)"}, {(0,)}),
}


@pytest.mark.parametrize("name", CASES)
def test_derived_factors(name):
    case, factors, linear = CASES[name]
    rule = case.rule()
    assert rule.source == "derived"
    assert {describe_factor(f) for f in rule.factors} == factors
    assert set(rule.linear) == linear


def test_derived_factors_hold_when_run():
    failures = prove([case for case, _, _ in CASES.values()]).failures
    assert {name: result for name, result in failures.items() if result} == {}


def test_blocks_of_a_wrapped_dim_are_multiples_of_its_period():
    case, _, _ = CASES["wrapped"]
    (factor,) = case.rule().factors
    assert factor.size == 4  # 12 elements in periods of 3
    assert not factor.uneven


def test_derived_work_counts_multiply_and_add():
    rule = CASES["matmul"][0].rule()
    assert rule.flops == 2 * 4 * 2 * 6
    assert rule.work.kernel_class == "matmul"
    assert (rule.in_bytes, rule.out_bytes) == ((96, 48), (32,))


def test_derived_and_hand_written_rules_agree():
    """Ops whose kernels are understood in full: both ways give the same factors.

    Halos are for hand-written rules alone: a derived one knows no neighbours.
    """
    x, w = var(2, 4, 8, 8), var(4, 4, 3, 3)
    op = relax.op
    for call in (
        op.matmul(var(2, 3, 4, 6), var(3, 6, 2)),
        op.nn.conv2d(x, w),
        op.nn.batch_norm(x, *(var(4) for _ in range(4)), axis=1, training=False),
        op.permute_dims(x, [1, 0, 3, 2]),
        op.sum(x, axis=[1, 2]),
        op.concat([var(2, 3), var(2, 5)], axis=1),
        op.split(x, 2, axis=1),
        op.einsum((var(4, 6), var(6, 2)), "ij,jk->ki"),
        op.where(var(4, 6, dtype="bool"), var(4, 6), var(6)),
        op.one_hot(var(3, dtype="int64"), relax.prim_value(1), relax.prim_value(0), 5),
        op.flip(x, 2),
    ):
        call = relax.BlockBuilder().normalize(call)
        hand, derived = rule_of(call), derive_call(call, call_shape(call))
        assert hand.source == "hand" and derived.source == "derived"
        local = [f for f in hand.factors if f.kind != "halo"]
        assert {(describe_factor(f), f.size) for f in local} == {
            (describe_factor(f), f.size) for f in derived.factors
        }, str(call.op.name)


def test_an_op_whose_attributes_name_extents_is_not_cut_there():
    """adaptive_avg_pool1d(out=2): its kernel could be cut, the op on half an operand could not."""
    call = relax.BlockBuilder().normalize(relax.op.nn.adaptive_avg_pool1d(var(2, 4, 8), 2))
    derived = derive_call(call, call_shape(call))
    assert {describe_factor(f) for f in derived.factors} == {"S(0) -> S(0)", "S(1) -> S(1)"}
    assert "attributes" in derived.why_replicated["in0.dim2"]


def test_a_mean_is_not_cut_over_the_mean_when_derived():
    """Its kernel divides by the whole extent; on local operands it would divide by less."""
    call = relax.BlockBuilder().normalize(relax.op.mean(var(4, 6), axis=1))
    derived = derive_call(call, call_shape(call))
    assert {describe_factor(f) for f in derived.factors} == {"S(0) -> S(0)"}


def test_groups_counted_by_an_attribute_are_not_cut_when_derived():
    """group_norm of 2 groups on half the channels would still make 2 groups."""
    call = relax.op.nn.group_norm(var(2, 8, 3), var(8), var(8), 2, 1, [2])
    call = relax.BlockBuilder().normalize(call)
    derived = derive_call(call, call_shape(call))
    assert {describe_factor(f) for f in derived.factors} == {"S(0), R, R -> S(0)"}
    assert "numbers" in derived.why_replicated["in0.dim1"]


def test_values_bound_inside_a_block_are_followed():
    call = relax.BlockBuilder().normalize(relax.op.argmax(var(4, 6, 2), axis=1))
    derived = derive_call(call, call_shape(call))
    assert {describe_factor(f) for f in derived.factors} == {"S(0) -> S(0)", "S(2) -> S(1)"}


@T.prim_func(s_tir=True)
def symbolic(var_a: T.handle, shift: T.int64, var_b: T.handle):
    n = T.int64()
    a = T.match_buffer(var_a, (n, 8), "float32")
    b = T.match_buffer(var_b, (n, 8), "float32")
    for i, j in T.grid(n, 8):
        with T.sblock("b"):
            vi, vj = T.axis.remap("SS", [i, j])
            b[vi, vj] = a[vi, vj] * T.Cast("float32", shift)


@T.prim_func(s_tir=True)
def started_at_two(a: T.Buffer((4, 8), "float32"), b: T.Buffer((4,), "float32")):
    for i, k in T.grid(4, 8):
        with T.sblock("b"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                b[vi] = T.float32(2)
            b[vi] = b[vi] + a[vi, vk]


@T.prim_func(s_tir=True)
def scanned(a: T.Buffer((8,), "float32"), b: T.Buffer((8,), "float32")):
    for i in range(8):
        with T.sblock("b"):
            vi = T.axis.spatial(8, i)
            if vi > 0:
                b[vi] = b[vi - 1] + a[vi]


@T.prim_func(s_tir=True)
def rotated(
    x: T.Buffer((2, 16, 4, 8), "float16"),
    cos: T.Buffer((64, 8), "float16"),
    sin: T.Buffer((64, 8), "float16"),
    start: T.int64,
    y: T.Buffer((2, 16, 4, 8), "float16"),
):
    for b, s, h, d in T.grid(2, 16, 4, 8):
        with T.sblock("rotated"):
            vb, vs, vh, vd = T.axis.remap("SSSS", [b, s, h, d])
            y[vb, vs, vh, vd] = cos[start + T.int64(vs), vd] * x[vb, vs, vh, vd] + sin[
                start + T.int64(vs), vd
            ] * T.Select(vd >= 4, x[vb, vs, vh, vd - 4], x[vb, vs, vh, vd + 4] * T.float16(-1))


def test_a_rotary_embedding_is_cut_along_batch_and_heads():
    """Positions index a table at an offset, features look at the other half of the head."""
    ty = relax.TensorType([2, 16, 4, 8], "float16")
    table = relax.TensorType([64, 8], "float16")
    operands = [relax.Var("x", ty), relax.Var("cos", table), relax.Var("sin", table)]
    rule = _rule(rotated, relax.Tuple([*operands, relax.prim_value(3)]), ty)
    assert {describe_factor(f) for f in rule.factors} == {
        "S(0), R, R -> S(0)",
        "S(2), R, R -> S(2)",
    }
    assert set(rule.linear) == {(0,), (1, 2)}


def _rule(func, args, out):
    mod = ir.IRModule({"kernel": func})
    return rule_of(relax.call_tir(mod.get_global_var("kernel"), args, out), mod)


def test_symbolic_extents_are_those_of_the_call():
    n, m = tirx.Var("n", "int64"), tirx.Var("m", "int64")
    for extent in (n, m):  # the second call has the hash of the first
        ty = relax.TensorType([extent, 8], "float32")
        call_args = relax.Tuple([relax.Var("x", ty), relax.prim_value(3)])
        rule = _rule(symbolic, call_args, ty)
        assert [describe_factor(f) for f in rule.factors] == ["S(0) -> S(0)", "S(1) -> S(1)"]
        assert rule.factors[0].size.same_as(extent)
        assert not rule.factors[0].uneven and rule.factors[1].uneven
        assert rule.flops == 1024 * 8


def test_a_start_that_is_not_neutral_forbids_the_sum():
    rule = _rule(started_at_two, [var(4, 8)], relax.TensorType([4], "float32"))
    assert [describe_factor(f) for f in rule.factors] == ["S(0) -> S(0)"]
    assert rule.linear == ()
    assert "its reduction is not supported" in rule.why_replicated["in0.dim1"]


def test_a_scan_is_whole():
    rule = _rule(scanned, [var(8)], relax.TensorType([8], "float32"))
    assert rule.factors == ()
    assert set(rule.why_replicated) == {"in0.dim0", "out0.dim0"}


def test_a_kernel_that_is_not_there_is_an_error():
    call = relax.call_tir(ir.GlobalVar("kernel"), [var(4)], relax.TensorType([4], "float32"))
    with pytest.raises(PropagationError, match=r"DIST0401.*kernel.*Pass the module"):
        rule_of(call)
    with pytest.raises(PropagationError, match="DIST0401"):
        rule_of(call, tvm.IRModule({}))
