# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``bind_dims`` and kernels: each is specialised to the sizes of its calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import ir, relax, te, tirx
from tvm.script import tirx as T

import tvm_distir as td
from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.support.errors.tree import ModelError


def joined(x: Any, y: Any) -> Any:
    def value(i: Any, j: Any) -> Any:
        return te.if_then_else(i < x.shape[0], x[i, j], y[i - x.shape[0], j])

    return te.compute((x.shape[0] + y.shape[0], x.shape[1]), value, name="joined")


def scaled(x: Any, factor: Any) -> Any:
    return te.compute(x.shape, lambda *i: x[i] * factor.astype("float32"), name="scaled")


def doubled(x: Any) -> Any:
    return te.compute(x.shape, lambda *i: x[i] + x[i], name="doubled")


PAST, SEQ = (tirx.Var(name, "int64") for name in ("past", "seq"))


def cache() -> Any:
    """Kernels of ``past + seq`` rows, of a number ``past``, and one that is called three times."""
    a = relax.Var("a", relax.TensorType((PAST, 8), "float32"))
    b = relax.Var("b", relax.TensorType((SEQ, 8), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [a, b]):
        with builder.dataflow():
            more = builder.emit_te(doubled, b)
            more = builder.emit_te(doubled, more)
            both = builder.emit_te(joined, builder.emit_te(doubled, a), more)
            out = builder.emit_output(builder.emit_te(scaled, both, PAST))
        builder.emit_func_output(out)
    return builder.get()


def kernels(mod: Any) -> dict[str, list[Any]]:
    """The shapes of the parameters of kernels; of a number its type."""
    return {
        str(gv.name_hint): [
            tuple(map(int, p.ty.shape)) if hasattr(p.ty, "shape") else str(p.ty) for p in fn.params
        ]
        for gv, fn in mod.functions.items()
        if isinstance(fn, tirx.PrimFunc)
    }


def called(mod: Any) -> list[str]:
    body = mod["main"].body
    calls = [b.value for block in body.blocks for b in block.bindings]
    return [str(c.args[0].name_hint) for c in calls if isinstance(c, ir.Call)]


def test_kernels_have_the_sizes_of_their_calls_and_equal_ones_are_shared() -> None:
    bound = td.bind_dims(cache(), {"past": 3, "seq": 5})
    relax.analysis.well_formed(bound)
    result = kernels(bound)
    assert sorted(result) == ["doubled", "doubled_1", "joined", "scaled"]
    assert result["joined"] == [(3, 8), (5, 8), (8, 8)]
    assert result["scaled"] == [(8, 8), (8, 8)]  # its number is in the kernel
    assert result["doubled"] == [(5, 8)] * 2 and result["doubled_1"] == [(3, 8)] * 2
    assert called(bound)[:3] == ["doubled", "doubled", "doubled_1"]


def test_a_bound_module_computes_what_the_open_one_does() -> None:
    inputs = [np.arange(n * 8, dtype="float32").reshape(n, 8) for n in (3, 5)]
    (want,) = Reference(cache()).run(inputs)
    (got,) = Reference(td.bind_dims(cache(), {"past": 3, "seq": 5})).run(inputs)
    assert np.array_equal(got, want)
    assert np.array_equal(want, 3 * np.concatenate([2 * inputs[0], 4 * inputs[1]]))


@pytest.mark.parametrize("placement", ["S[0]", "S[1]"])
def test_bound_kernels_are_cut(placement: str) -> None:
    """Rows of a sum stay whole, columns are cut: with open extents neither could be."""
    bound = td.bind_dims(cache(), {"past": 4, "seq": 4})
    rules = [{"param": name, "placement": placement} for name in "ab"]
    assert td.verify(bound, {"schema_version": 1, "mesh": {"tp": 2}, "rules": rules}).equal


def test_sizes_may_be_given_one_after_the_other() -> None:
    half = td.bind_dims(cache(), {"past": 3})
    (scaled_half,) = (fn for gv, fn in half.functions.items() if gv.name_hint == "scaled")
    assert [hasattr(p.ty, "shape") for p in scaled_half.params] == [True, False, True]  # seq
    assert kernels(td.bind_dims(half, {"seq": 5})) == kernels(
        td.bind_dims(cache(), {"past": 3, "seq": 5})
    )


def one_call(op: str, public: bool = False) -> Any:
    """``scaled`` of past + seq rows, which two operands are the numbers of."""
    shapes = {"a": (PAST,), "b": (SEQ,), "x": (PAST + SEQ, 8)}
    params = [relax.Var(name, relax.TensorType(shape, "float32")) for name, shape in shapes.items()]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            gv, operands = builder.call_te(scaled, params[2], PAST).args
            ty = params[2].ty
            if op == "call_tir_with_grad":
                created = relax.op.call_tir_with_grad(gv, operands, ty, te_grad_name="nobody")
            else:
                created = relax.op.call_tir(gv, operands, ty)
            out = builder.emit_output(builder.emit(created))
        builder.emit_func_output(out)
    mod = builder.get()
    if public:
        mod["scaled"] = mod["scaled"].with_attr("global_symbol", "scaled")
    return mod


def operands(mod: Any) -> int:
    (call,) = (b.value for b in mod["main"].body.blocks[0].bindings if hasattr(b.value, "op"))
    return len(call.args[1].fields)


def test_a_public_kernel_stays_as_it_is() -> None:
    mod = one_call("call_tir", public=True)
    bound = td.bind_dims(mod, {"past": 3, "seq": 5})
    assert called(bound) == ["scaled_1"]
    assert bound["scaled"].same_as(mod["scaled"])
    assert "global_symbol" not in (bound["scaled_1"].attrs or {})


def test_the_kernel_of_a_gradient_is_called_with_the_same_operands() -> None:
    sizes = {"past": 3, "seq": 5}
    assert operands(td.bind_dims(one_call("call_tir_with_grad"), sizes)) == 3
    assert operands(td.bind_dims(one_call("call_tir"), sizes)) == 1


@T.prim_func(private=True, s_tir=True)
def doubled_in_place(var_x: T.handle):
    n = T.int64()
    x = T.match_buffer(var_x, (n, 8), "float32")
    for i, j in T.grid(n, 8):
        with T.sblock("x"):
            vi, vj = T.axis.remap("SS", [i, j])
            x[vi, vj] = x[vi, vj] + x[vi, vj]


def test_a_kernel_in_place_has_no_parameter_for_its_result() -> None:
    x = relax.Var("x", relax.TensorType((PAST, 8), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            local = builder.emit(relax.op.add(x, x))
            gv = builder.add_func(doubled_in_place, "twice")
            created = relax.op.call_tir_inplace(gv, [local], [0], [x.ty])
            out = builder.emit_output(builder.emit(created))
        builder.emit_func_output(out)
    bound = td.bind_dims(builder.get(), {"past": 3})
    assert kernels(bound) == {"twice": [(3, 8)]}
    ones = np.ones((3, 8), "float32")
    (got,) = Reference(bound).run([ones])
    assert np.array_equal(got, 4 * ones)


@pytest.mark.parametrize(
    ("sizes", "match"),
    [
        ({"n": 4, "m": 5}, r"DIST0313 main: sizes contradict each other: add: "),
        ({"n": 4, "m": 4}, None),
    ],
)
def test_sizes_that_contradict_at_an_op(sizes: dict[str, int], match: str | None) -> None:
    x, y = (
        relax.Var(name, relax.TensorType((tirx.Var(dim, "int64"), 8), "float32"))
        for name, dim in (("x", "n"), ("y", "m"))
    )
    builder = relax.BlockBuilder()
    with builder.function("main", [x, y]):
        with builder.dataflow():
            out = builder.emit_output(builder.emit(relax.op.add(x, y)))
        builder.emit_func_output(out)
    if match is None:
        assert [int(k) for k in td.bind_dims(builder.get(), sizes)["main"].ret_ty.shape] == [4, 8]
        return
    with pytest.raises(ModelError, match=match) as caught:
        td.bind_dims(builder.get(), sizes)
    assert caught.value.remedy


def test_sizes_that_contradict_at_a_kernel() -> None:
    """The rows of the result are those that the module says, not the sum of the operands'."""
    mod = cache()
    a, b = (relax.Var(n, relax.TensorType((d, 8), "float32")) for n, d in (("a", PAST), ("b", SEQ)))
    rows = tirx.Var("rows", "int64")
    size = relax.Var("size", relax.TensorType((rows,), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [a, b, size]):
        with builder.dataflow():
            gv = builder.add_func(mod["joined"], "joined")
            ty = relax.TensorType((rows, 8), "float32")
            out = builder.emit_output(builder.emit(relax.op.call_tir(gv, [a, b], ty)))
        builder.emit_func_output(out)
    td.bind_dims(builder.get(), {"past": 3, "seq": 5, "rows": 8})
    match = r"DIST0313 main/\w+ \(call_tir joined\): the extent past \+ seq would be 8 and 9"
    with pytest.raises(ModelError, match=match):
        td.bind_dims(builder.get(), {"past": 3, "seq": 5, "rows": 9})


def test_sizes_that_contradict_at_a_call() -> None:
    n, m = (tirx.Var(name, "int64") for name in "nm")
    k = tirx.Var("k", "int64")

    def two(first: Any, second: Any) -> list[relax.Var]:
        shapes = zip("xy", (first, second))
        return [relax.Var(name, relax.TensorType((d, 8), "float32")) for name, d in shapes]

    builder = relax.BlockBuilder()
    p, q = two(k, k)
    with builder.function("inner", [p, q], private=True):
        builder.emit_func_output(builder.emit(relax.op.add(p, q)))
    mod = builder.get()
    builder = relax.BlockBuilder(mod)
    x, y = two(n, m)
    with builder.function("main", [x, y]):
        call = relax.Call(mod.get_global_var("inner"), [x, y])
        builder.emit_func_output(builder.emit(call))
    with pytest.raises(ModelError, match=r"DIST0313 main/\w+ \(inner\): k would be 4 and 5"):
        td.bind_dims(builder.get(), {"n": 4, "m": 5})


def test_sizes_that_contradict_behind_a_call() -> None:
    """Only the callee's sizes show that its result has three rows."""
    k = tirx.Var("k", "int64")
    p = relax.Var("p", relax.TensorType((k, 8), "float32"))
    unknown = relax.TensorType(dtype="float32", ndim=2)
    result = relax.Var("r", p.ty)
    block = relax.BindingBlock([relax.VarBinding(result, relax.op.nn.relu(p))])
    inner = relax.Function([p], relax.SeqExpr([block], result), unknown)
    builder = relax.BlockBuilder()
    gv = builder.add_func(inner, "inner")
    x, y = (relax.Var(n, relax.TensorType((d, 8), "float32")) for n, d in (("x", PAST), ("y", SEQ)))
    with builder.function("main", [x, y]):
        inputs = builder.emit(relax.Call(gv, [x]))
        builder.emit_func_output(builder.emit(relax.op.add(inputs, y)))
    td.bind_dims(builder.get(), {"past": 3, "seq": 3})
    with pytest.raises(ModelError, match=r"DIST0313 main/\w+ \(add\): sizes contradict .*: add: "):
        td.bind_dims(builder.get(), {"past": 3, "seq": 5})
