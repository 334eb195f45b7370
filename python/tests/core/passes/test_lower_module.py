# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""LowerDistIR on modules: entries, their interface, levels, constants, tuples, speed."""

from __future__ import annotations

import re
import time

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

from tests.core.passes import lower_harness as h
from tvm_distir.core.ir.types import as_dtensor
from tvm_distir.core.passes.legalize.passes import LegalizeRedistribute
from tvm_distir.core.passes.lower.passes import LowerDistIR
from tvm_distir.support import GenericConst, update_type
from tvm_distir.support.errors.tree import LevelError, LoweringError


def D(shape, placement, dtype="float32", mesh=0):
    return f'R.DTensor({shape}, "{dtype}", "mesh[{mesh}]", "{placement}")'


def parse(functions, meshes="R.device_mesh((2, 2), I.Range(0, 4))", axes='[["a", "b"]]'):
    return tvm.script.from_source(f"""
@I.ir_module
class Module:
    I.module_attrs({{"mesh_axes": {axes}}})
    I.module_global_infos({{"mesh": [{meshes}]}})
{functions}
""")


def lower(mod):
    return LowerDistIR()(LegalizeRedistribute()(mod))


def draw(*shapes):
    rng = np.random.default_rng(11)
    return [rng.integers(-2, 3, s).astype("float32") for s in shapes]


MAIN = f"""
    @R.function
    def main(ids: {D((8,), "S[0], R", "int32")}, table: {D((10, 4), "R, S[0]")},
             unused: {D((4, 4), "R, R")}, w: {D((4, 6), "R, S[1]")}):
        R.func_attr({{"dist.inputs": ["ids"], "num_input": 1, "kept": 7}})
        with R.dataflow():
            e: {D((8, 4), "S[0], R")} = R.take(table, ids, axis=0)
            y = R.matmul(e, w)
            dead = R.negative(y)
            R.output(y)
        return y
"""


def test_interface_of_an_entry():
    """Names, order, whole shapes, roles; unused inputs stay, dead code is gone."""
    mod = parse(MAIN)
    before = tvm_ffi.structural_hash(mod)
    local = lower(mod)
    h.check_module(local)
    assert tvm_ffi.structural_hash(mod) == before
    fn = local["main"]
    assert [p.name for p in fn.params] == ["ids", "table", "unused", "w"]
    io = fn.attrs["dist.io"]
    assert int(io["mesh"]) == 0
    assert [(int(i["index"]), str(i["name"]), str(i["role"])) for i in io["inputs"]] == [
        (0, "ids", "data"),
        (1, "table", "weight"),
        (2, "unused", "weight"),
        (3, "w", "weight"),
    ]
    table = io["inputs"][1]
    assert [int(n) for n in table["shape"]] == [10, 4]
    assert (str(table["placement"]), str(table["dtype"])) == ("R, S[0]", "float32")
    (out,) = io["outputs"]
    assert (int(out["index"]), str(out["placement"])) == (0, "S[0], S[1]")
    assert [int(n) for n in fn.params[1].ty.shape] == [5, 4]
    assert int(fn.attrs["kept"]) == 7
    assert "R.negative" not in local.script()
    ids = np.arange(8, dtype="int32")
    table_value, w = draw((10, 4), (4, 6))
    unused = np.zeros((4, 4), "float32")
    got = h.run_virtual(local, {"ids": ids, "table": table_value, "unused": unused, "w": w})
    np.testing.assert_array_equal(got[0], table_value[ids] @ w)


def test_nothing_is_left_of_dtensors():
    local = lower(parse(MAIN))
    assert "DTensor" not in local.script()


def test_private_functions_stay_and_are_shared():
    mod = parse(f"""
    @R.function(private=True)
    def layer(x: {D((8, 8), "S[0], R")}, w: {D((8, 8), "R, S[1]")}, v: {D((8, 8), "R, S[0]")}):
        with R.dataflow():
            y = R.matmul(x, w)
            z: {D((8, 8), "S[0], R")} = R.matmul(y, v)
            R.output(z)
        return z

    @R.function
    def main(x: {D((8, 8), "S[0], R")}, w: {D((8, 8), "R, S[1]")}, v: {D((8, 8), "R, S[0]")}):
        cls = Module
        with R.dataflow():
            a = cls.layer(x, w, v)
            b = cls.layer(a, w, v)
            R.output(b)
        return b
""")
    local = lower(mod)
    h.check_module(local)
    assert sorted(g.name_hint for g in local.functions) == ["layer", "main"]
    x, w, v = draw((8, 8), (8, 8), (8, 8))
    np.testing.assert_array_equal(h.run_virtual(local, [x, w, v])[0], x @ w @ v @ w @ v)


@pytest.mark.parametrize(("placement", "slices"), [("S[0], S[1]", 2), ("S[0], S[0]", 1)])
def test_constants_are_sliced_once(placement, slices):
    """A constant needed in shards is cut by a slice of the whole, shared by its readers."""
    mod = parse(f"""
    @R.function
    def main(x: {D((8, 6), placement)}):
        with R.dataflow():
            y = R.negative(x)
            R.output(y)
        return y
""")
    value = np.arange(48).reshape(8, 6).astype("float32")
    mesh = mod.global_infos["mesh"][0]
    const = GenericConst(
        tvm.runtime.tensor(value), as_dtensor(relax.TensorType([8, 6], "float32"), mesh, [-1, -1])
    )
    fn = mod["main"]
    x = fn.params[0]
    names = ["p", "q"]
    bindings = []
    for name in names:
        call = relax.op.add(x, const)
        update_type(call, x.ty)
        x = relax.Var(name, x.ty)
        bindings.append(relax.VarBinding(x, call))
    body = relax.SeqExpr([relax.BindingBlock(bindings)], x)
    update_type(body, x.ty)
    mod["main"] = relax.Function(fn.params, body, x.ty, True, fn.attrs)
    local = lower(mod)
    h.check_module(local)
    assert local.script().count("local_slice") == slices
    (data,) = draw((8, 6))
    np.testing.assert_array_equal(h.run_virtual(local, [data])[0], data + 2 * value)


def test_tuples_in_and_out():
    mod = parse(f"""
    @R.function
    def main(xs: R.Tuple({D((8, 6), "S[0], R")}, {D((8, 4), "S[0], R")}),
             y: {D((8, 10), "S[0], R")}):
        with R.dataflow():
            z = R.concat(xs, axis=1)
            s = R.split(z, 2, axis=1)
            a = s[1]
            b = R.add(z, y)
            R.output(a, b, s)
        return (a, (b, s))
""")
    local = lower(mod)
    h.check_module(local)
    io = local["main"].attrs["dist.io"]
    assert [(int(i["index"]), str(i["name"])) for i in io["inputs"]] == [
        (0, "xs_0"),
        (0, "xs_1"),
        (1, "y"),
    ]
    assert [int(o["index"]) for o in io["outputs"]] == [0, 1, 2, 3]
    machine_shapes = [[int(n) for n in t.shape] for t in local["main"].ret_ty.fields]
    assert machine_shapes == [[4, 5], [4, 10], [4, 5], [4, 5]]


def test_several_results_of_one_op():
    mod = parse(f"""
    @R.function
    def main(x: {D((8, 6), "S[0], R")}):
        with R.dataflow():
            t = R.topk(x, k=2, axis=1)
            v = t[0]
            i = t[1]
            R.output(v, i)
        return (v, i)
""")
    (x,) = draw((8, 6))
    v, _ = h.run_virtual(lower(mod), [x])
    np.testing.assert_array_equal(v, -np.sort(-x, axis=1)[:, :2])


def test_functions_that_mix_meshes_are_inlined():
    """Called twice, one in the other: every transfer has a tag of its own."""
    mod = parse(
        f"""
    @R.function(private=True)
    def hop(x: {D((8, 8), "S[0]")}):
        y = R.dist.redistribute(x, "mesh[1]", "S[1]")
        return y

    @R.function(private=True)
    def round(x: {D((8, 8), "S[0]")}):
        cls = Module
        y = cls.hop(x)
        n = R.negative(y)
        z = R.dist.redistribute(n, "mesh[0]", "S[0]")
        return (z, y)

    @R.function
    def main(x: {D((8, 8), "S[0]")}):
        cls = Module
        a = cls.round(x)
        b = a[0]
        c = cls.round(b)
        d = c[0]
        e = c[1]
        f = R.add(e, e)
        return (d, f)
""",
        "R.device_mesh((2,), I.Range(0, 2)), R.device_mesh((2,), I.Range(2, 4))",
        '[["a"], ["b"]]',
    )
    local = lower(mod)
    h.check_module(local)
    assert sorted(g.name_hint for g in local.functions) == ["main_mesh0", "main_mesh1"]
    tags = re.findall(r"R\.dist\.send\(.*tag=(\d+)", local.script())
    assert len(tags) == 4
    assert len(set(tags)) == 4
    (x,) = draw((8, 8))
    d, f = h.run_virtual(local, [x])
    np.testing.assert_array_equal(d, x)
    np.testing.assert_array_equal(f, -2 * x)


def test_results_on_two_meshes_in_one_tuple_variable():
    mod = parse(
        f"""
    @R.function
    def main(x: {D((8, 8), "S[0]")}):
        y = R.dist.redistribute(x, "mesh[1]", "S[1]")
        n = R.negative(x)
        t = (n, y)
        a = t[1]
        b = R.exp(a)
        return (t, b)
""",
        "R.device_mesh((2,), I.Range(0, 2)), R.device_mesh((2,), I.Range(2, 4))",
        '[["a"], ["b"]]',
    )
    local = lower(mod)
    h.check_module(local)
    (x,) = draw((8, 8))
    n, y, b = h.run_virtual(local, [x])
    np.testing.assert_array_equal(n, -x)
    np.testing.assert_array_equal(y, x)
    np.testing.assert_allclose(b, np.exp(x), rtol=1e-6)


def refuses(text, code, place, error=LevelError):
    with pytest.raises(error) as caught:
        LowerDistIR()(parse(text))
    assert (caught.value.code, caught.value.location) == (code, place)
    return caught.value


def test_level_three_is_refused():
    refuses(
        f"""
    @R.function
    def main(x: {D((8, 8), "S[0], R")}):
        y = R.dist.redistribute(x, "mesh[0]", "R, R")
        return y
""",
        "DIST0451",
        "main/y (dist.redistribute)",
    )


def test_an_implied_reduction_is_refused():
    """Level 3 without a redistribute: the sum would be lost."""
    contraction = f"""
    @R.function
    def main(x: {D((8, 8), "R, S[1]")}, w: {D((8, 8), "R, S[0]")}):
        y: {D((8, 8), "R, R")} = R.matmul(x, w)
"""
    refuses(contraction + "        return y\n", "DIST0451", "main")
    refuses(
        contraction + "        z = R.nn.relu(y)\n        return z\n", "DIST0451", "main/z (nn.relu)"
    )


def test_a_reduction_of_a_complete_value_is_refused():
    text = f"""
    @R.function
    def main(x: {D((8, 8), "R, R")}):
        y = R.dist.all_reduce(x, "mesh[0]", [1], "sum")
        return y
"""
    refuses(text, "DIST0503", "main/y (dist.all_reduce)", LoweringError)


def test_plain_modules_are_refused():
    refuses(
        """
    @R.function
    def main(x: R.Tensor((8, 8), "float32")):
        y = R.nn.relu(x)
        return y
""",
        "DIST0451",
        "LowerDistIR",
    )


def test_circular_calls_are_refused():
    text = f"""
    @R.function(private=True)
    def f(x: {D((8, 8), "R, R")}) -> {D((8, 8), "R, R")}:
        cls = Module
        y: {D((8, 8), "R, R")} = cls.f(x)
        return y

    @R.function
    def main(x: {D((8, 8), "R, R")}) -> {D((8, 8), "R, R")}:
        cls = Module
        y: {D((8, 8), "R, R")} = cls.f(x)
        return y
"""
    refuses(text, "DIST0504", "f", LoweringError)


def test_operands_on_two_meshes_are_refused():
    mod = parse(
        f"""
    @R.function
    def main(x: {D((8, 8), "S[0]")}, y: {D((8, 8), "S[0]", mesh=1)}):
        z: {D((8, 8), "S[0]")} = R.negative(x)
        w = (z, y)
        return w
""",
        "R.device_mesh((2,), I.Range(0, 2)), R.device_mesh((2,), I.Range(2, 4))",
        '[["a"], ["b"]]',
    )
    fn = mod["main"]
    call = relax.op.add(fn.params[0], fn.params[1])
    update_type(call, fn.params[0].ty)
    z = relax.Var("z", fn.params[0].ty)
    body = relax.SeqExpr([relax.BindingBlock([relax.VarBinding(z, call)])], z)
    update_type(body, z.ty)
    mod["main"] = relax.Function(fn.params, body, z.ty, True, fn.attrs)
    with pytest.raises(LoweringError) as caught:
        LowerDistIR()(mod)
    assert caught.value.code == "DIST0503"


def test_five_thousand_bindings_take_seconds():
    mesh = h.mesh_of(2, 2)
    tensor = relax.TensorType([8, 8], "float32")
    x = relax.Var("x", as_dtensor(tensor, mesh, [0, 1]))
    w = relax.Var("w", as_dtensor(tensor, mesh, [-1, 0]))
    bindings, value = [], x
    for i in range(1250):
        for name, call, labels in (
            ("m", relax.op.matmul(value, w), [0, -1]),
            ("r", None, [0, -1]),
            ("s", None, [0, 1]),
            ("n", None, [0, 1]),
        ):
            ty = as_dtensor(tensor, mesh, labels)
            if name == "r":
                call = relax.op.nn.relu(value)
            elif name == "s":
                call = relax.op.distributed.redistribute(value, mesh, ty.placement)
            elif name == "n":
                call = relax.op.negative(value)
            update_type(call, ty)
            value = relax.Var(f"{name}{i}", ty)
            bindings.append(relax.VarBinding(value, call))
    body = relax.SeqExpr([relax.BindingBlock(bindings)], value)
    update_type(body, value.ty)
    fn = relax.Function(
        [x, w], body, value.ty, True, tvm.ir.make_node("ir.DictAttrs", global_symbol="main")
    )
    mod = tvm.IRModule({tvm.ir.GlobalVar("main"): fn}, global_infos={"mesh": [mesh]})
    start = time.process_time()
    local = lower(mod)
    assert time.process_time() - start < 10
    assert sum(len(b.bindings) for b in local["main"].body.blocks) == 6250


ALIKE = f"""
    @R.function
    def main(x: {D((8, 4), "S[0], R")}, y: {D((8, 4), "S[0], R")}):
        with R.dataflow():
            one = R.subtract(x, y)
            other = R.subtract(y, x)
            square = R.multiply(one, one)
            mixed = R.multiply(one, other)
            first: {D((8,), "S[0], R")} = R.sum(square, axis=[1])
            last: {D((4,), "R, R")} = R.sum(square, axis=[0])
            raised = R.add(x, R.dist.const(2, {D((), "R, R")}))
            lifted = R.add(y, R.dist.const(5, {D((), "R, R")}))
            parts = R.split(mixed, 2, axis=1)
            left: {D((8, 2), "S[0], R")} = parts[0]
            right: {D((8, 2), "S[0], R")} = parts[1]
            R.output(one, other, square, mixed, first, last, raised, lifted, left, right)
        return (one, other, square, mixed, first, last, raised, lifted, left, right)
"""


def test_like_calls_keep_their_operands_constants_and_attributes():
    mod = parse(ALIKE)
    local = lower(mod)
    x, y = draw((8, 4), (8, 4))
    single = x - y
    mixed = single * -single
    expected = [
        single, -single, single * single, mixed, (single * single).sum(1), (single * single).sum(0),
        x + 2, y + 5,
        mixed[:, :2], mixed[:, 2:],
    ]  # fmt: skip
    for got, want in zip(h.VirtualEngine().run(local, [x, y]), expected, strict=True):
        np.testing.assert_array_equal(np.asarray(got), want)
