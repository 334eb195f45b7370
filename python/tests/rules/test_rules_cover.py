# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The coverage tables: every op has a line, every distinct call of a module too."""

from __future__ import annotations

from tvm import ir, relax

from tvm_distir.rules import registered_ops
from tvm_distir.rules.cover import call_coverage, op_coverage, table


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
    assert packed.whole[0].startswith("DIST0401 relax.call_pure_packed")
    assert softmax.factors == ("S(0) -> S(0)", "S(1) -> S(1) (stat)")


def test_the_table_is_aligned():
    lines = table(("op", "rule"), [("relax.add", "hand"), ("f", "none")]).splitlines()
    assert lines == ["op         rule", "relax.add  hand", "f          none"]
