# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Recomputation: the same bits, less that lives from forward to backward, more work as counted."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import tvm
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_distir as td
from tests.nightly import nightly_but
from tvm_distir.core.ir import flat_types
from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.planning import strategies as strategy
from tvm_distir.support.errors.tree import ModelError
from tvm_distir.transforms import FuseAttention

POLICIES = ("none", "selective", "full")
SEQ, HEADS = 32, 4
GPT = {
    "size": "tiny",
    "layers": 3,
    "hidden": 16,
    "heads": HEADS,
    "vocab": 32,
    "seq": SEQ,
    "batch": 4,
    "positions": SEQ,
}


MEGATRON = ("core", "checkpoint")
"""What Megatron-LM calls selective and full recomputation."""


def steps(model, policies=POLICIES, **options):
    return {p: td.train_step(model, rate=0.5, recompute=p, **options) for p in policies}


def kept(step, name="layer"):
    """Shapes of what the function keeps for its backward part."""
    names = {str(gv.name_hint) for gv in step.functions}
    if f"{name}_forward" not in names:
        return []
    fields = step[f"{name}_forward"].ret_ty.fields[1].fields
    return [tuple(int(n) for n in ty.shape) for ty in fields]


@pytest.mark.parametrize("name", nightly_but(["gpt", "llama"], {0}))
def test_the_numbers_are_the_same_bits(name):
    model = getattr(td.zoo, name)(**GPT) if name == "gpt" else td.zoo.llama(size="tiny", layers=1)
    created = steps(model, (*POLICIES, *MEGATRON, "alternate"))
    values = draw_inputs(created["none"])
    matches = {policy: Reference(step).run(values) for policy, step in created.items()}
    for policy in (*POLICIES[1:], *MEGATRON, "alternate"):
        assert all(
            np.array_equal(a, b) for a, b in zip(matches["none"], matches[policy], strict=True)
        )


def test_what_is_kept():
    """With widths as models have them: a head is narrow beside the layer, and so is a sequence."""
    seq, hidden = 16, 64
    created = steps(td.zoo.gpt(**{**GPT, "hidden": hidden, "seq": seq}))
    sizes = {policy: sum(map(math.prod, kept(step))) for policy, step in created.items()}
    assert sizes["none"] > sizes["selective"] > sizes["full"] == 0
    square = (4, HEADS, seq, seq)
    assert square in kept(created["none"])
    assert square not in kept(created["selective"])
    # What selective keeps are the results of the layer's products with weights.
    products = {(4, seq, hidden), (4, seq, 4 * hidden)}
    assert set(kept(created["selective"])) == products


@pytest.mark.parametrize("options", [{}, {"dropout": 0.1, "dtype": "float16"}])
def test_core_keeps_all_but_the_scores(options):
    """Korthikanti et al. 2022, section 5: what grows with the square of the sequence."""
    seq, hidden = 64, 64
    model = td.zoo.gpt(**{**GPT, "hidden": hidden, "seq": seq, "positions": seq, **options})
    created = steps(model, ("none", "core"))
    square = (4, HEADS, seq, seq)
    matches = {policy: Counter(kept(step)) for policy, step in created.items()}
    assert matches["none"][square] >= 1
    assert matches["core"] == Counter({s: n for s, n in matches["none"].items() if s != square})


def test_megatron_stores_three_values_of_a_gated_activation():
    """Gate, up and their product, as kernels of gated activations; ``none`` stores silu(gate)."""
    created = steps(td.zoo.llama(size="tiny", layers=2, ffn=96), ("none", "megatron"))
    counts = [sum(shape[-1] == 96 for shape in kept(step)) for step in created.values()]
    assert counts == [4, 3]


FUSED_OPS = ("relax.nn.silu", "relax.astype")
GATED = {"size": "tiny", "layers": 1, "ffn": 96, "dtype": "bfloat16"}


@pytest.mark.parametrize("policy", ["none", "core", "attention"])
def test_operands_of_fused_kernels_are_saved(policy):
    """Of a gated activation its gate, and of a cast the bfloat16 value."""
    model = td.zoo.llama(**GATED)
    hidden = int(model["layer"].params[0].ty.shape[-1])

    def wide_values(ops):
        step = td.train_step(model, recompute=policy, recomputed_ops=ops)
        saved = flat_types(step["layer_forward"].ret_ty.fields[1])
        sizes = Counter((int(ty.shape[-1]), str(ty.dtype)) for ty in saved)
        return sizes[96, "bfloat16"], sizes[hidden, "float32"]

    assert wide_values(()) == (4, 1)
    assert wide_values(FUSED_OPS) == (3, 0)


def test_saved_operands_change_no_bit():
    model = td.zoo.llama(**GATED)
    plain, fused = (td.train_step(model, recomputed_ops=ops) for ops in ((), FUSED_OPS))
    values = draw_inputs(plain)
    results = [Reference(step).run(values) for step in (plain, fused)]
    assert all(np.array_equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("tp", [1, 2])
def test_core_keeps_what_the_formula_says(tp):
    """Korthikanti et al. 2022, equation 2 without scores: s b h (10 + 24 / t) bytes per layer."""
    seq, hidden, batch = 64, 64, 4
    sizes = {**GPT, "hidden": hidden, "seq": seq, "positions": seq, "dtype": "float16"}
    step = td.train_step(td.zoo.gpt(**sizes, dropout=0.1), recompute="core")
    plan = strategy.make_plan(step, "megatron", {"tp": tp})
    layer = td.export(td.distribute(step, plan)).functions["layer_forward"]
    kept_bytes = sum(layer.values[i].bytes for i in layer.results[1:])
    kept_bytes += layer.values[layer.params[0]].bytes  # what the layer before it gave
    assert kept_bytes == pytest.approx(seq * batch * hidden * (10 + 24 / tp), rel=0.02)


def test_masks_are_kept_and_change_no_bit():
    created = steps(td.zoo.gpt(**GPT, dropout=0.25), ("none", "megatron"))
    values = draw_inputs(created["none"])
    matches = [Reference(step).run(values) for step in created.values()]
    assert all(np.array_equal(a, b) for a, b in zip(*matches, strict=True))
    masks = [ty for ty in created["megatron"]["layer_forward"].ret_ty.fields[1].fields]
    masks = [tuple(int(n) for n in ty.shape) for ty in masks if str(ty.dtype) == "bool"]
    rows = (GPT["batch"], SEQ, GPT["hidden"])
    square = (GPT["batch"], HEADS, SEQ, SEQ)
    assert masks == [square, rows, rows]


@pytest.mark.parametrize(("dtype", "epsilon"), [("float16", 2**-10), ("bfloat16", 2**-7)])
def test_a_softmax_is_kept_at_half_precision(dtype, epsilon):
    """The loss has the same bits; a weight's update is off by its rounding, and not by more."""
    created = steps(td.zoo.gpt(**GPT, dropout=0.25, dtype=dtype), ("none", "megatron"))
    kinds = {p: Counter(str(t.dtype) for t in s["layer_forward"].ret_ty.fields[1].fields)
             for p, s in created.items()}  # fmt: skip
    assert kinds["none"]["float32"] == 2 and "float32" not in kinds["megatron"]
    values = draw_inputs(created["none"])
    (loss, *expected), (result, *rest) = (Reference(s).run(values) for s in created.values())
    assert np.array_equal(loss, result)
    for a, b in zip(expected, rest, strict=True):
        a, b = (np.asarray(x, "float64") for x in (a, b))
        assert np.linalg.norm(a - b) <= epsilon * np.linalg.norm(a)


def test_checkpoint_does_all_work_of_the_forward_part_again():
    """As many FLOPs as a layer's forward part has, the last product's among them."""
    model = td.zoo.gpt(**{**GPT, "layers": 4, "batch": 32})
    flops = {}
    for policy, step in steps(model, ("none", "full", "checkpoint")).items():
        program = td.export(
            td.distribute(step, strategy.make_plan(step, "data_parallel", {"dp": 2}))
        )
        flops[policy] = sum(op.flops for _, op in program.executed("main"))
    assert step["layer_checkpoint"].ret_ty == model["layer"].ret_ty  # nothing is kept
    layer = sum(op.flops for op in program.functions["layer_forward"].ops)
    assert flops["checkpoint"] - flops["none"] == 4 * layer
    assert flops["full"] - flops["none"] < 4 * layer


def test_alternate_runs_every_second_product_again():
    """Of q, k, v, output, gate, up and down it multiplies k, output and up again."""
    tokens, hidden, kv, ffn = 32, 32, 16, 48
    sizes = {"layers": 1, "batch": 2, "seq": 16, "hidden": hidden, "heads": 4, "kv_heads": 2}
    model = FuseAttention()(td.zoo.llama(**sizes, ffn=ffn, vocab=64))
    products, attention = {}, {}
    for policy, step in steps(model, ("none", "alternate")).items():
        plan = strategy.make_plan(step, "data_parallel", {"dp": 1})
        ops = [op for _, op in td.export(td.distribute(step, plan)).executed("main")]
        products[policy] = sum(op.flops for op in ops if op.kernel_class == "matmul")
        attention[policy] = sum(op.kernel_class == "attention" for op in ops)
    again = 2 * tokens * hidden * (kv + hidden + ffn)
    assert products["alternate"] - products["none"] == again
    assert attention["alternate"] == attention["none"] == 1


def test_memory_falls_and_work_grows_by_the_forward_part():
    """On one device, as simulated: a full recomputation does the layers' forward work again."""
    model = td.zoo.gpt(**{**GPT, "layers": 8, "batch": 32})
    plan = strategy.make_plan(td.train_step(model), "data_parallel", {"dp": 2})
    matches = {}
    for policy, step in steps(model).items():
        program = td.export(td.distribute(step, plan))
        result = td.simulate(program, td.System.load("dgx-a100")).devices[0]
        matches[policy] = (result.peak_memory_bytes, result.flops)
    forward = td.export(td.distribute(model, strategy.make_plan(model, "data_parallel", {"dp": 2})))
    layer = sum(op.flops for fn, op in forward.executed("main") if fn is forward.functions["layer"])
    memory, flops = zip(*(matches[policy] for policy in POLICIES), strict=True)
    assert memory[0] > memory[1] > memory[2]
    assert flops[0] < flops[1] < flops[2]
    # The sums of the last product, and what adds the residual to it, nobody reads.
    assert 0.7 * layer < flops[2] - flops[0] < layer


@pytest.mark.parametrize("policy", nightly_but([*POLICIES[1:], "megatron"], {0, 2}))
def test_distributed_it_equals_one_device(policy):
    step = td.train_step(td.zoo.gpt(**GPT, dropout=0.25), optimizer="adam", recompute=policy)
    plan = strategy.make_plan(step, "data_parallel+megatron", {"dp": 2, "tp": 2})
    assert td.verify(step, plan, engine="virtual").equal


def test_functions_have_policies_by_name():
    model = td.zoo.unet(size="tiny")
    names = [str(gv.name_hint) for gv in model.functions if str(gv.name_hint) != "main"]
    plain = td.train_step(model, "mse")
    some = td.train_step(model, "mse", recompute=f"{names[0]}=full")
    for name in names:
        assert (kept(some, name) == []) == (name == names[0] or kept(plain, name) == [])


@I.ir_module
class Nested:
    """A call of a function between two products."""

    @R.function(private=True)
    def inner(x: R.Tensor((4, 6), "float32"), w: R.Tensor((6, 6), "float32")):
        with R.dataflow():
            y = R.matmul(x, w)
            z = R.tanh(y)
            R.output(z)
        return z

    @R.function(private=True)
    def outer(x: R.Tensor((4, 6), "float32"), w: R.Tensor((6, 6), "float32")):
        cls = Nested
        with R.dataflow():
            y = R.matmul(x, w)
            z = cls.inner(y, w)
            out = R.multiply(z, z)
            R.output(out)
        return out

    @R.function
    def main(x: R.Tensor((4, 6), "float32"), w: R.Tensor((6, 6), "float32")) -> R.Tensor(
        (4, 6), "float32"
    ):
        cls = Nested
        with R.dataflow():
            out = cls.outer(x, w)
            R.output(out)
        return out


def test_selective_runs_no_function_again():
    """What a call costs is not known: its results are kept, and so is the product."""
    created = steps(Nested, loss="mse")
    values = draw_inputs(created["none"])
    results = [Reference(step).run(values) for step in created.values()]
    for other in results[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(results[0], other, strict=True))
    again = {policy: _callees(step["outer_backward"]) for policy, step in created.items()}
    assert again["none"] == again["selective"] == {"inner_backward"}
    assert again["full"] == {"inner_forward", "inner_backward"} or again["full"] == {
        "inner",
        "inner_backward",
    }


def _callees(fn):
    values = [b.value for block in fn.body.blocks for b in block.bindings]
    calls = [v for v in values if isinstance(v, tvm.ir.Call) and isinstance(v.op, tvm.ir.GlobalVar)]
    return {str(v.op.name_hint) for v in calls}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("fulll", 'recompute is "fulll".*full'),
        ("layer=half", 'recompute is "half"'),
        ("lawyer=full", 'recompute names "lawyer".*layer'),
    ],
)
def test_errors(text, words):
    with pytest.raises(ModelError, match=f"(?s)DIST0351.*{words}"):
        td.train_step(td.zoo.gpt(**GPT), recompute=text)
