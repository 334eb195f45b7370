# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Reductions into shards that are no parts of their groups' blocks: terms are exchanged."""

from __future__ import annotations

import itertools
import math

import ml_dtypes
import numpy as np
import pytest
from tvm import relax

import tvm_distir as td
from tests.core.passes import redistribute_harness as h
from tests.core.passes import redistribute_whole as whole
from tvm_distir.core.ir.placement import P, R
from tvm_distir.core.passes.legalize.passes import LegalizeRedistribute
from tvm_distir.core.passes.lower.passes import LowerDistIR
from tvm_distir.core.redistribution.planner import plan_steps
from tvm_distir.core.redistribution.shards import terms_move
from tvm_distir.core.redistribution.wire import step_wire
from tvm_distir.transforms.optimize.traffic import traffic

ENDS = [
    ((6, 5), (P, 0), (0, 0), (2, 2)),
    ((7, 4), (P, 0), (0, 0), (2, 2)),
    ((5, 6), (P, 1), (1, 1), (2, 3)),
    ((9, 2), (P, 0, R), (0, 0, 1), (2, 2, 2)),
    ((11,), (P, 0, P), (0, 0, 0), (2, 2, 2)),
    ((11, 3), (P, P, 0), (0, R, 0), (2, 2, 2)),
    ((7, 4), (0, P), (0, 0), (2, 2)),
    ((5, 6), (P, P), (0, 0), (2, 2)),
]


def test_rows_move_once_under_a_later_axis():
    """10 rows over 2 x 2: 3, 2, 3 and 2; the later axis has halves, which are no blocks of both."""
    (step,) = plan_steps((10, 4), (P, 0), (0, 0), (2, 2))
    assert (step.kind, step.axes) == ("reduce_scatter", (0,))
    wire = step_wire((10, 4), (P, 0), step, (2, 2), "float32")
    # Device (1, 0) has rows 0 to 4 of one term, and wants both terms of rows 5 to 7.
    assert (wire.kind, wire.axes, wire.payload_bytes) == ("exchange", (0, 1), (3 + 3) * 16)


def test_blocks_are_scattered_plainly():
    assert terms_move((8, 4), (0, R), (1,), 0, (2, 2)) is None
    assert terms_move((10, 4), (0, R), (1,), 0, (2, 2)) is None
    assert terms_move((10, 4), (R, R), (0, 1), 0, (2, 2)) is None
    assert terms_move((10, 4), (1, R), (1,), 0, (2, 2)) is None
    assert terms_move((10, 4), (R, 0), (0,), 0, (1, 2)) is None


@pytest.mark.parametrize("dtype", h.DTYPES)
def test_all_types_and_reductions_on_two_engines(dtype):
    for mesh, ends in itertools.groupby(ENDS, key=lambda e: e[3]):
        devices = tuple(range(math.prod(mesh)))[::-1]
        cases = [
            h.Case(*end, devices, dtype, op) for end, op in itertools.product(list(ends), h.OPS)
        ]
        assert not whole.faults(cases)


def test_bytes_are_the_same_before_and_after_lowering():
    case = h.Case((10, 4), (P, 0), (0, 0), (2, 2), (0, 1, 2, 3))
    legal = LegalizeRedistribute()(whole.module_of([case]))
    before, after = traffic(legal), traffic(LowerDistIR()(legal))
    assert before.total_wire_bytes == after.total_wire_bytes == 96
    assert [kind.op for kind in after.counts] == ["exchange"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_terms_of_half_precision_are_added_in_float32(dtype):
    """Each of four devices holds a term; their sum is rounded once, not after each addition."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([11, 4], dtype))
    w = relax.Var("w", relax.TensorType([4, 2], dtype))
    with builder.function("main", [x, w]):
        with builder.dataflow():
            y = builder.emit_output(relax.op.matmul(x, w), name_hint="y")
        builder.emit_func_output(y)
    rules = [
        {"param": "x", "placement": "S[1], S[0]"},
        {"param": "w", "placement": "S[0], R"},
        {"value": "y", "placement": "S[0], S[0]"},
    ]
    plan = {"schema_version": 1, "mesh": {"a": 4, "b": 2}, "rules": rules}
    local = td.distribute(builder.get(), plan)
    assert "R.dist.exchange" in local.script()
    step = float(ml_dtypes.finfo(dtype).eps)  # between 1 and the next number
    row = np.array([1, 0.625 * step, 0.625 * step, 0.625 * step])
    values = [np.tile(row, (11, 1)).astype(dtype), np.ones((4, 2), dtype)]
    (got,) = td.run(local, values, engine="virtual")
    np.testing.assert_array_equal(got, np.full((11, 2), 1 + 2 * step, dtype))
