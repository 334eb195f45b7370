# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Reductions into shards that are no parts of their groups' blocks: terms are exchanged."""

from __future__ import annotations

import itertools
import math

import pytest

from tests.core.passes import redistribute_harness as h
from tests.core.passes import redistribute_whole
from tvm_distir.core.ir.placement import P, R
from tvm_distir.core.passes.legalize.passes import LegalizeRedistribute
from tvm_distir.core.passes.lower.passes import LowerDistIR
from tvm_distir.core.redistribution.planner import plan_steps
from tvm_distir.core.redistribution.shards import terms_move
from tvm_distir.core.redistribution.transfer import step_transfer
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
    wire = step_transfer((10, 4), (P, 0), step, (2, 2), "float32")
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
        assert not redistribute_whole.faults(cases)


def test_bytes_are_the_same_before_and_after_lowering():
    case = h.Case((10, 4), (P, 0), (0, 0), (2, 2), (0, 1, 2, 3))
    legal = LegalizeRedistribute()(redistribute_whole.module_of([case]))
    before, after = traffic(legal), traffic(LowerDistIR()(legal))
    assert before.total_sent_bytes == after.total_sent_bytes == 96
    assert [kind.op for kind in after.counts] == ["exchange"]
