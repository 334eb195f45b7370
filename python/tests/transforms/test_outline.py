# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""OutlineRepeatedLayers: what becomes a function, with the same numbers and the way back."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import ir, relax
from tvm.relax import op
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R
from tvm.script.parser import tirx as T

import tvm_distir as td
from tests.transforms.outline_harness import (
    Writer,
    calls,
    check_same_numbers,
    names,
    outlined,
    run_main,
)
from tvm_distir.support.errors.tree import LevelError, PlanError, UsageError
from tvm_distir.transforms.inline.passes import InlinePrivateFunctions
from tvm_distir.transforms.outline.outliner import OutlineRepeatedLayers


@I.ir_module
class ThreeLayers:
    """The example of the documentation."""

    @R.function
    def main(
        x: R.Tensor((4, 4), "float32"),
        h_0_w: R.Tensor((4, 4), "float32"),
        h_1_w: R.Tensor((4, 4), "float32"),
        h_2_w: R.Tensor((4, 4), "float32"),
    ) -> R.Tensor((4, 4), "float32"):
        with R.dataflow():
            lv = R.matmul(x, h_0_w)
            lv1 = R.nn.relu(lv)
            lv2 = R.matmul(lv1, h_1_w)
            lv3 = R.nn.relu(lv2)
            lv4 = R.matmul(lv3, h_2_w)
            gv = R.nn.relu(lv4)
            R.output(gv)
        return gv


@I.ir_module
class ThreeCalls:
    @R.function(private=True)
    def layer(x: R.Tensor((4, 4), "float32"), w: R.Tensor((4, 4), "float32")) -> R.Tensor(
        (4, 4), "float32"
    ):
        with R.dataflow():
            lv = R.matmul(x, w)
            lv1 = R.nn.relu(lv)
            R.output(lv1)
        return lv1

    @R.function
    def main(
        x: R.Tensor((4, 4), "float32"),
        h_0_w: R.Tensor((4, 4), "float32"),
        h_1_w: R.Tensor((4, 4), "float32"),
        h_2_w: R.Tensor((4, 4), "float32"),
    ) -> R.Tensor((4, 4), "float32"):
        cls = ThreeCalls
        with R.dataflow():
            lv1: R.Tensor((4, 4), "float32") = cls.layer(x, h_0_w)
            lv3: R.Tensor((4, 4), "float32") = cls.layer(lv1, h_1_w)
            gv: R.Tensor((4, 4), "float32") = cls.layer(lv3, h_2_w)
            R.output(gv)
        return gv


def test_the_example_of_the_docstring() -> None:
    out = outlined(ThreeLayers, min_bindings=2)
    ir.assert_structural_equal(out, ThreeCalls)
    assert names(out, "layer") == ["x", "w"]
    assert [str(b.var.name) for b in out["main"].body.blocks[0].bindings] == ["lv1", "lv3", "gv"]


def test_first_layer_fed_by_a_parameter_and_shared_values() -> None:
    mod = Writer().module(
        lambda w: _stack(w, w.weight("x"), [f"h.{i}" for i in range(4)], w.weight("mask"))
    )
    out = outlined(mod)
    assert calls(out) == {"layer": 4}
    assert names(out, "layer") == ["x", "up.weight", "mask", "down.bias"]
    assert len(out["main"].body.blocks[0].bindings) == 5  # the layers, and the output's own name
    assert names(out, "main") == names(mod, "main")
    ir.assert_structural_equal(dict(out["main"].attrs), dict(mod["main"].attrs))
    check_same_numbers(mod, out)
    ir.assert_structural_equal(InlinePrivateFunctions()(out), mod)


def _stack(w: Writer, x: Any, prefixes: list[str], mask: Any) -> Any:
    for prefix in prefixes:
        x = w.layer(x, prefix, mask)
    return x


def test_tied_weights() -> None:
    """The same weight everywhere, in some layers, and twice within one layer."""

    def write(w: Writer) -> Any:
        x = w.weight("x")
        for i in range(4):
            y = w.emit(op.matmul(x, w.weight("tied")))
            y = w.emit(op.multiply(y, w.weight(f"h.{i // 2}.gate")))
            y = w.emit(op.minimum(y, relax.const(1.0, "float32")))
            x = w.emit(op.add(y, w.weight("h.0.gate" if i == 0 else f"h.{i}.bias")))
        return x

    mod = Writer().module(write)
    out = outlined(mod)
    assert calls(out) == {"layer": 4}
    assert len(out["layer"].params) == 4  # layer 0 gives its gate twice, so both are parameters
    check_same_numbers(mod, out)
    ir.assert_structural_equal(InlinePrivateFunctions()(out), mod)


def test_constants_are_parameters_only_where_they_differ() -> None:
    def write(w: Writer) -> Any:
        x, mask = w.weight("x"), w.weight("mask")
        for i in range(3):
            x = w.layer(x, f"blocks.{i}", mask, scale=float(i + 1))
        table = relax.const(np.arange(16, dtype="float32").reshape(4, 4) % 3)
        for i in range(3):
            x = w.layer(x, f"tail.{i}", table)
        return x

    mod = Writer().module(write)
    out = outlined(mod)
    # The mask is a value in the first three and a constant in the others: one function of all.
    assert calls(out) == {"layer": 6}
    assert names(out, "layer") == ["x", "up.weight", "constant", "constant_1", "down.bias"]
    check_same_numbers(mod, out)
    ir.assert_structural_equal(InlinePrivateFunctions()(out), mod)


def test_several_blocks_and_other_places() -> None:
    """A A B B B A: the last A stands alone and is the same function."""

    def other(w: Writer, x: Any, i: int) -> Any:
        y = w.emit(op.matmul(w.weight(f"mid.{i}.weight"), x))
        y = w.emit(op.maximum(y, relax.const(-1.0, "float32")))
        y = w.emit(op.minimum(y, relax.const(1.0, "float32")))
        return w.emit(op.add(y, w.weight(f"mid.{i}.bias")))

    def write(w: Writer) -> Any:
        x, mask = w.weight("x"), w.weight("mask")
        x = _stack(w, x, ["side.0", "side.1"], mask)
        for i in range(3):
            x = other(w, x, i)
        return w.layer(x, "side.2", mask)

    mod = Writer().module(write)
    out = outlined(mod)
    assert calls(out) == {"side": 3, "mid": 3}
    check_same_numbers(mod, out)
    ir.assert_structural_equal(InlinePrivateFunctions()(out), mod)


def test_layers_wired_differently_are_different_functions() -> None:
    """Ops and types alike, but every second layer adds its input, not what it made of it."""

    def write(w: Writer) -> Any:
        x = w.weight("x")
        for i in range(6):
            y = w.emit(op.matmul(x, w.weight(f"h.{i}.a")))
            y = w.emit(op.nn.relu(y))
            z = w.emit(op.minimum(y, relax.const(1.0, "float32")))
            x = w.emit(op.add(z, x if i % 2 else y))
        return x

    mod = Writer().module(write)
    out = outlined(mod)
    assert sorted(calls(out).values()) == [3, 3]
    check_same_numbers(mod, out)
    ir.assert_structural_equal(InlinePrivateFunctions()(out), mod)


def test_values_read_later_are_results() -> None:
    """As a backward graph reads what the forward layers saved; one layer's more is all layers'."""

    def write(w: Writer) -> Any:
        x, saved = w.weight("x"), []
        for i in range(5):
            y = w.emit(op.matmul(x, w.weight(f"h.{i}.a")))
            y = w.emit(op.minimum(y, relax.const(1.0, "float32")))
            saved.append(w.emit(op.nn.relu(y)))
            y = w.emit(op.add(saved[-1], w.weight(f"h.{i}.b")))
            y = w.emit(op.maximum(y, relax.const(-1.0, "float32")))
            x = w.emit(op.subtract(x, y))
        return [x, saved[1], w.emit(op.add(saved[3], saved[4]))]

    mod = Writer().module(write)
    out = outlined(mod)
    assert calls(out) == {"layer": 5}
    assert len(out["layer"].ret_ty.fields) == 2
    check_same_numbers(mod, out)


def test_what_saves_nothing_stays() -> None:
    mod = Writer().module(lambda w: _stack(w, w.weight("x"), ["h.0", "h.1"], w.weight("mask")))
    assert calls(outlined(mod)) == {"layer": 2}
    for options in ({"min_repeats": 3}, {"min_bindings": 7}, {"functions": []}):
        assert outlined(mod, **options).same_as(mod)


def test_effects_keep_their_order() -> None:
    heard: list[float] = []

    @tvm.register_global_func("test_outline.say", override=True)
    def say(x: Any) -> None:
        heard.append(float(x.numpy()[0]))

    @I.ir_module
    class Loud:
        @R.function(pure=False)
        def main(x: R.Tensor((1,), "float32")) -> R.Tensor((1,), "float32"):
            a = R.add(x, x)
            _ = R.call_packed("test_outline.say", a, ty_args=(R.Tuple(),))
            b = R.add(a, R.const(1.0, "float32"))
            c = R.multiply(b, b)
            d = R.minimum(c, R.const(9.0, "float32"))
            a1 = R.add(d, d)
            _1 = R.call_packed("test_outline.say", a1, ty_args=(R.Tuple(),))
            b1 = R.add(a1, R.const(1.0, "float32"))
            c1 = R.multiply(b1, b1)
            d1 = R.minimum(c1, R.const(9.0, "float32"))
            return d1

    out = outlined(Loud)
    assert calls(out) == {"layer": 2}
    assert not out["layer"].is_pure
    x = np.asarray([1.0], "float32")
    want = run_main(Loud, [x])
    reported, heard[:] = list(heard), []
    assert reported == [2.0, 18.0]
    np.testing.assert_array_equal(run_main(out, [x]), want)
    assert heard == reported


def test_symbolic_sizes() -> None:
    """A size that the operands' types define gets a new variable; else nothing is outlined."""

    @I.ir_module
    class Sized:
        @R.function
        def main(x: R.Tensor(("n", 4), "float32")) -> R.Tensor(("n", 4), "float32"):
            n = T.int64()
            with R.dataflow():
                a = R.add(x, x)
                b = R.reshape(a, R.shape([n * 4]))
                c = R.minimum(b, R.const(3.0, "float32"))
                d = R.reshape(c, R.shape([n, 4]))
                a1 = R.add(d, d)
                b1 = R.reshape(a1, R.shape([n * 4]))
                c1 = R.minimum(b1, R.const(3.0, "float32"))
                gv = R.reshape(c1, R.shape([n, 4]))
                R.output(gv)
            return gv

    out = outlined(Sized)
    assert calls(out) == {"layer": 2}
    x = np.arange(12, dtype="float32").reshape(3, 4) - 6
    np.testing.assert_array_equal(run_main(out, [x]), run_main(Sized, [x]))

    @I.ir_module
    class Hidden:
        @R.function
        def main(x: R.Tensor(("n", 4), "float32")) -> R.Tensor(("n * 4",), "float32"):
            n = T.int64()
            with R.dataflow():
                s = R.reshape(x, R.shape([n * 4]))
                a = R.add(s, s)
                b = R.reshape(a, R.shape([n, 4]))
                c = R.minimum(b, R.const(3.0, "float32"))
                d = R.reshape(c, R.shape([n * 4]))
                a1 = R.add(d, d)
                b1 = R.reshape(a1, R.shape([n, 4]))
                c1 = R.minimum(b1, R.const(3.0, "float32"))
                gv = R.reshape(c1, R.shape([n * 4]))
                R.output(gv)
            return gv

    relax.analysis.well_formed(outlined(Hidden))


def annotated(layers: int) -> ir.IRModule:
    """Layers with an annotation each, as AnnotateSharding writes it for ``value`` rules."""

    def write(w: Writer) -> Any:
        x = w.weight("x")
        for i in range(layers):
            y = w.emit(op.matmul(x, w.weight(f"h.{i}.weight")))
            y = w.emit(op.nn.relu(y))
            y = w.emit(op.minimum(y, relax.const(2.0, "float32")))
            x = w.emit(op.add(y, x))
        return x

    rules = [{"param": "x", "placement": "S[0], ?", "stationary": True}]
    for i in range(layers):
        name = "lv1" if i == 0 else f"lv{4 * i + 1}"
        rules.append({"value": name, "placement": "S[0], ?", "stationary": i != 2})
    mesh = {"dp": 2, "tp": 2}
    plan = td.Plan.from_dict({"schema_version": 1, "mesh": mesh, "rules": rules})
    return td.transforms.AnnotateSharding(plan)(Writer().module(write))


def test_annotations_go_along_with_their_notes() -> None:
    mod = annotated(4)
    assert len(mod["main"].attrs["dist.stationary"]) == 4
    out = outlined(mod)
    # Layer 2 is not stationary, so it is no layer like the others.
    assert calls(out) == {"layer": 3}
    assert [str(n) for n in out["layer"].attrs["dist.stationary"]] == ["lv1_placed"]
    assert {
        str(n): [int(i) for i in a] for n, a in out["layer"].attrs["dist.open_axes"].items()
    } == {"lv1_placed": [1]}
    assert [str(n) for n in out["main"].attrs["dist.stationary"]] == ["x_placed"]
    assert sorted(map(str, out["main"].attrs["dist.open_axes"])) == ["lv9_placed", "x_placed"]
    back = InlinePrivateFunctions()(out)
    for attr in ("dist.stationary", "dist.open_axes"):
        noted = sorted(str(name) for name in back["main"].attrs[attr])
        bound = {str(b.var.name): b.value for b in back["main"].body.blocks[0].bindings}
        assert len(noted) == len(mod["main"].attrs[attr])
        assert all("annotate_sharding" in str(bound[name].op) for name in noted)
    stripped = [m["main"].without_attr("dist.stationary") for m in (back, mod)]
    stripped = [fn.without_attr("dist.open_axes") for fn in stripped]
    ir.assert_structural_equal(*stripped)
    distributed = [str(td.transforms.PropagateSharding()(m)["main"].ret_ty) for m in (mod, out)]
    assert distributed[0] == distributed[1] and "S[0]" in distributed[0]


def test_five_thousand_bindings() -> None:
    """No recursion over bindings, and time that grows with their number."""

    def write(w: Writer) -> Any:
        x, mask = w.weight("x"), w.weight("mask")
        for i in range(834):
            x = w.layer(x, f"h.{i % 7}", mask)
        return x

    mod = Writer().module(write)
    assert len(mod["main"].body.blocks[0].bindings) > 5000
    out = OutlineRepeatedLayers()(mod)
    assert calls(out) == {"layer": 834}
    ir.assert_structural_equal(InlinePrivateFunctions()(out), mod)


def random_layers(draw: random.Random) -> ir.IRModule:
    """Stretches of layers of a few kinds; now and then one reads or gives something else."""
    ops = [op.add, op.multiply, op.subtract, op.maximum, op.minimum]
    kinds = [
        [
            (draw.choice(ops), draw.random(), draw.random(), draw.randint(0, 5))
            for _ in range(length)
        ]
        for length in (draw.randint(3, 9) for _ in range(draw.randint(1, 3)))
    ]
    stretches = [(draw.choice(kinds), draw.randint(1, 5)) for _ in range(draw.randint(1, 4))]
    noise = draw.choice([0.0, 0.03])

    def write(w: Writer) -> Any:
        values, extra = [w.weight("x")], []
        for i, kind in enumerate(kind for kind, count in stretches for _ in range(count)):
            inside = [values[-1]]
            for make, first, second, source in kind:
                left, right = (inside[int(part * len(inside))] for part in (first, second))
                if source == 0:
                    right = w.weight(f"h.{i}.w{len(inside) % 3}")
                elif source == 1:
                    right = w.weight("shared")
                elif source == 2:
                    right = relax.const(2.0 if draw.random() < 0.15 else 1.0, "float32")
                if draw.random() < noise:
                    right = draw.choice(values)
                inside.append(w.emit(make(left, right)))
            values.append(inside[-1])
            extra += [value for value in inside[1:] if draw.random() < noise]
        return [values[-1], *extra]

    return Writer().module(write)


def test_random_layers_come_back() -> None:
    """Inlined again, a module is the original, but for tuples made and taken apart."""
    tidy = tvm.transform.Sequential(
        [relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination()]
    )
    result = 0
    for seed in range(30):
        mod = random_layers(random.Random(seed))
        for min_repeats, min_bindings in ((2, 4), (3, 2)):
            options = {"min_repeats": min_repeats, "min_bindings": min_bindings}
            out = OutlineRepeatedLayers(**options)(mod)
            relax.analysis.well_formed(out)
            for name, count in calls(out).items():
                assert count >= min_repeats
                assert len(out[name].body.blocks[0].bindings) >= min_bindings
                result += 1
            ir.assert_structural_equal(tidy(InlinePrivateFunctions()(out)), tidy(mod))
    assert result > 60


def test_bad_options() -> None:
    mod = Writer().module(lambda w: _stack(w, w.weight("x"), ["h.0"], w.weight("mask")))
    with pytest.raises(UsageError, match=r"DIST0152.*min_repeats is 1"):
        OutlineRepeatedLayers(min_repeats=1)
    with pytest.raises(UsageError, match=r"DIST0152.*min_bindings is 0"):
        OutlineRepeatedLayers(min_bindings=0)
    with pytest.raises(PlanError, match=r'DIST0225.*"mian".*Did you mean "main"'):
        OutlineRepeatedLayers(functions=["mian"])(mod)
    with pytest.raises(LevelError, match="DIST0451 main/x"):
        OutlineRepeatedLayers()(td.transforms.PropagateSharding()(annotated(2)))
