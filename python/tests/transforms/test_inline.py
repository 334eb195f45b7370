# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""InlinePrivateFunctions: the same numbers with fewer functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import ir, relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R
from tvm.script.parser import tirx as T

from tests.quick_compilation import quick_machine
from tvm_distir.core.passes.annotate.passes import AnnotateSharding
from tvm_distir.core.plan.plan import Plan
from tvm_distir.models import zoo
from tvm_distir.support.errors.tree import LevelError, PlanError, PropagationError
from tvm_distir.transforms.inline.passes import InlinePrivateFunctions


def flat(result: Any) -> list[np.ndarray]:
    if isinstance(result, tvm.runtime.Tensor):
        return [result.numpy()]
    return [array for item in result for array in flat(item)]


def run_entry(mod: ir.IRModule, inputs: list[np.ndarray], entry: str = "main") -> list[np.ndarray]:
    vm = quick_machine(mod)
    return flat(vm[entry](*[tvm.runtime.tensor(x) for x in inputs]))


def functions(mod: ir.IRModule) -> list[str]:
    return sorted(str(gv.name_hint) for gv in mod.get_global_vars())


def inlined(mod: ir.IRModule, names: list[str] | None = None) -> ir.IRModule:
    """Run the pass; the input stays, and the output is well formed and round-trips."""
    before = mod.script(show_meta=True)
    out = InlinePrivateFunctions(names)(mod)
    assert mod.script(show_meta=True) == before
    relax.analysis.well_formed(out)
    ir.assert_structural_equal(out, tvm.script.from_source(out.script(show_meta=True)))
    return out


def check_equal(mod: ir.IRModule, out: ir.IRModule, *shapes: tuple[int, ...]) -> None:
    draw = np.random.default_rng(3)
    inputs = [draw.integers(-2, 3, shape).astype("float32") for shape in shapes]
    want, have = run_entry(mod, inputs), run_entry(out, inputs)
    assert len(want) == len(have) and any(np.any(w) for w in want)
    for w, h in zip(want, have, strict=True):
        np.testing.assert_array_equal(w, h)


@I.ir_module
class Nested:
    """A function in a function, tuples in and out, a parameter handed through, a constant."""

    I.module_attrs({"device_num": 1})

    @R.function(private=True)
    def linear(x: R.Tensor((4, 4), "float32"), w: R.Tensor((4, 4), "float32")) -> R.Tensor(
        (4, 4), "float32"
    ):
        with R.dataflow():
            lv = R.matmul(x, w)
            gv = R.nn.relu(lv)
            R.output(gv)
        return gv

    @R.function(private=True)
    def pair(
        both: R.Tuple(R.Tensor((4, 4), "float32"), R.Tensor((4, 4), "float32")),
        c: R.Tensor((), "float32"),
    ) -> R.Tuple(R.Tensor((4, 4), "float32"), R.Tensor((4, 4), "float32")):
        cls = Nested
        x: R.Tensor((4, 4), "float32") = both[0]
        lv: R.Tensor((4, 4), "float32") = cls.linear(x, x)
        y: R.Tensor((4, 4), "float32") = cls.linear(lv, x)
        z = R.multiply(y, c)
        return (z, x)

    @R.function(private=True)
    def same(x: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
        return x

    @R.function(private=True)
    def unused(x: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
        y = R.nn.relu(x)
        return y

    @R.function
    def main(x: R.Tensor((4, 4), "float32"), w: R.Tensor((4, 4), "float32")) -> R.Tuple(
        R.Tensor((4, 4), "float32"), R.Tensor((4, 4), "float32")
    ):
        cls = Nested
        with R.dataflow():
            lv: R.Tensor((4, 4), "float32") = cls.same(x)
            lv_1 = R.add(lv, w)
            p: R.Tuple(R.Tensor((4, 4), "float32"), R.Tensor((4, 4), "float32")) = cls.pair(
                (lv_1, w), R.const(2.0, "float32")
            )
            a = p[0]
            y: R.Tensor((4, 4), "float32") = cls.linear(a, w)
            b = p[1]
            R.output(y, b)
        return (y, b)


def test_nested_functions_and_tuples() -> None:
    out = inlined(Nested)
    assert functions(out) == ["main"]
    assert int(out.attrs["device_num"]) == 1
    check_equal(Nested, out, (4, 4), (4, 4))


def test_names_are_kept_and_unique() -> None:
    out = inlined(Nested)
    names = [str(b.var.name) for block in out["main"].body.blocks for b in block.bindings]
    assert len(set(names)) == len(names)
    remaining = [str(b.var.name) for block in Nested["main"].body.blocks for b in block.bindings]
    assert set(remaining) <= set(names)
    assert {"z", "y"} <= set(names)
    assert all(n.split("_")[0] in {"lv", "p", "a", "y", "b", "x", "z", "gv"} for n in names)
    assert [type(block).__name__ for block in out["main"].body.blocks] == ["DataflowBlock"]


def test_chosen_functions_only() -> None:
    out = inlined(Nested, ["linear"])
    assert functions(out) == ["main", "pair", "same", "unused"]
    check_equal(Nested, out, (4, 4), (4, 4))
    assert not any(
        isinstance(b.value, ir.Call) and isinstance(b.value.op, ir.GlobalVar)
        for block in out["pair"].body.blocks
        for b in block.bindings
    )
    out = inlined(Nested, ["pair"])
    assert functions(out) == ["linear", "main", "same", "unused"]
    check_equal(Nested, out, (4, 4), (4, 4))
    ir.assert_structural_equal(inlined(Nested, []), Nested)


def test_the_example_of_the_docstring() -> None:
    @I.ir_module
    class Before:
        @R.function(private=True)
        def layer(x: R.Tensor((4, 4), "float32"), w: R.Tensor((4, 4), "float32")) -> R.Tensor(
            (4, 4), "float32"
        ):
            lv = R.matmul(x, w)
            gv = R.nn.relu(lv)
            return gv

        @R.function
        def main(
            x: R.Tensor((4, 4), "float32"),
            a: R.Tensor((4, 4), "float32"),
            b: R.Tensor((4, 4), "float32"),
        ) -> R.Tensor((4, 4), "float32"):
            cls = Before
            y: R.Tensor((4, 4), "float32") = cls.layer(x, a)
            z: R.Tensor((4, 4), "float32") = cls.layer(y, b)
            return z

    @I.ir_module
    class After:
        @R.function
        def main(
            x: R.Tensor((4, 4), "float32"),
            a: R.Tensor((4, 4), "float32"),
            b: R.Tensor((4, 4), "float32"),
        ) -> R.Tensor((4, 4), "float32"):
            lv = R.matmul(x, a)
            y = R.nn.relu(lv)
            lv_1 = R.matmul(y, b)
            z = R.nn.relu(lv_1)
            return z

    out = inlined(Before)
    ir.assert_structural_equal(out, After)
    names = [str(b.var.name) for b in out["main"].body.blocks[0].bindings]
    assert names == ["lv", "y", "lv_1", "z"]


@I.ir_module
class Branches:
    """A callee with If, called from a dataflow block; another called from a branch.

    The If comes last: TVM's memory planner hands a branch's storage to what follows the If,
    which crashes when the other branch is taken.
    """

    @R.function(private=True)
    def choose(x: R.Tensor((4,), "float32"), c: R.Tensor((), "bool")) -> R.Tensor((4,), "float32"):
        if c:
            with R.dataflow():
                lv = R.add(x, x)
                gv = R.nn.relu(lv)
                R.output(gv)
            y = gv
        else:
            z: R.Tensor((4,), "float32") = R.multiply(x, x)
            y = z
        return y

    @R.function(private=True)
    def twice(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        y = R.add(x, x)
        return y

    @R.function
    def main(x: R.Tensor((4,), "float32"), t: R.Tensor((), "float32")) -> R.Tensor((4,), "float32"):
        cls = Branches
        with R.dataflow():
            c = R.greater(t, R.const(0.0, "float32"))
            lv: R.Tensor((4,), "float32") = cls.twice(x)
            lv1 = R.subtract(lv, R.const(1.0, "float32"))
            s: R.Tensor((4,), "float32") = cls.choose(lv1, c)
            R.output(s)
        return s

    @R.function
    def other(x: R.Tensor((4,), "float32"), c: R.Tensor((), "bool")) -> R.Tensor((4,), "float32"):
        cls = Branches
        if c:
            a: R.Tensor((4,), "float32") = cls.twice(x)
            r = a
        else:
            b: R.Tensor((4,), "float32") = R.multiply(x, x)
            r = b
        return r


def test_branches_dissolve_the_dataflow_block_they_come_into() -> None:
    out = inlined(Branches)
    assert functions(out) == ["main", "other"]
    assert not any(isinstance(b, relax.DataflowBlock) for b in out["main"].body.blocks)
    x = np.array([-2, -1, 1, 2], "float32")
    for t in (1, 0):
        y = x + x - 1
        want = np.maximum(y + y, 0) if t else y * y
        inputs = [x, np.array(t, "float32")]
        for mod in (Branches, out):
            np.testing.assert_array_equal(run_entry(mod, inputs)[0], want)
            np.testing.assert_array_equal(
                run_entry(mod, [x, np.array(t, "bool")], "other")[0], x + x if t else x * x
            )


def test_symbolic_sizes() -> None:
    @I.ir_module
    class Symbolic:
        @R.function(private=True)
        def double(x: R.Tensor(("n", 4), "float32")) -> R.Tensor(("n * 2", 4), "float32"):
            n = T.int64()
            y: R.Tensor((n * 2, 4), "float32") = R.concat((x, x), axis=0)
            return y

        @R.function(private=True)
        def rows(x: R.Tensor(("n", 4), "float32")) -> R.Tensor(("n", 4), "float32"):
            n = T.int64()
            y: R.Tensor((n, 4), "float32") = R.add(x, R.ones(R.shape([n, 4]), "float32"))
            return y

        @R.function
        def main(x: R.Tensor((3, 4), "float32"), z: R.Tensor(("m", 4), "float32")) -> R.Tuple(
            R.Tensor((12, 4), "float32"), R.Tensor(ndim=2, dtype="float32")
        ):
            cls = Symbolic
            with R.dataflow():
                a: R.Tensor((6, 4), "float32") = cls.double(x)
                b: R.Tensor((12, 4), "float32") = cls.double(a)
                hidden = R.call_pure_packed(
                    "test_inline.same", z, ty_args=[R.Tensor(ndim=2, dtype="float32")]
                )
                c: R.Tensor(ndim=2, dtype="float32") = cls.rows(hidden)
                d: R.Tensor(ndim=2, dtype="float32") = cls.rows(c)
                R.output(b, d)
            return (b, d)

    tvm.register_global_func("test_inline.same", lambda x: x, override=True)
    out = inlined(Symbolic)
    assert functions(out) == ["main"]
    check_equal(Symbolic, out, (3, 4), (5, 4))


@pytest.mark.parametrize("name", ["gpt", "llama"])
def test_inlining_a_model_gives_the_flat_model(name: str) -> None:
    build = getattr(zoo, name)
    out, model = inlined(build(size="tiny", seq=4)), build(size="tiny", seq=4, nested=0)
    assert functions(out) == ["main"]

    def steps(mod: ir.IRModule) -> list[tuple[str, str]]:
        bound = [b for block in mod["main"].body.blocks for b in block.bindings]
        calls = [b.value for b in bound if isinstance(b.value, ir.Call)]
        return [(str(call.op.name), str(call.ty)) for call in calls]

    assert steps(out) == steps(model)


def test_a_model_computes_the_same() -> None:
    nested = zoo.gpt(size="tiny", layers=2, hidden=8, heads=2, vocab=11, batch=2, seq=4)
    draw = np.random.default_rng(0)
    inputs = [draw.integers(0, 11, (2, 4)).astype("int32")]
    for param in nested["main"].params[1:]:
        inputs.append(draw.normal(0, 0.3, [int(n) for n in param.ty.shape]).astype("float32"))
    want, have = run_entry(nested, inputs)[0], run_entry(inlined(nested), inputs)[0]
    np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-6)
    assert want.std() > 0.01


def test_notes_on_annotated_variables_move_with_them() -> None:
    rules = [
        {"param": "w", "function": "linear", "placement": "?, S[1]", "stationary": True},
        {"value": "gv", "function": "linear", "placement": "S[0], R", "stationary": True},
        {"param": "w", "placement": "R, R", "stationary": True},
    ]
    plan = Plan.from_dict({"schema_version": 1, "mesh": {"dp": 2, "tp": 2}, "rules": rules})
    out = inlined(AnnotateSharding(plan)(Nested))
    main = out["main"]
    op = ir.Op.get("relax.dist.annotate_sharding")
    bound = {
        str(b.var.name): str(b.value.attrs.placement)
        for block in main.body.blocks
        for b in block.bindings
        if isinstance(b.value, ir.Call) and b.value.op == op
    }
    assert sorted(bound.values()) == ['"R, R"', *['"R, S[1]"'] * 3, *['"S[0], R"'] * 3]
    assert sorted(map(str, main.attrs["dist.stationary"])) == sorted(bound)
    opened = {str(k): [int(a) for a in v] for k, v in main.attrs["dist.open_axes"].items()}
    assert opened == {name: [0] for name, text in bound.items() if text == '"R, S[1]"'}


def test_functions_used_as_operands_stay() -> None:
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    with bb.function("helper", [x], private=True):
        bb.emit_func_output(bb.emit(relax.op.nn.relu(x)))
    helper = bb.get().get_global_var("helper")
    y = relax.Var("x", relax.TensorType((4,), "float32"))
    with bb.function("main", [y]):
        called = bb.emit(ir.Call(helper, [y]))
        bb.emit_func_output(bb.emit(relax.op.call_pure_packed("f", helper, called, ty_args=[y.ty])))
    mod = bb.get()
    out = InlinePrivateFunctions()(mod)
    assert functions(out) == ["helper", "main"]
    first = out["main"].body.blocks[0].bindings[0].value
    assert first.op == ir.Op.get("relax.nn.relu")


def test_several_entries_and_other_public_functions_stay() -> None:
    @I.ir_module
    class Entries:
        @R.function(private=True)
        def f(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
            y = R.nn.relu(x)
            return y

        @R.function
        def a(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
            cls = Entries
            y: R.Tensor((4,), "float32") = cls.f(x)
            return y

        @R.function
        def b(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
            cls = Entries
            y: R.Tensor((4,), "float32") = cls.a(x)
            return y

    out = inlined(Entries)
    assert functions(out) == ["a", "b"]
    x = np.array([-1, 0, 1, 2], "float32")
    np.testing.assert_array_equal(run_entry(out, [x], "b")[0], [0, 0, 1, 2])


@I.ir_module(check_well_formed=False)
class Circle:
    @R.function(private=True)
    def f(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        cls = Circle
        y: R.Tensor((4,), "float32") = cls.g(x)
        return y

    @R.function(private=True)
    def g(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        cls = Circle
        y: R.Tensor((4,), "float32") = cls.f(x)
        return y

    @R.function(private=True)
    def h(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        cls = Circle
        y: R.Tensor((4,), "float32") = cls.h(x)
        return y

    @R.function
    def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        cls = Circle
        y: R.Tensor((4,), "float32") = cls.f(x)
        return y


@pytest.mark.parametrize(
    ("names", "circle"), [(["f", "g"], "f -> g -> f"), (["h"], "h -> h"), (None, "f -> g -> f")]
)
def test_circles_are_refused(names: list[str] | None, circle: str) -> None:
    with pytest.raises(PropagationError) as info:
        InlinePrivateFunctions(names)(Circle)
    assert info.value.code == "DIST0408"
    assert circle in info.value.what
    assert info.value.remedy


def test_one_function_of_a_circle_can_be_inlined() -> None:
    assert functions(InlinePrivateFunctions(["g"])(Circle)) == ["f", "h", "main"]


@pytest.mark.parametrize("name", ["linaer", "main"])
def test_names_of_no_private_function_are_refused(name: str) -> None:
    with pytest.raises(PlanError) as info:
        InlinePrivateFunctions([name])(Nested)
    assert info.value.code == "DIST0225"
    assert info.value.remedy


def test_dtensors_are_refused() -> None:
    @I.ir_module
    class Distributed:
        I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

        @R.function(private=True)
        def f(
            x: R.DTensor((4,), "float32", "mesh[0]", "S[0]"),
        ) -> R.DTensor((4,), "float32", "mesh[0]", "S[0]"):
            return x

    with pytest.raises(LevelError, match="DIST0451"):
        InlinePrivateFunctions()(Distributed)
