# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""LegalizeRedistribute on modules: what it writes, and that the result computes the same."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_distir as td
from tests.core.passes import lower_harness as h
from tvm_distir.core.analysis.levels import check_level
from tvm_distir.core.passes.legalize.passes import LegalizeRedistribute
from tvm_distir.core.passes.lower.passes import LowerDistIR
from tvm_distir.support import update_type
from tvm_distir.support.errors.tree import LevelError, LoweringError, UsageError


def parse(text, shape="(2, 2)", names='"a", "b"'):
    head = f"""
@I.ir_module
class Module:
    I.module_attrs({{"mesh_axes": [[{names}]]}})
    I.module_global_infos({{"mesh": [R.device_mesh({shape}, I.Range(0, {np.prod(eval(shape))}))]}})
"""
    return tvm.script.from_source(head + text)


def calls(mod, function="main"):
    """Short names of the ``R.dist`` ops of a function, in order."""
    text = mod[function].script()
    return re.findall(r"= R\.dist\.(\w+)\(", text)


def legalize_and_run(mod, *inputs):
    legal = LegalizeRedistribute()(mod)
    h.check_module(legal)
    local = LowerDistIR()(legal)
    h.check_module(local)
    return legal, h.run_virtual(local, inputs)


def draw(*shapes):
    rng = np.random.default_rng(5)
    return [rng.integers(-2, 3, s).astype("float32") for s in shapes]


def T(shape, placement):
    return f'R.DTensor({shape}, "float32", "mesh[0]", "{placement}")'


@pytest.mark.parametrize("shape", [(8, 12), (7, 12), (6, 5)], ids=str)
def test_every_pair_of_placements(shape):
    """One module with all redistributions on a 2-D mesh; each result is the whole input."""
    words = ["R", "S[0]", "S[1]"]
    places = [", ".join(p) for p in itertools.product(words, repeat=2)]
    body, outs = [], []
    for i, (src, dst) in enumerate(itertools.product(places, places)):
        body += [
            f'a{i} = R.dist.redistribute(x, "mesh[0]", "{src}")',
            f'b{i} = R.dist.redistribute(a{i}, "mesh[0]", "{dst}")',
        ]
        outs.append(f"b{i}")
    lines = "\n".join(f"        {line}" for line in body)
    mod = parse(f"""
    @R.function
    def main(x: {T(shape, "R, R")}):
{lines}
        return ({", ".join(outs)})
""")
    (x,) = draw(shape)
    legal, got = legalize_and_run(mod, x)
    assert "redistribute" not in calls(legal)
    assert len(got) == len(places) ** 2
    for value in got:
        np.testing.assert_array_equal(value, x)


def test_contraction_is_completed_at_once():
    mod = parse(f"""
    @R.function
    def main(x: {T((8, 8), "S[0], S[1]")}, w: {T((8, 8), "R, S[0]")}):
        with R.dataflow():
            y: {T((8, 8), "S[0], R")} = R.matmul(x, w)
            z = R.nn.relu(y)
            R.output(z)
        return z
""")
    x, w = draw((8, 8), (8, 8))
    legal, (got,) = legalize_and_run(mod, x, w)
    assert calls(legal) == ["all_reduce"]
    np.testing.assert_array_equal(got, np.maximum(x @ w, 0))


def test_wrapped_contraction_waits_for_its_redistribute():
    """Partial through a linear op, scattered once."""
    mod = parse(f"""
    @R.function
    def main(x: {T((8, 8), "R, S[1]")}, w: {T((8, 8), "R, S[0]")}, s: {T((8, 1), "R, R")}):
        with R.dataflow():
            y: {T((8, 8), "R, R")} = R.matmul(x, w)
            p = R.dist.partial(y, "mesh[0]", [1], "sum")
            q = R.multiply(p, s)
            z = R.dist.redistribute(q, "mesh[0]", "R, S[0]")
            R.output(z)
        return z
""")
    x, w, s = draw((8, 8), (8, 8), (8, 1))
    legal, (got,) = legalize_and_run(mod, x, w, s)
    assert calls(legal) == ["reduce_scatter"]
    np.testing.assert_array_equal(got, (x @ w) * s)


def test_complete_and_wrapped_uses_of_one_contraction():
    mod = parse(f"""
    @R.function
    def main(x: {T((8, 8), "R, S[1]")}, w: {T((8, 8), "R, S[0]")}):
        with R.dataflow():
            y: {T((8, 8), "R, R")} = R.matmul(x, w)
            p = R.dist.partial(y, "mesh[0]", [1], "sum")
            z = R.dist.redistribute(p, "mesh[0]", "R, S[0]")
            r = R.nn.relu(y)
            R.output(z, r)
        return (z, r)
""")
    x, w = draw((8, 8), (8, 8))
    legal, (z, r) = legalize_and_run(mod, x, w)
    assert sorted(calls(legal)) == ["all_reduce", "reduce_scatter"]
    np.testing.assert_array_equal(z, x @ w)
    np.testing.assert_array_equal(r, np.maximum(x @ w, 0))


def test_unfinished_sum_read_by_a_nonlinear_op_is_completed():
    mod = parse(f"""
    @R.function
    def main(x: {T((8, 8), "R, S[1]")}, w: {T((8, 8), "R, S[0]")}):
        with R.dataflow():
            y: {T((8, 8), "R, R")} = R.matmul(x, w)
            p = R.dist.partial(y, "mesh[0]", [1], "sum")
            a = R.nn.relu(p)
            b = R.square(p)
            R.output(a, b)
        return (a, b)
""")
    x, w = draw((8, 8), (8, 8))
    legal, (a, b) = legalize_and_run(mod, x, w)
    assert calls(legal) == ["all_reduce"]
    np.testing.assert_array_equal(a, np.maximum(x @ w, 0))
    np.testing.assert_array_equal(b, (x @ w) ** 2)


def test_only_the_named_axis_stays_partial():
    mod = parse(f"""
    @R.function
    def main(x: {T((8, 8), "S[1], S[1]")}, w: {T((8, 8), "S[0], S[0]")}):
        with R.dataflow():
            y: {T((8, 8), "R, R")} = R.matmul(x, w)
            p = R.dist.partial(y, "mesh[0]", [1], "sum")
            z = R.dist.redistribute(p, "mesh[0]", "R, S[0]")
            R.output(z)
        return z
""")
    x, w = draw((8, 8), (8, 8))
    legal, (got,) = legalize_and_run(mod, x, w)
    assert calls(legal) == ["all_reduce", "reduce_scatter"]
    np.testing.assert_array_equal(got, x @ w)


def test_adding_a_complete_value_to_a_partial_one():
    """The complete value is kept by the group's first rank only; constants too."""
    mod = parse(f"""
    @R.function
    def main(x: {T((8, 8), "R, S[1]")}, w: {T((8, 8), "R, S[0]")}, r: {T((8, 8), "R, R")}):
        with R.dataflow():
            y: {T((8, 8), "R, R")} = R.matmul(x, w)
            p = R.dist.partial(y, "mesh[0]", [1], "sum")
            q = R.dist.partial(r, "mesh[0]", [1], "sum")
            s = R.add(p, q)
            t = R.add(s, R.dist.const(1.0, R.DTensor((), "float32", "mesh[0]", "R, R")))
            z = R.dist.redistribute(t, "mesh[0]", "R, R")
            R.output(z)
        return z
""")
    x, w, r = draw((8, 8), (8, 8), (8, 8))
    legal, (got,) = legalize_and_run(mod, x, w, r)
    assert calls(legal) == ["partial", "partial", "all_reduce"]
    np.testing.assert_array_equal(got, x @ w + r + 1)


def test_redistribute_that_ends_partial():
    """A wrap right after a redistribute keeps the axis unfinished, and finishes the other."""
    mod = parse(f"""
    @R.function
    def main(x: {T((8, 8), "S[1], S[1]")}, w: {T((8, 8), "S[0], S[0]")}):
        with R.dataflow():
            y: {T((8, 8), "R, R")} = R.matmul(x, w)
            p = R.dist.partial(y, "mesh[0]", [0, 1], "sum")
            m = R.dist.redistribute(p, "mesh[0]", "R, R")
            q = R.dist.partial(m, "mesh[0]", [1], "sum")
            n = R.negative(q)
            z = R.dist.redistribute(n, "mesh[0]", "R, S[1]")
            R.output(z)
        return z
""")
    x, w = draw((8, 8), (8, 8))
    legal, (got,) = legalize_and_run(mod, x, w)
    assert calls(legal) == ["all_reduce", "reduce_scatter"]
    assert "mesh_axes=[0]" in legal["main"].script()
    np.testing.assert_array_equal(got, -(x @ w))


def test_max_is_completed_with_its_own_op():
    mod = parse(f"""
    @R.function
    def main(x: {T((8, 8), "S[0], S[1]")}):
        with R.dataflow():
            y: {T((8,), "S[0], R")} = R.max(x, axis=[1])
            R.output(y)
        return y
""")
    (x,) = draw((8, 8))
    legal, (got,) = legalize_and_run(mod, x)
    assert 'op="max"' in legal["main"].script()
    np.testing.assert_array_equal(got, x.max(1))


LAYER = f"""
    @R.function(private=True)
    def layer(x: {T((8, 8), "R, R")}, w: {T((8, 8), "R, S[0]")}) -> {T((8, 8), "R, R")}:
        R.func_attr({{"dist.partial": {{"params": {{"0": [1]}}, "results": {{"0": [1]}}}}}})
        with R.dataflow():
            c = R.dist.redistribute(x, "mesh[0]", "R, S[1]")
            y: {T((8, 8), "R, R")} = R.matmul(c, w)
            p = R.dist.partial(y, "mesh[0]", [1], "sum")
            R.output(p)
        return p
"""


def test_partial_sums_cross_function_boundaries():
    mod = parse(
        LAYER
        + f"""
    @R.function
    def main(x: {T((8, 8), "R, R")}, w: {T((8, 8), "R, S[0]")}):
        cls = Module
        with R.dataflow():
            a = cls.layer(x, w)
            b = cls.layer(a, w)
            R.output(b)
        return b
"""
    )
    x, w = draw((8, 8), (8, 8))
    legal, (got,) = legalize_and_run(mod, x, w)
    assert calls(legal, "layer") == ["reduce_scatter"]
    # The complete input is made partial; the last result is completed.
    assert calls(legal) == ["partial", "all_reduce"]
    np.testing.assert_array_equal(got, x @ w @ w)


def test_boundary_that_expects_complete_values():
    mod = parse(f"""
    @R.function(private=True)
    def layer(x: {T((8, 8), "R, R")}) -> {T((8, 8), "R, R")}:
        with R.dataflow():
            y = R.nn.relu(x)
            R.output(y)
        return y

    @R.function
    def main(x: {T((8, 8), "R, S[1]")}, w: {T((8, 8), "R, S[0]")}):
        cls = Module
        with R.dataflow():
            y: {T((8, 8), "R, R")} = R.matmul(x, w)
            p = R.dist.partial(y, "mesh[0]", [1], "sum")
            z = cls.layer(p)
            R.output(z)
        return z
""")
    x, w = draw((8, 8), (8, 8))
    legal, (got,) = legalize_and_run(mod, x, w)
    assert calls(legal) == ["all_reduce"]
    np.testing.assert_array_equal(got, np.maximum(x @ w, 0))


TWO = """
@I.ir_module
class Module:
    I.module_attrs({"mesh_axes": [["a"], ["b", "c"]]})
    I.module_global_infos({"mesh": [
        R.device_mesh((2,), I.Range(0, 2)), R.device_mesh((2, 2), I.Range(2, 6))]})
    @R.function
    def main(
        x: R.DTensor((8, 7), "float32", "mesh[0]", "S[1]"),
        w: R.DTensor((7, 8), "float32", "mesh[0]", "S[0]"),
        v: R.DTensor((8, 8), "float32", "mesh[1]", "R, S[0]"),
    ):
        with R.dataflow():
            y: R.DTensor((8, 8), "float32", "mesh[0]", "R") = R.matmul(x, w)
            p = R.dist.partial(y, "mesh[0]", [0], "sum")
            m = R.dist.redistribute(p, "mesh[1]", "S[0], S[1]")
            z: R.DTensor((8, 8), "float32", "mesh[1]", "S[0], R") = R.matmul(m, v)
            b = R.dist.redistribute(z, "mesh[0]", "S[1]")
            n = R.negative(b)
            R.output(n, z, m)
        return (n, (z, m))
"""


def test_transfer_between_meshes():
    """There and back; the function becomes impure and loses its dataflow block."""
    mod = tvm.script.from_source(TWO)
    x, w, v = draw((8, 7), (7, 8), (8, 8))
    legal, (n, z, m) = legalize_and_run(mod, x, w, v)
    assert calls(legal) == ["all_reduce", "send", "recv", "all_reduce", "send", "recv"]
    assert not legal["main"].is_pure
    assert not any(isinstance(b, relax.DataflowBlock) for b in legal["main"].body.blocks)
    tags = re.findall(r"R\.dist\.send\(.*tag=(\d+)", legal["main"].script())
    assert len(set(tags)) == 2
    np.testing.assert_array_equal(m, x @ w)
    np.testing.assert_array_equal(z, x @ w @ v)
    np.testing.assert_array_equal(n, -(x @ w @ v))
    local = LowerDistIR()(legal)
    io = {str(g.name_hint): f.attrs["dist.io"] for g, f in local.functions.items()}
    assert sorted(io) == ["main_mesh0", "main_mesh1"]
    assert [int(i["index"]) for i in io["main_mesh0"]["inputs"]] == [0, 1]
    assert [int(i["index"]) for i in io["main_mesh1"]["inputs"]] == [2]
    assert [int(o["index"]) for o in io["main_mesh0"]["outputs"]] == [0]
    assert [int(o["index"]) for o in io["main_mesh1"]["outputs"]] == [1, 2]


SAME = """
@I.ir_module
class Module:
    I.module_attrs({"mesh_axes": [["a"], ["b", "c"]]})
    I.module_global_infos({"mesh": [
        R.device_mesh((4,), I.Range(0, 4)), R.device_mesh((2, 2), IDS)]})
    @R.function
    def main(
        x: R.DTensor((8, 6), "float32", "mesh[0]", "S[0]"),
        v: R.DTensor((6, 7), "float32", "mesh[1]", "R, S[1]"),
    ):
        with R.dataflow():
            y = R.negative(x)
            m = R.dist.redistribute(y, "mesh[1]", "S[0], R")
            z: R.DTensor((8, 7), "float32", "mesh[1]", "S[0], S[1]") = R.matmul(m, v)
            b = R.dist.redistribute(z, "mesh[0]", "S[1]")
            n = R.negative(b)
            R.output(n, z)
        return (n, z)
"""


@pytest.mark.parametrize("ids", ["I.Range(0, 4)", "[3, 1, 0, 2]"])
@pytest.mark.parametrize("engine", ["virtual", "threads"])
def test_meshes_of_the_same_devices_share_an_entry(ids, engine):
    """Another shape, and another order; what lies on the second mesh says so in dist.io."""
    x, v = draw((8, 6), (6, 7))
    mod = tvm.script.from_source(SAME.replace("IDS", ids))
    legal = LegalizeRedistribute()(mod)
    h.check_module(legal)
    local = LowerDistIR()(legal)
    h.check_module(local)
    check_level(local, 5)
    assert [str(g.name_hint) for g in local.functions] == ["main"]
    ports = local["main"].attrs["dist.io"]["inputs"]
    assert "mesh" not in ports[0]
    assert [int(n) for n in ports[1]["mesh"]["shape"]] == [2, 2]
    n, z = td.run(local, [x, v], engine=engine)
    np.testing.assert_array_equal(z, -x @ v)
    np.testing.assert_array_equal(n, x @ v)


def test_meshes_that_share_some_devices_have_an_entry_per_class_of_devices():
    """Those of the first mesh alone, of both, of the second alone."""
    x, v = draw((8, 6), (6, 7))
    mod = tvm.script.from_source(SAME.replace("IDS", "I.Range(2, 6)"))
    local = LowerDistIR()(LegalizeRedistribute()(mod))
    h.check_module(local)
    devices = {
        str(g.name_hint): [int(d) for d in fn.attrs["dist.io"]["devices"]]
        for g, fn in local.functions.items()
    }
    assert devices == {"main_mesh0": [0, 1], "main_mesh0_1": [2, 3], "main_mesh1": [4, 5]}
    ports = local["main_mesh0_1"].attrs["dist.io"]["inputs"]
    assert [int(d) for d in ports[1]["mesh"]["devices"]] == [2, 3, 4, 5]
    n, z = td.run(local, [x, v], engine="threads")
    np.testing.assert_array_equal(z, -x @ v)
    np.testing.assert_array_equal(n, x @ v)


def test_callers_of_transferring_functions_become_impure():
    text = TWO.replace("@R.function\n    def main", "@R.function(private=True)\n    def part")
    mod = tvm.script.from_source(
        text
        + """
    @R.function
    def main(
        x: R.DTensor((8, 7), "float32", "mesh[0]", "S[1]"),
        w: R.DTensor((7, 8), "float32", "mesh[0]", "S[0]"),
        v: R.DTensor((8, 8), "float32", "mesh[1]", "R, S[0]"),
    ):
        cls = Module
        with R.dataflow():
            y = cls.part(x, w, v)
            a = y[0]
            R.output(a)
        return a
"""
    )
    legal = LegalizeRedistribute()(mod)
    h.check_module(legal)
    assert not legal["main"].is_pure
    assert not legal["part"].is_pure


def test_legalizing_twice_is_refused_where_it_would_count_twice():
    mod = parse(f"""
    @R.function
    def main(x: {T((8, 8), "R, S[1]")}, w: {T((8, 8), "R, S[0]")}):
        with R.dataflow():
            y: {T((8, 8), "R, R")} = R.matmul(x, w)
            a = R.negative(y)
            b = R.dist.all_reduce(a, "mesh[0]", [1], "sum")
            R.output(b)
        return b
""")
    with pytest.raises(LevelError) as caught:
        LegalizeRedistribute()(mod)
    assert caught.value.code == "DIST0451"
    assert caught.value.location == "main/b (dist.all_reduce)"


def test_annotated_modules_are_refused():
    mod = parse("""
    @R.function
    def main(x: R.Tensor((8, 8), "float32")):
        with R.dataflow():
            y = R.dist.annotate_sharding(x, "mesh[0]", "R, S[0]")
            R.output(y)
        return y
""")
    with pytest.raises(LevelError) as caught:
        LegalizeRedistribute()(mod)
    assert "level 2" in caught.value.what


def test_the_pass_hands_the_system_and_the_bounds_to_the_planner():
    """Two nodes far apart: what crosses them goes alone; and a bound changes the sequence."""
    mod = parse(f"""
    @R.function
    def main(x: {T((512, 512), "S[0], S[0]")}):
        y = R.dist.redistribute(x, "mesh[0]", "R, R")
        return y
""")
    system = td.System.load("dgx-a100")
    near = replace(system.intra_node, devices_per_node=2)
    far = replace(system.inter_node, bandwidth_per_nic_GBps=0.01, nics_per_node=1)
    apart = replace(system, intra_node=near, inter_node=far)
    whole, steps = (LegalizeRedistribute(s)(mod)["main"].script() for s in (None, apart))
    assert "mesh_axis=[0, 1]" in whole
    assert whole != steps
    with pytest.raises(UsageError):
        LegalizeRedistribute(memory_bound=0.5)


def test_a_fault_of_the_planner_names_the_binding():
    mod = parse(f"""
    @R.function
    def main(x: {T((8, 8), "S[1], S[1]")}, w: {T((8, 8), "S[0], S[0]")}):
        with R.dataflow():
            y: {T((8, 8), "R, R")} = R.matmul(x, w)
            p = R.dist.partial(y, "mesh[0]", [0, 1], "sum")
            z = R.dist.redistribute(p, "mesh[0]", "S[0], S[1]")
            R.output(z)
        return z
""")
    LegalizeRedistribute()(mod)
    with pytest.raises(LoweringError) as caught:
        LegalizeRedistribute(memory_bytes=16)(mod)
    assert (caught.value.code, caught.value.location) == ("DIST0509", "main/z (dist.redistribute)")


def test_control_flow_is_refused():
    cond = relax.Var("c", relax.TensorType([], "bool"))
    value = relax.If(cond, relax.const(1.0), relax.const(2.0))
    y = relax.Var("y", relax.TensorType([], "float32"))
    update_type(value, y.ty)
    body = relax.SeqExpr([relax.BindingBlock([relax.VarBinding(y, value)])], y)
    update_type(body, y.ty)
    fn = relax.Function(
        [cond], body, y.ty, True, tvm.ir.make_node("ir.DictAttrs", global_symbol="main")
    )
    with pytest.raises(LoweringError) as caught:
        LegalizeRedistribute()(tvm.IRModule({tvm.ir.GlobalVar("main"): fn}))
    assert caught.value.code == "DIST0504"
