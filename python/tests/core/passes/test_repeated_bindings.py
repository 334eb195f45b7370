# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Passes that repeat equal bindings write what they write without templates."""

from __future__ import annotations

import pytest
import tvm

import tvm_distir as td
from tvm_distir.core.ops import registry
from tvm_distir.core.passes.legalize.partial_values import LegalizedValues
from tvm_distir.core.passes.legalize.passes import LegalizeRedistribute
from tvm_distir.core.passes.legalize.rewrite import FunctionLegalizer
from tvm_distir.core.passes.lower.passes import LowerDistIR
from tvm_distir.core.passes.lower.values import LocalValues

LAYERS = 4
MESH = {"a": 2, "b": 2}


def level3(rows, weight):
    """A chain of products; ``rows`` and the placement of the weights decide what is padded."""
    body = "\n            ".join(
        f"h{i + 1} = R.nn.relu(R.matmul(R.add(h{i}, R.const(1.0)), w{i % 2}))"
        for i in range(LAYERS)
    )
    w = 'R.Tensor((8, 8), "float32")'
    mod = tvm.script.from_source(f"""
@I.ir_module
class Module:
    @R.function
    def main(h0: R.Tensor(({rows}, 8), "float32"), w0: {w}, w1: {w}):
        with R.dataflow():
            {body}
            R.output(h{LAYERS})
        return h{LAYERS}
""")
    rules = [{"param": "h0", "placement": "S[0], R"}]
    rules += [{"param": name, "placement": weight} for name in ("w0", "w1")]
    plan = td.Plan.from_dict({"schema_version": 1, "mesh": MESH, "rules": rules})
    return td.transforms.PropagateSharding()(td.transforms.AnnotateSharding(plan)(mod))


@pytest.fixture(autouse=True)
def empty_memory():
    """Begin and end with an empty memory."""
    registry.note_change()
    yield
    registry.note_change()


@pytest.mark.parametrize("rows", [4, 5])
@pytest.mark.parametrize("weight", ["R, R", "R, S[1]", "R, S[0]"])
def test_templates_change_nothing(rows, weight, monkeypatch):
    mod = level3(rows, weight)
    repeated = LegalizeRedistribute()(mod)
    local = LowerDistIR()(repeated)
    again = LowerDistIR()(LegalizeRedistribute()(mod))  # all from templates
    for values in (LegalizedValues, LocalValues):
        monkeypatch.setattr(values, "repeats", lambda self: False)
    plain = LegalizeRedistribute()(mod)
    assert repeated.script() == plain.script()
    assert local.script() == again.script() == LowerDistIR()(plain).script()


def test_bindings_that_stay_are_visited_once(monkeypatch):
    visited = []
    visit = FunctionLegalizer._visit

    def counted(self, var, value, like):
        visited.append(str(var.name))
        visit(self, var, value, like)

    monkeypatch.setattr(FunctionLegalizer, "_visit", counted)
    mod = level3(4, "R, R")
    LegalizeRedistribute()(mod)
    first = len(visited)
    assert first < sum(len(b.bindings) for b in mod["main"].body.blocks) / 2
    LegalizeRedistribute()(mod)
    assert len(visited) == first
