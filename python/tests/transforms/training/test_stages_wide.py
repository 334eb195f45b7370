# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Gradients of scales and shifts of half precision stay in float32 to their sums."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tvm import ir, relax
from tvm.script import relax as R

import tvm_distir as td
from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.planning.strategies.composition import make_plan
from tvm_distir.transforms.training.pipeline.expand_passes import SerializePipeline

HALF = ml_dtypes.bfloat16
MICROS, ROWS, WIDTH = 4, 16, 8


def _model(explicit: bool) -> ir.IRModule:
    """A layer norm in a function; its operands are widened by casts, or by the op itself."""
    builder = relax.BlockBuilder()
    vector = relax.TensorType([WIDTH], "bfloat16")
    data = relax.TensorType([ROWS, WIDTH], "bfloat16")
    local = [relax.Var("x", data), relax.Var("gamma", vector), relax.Var("beta", vector)]
    with builder.function("layer", local, private=True):
        with builder.dataflow():
            inputs = [builder.emit(R.astype(v, "float32")) if explicit else v for v in local]
            normed = builder.emit(R.nn.layer_norm(*inputs, axes=[-1], epsilon=1e-5))
            out = builder.emit_output(R.astype(normed, "bfloat16") if explicit else normed)
        builder.emit_func_output(out)
    layer = builder.get().get_global_var("layer")
    params = [relax.Var(str(v.name), v.ty) for v in local]
    with builder.function("main", params):
        with builder.dataflow():
            out = builder.emit_output(relax.Call(layer, params))
        builder.emit_func_output(out)
    mod = builder.get()
    mod.update_func(mod.get_global_var("main"), mod["main"].with_attr("num_input", 1))
    return mod


def _step(explicit: bool) -> ir.IRModule:
    schedule = {"kind": "1f1b", "stages": 1, "micro_batches": MICROS}
    return td.train_step(_model(explicit), "mse", "sgd", rate=1.0, master=True, schedule=schedule)


def _distributed(explicit: bool) -> Any:
    step = _step(explicit)
    plan = make_plan(step, f"pipeline:stages=1,micro_batches={MICROS}+data_parallel", {"dp": 2})
    return td.distribute(step, plan)


@pytest.mark.parametrize("explicit", [True, False])
def test_scales_and_shifts_are_reduced_once(explicit: bool) -> None:
    """By devices: the loss, and float32 sums of both vectors, behind all micro-batches."""
    result = td.simulate(td.export(_distributed(explicit)), "dgx-a100").collectives
    assert {each.kind for each in result} == {"all_reduce"}
    assert sum(each.count for each in result) == 3
    assert sum(each.bytes_per_device for each in result) == 4 + 2 * 4 * WIDTH


def test_sums_have_the_digits_of_float32() -> None:
    """Against sums over micro-batches in float32 of what the data's gradient gives."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(MICROS * ROWS, WIDTH)).astype(HALF)
    targets = rng.normal(size=x.shape).astype(HALF)
    gamma, beta = (rng.normal(size=WIDTH).astype(HALF) for _ in range(2))
    masters = [each.astype(np.float32) for each in (gamma, beta)]
    step = SerializePipeline()(_step(True))
    names = [str(p.name) for p in step["main"].params]
    inputs = {
        "x": x, "targets": targets, "gamma": gamma, "beta": beta,
        "gamma_master": masters[0], "beta_master": masters[1],
    }  # fmt: skip
    results = Reference(step).run([inputs[name] for name in names])
    wide = x.astype(np.float32)
    centred = wide - wide.mean(1, keepdims=True)
    normed = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
    out = (normed * masters[0] + masters[1]).astype(HALF).astype(np.float32)
    grad = (
        (2 * (out - targets.astype(np.float32)) / (MICROS * ROWS * WIDTH))
        .astype(HALF)
        .astype(np.float32)
    )
    expected = [masters[0] - (grad * normed).sum(0), masters[1] - grad.sum(0)]
    updated = [np.asarray(each) for each in results if np.asarray(each).dtype == np.float32][1:]
    for left, other, before in zip(updated, expected, masters, strict=True):
        moved = np.abs(other - before).max()
        assert np.abs(left - other).max() <= 2e-5 * moved  # of bfloat16 sums it is 4e-3
