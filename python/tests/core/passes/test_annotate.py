# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""AnnotateSharding against annotated modules written out by hand, and users' own annotators."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm import ir, relax
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R
from tvm.script.parser import tirx as T

from tvm_distir.core.ir.mesh import mesh_axes, mesh_index, mesh_names, meshes
from tvm_distir.core.ir.placement import labels_of, placement_text
from tvm_distir.core.passes.annotate.passes import AnnotateSharding
from tvm_distir.core.plan.plan import Plan
from tvm_distir.support.errors.tree import LevelError, MeshError, PlanError


@I.ir_module
class Forum:
    I.module_attrs({"device_num": 2})
    I.module_global_infos(
        {"mesh": [R.device_mesh((1,), I.Range(0, 1)), R.device_mesh((1,), I.Range(1, 2))]}
    )

    @R.function(private=True)
    def mlp(
        x: R.Tensor((128, 128), "float32"),
        A: R.Tensor((128, 128), "float32"),
        B: R.Tensor((128, 128), "float32"),
    ) -> R.Tensor((128, 128), "float32"):
        with R.dataflow():
            lv0 = R.matmul(x, A)
            lv1 = R.nn.relu(lv0)
            gv = R.matmul(lv1, B)
            R.output(gv)
        return gv

    @R.function
    def main(
        x: R.Tensor((128, 128), "float32"),
        A: R.Tensor((128, 128), "float32"),
        B: R.Tensor((128, 128), "float32"),
        C: R.Tensor((128, 128), "float32"),
        D: R.Tensor((128, 128), "float32"),
    ) -> R.Tensor((128, 128), "float32"):
        cls = Forum
        with R.dataflow():
            lv: R.Tensor((128, 128), "float32") = cls.mlp(x, A, B)
            gv: R.Tensor((128, 128), "float32") = cls.mlp(lv, C, D)
            R.output(gv)
        return gv


@I.ir_module
class ForumAnnotated:
    I.module_attrs({"device_num": 2, "mesh_axes": [["d"], ["d"]], "mesh_names": ["m0", "m1"]})
    I.module_global_infos(
        {"mesh": [R.device_mesh((1,), I.Range(0, 1)), R.device_mesh((1,), I.Range(1, 2))]}
    )

    @R.function(private=True)
    def mlp(
        x: R.Tensor((128, 128), "float32"),
        A: R.Tensor((128, 128), "float32"),
        B: R.Tensor((128, 128), "float32"),
    ) -> R.Tensor((128, 128), "float32"):
        with R.dataflow():
            lv0 = R.matmul(x, A)
            lv1 = R.nn.relu(lv0)
            gv = R.matmul(lv1, B)
            R.output(gv)
        return gv

    @R.function
    def main(
        x: R.Tensor((128, 128), "float32"),
        A: R.Tensor((128, 128), "float32"),
        B: R.Tensor((128, 128), "float32"),
        C: R.Tensor((128, 128), "float32"),
        D: R.Tensor((128, 128), "float32"),
    ) -> R.Tensor((128, 128), "float32"):
        cls = ForumAnnotated
        with R.dataflow():
            x_placed = R.dist.annotate_sharding(x, device_mesh="mesh[0]", placement="R")
            lv: R.Tensor((128, 128), "float32") = cls.mlp(x_placed, A, B)
            lv_placed = R.dist.annotate_sharding(lv, device_mesh="mesh[1]", placement="R")
            gv: R.Tensor((128, 128), "float32") = cls.mlp(lv_placed, C, D)
            R.output(gv)
        return gv


FORUM_PLAN = {
    "schema_version": 1,
    "meshes": {
        "m0": {"axes": {"d": 1}, "start": 0},
        "m1": {"axes": {"d": 1}, "start": 1},
    },
    "rules": [
        {"call": "mlp", "index": 0, "arg": 0, "placement": "R", "mesh": "m0"},
        {"call": "mlp", "index": 1, "arg": 0, "placement": "R", "mesh": "m1"},
    ],
}


def check_module(mod: ir.IRModule) -> None:
    """Well formed, and printing parses back structurally equal."""
    relax.analysis.well_formed(mod)
    again = tvm.script.from_source(mod.script(show_meta=True))

    ir.assert_structural_equal(mod, again)


def annotated(mod: ir.IRModule, plan: dict[str, Any]) -> ir.IRModule:
    """Run the pass, and check that it leaves its input alone and gives a good module."""
    before = mod.script(show_meta=True)
    out = AnnotateSharding(Plan.from_dict(plan))(mod)
    assert mod.script(show_meta=True) == before
    check_module(out)
    return out


def plan_of(*rules: dict[str, Any], **axes: int) -> dict[str, Any]:
    return {"schema_version": 1, "mesh": axes or {"dp": 2, "tp": 4}, "rules": list(rules)}


def test_the_forum_plan_gives_the_forum_annotations() -> None:
    out = annotated(Forum, FORUM_PLAN)
    ir.assert_structural_equal(out, ForumAnnotated)
    assert mesh_names(out) == ["m0", "m1"]


def _annotations(mod: ir.IRModule, name: str = "main") -> list[tuple[str, int, str, str]]:
    """(annotated, mesh, placement, bound to) of each annotation of a function."""
    matches = []
    for block in mod[name].body.blocks:
        for b in block.bindings:
            call = b.value
            if isinstance(call, ir.Call) and call.op == ir.Op.get("relax.dist.annotate_sharding"):
                mesh = mesh_index(mod, call.attrs.device_mesh)
                placement = placement_text(labels_of(call.attrs.placement))
                matches.append((str(call.args[0].name), mesh, placement, str(b.var.name)))
    return matches


@mutator
class InPlace(PyExprMutator):  # type: ignore[misc]
    """A user's annotator: the first argument of each private call, meshes in turn."""

    def __init__(self, mod: ir.IRModule) -> None:
        super().__init__(mod)
        self.module = mod
        self.count = 0

    def annotation(self, value: Any) -> Any:
        result = meshes(self.module)
        mesh = result[self.count % len(result)]
        self.count += 1
        return relax.op.distributed.annotate_sharding(
            value, mesh, relax.distributed.Placement.from_text("R")
        )

    def visit_call_(self, call: ir.Call) -> Any:
        args = [self.visit_expr(arg) for arg in call.args]
        if isinstance(call.op, ir.GlobalVar):
            args[0] = self.annotation(args[0])
        return ir.Call(call.op, args, call.attrs, call.ty_args)


@mutator
class NewBindings(InPlace._cls):  # type: ignore[misc]
    """The same by emitting the annotation as a binding of its own."""

    def visit_call_(self, call: ir.Call) -> Any:
        args = [self.visit_expr(arg) for arg in call.args]
        if isinstance(call.op, ir.GlobalVar):
            args[0] = self.builder_.emit(self.annotation(args[0]), "placed")
        return ir.Call(call.op, args, call.attrs, call.ty_args)


@pytest.mark.parametrize("way", [InPlace, NewBindings])
def test_a_users_own_mutator_gives_the_same_annotations(way: Any) -> None:
    names = {str(gv.name_hint): gv for gv in Forum.get_global_vars()}
    annotator = way(Forum)
    main = annotator.visit_expr(Forum["main"])
    out = ir.IRModule(
        {names["mlp"]: Forum["mlp"], names["main"]: main},
        attrs=Forum.attrs,
        global_infos=Forum.global_infos,
    )
    check_module(out)
    assert [a[:3] for a in _annotations(out)] == [("x", 0, "R"), ("lv", 1, "R")]
    ir.assert_structural_equal(out["main"], ForumAnnotated["main"], map_free_vars=True)


@I.ir_module
class Blocks:
    """Parameters used in a later block, in branches, returned as they are, and not at all."""

    @R.function
    def main(
        x: R.Tensor((8, 4), "float32"),
        w: R.Tensor((4, 4), "float32"),
        unused: R.Tensor((4,), "float32"),
        c: R.Tensor((), "bool"),
    ) -> R.Tuple(R.Tensor((8, 4), "float32"), R.Tensor((4, 4), "float32")):
        with R.dataflow():
            lv0: R.Tensor((8, 4), "float32") = R.matmul(x, w)
            lv = R.add(lv0, x)
            R.output(lv)
        if c:
            y1: R.Tensor((8, 4), "float32") = R.multiply(lv, x)
            y = R.nn.relu(y1)
        else:
            y2: R.Tensor((8, 4), "float32") = R.add(lv, lv)
            y = R.nn.relu(y2)
        return (y, w)


@I.ir_module
class BlocksAnnotated:
    I.module_attrs({"device_num": 8, "mesh_axes": [["dp", "tp"]], "mesh_names": ["mesh0"]})
    I.module_global_infos({"mesh": [R.device_mesh((2, 4), I.Range(0, 8))]})

    @R.function
    def main(
        x: R.Tensor((8, 4), "float32"),
        w: R.Tensor((4, 4), "float32"),
        unused: R.Tensor((4,), "float32"),
        c: R.Tensor((), "bool"),
    ) -> R.Tuple(R.Tensor((8, 4), "float32"), R.Tensor((4, 4), "float32")):
        R.func_attr(
            {
                "dist.stationary": ["w_placed"],
                "dist.open_axes": {"w_placed": [1], "y1_placed": [0, 1]},
            }
        )
        with R.dataflow():
            x_placed = R.dist.annotate_sharding(x, "mesh[0]", "S[0], R")
            w_placed = R.dist.annotate_sharding(w, "mesh[0]", "R, R")
            unused_placed = R.dist.annotate_sharding(unused, "mesh[0]", "R, S[0]")  # noqa: F841
            lv0: R.Tensor((8, 4), "float32") = R.matmul(x_placed, w_placed)
            lv0_placed = R.dist.annotate_sharding(lv0, "mesh[0]", "S[0], S[1]")
            lv = R.add(lv0_placed, x_placed)
            lv_placed = R.dist.annotate_sharding(lv, "mesh[0]", "S[0], R")
            R.output(x_placed, w_placed, lv, lv_placed)
        if c:
            y1: R.Tensor((8, 4), "float32") = R.multiply(lv_placed, x_placed)
            y1_placed = R.dist.annotate_sharding(y1, "mesh[0]", "R, R")
            y = R.nn.relu(y1_placed)
        else:
            y2: R.Tensor((8, 4), "float32") = R.add(lv_placed, lv_placed)
            y = R.nn.relu(y2)
        return (y, w_placed)


def test_blocks_branches_open_axes_and_stationary() -> None:
    out = annotated(
        Blocks,
        plan_of(
            {"param": "x", "placement": "S[0], R"},
            {"param": "w", "placement": "R, ?", "stationary": True},
            {"param": "unused", "placement": "R, S[0]"},
            {"value": "lv0", "placement": "S[0], S[1]"},
            {"value": "lv", "placement": "S[0], R"},
            {"value": "y1", "placement": "?, ?"},
        ),
    )
    ir.assert_structural_equal(out, BlocksAnnotated)


def test_later_rules_win_whole() -> None:
    out = annotated(
        Blocks,
        plan_of(
            {"param": "*", "placement": "R, R", "stationary": True},
            {"param": "x", "placement": "S[0], R"},
            {"param": "c", "placement": "R, R"},
        ),
    )
    assert [(a, p) for a, _, p, _ in _annotations(out)] == [
        ("x", "S[0], R"),
        ("w", "R, R"),
        ("unused", "R, R"),
        ("c", "R, R"),
    ]
    assert list(out["main"].attrs["dist.stationary"]) == ["w_placed", "unused_placed"]


def test_a_call_rule_without_index_means_every_call() -> None:
    out = annotated(Forum, plan_of({"call": "mlp", "arg": 1, "placement": "S[1]"}, tp=2))
    assert _annotations(out) == [("A", 0, "S[1]", "A_placed"), ("C", 0, "S[1]", "C_placed")]


def test_a_shared_argument_gets_two_annotations_of_distinct_names() -> None:
    @I.ir_module
    class Shared:
        @R.function(private=True)
        def f(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
            y = R.nn.relu(x)
            return y

        @R.function
        def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
            cls = Shared
            x_placed: R.Tensor((4,), "float32") = cls.f(x)
            b: R.Tensor((4,), "float32") = cls.f(x)
            c = R.add(x_placed, b)
            return c

    out = annotated(Shared, plan_of({"call": "f", "arg": 0, "placement": "S[0]"}, a=2))
    names = [a[3] for a in _annotations(out)]
    assert len(set(names)) == 2 and "x_placed" not in names


def test_an_entry_of_another_name_several_entries_and_private_functions_by_name() -> None:
    @I.ir_module
    class Entries:
        @R.function(private=True)
        def inner(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
            y = R.nn.relu(x)
            return y

        @R.function
        def decode(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
            cls = Entries
            y: R.Tensor((4,), "float32") = cls.inner(x)
            return y

        @R.function
        def prefill(x: R.Tensor((4,), "float32"), s: R.Shape(["n"])) -> R.Tensor((4,), "float32"):
            return x

    rule = {"param": "x", "placement": "S[0]"}
    both = annotated(Entries, plan_of(rule, a=2))
    assert _annotations(both, "decode") == [("x", 0, "S[0]", "x_placed")]
    assert _annotations(both, "prefill") == [("x", 0, "S[0]", "x_placed")]
    assert _annotations(both, "inner") == []
    ir.assert_structural_equal(both["inner"], Entries["inner"])
    single = annotated(Entries, plan_of({**rule, "function": "decode"}, a=2))
    assert _annotations(single, "prefill") == []
    inside = annotated(Entries, plan_of({**rule, "function": "inner"}, a=2))
    assert _annotations(inside, "inner") and not _annotations(inside, "decode")


def test_dotted_names_are_found_before_and_after_printing() -> None:
    from tvm_distir.models import zoo

    mod = zoo.gpt(size="tiny")
    again = tvm.script.from_source(mod.script(show_meta=True))
    plan = plan_of({"param": "h.*.attn.q_proj.weight", "placement": "R, S[0]"})
    first, second = annotated(mod, plan), annotated(again, plan)
    assert [a[3] for a in _annotations(first)] == [
        "h_0_attn_q_proj_weight_placed",
        "h_1_attn_q_proj_weight_placed",
    ]
    ir.assert_structural_equal(first, second)


def test_annotations_and_meshes_of_the_module_are_kept() -> None:
    out = annotated(ForumAnnotated, plan_of({"param": "A", "placement": "S[0]"}, tp=4))
    assert _annotations(out) == [
        ("A", 0, "S[0]", "A_placed"),
        ("x", 1, "R", "x_placed"),
        ("lv", 2, "R", "lv_placed"),
    ]
    assert mesh_names(out) == ["mesh0", "m0", "m1"]
    assert mesh_axes(out) == [["tp"], ["d"], ["d"]]
    assert int(out.attrs["device_num"]) == 4
    unused = annotated(Forum, plan_of({"param": "A", "placement": "S[0]"}, tp=4))
    assert len(meshes(unused)) == 1


def test_a_symbolic_batch_and_a_constant_argument() -> None:
    @I.ir_module
    class Symbolic:
        @R.function(private=True)
        def f(x: R.Tensor((2,), "float32")) -> R.Tensor((2,), "float32"):
            y = R.nn.relu(x)
            return y

        @R.function
        def main(x: R.Tensor(("n", 4), "float32")) -> R.Tensor(("n", 4), "float32"):
            n = T.int64()
            cls = Symbolic
            c: R.Tensor((2,), "float32") = cls.f(R.const([1.0, 2.0], "float32"))  # noqa: F841
            y: R.Tensor((n, 4), "float32") = R.nn.relu(x)
            return y

    plan = plan_of(
        {"param": "x", "placement": "S[0], S[0]"},
        {"call": "f", "arg": 0, "placement": "R, S[0]"},
    )
    before = Symbolic.script(show_meta=True)
    out = AnnotateSharding(Plan.from_dict(plan))(Symbolic)
    assert Symbolic.script(show_meta=True) == before
    check_module(out)


REFUSED = [
    ({"param": "lm_head", "placement": "R, R"}, "DIST0223"),
    ({"param": "W", "placement": "R, R"}, "DIST0223"),
    ({"value": "lv9", "placement": "R, R"}, "DIST0223"),
    ({"call": "main", "arg": 0, "placement": "R, R"}, "DIST0223"),
    ({"call": "mlp", "arg": 0, "placement": "R, R"}, "DIST0225"),
    ({"param": "x", "function": "man", "placement": "R, R"}, "DIST0225"),
    ({"param": "x", "placement": "S[2], R"}, "DIST0205"),
    ({"param": "c", "placement": "S[0], R"}, "DIST0205"),
    ({"param": "*", "placement": "S[1], R"}, "DIST0205"),
    ({"param": "w", "placement": "S[0], S[0]"}, "DIST0226"),
]


@pytest.mark.parametrize(("rule", "code"), REFUSED, ids=[str(r[0]) for r in REFUSED])
def test_rules_that_do_not_fit_the_module(rule: dict[str, Any], code: str) -> None:
    with pytest.raises((PlanError, MeshError)) as info:
        AnnotateSharding(Plan.from_dict(plan_of(rule)))(Blocks)
    assert info.value.code == code
    assert info.value.location
    assert info.value.remedy


def test_indices_beyond_the_calls_and_non_tensors() -> None:
    for rule in ({"index": 2, "arg": 0}, {"index": 0, "arg": 3}):
        with pytest.raises(PlanError, match=r"DIST0223.*2 times there, with 3 arguments"):
            plan = plan_of({"call": "mlp", **rule, "placement": "R"}, a=2)
            AnnotateSharding(Plan.from_dict(plan))(Forum)

    @I.ir_module
    class Shapes:
        @R.function
        def main(s: R.Shape([4, 4]), t: R.Tensor(ndim=-1)) -> R.Shape([4, 4]):
            a = R.nn.relu(t)  # noqa: F841
            return s

    with pytest.raises(PlanError, match="DIST0224"):
        plan = plan_of({"param": "s", "placement": "R"}, a=2)
        AnnotateSharding(Plan.from_dict(plan))(Shapes)
    with pytest.raises(MeshError, match="DIST0205"):
        plan = plan_of({"param": "t", "placement": "R"}, a=2)
        AnnotateSharding(Plan.from_dict(plan))(Shapes)


def test_two_values_of_one_name_are_not_clear() -> None:
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    a = relax.Var("a", relax.TensorType((4,), "float32"))
    b = relax.Var("a", relax.TensorType((4,), "float32"))
    with bb.function("main", [x]):
        bb.emit_normalized(relax.VarBinding(a, bb.normalize(relax.op.nn.relu(x))))
        bb.emit_normalized(relax.VarBinding(b, bb.normalize(relax.op.nn.relu(a))))
        bb.emit_func_output(b)
    mod = bb.get()
    with pytest.raises(PlanError, match="DIST0224"):
        AnnotateSharding(Plan.from_dict(plan_of({"value": "a", "placement": "R"}, t=2)))(mod)
    out = AnnotateSharding(Plan.from_dict(plan_of({"value": "a*", "placement": "R"}, t=2)))(mod)
    assert [a[3] for a in _annotations(out)] == ["a_placed", "a_placed_1"]


def test_a_module_of_dtensors_is_refused() -> None:
    @I.ir_module
    class Distributed:
        I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

        @R.function
        def main(x: R.DTensor((4,), "float32", "mesh[0]", "S[0]")) -> R.DTensor(
            (4,), "float32", "mesh[0]", "S[0]"
        ):
            return x

    with pytest.raises(LevelError, match="DIST0451"):
        AnnotateSharding(Plan.from_dict(plan_of({"param": "x", "placement": "R"}, a=2)))(
            Distributed
        )


def test_all_rules_that_do_not_fit_are_told_at_once() -> None:
    """Every tensor with its name, shape and the mesh's arithmetic; a pattern for each it means."""
    rules = [
        {"param": "x", "placement": "S[2], R"},
        {"param": "[AB]", "placement": "S[0], S[0]"},
        {"param": "nope", "placement": "R, R"},
        {"param": "C", "placement": "S[0], R"},
        {"call": "mpl", "arg": 0, "placement": "R, R"},
        {"param": "D", "placement": "S[1], R", "function": "mian"},
    ]
    data = {"schema_version": 1, "mesh": {"dp": 10, "tp": 15}, "rules": rules}
    with pytest.raises(PlanError) as info:
        AnnotateSharding(Plan.from_dict(data))(Forum)
    assert info.value.code == "DIST0228" and info.value.what == "6 faults"
    matches = [(v.code, v.location) for v in info.value.violations]
    assert matches == [
        ("DIST0205", "main/x"),
        ("DIST0226", "main/A"),
        ("DIST0226", "main/B"),
        ("DIST0223", 'rules/2 (param "nope")'),
        ("DIST0225", 'rules/4 (call "mpl" arg 0)'),
        ("DIST0225", 'rules/5 (param "D")'),
    ]
    first, second, *_, last = info.value.violations
    assert "128x128" in first.what and 'param "x"' in first.what and first.remedy
    assert "dim 0 of size 128 into 10 x 15 = 150 parts" in second.what and second.remedy
    assert last.remedy == 'Did you mean "main"?'
