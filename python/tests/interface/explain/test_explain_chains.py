# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Placements and the chains that gave them, on modules whose chains are known."""

from __future__ import annotations

import json

import pytest
import tvm

from tvm_distir.core.ir.placement import labels_of, placement_text
from tvm_distir.core.ir.types import tensor_type
from tvm_distir.core.passes.annotate.passes import AnnotateSharding
from tvm_distir.core.passes.propagate.passes import PropagateSharding
from tvm_distir.core.plan.plan import Plan
from tvm_distir.interface.explain.explainer import explain
from tvm_distir.models import zoo
from tvm_distir.planning.strategies.composition import compose
from tvm_distir.planning.strategies.registry import parse
from tvm_distir.support.errors.tree import LevelError, PropagationError

HEAD = """
@I.ir_module
class Module:
    I.module_attrs({"device_num": 4, "mesh_axes": [["dp", "tp"]]})
    I.module_global_infos({"mesh": [R.device_mesh((2, 2), I.Range(0, 4))]})
"""


def module(functions):
    """A module over the mesh dp=2, tp=2; ``= @name, text`` annotates."""
    lines = []
    for line in functions.strip("\n").split("\n"):
        value, mark, placement = line.partition("= @")
        if mark:
            name, _, text = placement.partition(", ")
            line = f'{value}= R.dist.annotate_sharding({name}, device_mesh="mesh[0]", '
            line += f'placement="{text}")'
        lines.append(line)
    return tvm.script.from_source(HEAD + "\n".join(lines))


MLP = """
    @R.function
    def main(x: R.Tensor((8, 16), "float32"), a: R.Tensor((16, 32), "float32"),
             b: R.Tensor((32, 16), "float32")) -> R.Tensor((8, 16), "float32"):
        with R.dataflow():
            x_ = @x, S[0], R
            a_ = @a, R, S[1]
            b_ = @b, R, S[0]
            lv = R.matmul(x_, a_)
            lv1 = R.nn.relu(lv)
            lv2 = R.matmul(lv1, b_)
            lv3 = R.multiply(lv2, R.const(2.0, "float32"))
            gv = R.nn.relu(lv3)
            R.output(gv)
        return gv
"""

NESTED = """
    @R.function(private=True)
    def inner(p: R.Tensor((8, 16), "float32")) -> R.Tensor((16, 8), "float32"):
        with R.dataflow():
            q = R.permute_dims(p)
            R.output(q)
        return q

    @R.function(private=True)
    def outer(p: R.Tensor((8, 16), "float32")) -> R.Tensor((16, 8), "float32"):
        cls = Module
        with R.dataflow():
            r = R.nn.relu(p)
            s = cls.inner(r)
            R.output(s)
        return s

    @R.function
    def main(x: R.Tensor((8, 16), "float32"), y: R.Tensor((8, 16), "float32")
             ) -> R.Tuple(R.Tensor((16, 8), "float32"), R.Tensor((16, 8), "float32")):
        cls = Module
        with R.dataflow():
            x_ = @x, S[0], S[1]
            y_ = @y, S[1], S[0]
            u = cls.outer(x_)
            v = cls.outer(y_)
            R.output(u, v)
        return (u, v)
"""


def hops(reason):
    """(op, source, dim, target, dim) of every step."""
    return [(s.op, s.source, s.source_dim, s.target, s.target_dim) for s in reason.steps]


def test_a_chain_through_ops():
    e = explain(module(MLP), "lv1", alternatives=False)
    assert (e.name, e.placement, e.made_by) == ("main/lv1", "S[0], S[1]", "nn.relu")
    assert (e.shape, e.local_shape) == (("8", "32"), ("4", "16"))
    assert (e.size_bytes, e.bytes_per_device) == (4 * 8 * 32, 4 * 4 * 16)
    dp, tp = e.axes
    assert (dp.reason, dp.annotation, dp.conflict) == ("followed", "main/x", False)
    assert hops(dp) == [
        ("matmul", "main/x", 0, "main/lv", 0),
        ("nn.relu", "main/lv", 0, "main/lv1", 0),
    ]
    # Both a and b are tied to it: b directly, by the matmul that sums over it.
    assert (tp.reason, tp.annotation, tp.also) == ("followed", "main/b", ("main/a",))
    assert hops(tp) == [("matmul", "main/b", 0, "main/lv1", 1)]
    assert tp.steps[0].kind == "sum" and tp.steps[0].place == "main/lv2"


def test_a_sum_through_a_linear_op():
    mod = module(MLP)
    # Where the sum is completed is left to propagation; its rewriter says what it did.
    placed = placements(PropagateSharding()(mod))["main"]
    for name in ("lv2", "lv3"):
        e = explain(mod, name, alternatives=False)
        tp = e.axes[1]
        assert tp.reason == ("summed" if tp.produced == "P" else "unreached")
        assert e.placement.replace("P", "R") == placed[name]
    e = explain(mod, "lv2", alternatives=False)
    assert e.axes[1].produced == "P" and e.axes[1].annotation == "main/b"
    assert hops(e.axes[1]) == [("matmul", "main/b", 0, "main/lv2", None)]
    moved = [m for name in ("lv2", "lv3") for m in explain(mod, name, alternatives=False).moves]
    assert [[c.kind for c in m.collectives] for m in moved] == [["all_reduce"]]
    assert moved[0].collectives[0].wire_bytes == 2 * (4 * 4 * 16) // 2


def test_partial_sums_cross_calls():
    mod = module("""
    @R.function(private=True)
    def product(h: R.Tensor((8, 16), "float32"), w: R.Tensor((16, 8), "float32")
                ) -> R.Tensor((8, 8), "float32"):
        with R.dataflow():
            o = R.matmul(h, w)
            R.output(o)
        return o

    @R.function
    def main(x: R.Tensor((8, 16), "float32"), w: R.Tensor((16, 8), "float32"),
             y: R.Tensor((8, 16), "float32")) -> R.Tensor((8, 8), "float32"):
        cls = Module
        with R.dataflow():
            w_ = @w, R, S[0]
            y_ = @y, R, S[1]
            g = cls.product(x, w_)
            k = cls.product(y_, w_)
            z = R.add(g, k)
            gv = R.nn.relu(z)
            R.output(gv)
        return gv
    """)
    e = explain(mod, "z", alternatives=False)
    (reason,) = [r for r in e.axes if r.axis == "tp"]
    assert (reason.reason, reason.produced) == ("summed", "P")
    assert hops(reason) == [
        ("call product", "main/w", 0, "product/w", 0),
        ("matmul", "product/w", 0, "product/o", None),
        ("call product", "product/o", None, "main/g", None),
        ("add", "main/g", None, "main/z", None),
    ]


def test_a_chain_across_calls_and_specialisations():
    mod = module(NESTED)
    placed = placements(PropagateSharding()(mod))
    assert sorted(placed) == ["inner", "inner_1", "main", "outer", "outer_1"]
    e = explain(mod, "inner/q", alternatives=False)
    assert e.placement == placed["inner"]["q"] == "S[1], S[0]"
    assert dict(e.specialisations) == {n: placed[n]["q"] for n in ("inner", "inner_1")}
    assert hops(e.axes[0]) == [
        ("call outer", "main/x", 0, "outer/p", 0),
        ("nn.relu", "outer/p", 0, "outer/r", 0),
        ("call inner", "outer/r", 0, "inner/p", 0),
        ("permute_dims", "inner/p", 0, "inner/q", 1),
    ]
    second = explain(mod, "inner_1/q", alternatives=False)
    assert second.placement == placed["inner_1"]["q"] == "S[0], S[1]"
    assert hops(second.axes[0]) == [
        ("call outer_1", "main/y", 1, "outer_1/p", 1),
        ("nn.relu", "outer_1/p", 1, "outer_1/r", 1),
        ("call inner_1", "outer_1/r", 1, "inner_1/p", 1),
        ("permute_dims", "inner_1/p", 1, "inner_1/q", 0),
    ]
    top = explain(mod, "u", alternatives=False)
    assert (top.made_by, hops(top.axes[0])[-1]) == (
        "call outer",
        ("call outer", "outer/s", 1, "main/u", 1),
    )


def test_an_annotation_flows_backwards():
    mod = module("""
    @R.function
    def main(x: R.Tensor((8, 16), "float32")) -> R.Tensor((16, 8), "float32"):
        with R.dataflow():
            lv = R.nn.relu(x)
            lv1 = R.permute_dims(lv)
            lv2 = @lv1, S[1], R
            gv = R.nn.relu(lv2)
            R.output(gv)
        return gv
    """)
    e = explain(mod, "x", alternatives=False)
    assert e.axes[0].annotation == "main/lv2"
    assert hops(e.axes[0]) == [
        ("annotate_sharding", "main/lv2", 1, "main/lv1", 1),
        ("permute_dims", "main/lv1", 1, "main/lv", 0),
        ("nn.relu", "main/lv", 0, "main/x", 0),
    ]
    here = explain(mod, "lv2", alternatives=False)
    assert (here.axes[0].reason, here.axes[0].steps) == ("annotated", ())
    assert here.axes[1].reason == "annotated" and here.axes[1].label == "R"


def test_a_conflict_names_both_sides():
    mod = module("""
    @R.function
    def main(x: R.Tensor((8, 16), "float32"), w: R.Tensor((16, 64), "float32")
             ) -> R.Tensor((8, 64), "float32"):
        with R.dataflow():
            x_ = @x, S[0], R
            w_ = @w, S[1], R
            gv = R.matmul(x_, w_)
            R.output(gv)
        return gv
    """)
    e = explain(mod, "gv", alternatives=False)
    dp, tp = e.axes
    assert dp.conflict and dict(dp.claims) == {"S[0]": "main/x", "S[1]": "main/w"}
    assert dp.label in ("S[0]", "S[1]") and dp.annotation == dict(dp.claims)[dp.label]
    assert (tp.reason, tp.claims) == ("unreached", ())
    lost = "x" if dp.label == "S[1]" else "w"
    (move,) = explain(mod, lost, alternatives=False).moves
    assert move.target == "R, R" and move.collectives[0].kind == "all_gather"
    assert f"conflict: main/{lost} requests" in e.to_text()
    priced = explain(mod, "gv")
    label = next(label for label, name in dp.claims if name == f"main/{lost}")
    (other,) = [x for x in priced.alternatives if (x.axis, x.label) == ("dp", label)]
    assert other.asked and other.cost >= 0  # what was not taken is not cheaper
    line = f"conflict: main/{lost} requests {label}, cost {other.price:+,.0f}"
    assert line in priced.to_text()


def test_what_cannot_be_sharded_is_said():
    mod = module("""
    @R.function
    def main(x: R.Tensor((8, 5, 1), "float32")) -> R.Tensor((8, 5, 1), "float32"):
        with R.dataflow():
            x_ = @x, S[0], R
            lv = R.sort(x_, axis=0)
            R.output(lv)
        return lv
    """)
    e = explain(mod, "lv", alternatives=True)
    texts = [" ".join(d.obstacles) for d in e.dims]
    assert "main/lv (sort) produces it replicated" in texts[0]
    assert "padded to 6" in texts[1] and "too small" in texts[2]
    barred = [(x.axis, x.label) for x in e.alternatives if x.cost is None]
    assert barred == [("dp", "S[2]"), ("tp", "S[2]")]
    assert all(x.impossible for x in e.alternatives if x.cost is None)


def placements(mod):
    """Placement text of every variable of a distributed module, as its types say."""
    matches = {}
    for gv, fn in mod.functions.items():
        every = [*fn.params, *[b.var for block in fn.body.blocks for b in block.bindings]]
        row = matches.setdefault(str(gv.name_hint), {})
        for var in every:
            if tensor_type(var.ty) is not None:
                row.setdefault(str(var.name), placement_text(labels_of(var.ty.placement)))
    return matches


@pytest.mark.parametrize("specs", ["data_parallel+megatron", "megatron"])
def test_every_placement_of_a_model_is_the_one_written(specs):
    """What is explained is what the rewriter writes into the types."""
    mod = zoo.gpt(size="tiny", layers=2)
    mesh = {"dp": 2, "tp": 2} if "+" in specs else {"tp": 4}
    annotated = AnnotateSharding(compose(mod, mesh, parse(specs)))(mod)
    distributed = PropagateSharding()(annotated)
    output = placements(distributed)
    seen = 0
    for name, row in output.items():
        for variable in list(row)[:: 4 if name == "main" else 2]:
            if variable.endswith("_placed") or f"{name}/{variable}" == "layer/gv":
                continue
            e = explain(annotated, f"{name}/{variable}", alternatives=False)
            assert e.placement.replace("P", "R") == row[variable], (name, variable)
            for reason in e.axes:
                sharded = reason.label.startswith("S")
                assert not sharded or reason.annotation, (name, variable)
                assert reason.reason != "tied"
                for left, two in zip(reason.steps, reason.steps[1:]):
                    assert (left.target, left.target_dim) == (two.source, two.source_dim)
                if reason.steps:
                    assert reason.steps[0].source == reason.annotation
                    assert reason.steps[-1].target.partition("/")[0] == name
            seen += 1
    assert seen > 25


@pytest.mark.parametrize(
    ("name", "code", "hint"),
    [
        ("lv11", "DIST0430", "main/lv1"),
        ("main/lvl", "DIST0430", "main/lv"),
        ("quite_another", "DIST0430", "There are"),
        ("main/", "DIST0430", ""),
        ("", "DIST0430", ""),
    ],
)
def test_unknown_names(name, code, hint):
    with pytest.raises(PropagationError) as caught:
        explain(module(MLP), name)
    assert caught.value.code == code and hint in caught.value.remedy


def test_names_that_are_not_clear():
    mod = module("""
    @R.function(private=True)
    def one(k: R.Tensor((8, 16), "float32")) -> R.Tensor((8, 16), "float32"):
        with R.dataflow():
            t = R.nn.relu(k)
            R.output(t)
        return t

    @R.function(private=True)
    def two(k: R.Tensor((8, 16), "float32")) -> R.Tensor((8, 16), "float32"):
        with R.dataflow():
            t = R.exp(k)
            R.output(t)
        return t

    @R.function
    def main(x: R.Tensor((8, 16), "float32")) -> R.Tensor((8, 8), "float32"):
        cls = Module
        with R.dataflow():
            x_ = @x, S[0], R
            a = cls.one(x_)
            b = cls.two(a)
            c = R.split(b, 2, axis=1)
            d = c[1]
            shape = R.shape([8, 8])
            half = R.const(1.0, "float32")
            R.output(d)
        return d
    """)
    faults = {"t": "one/t, two/t", "c": "c.0 to c.1", "shape": "Name a tensor", "half": "Name a"}
    for name, hint in faults.items():
        with pytest.raises(PropagationError) as caught:
            explain(mod, name)
        assert caught.value.code == "DIST0431" and hint in caught.value.remedy, name
    assert explain(mod, "two/t", alternatives=False).made_by == "exp"
    field, alias = explain(mod, "c.1"), explain(mod, "d")
    assert field.placement == alias.placement == "S[0], R" and field.axes == alias.axes
    assert field.alternatives == alias.alternatives != ()
    assert explain(mod, "c.0").alternatives == ()  # no variable holds it alone


def test_a_copied_name_is_counted():
    mod = module("""
    @R.function
    def main(x: R.Tensor((8, 16), "float32")) -> R.Tensor((8, 16), "float32"):
        with R.dataflow():
            x_ = @x, S[0], R
            lv = R.nn.relu(x_)
            lv = R.exp(lv)
            gv = R.negative(lv)
            R.output(gv)
        return gv
    """)
    with pytest.raises(PropagationError) as caught:
        explain(mod, "lv")
    assert caught.value.code == "DIST0431" and "lv#0 to lv#1" in caught.value.remedy
    first, second = explain(mod, "lv#0"), explain(mod, "main/lv#1")
    assert (first.made_by, second.made_by) == ("nn.relu", "exp")
    assert first.name == "main/lv#0"
    with pytest.raises(PropagationError) as caught:
        explain(mod, "lv#2")
    assert caught.value.code == "DIST0430"


def test_parameters_go_by_the_names_of_the_model():
    mod = zoo.gpt(size="tiny", layers=2)
    annotated = AnnotateSharding(compose(mod, {"tp": 2}, parse("megatron")))(mod)
    for name in ("h.1.mlp.up_proj.weight", "main/h_1_mlp_up_proj_weight"):
        e = explain(annotated, name, alternatives=False)
        assert (e.placement, e.axes[0].reason) == ("S[0]", "annotated")
    inside = explain(annotated, "layer/mlp.up_proj.weight", alternatives=False)
    assert hops(inside.axes[0])[0][0] == "call layer"


def test_distributed_modules_are_refused():
    mod = module(MLP)
    with pytest.raises(LevelError) as caught:
        explain(PropagateSharding()(mod), "lv")
    assert caught.value.code == "DIST0451"


def test_a_plan_may_be_given():
    mod = zoo.gpt(size="tiny", layers=1)
    plan = compose(mod, {"tp": 2}, parse("megatron"))
    assert isinstance(plan, Plan)
    inputs = explain(mod, "logits", plan=plan)
    assert inputs == explain(AnnotateSharding(plan)(mod), "logits")
    data = json.loads(json.dumps(inputs.to_dict()))
    assert data["schema_version"] == 1 and data["placement"] == inputs.placement
    assert [a["axis"] for a in data["axes"]] == ["tp"]


def test_axes_are_those_of_the_value_s_own_mesh():
    mod = tvm.script.from_source("""
@I.ir_module
class Module:
    I.module_attrs({"device_num": 6, "mesh_axes": [["dp"], ["tp"]], "mesh_names": ["a", "b"]})
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2)),
                                    R.device_mesh((4,), I.Range(2, 6))]})
    @R.function
    def main(x: R.Tensor((8, 16), "float32"), w: R.Tensor((16, 64), "float32")
             ) -> R.Tensor((8, 64), "float32"):
        with R.dataflow():
            x_ = R.dist.annotate_sharding(x, device_mesh="mesh[0]", placement="S[0]")
            w_ = R.dist.annotate_sharding(w, device_mesh="mesh[1]", placement="S[1]")
            lv = R.nn.relu(x_)
            lv1 = R.dist.annotate_sharding(lv, device_mesh="mesh[1]", placement="R")
            gv = R.matmul(lv1, w_)
            R.output(gv)
        return gv
    """)
    first, second = explain(mod, "lv"), explain(mod, "gv")
    assert (first.mesh, first.mesh_axes) == ("a", (("dp", 2),))
    assert (second.mesh, second.mesh_axes) == ("b", (("tp", 4),))
    assert (first.placement, second.placement) == ("S[0]", "S[1]")
    assert first.users == (("main/lv (move)", "S[0]"),)
    assert hops(second.axes[0]) == [("matmul", "main/w", 1, "main/gv", 1)]
    assert {x.axis for x in second.alternatives} == {"tp"}
    rows = [[cell.strip() for cell in x.split("|")] for x in second.picture.split("\n")]
    assert rows[0] == ["", "0:16", "16:32", "32:48", "48:64"]
    assert rows[2] == ["0:8", "2", "3", "4", "5"]
