# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Prices of other placements, against modules annotated by hand and collectives counted."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import tvm
from tvm import ir

from tvm_distir.core.collectives.volume import sent_bytes
from tvm_distir.core.ir.mesh import mesh_axes, mesh_shape
from tvm_distir.core.ir.operators.names import COLLECTIVES
from tvm_distir.core.ir.types import static_shape, tensor_type
from tvm_distir.core.passes.annotate.passes import AnnotateSharding
from tvm_distir.core.passes.legalize.passes import LegalizeRedistribute
from tvm_distir.core.passes.propagate.passes import PropagateSharding
from tvm_distir.core.propagation.decide import propagate
from tvm_distir.interface.explain.explainer import explain
from tvm_distir.interface.explain.traffic import traffic_of
from tvm_distir.models import zoo
from tvm_distir.planning.strategies.composition import compose, make_plan
from tvm_distir.planning.strategies.registry import parse

SCRIPT = """
@I.ir_module
class Module:
    I.module_attrs({{"device_num": 4, "mesh_axes": [["tp"]]}})
    I.module_global_infos({{"mesh": [R.device_mesh((4,), I.Range(0, 4))]}})

    @R.function(private=True)
    def block(x: R.Tensor((64, 128), "float32"), a: R.Tensor((128, 512), "float32"),
              b: R.Tensor((512, 128), "float32")) -> R.Tensor((64, 128), "float32"):
        with R.dataflow():
            h = R.matmul(x, a)
            {after_h}
            act = R.nn.relu({h})
            o = R.matmul(act, b)
            {after_o}
            y = R.add(x, {o})
            R.output(y)
        return y

    @R.function
    def main(x: R.Tensor((64, 128), "float32"), a: R.Tensor((128, 512), "float32"),
             b: R.Tensor((512, 128), "float32"), c: R.Tensor((64, 128), "float32")
             ) -> R.Tensor((64, 128), "float32"):
        cls = Module
        with R.dataflow():
            {before}
            xp = R.dist.annotate_sharding(x, device_mesh="mesh[0]", placement="{x}")
            ap = R.dist.annotate_sharding(a, device_mesh="mesh[0]", placement="S[1]")
            bp = R.dist.annotate_sharding(b, device_mesh="mesh[0]", placement="S[0]")
            u = cls.block(xp, ap, bp)
            v = cls.block(u, ap, bp)
            {after_v}
            w = R.multiply({v}, {c})
            R.output(w)
        return w
"""


def module(**annotated):
    """The module with values annotated by hand: ``v="S[0]"``; ``x`` is annotated anyway."""
    words = {"x": annotated.pop("x", "R"), "before": "", "c": "c"}
    for name in ("h", "o", "v"):
        words[name], words[f"after_{name}"] = name, ""
    for name, placement in annotated.items():
        line = (
            f"{name}_by_hand = R.dist.annotate_sharding({name}, "
            f'device_mesh="mesh[0]", placement="{placement}")'
        )
        words["before" if name == "c" else f"after_{name}"] = line
        words[name] = f"{name}_by_hand"
    return tvm.script.from_source(SCRIPT.format(**words))


@pytest.mark.parametrize(("value", "key"), [
    ("main/v", "v"), ("block/h", "h"), ("block/o", "o"), ("main/c", "c"), ("main/x", "x"),
    ("main/xp", "x"),
])  # fmt: skip
def test_a_price_is_the_difference_of_two_propagations(value, key):
    mod = module()
    before = mod.script(show_meta=True)
    e = explain(mod, value)
    assert mod.script(show_meta=True) == before
    base, seen = propagate(mod), {}
    costs = base.conversions.costs
    assert e.cost == (base.cost << costs.shift) / costs.wire
    for other in e.alternatives:
        if other.label == "?":
            continue
        by_hand = propagate(module(**{key: other.label}))
        assert by_hand.conversions.costs == costs
        assert other.cost == ((by_hand.cost - base.cost) << costs.shift) / costs.wire
        now, then = traffic_of(base), traffic_of(by_hand)
        assert other.wire_bytes == then.total_sent_bytes - now.total_sent_bytes
        assert other.flops == then.flops - now.flops
        assert other.memory_bytes == then.memory_bytes - now.memory_bytes
        assert other.held_bytes == then.held_bytes - now.held_bytes
        assert {(c.kind, c.axis): c.count for c in other.collectives if c.count} == {
            kind: then.counts[kind] - now.counts[kind]
            for kind in {*then.counts, *now.counts}
            if then.counts[kind] != now.counts[kind]
        }
        seen[other.label] = other
    assert set(seen) == {"S[0]", "S[1]", "R"} - {e.placement}


def test_prices_of_a_known_conflict():
    """Megatron's block: gathering the hidden activation costs an all-gather of it in each call."""
    e = explain(module(), "block/h")
    assert e.placement == "S[1]"
    (gathered,) = [x for x in e.alternatives if x.label == "R"]
    (single,) = [c for c in gathered.collectives if c.kind == "all_gather"]
    assert single.count == 2 and single.wire_bytes == 2 * (64 * 512 * 4) * 3 // 4
    assert gathered.price > 0 and gathered.cost > gathered.price  # annotated values count double


def test_an_annotation_taken_away():
    mod = module(x="S[1]")
    e = explain(mod, "main/x")
    (free,) = [x for x in e.alternatives if x.label == "?"]
    words = {"x": "R", "before": "", "c": "c"}
    words |= {k: v for n in ("h", "o", "v") for k, v in ((n, n), (f"after_{n}", ""))}
    lines = SCRIPT.format(**words).split("\n")
    bare = "\n".join(line for line in lines if "xp = " not in line).replace("xp", "x")
    without = tvm.script.from_source(bare)
    base, other = propagate(mod), propagate(without)
    assert (free.axis, free.cost) == ("tp", (other.cost - base.cost) / base.conversions.costs.wire)
    assert free.becomes == explain(without, "main/x", alternatives=False).placement


def count_collectives(mod):
    """(kind, axis) of every collective of a legalized module, calls followed; and bytes sent."""
    sizes, names = mesh_shape(mod.global_infos["mesh"][0]), mesh_axes(mod)[0]
    by_name = {str(gv.name_hint): fn for gv, fn in mod.functions.items()}
    counts, sent = Counter(), Counter()

    def walk(fn):
        for binding in (b for block in fn.body.blocks for b in block.bindings):
            call = getattr(binding, "value", None)
            if not isinstance(call, ir.Call):
                continue
            if isinstance(call.op, ir.GlobalVar):
                walk(by_name[str(call.op.name_hint)])
                continue
            kind = str(getattr(call.op, "name", "")).removeprefix("relax.dist.")
            if kind not in COLLECTIVES:
                continue
            attrs = call.attrs
            every = attrs.mesh_axes if "mesh_axes" in attrs.keys() else [attrs.mesh_axis]
            (axis,) = [int(a) for a in every]
            ty = binding.var.ty
            shape = list(static_shape(tensor_type(ty)))
            for spec, n in zip(ty.placement.dim_specs, sizes):
                if int(spec.kind) == 0 and int(spec.axis) >= 0:
                    shape[int(spec.axis)] = -(-shape[int(spec.axis)] // n)
            counts[kind, names[axis]] += 1
            sent[kind, names[axis]] += sent_bytes(kind, 4 * math.prod(shape), sizes[axis])

    walk(by_name["main"])
    return counts, sent


@pytest.mark.parametrize(("specs", "mesh"), [
    ("megatron", {"tp": 4}), ("data_parallel+megatron", {"dp": 2, "tp": 2}),
])  # fmt: skip
@pytest.mark.parametrize("nested", [True, False])
def test_traffic_is_what_legalized_ir_sends(specs, mesh, nested):
    mod = zoo.gpt(size="tiny", layers=3, nested=nested, vocab=512)
    annotated = AnnotateSharding(compose(mod, mesh, parse(specs)))(mod)
    counts, sent = count_collectives(LegalizeRedistribute()(PropagateSharding()(annotated)))
    traffic = traffic_of(propagate(annotated))
    assert traffic.counts == counts and traffic.wire_bytes == sent
    assert counts["all_reduce", "tp"] == 2 * 3 + 1
    assert explain(annotated, "logits", alternatives=False).wire_bytes == sum(sent.values())


@pytest.mark.parametrize("label", ["S[0]", "S[1]"])
def test_collectives_that_appear_are_those_of_the_ir(label):
    """For each alternative, the IR of the module annotated by hand holds those collectives."""
    mod = module()
    (other,) = [x for x in explain(mod, "block/o").alternatives if x.label == label]
    now, _ = count_collectives(LegalizeRedistribute()(PropagateSharding()(mod)))
    by_hand = LegalizeRedistribute()(PropagateSharding()(module(o=label)))
    then, _ = count_collectives(by_hand)
    changes = {kind: then[kind] - now[kind] for kind in {*now, *then}}
    matches = {(c.kind, c.axis): c.count for c in other.collectives}
    assert {k: n for k, n in matches.items() if n} == {k: n for k, n in changes.items() if n}


def test_work_is_split_over_the_devices():
    """Without a collective, twice the devices on a dim halve the arithmetic."""
    flops = []
    for size in (2, 4):
        mod = zoo.gpt(size="tiny", layers=1, batch=16)
        annotated = AnnotateSharding(compose(mod, {"dp": size}, parse("data_parallel")))(mod)
        e = explain(annotated, "input_ids")
        (whole,) = [x for x in e.alternatives if x.label == "R" and x.axis == "dp"]
        traffic = traffic_of(propagate(annotated))
        assert whole.wire_bytes == 0 and not whole.collectives
        flops.append((traffic.flops, traffic.flops + whole.flops))
    (halves, whole), (quarters, same) = flops
    assert whole == same
    # The causal mask depends on no batch: everything else is split.
    assert 2 * halves - whole == pytest.approx((4 * quarters - whole) / 3, abs=64)
    assert halves == pytest.approx(whole / 2, rel=0.01)


def test_thirty_two_layers_say_the_same_as_two():
    matches = []
    for layers in (2, 32):
        mod = zoo.gpt(size="tiny", layers=layers)
        annotated = AnnotateSharding(compose(mod, {"tp": 2}, parse("megatron")))(mod)
        e = explain(annotated, "layer/matmul4")
        assert e.axes[0].annotation == "main/h.0.mlp.up_proj.bias"
        (gathered,) = [x for x in e.alternatives if x.label == "R"]
        matches.append((e.placement, e.axes[0].steps, gathered.wire_bytes / layers))
    assert matches[0] == matches[1]


def test_a_weight_that_lies_whole_is_held_whole():
    """A stationary weight of 64 x 64 floats, cut in two: whole it takes 8,192 bytes more."""
    mod = zoo.gpt(size="tiny", layers=2)
    plan = make_plan(mod, "megatron", {"tp": 2})
    e = explain(mod, "h.0.attn.q_proj.weight", plan=plan)
    assert {x.label: x.held_bytes for x in e.alternatives} == {"S[1]": 0, "R": 8192, "?": 0}
    assert "+8,192" in e.to_text()
