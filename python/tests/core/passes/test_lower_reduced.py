# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Ops cut along what they reduce, scan or look up: several mesh axes, faults, what is sent."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from tvm import relax

import tvm_distir as td
from tests.core.passes import lower_harness as h
from tvm_distir.core.ops.families import looking_up, losses, ordering, reductions
from tvm_distir.core.ops.local import statistics
from tvm_distir.core.passes.legalize.passes import LegalizeRedistribute
from tvm_distir.core.passes.lower.passes import LowerDistIR
from tvm_distir.support.errors.tree import EngineError

nn, op = relax.op.nn, relax.op
TENSOR = "float32"


def scaled(*names):
    return [(name, (6,), TENSOR) for name in names]


CASES = {
    "softmax": ([("x", (4, 7), TENSOR)], lambda x: nn.softmax(x, 1)),
    "layer_norm": (
        [("x", (3, 4, 6), TENSOR), ("g", (4, 6), TENSOR), ("b", (4, 6), TENSOR)],
        lambda x, g, b: nn.layer_norm(x, g, b, [1, 2]),
    ),
    "rms_norm": ([("x", (3, 6), TENSOR), *scaled("g")], lambda x, g: nn.rms_norm(x, g, [-1])),
    "group_norm": (
        [("x", (2, 6, 5, 2), TENSOR), *scaled("g", "b")],
        lambda x, g, b: nn.group_norm(x, g, b, 2, 1, [2, 3]),
    ),
    "instance_norm": (
        [("x", (2, 6, 5, 2), TENSOR), *scaled("g", "b")],
        lambda x, g, b: nn.instance_norm(x, g, b, 1, [2, 3]),
    ),
    "batch_norm": (
        [("x", (3, 6, 5), TENSOR), *scaled("g", "b", "m", "v")],
        lambda x, g, b, m, v: nn.batch_norm(x, g, b, m, v, 1, training=True),
    ),
    "variance": ([("x", (4, 5, 6), TENSOR)], lambda x: op.variance(x, [1, 2])),
    "argmax": ([("x", (4, 6), TENSOR)], lambda x: op.argmax(x, 1)),
    "cumsum": ([("x", (3, 8), TENSOR)], lambda x: op.cumsum(x, 1)),
    "cumprod": ([("x", (8, 3), TENSOR)], lambda x: op.cumprod(x, 0)),
    "topk": ([("x", (4, 12), TENSOR)], lambda x: op.topk(x, 5, 1)),
    "nll_loss": (
        [("x", (6, 8), TENSOR), ("t", (6,), "int64", 8)],
        lambda x, t: nn.nll_loss(x, t),
    ),
    "nll_loss_backward": (
        [("g", (), TENSOR), ("x", (6, 8), TENSOR), ("t", (6,), "int64", 8)],
        lambda g, x, t: op.grad.nll_loss_backward(g, x, t),
    ),
    "take_backward": (
        [("g", (6, 4), TENSOR), ("x", (8, 4), TENSOR), ("i", (6,), "int64", 8)],
        lambda g, x, i: op.grad.take_backward(g, x, i, 0),
    ),
}


def outcome(specs, make, mesh, factors, shift=0):
    """What the sharded call gives on virtual devices, and what the whole one does."""
    whole, call = h.whole_module(specs, make)
    values = [v + shift if v.dtype.kind == "f" else v for v in h.draw(specs)]
    values = [np.abs(v) if s[0] == "v" else v for s, v in zip(specs, values, strict=True)]
    mod = h.distributed([s[:1] for s in specs], call, mesh, factors)
    mod = LowerDistIR()(LegalizeRedistribute()(mod))
    return h.run_virtual(mod, values), h.reference(whole, values)


def close(got, expected):
    return all(
        np.allclose(np.asarray(a), b, rtol=1e-4, atol=1e-4, equal_nan=True)
        for a, b in zip(got, expected, strict=True)
    )


@pytest.mark.parametrize("name", sorted(CASES))
def test_two_mesh_axes(name):
    """All pairs of factors on a 2 x 2 mesh, the same one twice where it comes out even.

    One order of each pair: the axes of a mesh are alike to a local form. The first pair of unlike
    factors runs in both orders, to hold that.
    """
    specs, make = CASES[name]
    _, call = h.whole_module(specs, make)
    rule = h.rule_for(call)
    pairs = list(itertools.combinations_with_replacement(rule.factors, 2))
    swapped = [pair[::-1] for pair in pairs if pair[0] is not pair[1]][:1]
    ran = 0
    for first, second in pairs + swapped:
        fitting = all(h.fits(f, 2) for f in (first, second))
        if not fitting or (first is second and first.size % 4):
            continue
        if all(f.kind == "map" and f.ins[0] is not None for f in (first, second)):
            continue  # nothing is reduced or looked up
        got, expected = outcome(specs, make, h.mesh_of(2, 2), [first, second])
        assert close(got, expected), (first, second)
        ran += 1
    assert ran >= 2


def same(cx, x, *_):
    return x


def everything(cx, places, axes, rows):
    """As if every row looked up were here."""
    here = cx.emit(op.greater_equal(places, relax.const(0, "int64")))
    return here, cx.emit(op.clip(places, 0, rows - 1))


#: What is broken, and which dim of which operand is cut over how many devices.
FAULTS = {
    "layer_norm": ((statistics, "reduced", same), (0, 2), 2),
    "rms_norm": ((statistics, "reduced", same), (0, 1), 2),
    "group_norm": ((statistics, "reduced", same), (0, 3), 2),
    "instance_norm": ((statistics, "reduced", same), (0, 2), 2),
    "batch_norm": ((statistics, "fill_padding", same), (0, 2), 2),
    "variance": ((statistics, "fill_padding", same), (0, 1), 2),
    "argmax": ((reductions, "reduced", same), (0, 1), 3),
    "topk": ((ordering, "fill_padding", same), (0, 1), 5),
    "cumsum": ((ordering, "fetched", same), (0, 1), 4),
    "cumprod": ((ordering, "fetched", same), (0, 0), 4),
    "nll_loss_backward": ((losses, "own_positions", everything), (1, 1), 2),
    "take_backward": ((looking_up, "own_positions", everything), (1, 0), 2),
}


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_a_planted_fault_is_seen(monkeypatch, name):
    """A statistic not reduced, padding not masked, rows of others taken as own."""
    specs, make = CASES[name]
    fault, (operand, dim), ranks = FAULTS[name]
    _, call = h.whole_module(specs, make)
    factors = [next(f for f in h.rule_for(call).factors if f.ins[operand] == dim)]
    good, expected = outcome(specs, make, h.mesh_of(ranks), factors, shift=-5)
    assert close(good, expected)
    monkeypatch.setattr(*fault)
    try:
        bad, _ = outcome(specs, make, h.mesh_of(ranks), factors, shift=-5)
    except EngineError as error:
        assert error.code == "DIST0604"  # devices hold different results
    else:
        assert not close(bad, expected)


SENT = {
    "layer_norm": {"all_reduce": [3, 3]},
    "rms_norm": {"all_reduce": [3]},
    "group_norm": {"all_reduce": [2 * 2 * 2]},
    "batch_norm": {"all_reduce": [6, 6]},
    "softmax": {"all_reduce": [4, 4]},
    "nll_loss": {"all_reduce": [2]},
    "topk": {"all_gather": [2 * 4 * 5, 2 * 4 * 5]},
}


@pytest.mark.parametrize("name", sorted(SENT))
def test_what_is_sent(name):
    """Statistics only: the elements of the results of the collectives, as the program has them."""
    specs, make = CASES[name]
    _, call = h.whole_module(specs, make)
    factor = next(f for f in h.rule_for(call).factors if f.kind == "stat")
    mod = h.distributed([s[:1] for s in specs], call, h.mesh_of(2), [factor], gather=False)
    program = td.export(LowerDistIR()(LegalizeRedistribute()(mod)))
    matches = {}
    for function in program.functions["main"].ops:
        if function.kind == "collective":
            matches.setdefault(function.collective, []).append(function.payload_bytes // 4)
    assert matches == SENT[name]
