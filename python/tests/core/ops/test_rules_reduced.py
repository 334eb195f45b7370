# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Rules of ops cut along what they reduce: of symbolic extents too, and their reasons."""

from __future__ import annotations

import pytest
from tvm import relax, tirx

from tvm_distir.core.ops.lookup import rule_of

op, nn = relax.op, relax.op.nn
N, M = tirx.Var("n", "int64"), tirx.Var("m", "int64")


def var(*shape, dtype="float32"):
    return relax.Var("x", relax.TensorType(list(shape), dtype))


def four(count):
    return [var(4) for _ in range(count)]


#: Per call the operand dims along which something is reduced inside, and the kind.
CALLS = {
    "layer_norm": (nn.layer_norm(var(N, M), var(M), var(M), -1), (1, 0, 0), "stat"),
    "rms_norm": (nn.rms_norm(var(N, M), var(M), -1), (1, 0), "stat"),
    "group_norm": (nn.group_norm(var(N, 4, M), *four(2), 2, 1, [2]), (2, None, None), "stat"),
    "instance_norm": (nn.instance_norm(var(N, 4, M), *four(2), 1, [2]), (2, None, None), "stat"),
    "batch_norm": (
        nn.batch_norm(var(N, 4, M), *four(4), 1, training=True),
        (0, None, None, None, None),
        "stat",
    ),
    "softmax": (nn.softmax(var(N, M), 1), (1,), "stat"),
    "variance": (op.variance(var(N, M), 1), (1,), "stat"),
    "argmax": (op.argmax(var(N, M), 1), (1,), "stat"),
    "cumsum": (op.cumsum(var(N, M), 1), (1,), "stat"),
    "topk": (op.topk(var(N, M), 3, 1), (1,), "stat"),
    "nll_loss": (nn.nll_loss(var(N, M), var(N, dtype="int64")), (0, 0), "stat"),
    "nll_loss of classes": (nn.nll_loss(var(N, M), var(N, dtype="int64")), (1, None), "sum"),
    "nll_loss_backward of samples": (
        op.grad.nll_loss_backward(var(N), var(N, M), var(N, dtype="int64"), reduction="none"),
        (0, 0, 0),
        "map",
    ),
    "take_backward": (
        op.grad.take_backward(var(N, 4), var(M, 4), var(N, dtype="int64"), 0),
        (None, 0, None),
        "map",
    ),
}


@pytest.mark.parametrize("name", sorted(CALLS))
def test_symbolic_extents(name):
    """They are cut as others are, but never padded; what is sent is counted nominally."""
    call, ins, kind = CALLS[name]
    rule = rule_of(relax.BlockBuilder().normalize(call))
    factor = next(f for f in rule.factors if f.ins == ins)
    assert factor.kind == kind
    assert not factor.uneven
    assert (factor.comm_bytes > 0) == (kind == "stat")


@pytest.mark.parametrize(
    ("call", "dim", "why"),
    [
        (op.sort(var(4, 6), 1), "in0.dim1", "depends on all others"),
        (op.argsort(var(4, 6), 1), "in0.dim1", "depends on all others"),
        (op.median(var(4, 6), 1), "in0.dim1", "medians of the parts"),
        (op.topk(var(4, 6), 6, 1), "in0.dim1", "all its elements"),
        (op.argmax(var(4, 6)), "in0.dim1", "counts all elements"),
        (op.cumsum(var(4, 6)), "in0.dim0", "flattened"),
    ],
)
def test_what_stays_whole_says_why(call, dim, why):
    rule = rule_of(relax.BlockBuilder().normalize(call))
    assert why in rule.why_replicated[dim]
