# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Ops that StableHLO lacks are written in float32 for narrow floats, and round once."""

from __future__ import annotations

import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tvm import ir, relax

import tvm_distir as td
from tvm_distir.execution.runtime.engines.xla.engine import XlaEngine

SHAPE = (2, 64, 2, 8)


def _softmax(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    power = np.exp(x - x.max(-1, keepdims=True))
    return power / power.sum(-1, keepdims=True)


def _attention(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    heads = x.transpose(0, 2, 1, 3)
    weights = _softmax(heads @ heads.transpose(0, 1, 3, 2) * 0.5)
    return (weights @ heads).transpose(0, 2, 1, 3)


OPS: dict[str, tuple[Any, Any]] = {
    "softmax": (
        lambda x: relax.op.nn.softmax(x, 1),
        lambda x: _softmax(x.swapaxes(1, -1)).swapaxes(1, -1),
    ),
    "log_softmax": (
        lambda x: relax.op.nn.log_softmax(x, -1),
        lambda x: np.log(_softmax(x)),
    ),
    "attention": (lambda x: relax.op.nn.attention(x, x, x, scale=0.5), _attention),
    "std": (lambda x: relax.op.std(x, [1]), lambda x: x.std(1)),
}


def _module(op: str, dtype: str) -> ir.IRModule:
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType(SHAPE, dtype))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(OPS[op][0](x))
        builder.emit_func_output(out)
    return builder.get()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("op", OPS)
def test_the_result_is_the_exact_one_rounded_once(op: str, dtype: str) -> None:
    pytest.importorskip("jax", reason="the extra jax is not installed")
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16)
    x = np.random.default_rng(0).normal(0.0, 2.0, SHAPE).astype(kind)
    mod = _module(op, dtype)
    local = td.distribute(mod, td.planning.make_plan(mod, "data_parallel", {"dp": 2}))
    (got,) = td.run(local, [x], engine=XlaEngine(sys.executable))
    exact = OPS[op][1](x.astype(np.float64))
    half_step = float(ml_dtypes.finfo(kind).eps) / 2
    error = np.abs(np.asarray(got).astype(np.float64) - exact)
    assert (error <= np.abs(exact) * half_step * 1.01 + 1e-6).all()


@pytest.mark.parametrize("op", OPS)
def test_only_the_operand_and_the_result_are_narrow(op: str) -> None:
    """Between them each value is float32: every line that computes has no narrow type."""
    text = td.to_stablehlo(_module(op, "bfloat16"))
    moves = ("convert", "transpose", "composite", "func.", "@main", "func.return")
    lines = [line for line in text.splitlines() if "bf16" in line]
    assert lines and all(any(word in line for word in moves) for line in lines)
