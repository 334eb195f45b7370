# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The coverage tables: every op has a line, every distinct call of a module too."""

from __future__ import annotations

from tvm import ir, relax

from tests.core.ops.op_coverage import call_coverage, op_coverage, table
from tests.core.ops.rule_cases.all_cases import TABLE, WHOLE
from tvm_distir.core.ops.lookup import rule_of
from tvm_distir.core.ops.registry import registered_ops
from tvm_distir.execution.rule_validation.cases import var

#: Ops of GPT-2, Llama, BERT, ViT, ResNet, U-Net and a mixture of experts, and of their gradients.
OF_MODELS = """
add arange astype bitwise_and broadcast_to collapse_sum_to concat cos cumsum divide equal erf exp
expand_dims full gather_elements gather_nd grad.avg_pool2d_backward grad.max_pool2d_backward
grad.nll_loss_backward grad.take_backward greater greater_equal image.resize2d index_tensor isnan
less less_equal log logical_and matmul maximum mean minimum multiply negative nn.adaptive_avg_pool2d
nn.attention nn.attention_bias nn.avg_pool2d nn.batch_norm nn.conv2d nn.conv2d_transpose nn.gelu
nn.gelu_tanh nn.group_norm nn.layer_norm nn.log_softmax nn.max_pool2d nn.nll_loss nn.pad nn.relu
nn.rms_norm nn.silu nn.softmax not_equal one_hot ones permute_dims power repeat reshape rsqrt
scatter_elements sigmoid sin split sqrt square squeeze stack strided_slice subtract sum take tanh
tile topk tril triu variance where zeros
"""


def test_every_op_has_a_source_and_every_registered_op_exists():
    sources = {row.op: row.source for row in op_coverage()}
    known = {str(n) for n in ir.Op.list_op_names() if str(n).startswith("relax.")}
    assert set(sources) == known
    assert {op for op, source in sources.items() if source == "hand"} == set(registered_ops())
    assert sources["relax.matmul"] == "hand"
    assert sources["relax.layout_transform"] == "derived"
    assert sources["relax.unique"] == "none"


def test_calls_are_counted_by_what_may_be_cut():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([4, 6], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.nn.relu(x))
            y = builder.emit(relax.op.nn.relu(y))
            z = builder.emit(relax.call_pure_packed("f", y, ty_args=[x.ty]))
            out = builder.emit_output(relax.op.nn.softmax(z))
        builder.emit_func_output(out)
    relu, packed, softmax = call_coverage(builder.get())
    assert (relu.op, relu.count, relu.source) == ("relax.nn.relu", 2, "hand")
    assert relu.factors == ("S(0) -> S(0)", "S(1) -> S(1)")
    assert (packed.source, packed.factors) == ("none", ())
    assert packed.why_replicated[0].startswith("DIST0401 relax.call_pure_packed")
    assert softmax.factors == ("S(0) -> S(0)", "S(1) -> S(1) (stat)")


def test_the_table_is_aligned():
    lines = table(("op", "rule"), [("relax.add", "hand"), ("f", "none")]).splitlines()
    assert lines == ["op         rule", "relax.add  hand", "f          none"]


def test_ops_of_models_can_be_cut():
    offered = {c.op for c in TABLE if c.rule().factors}
    expected = {f"relax.{name}" for name in OF_MODELS.split()}
    assert sorted(expected - offered) == ["relax.arange"]
    assert "relax.arange" in WHOLE


def test_an_op_without_a_rule_says_why_not():
    for row in op_coverage():
        assert bool(row.why) == (row.source in ("system", "none")), row.op


def test_drawn_samples_are_whole():
    operands = [var(4, 6), var(4, 1), var(4, 1, dtype="int64")]
    rule = rule_of(relax.BlockBuilder().normalize(relax.op.multinomial_from_uniform(*operands)))
    assert rule.factors == () and rule.linear == ()
    assert "must sample the same" in rule.why_replicated["in0.dim0"]


def test_a_sample_takes_an_operation_and_is_replicated():
    """Five samples of two distributions."""
    prob = relax.Var("prob", relax.TensorType([2, 7], "float32"))
    uniform = relax.Var("uniform", relax.TensorType([5, 1], "float32"))
    rows = relax.Var("rows", relax.TensorType([5, 1], "int64"))
    call = relax.BlockBuilder().normalize(relax.op.multinomial_from_uniform(prob, uniform, rows))
    rule = rule_of(call)
    assert rule.work.flops == 5 and rule.factors == ()
