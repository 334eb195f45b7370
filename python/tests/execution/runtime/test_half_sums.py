# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Sums of 16-bit floats are accumulated in float32: numbers, kernels, CUDA accumulators."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import ir, relax, tirx

import tvm_distir as td
from tests.execution.runtime.half_sum_cases import CASES
from tvm_distir.transforms import kernel_passes
from tvm_distir.transforms.kernels.accumulation import is_narrow

KINDS = {"bfloat16": np.dtype(ml_dtypes.bfloat16), "float16": np.dtype(np.float16)}
STEP = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
"""Relative error of a number that is rounded once, at most."""
PLAN = {"schema_version": 1, "mesh": {"dp": 1}, "rules": []}


def numbers(dtype: str) -> dict[str, list[Any]]:
    """Positive floats up to one, and the whole numbers of the cases."""
    rng = np.random.default_rng(0)
    return {
        name: [
            rng.random(x).astype(KINDS[dtype]) if isinstance(x, tuple) else x for x in case.operands
        ]
        for name, case in CASES.items()
    }


def module(dtype: str) -> Any:
    """All cases in one function, which returns their results in order."""
    builder = relax.BlockBuilder()
    params = {
        name: [
            relax.Var(f"{name}_{n}", relax.TensorType(list(x.shape), str(x.dtype)))
            for n, x in enumerate(operands)
        ]
        for name, operands in numbers(dtype).items()
    }
    with builder.function("main", [p for row in params.values() for p in row]):
        with builder.dataflow():
            results = [builder.emit(CASES[name].call(*row)) for name, row in params.items()]
            out = builder.emit_output(relax.Tuple(results))
        builder.emit_func_output(out)
    return builder.get()


@pytest.mark.parametrize("engine", ["virtual", "threads"])
@pytest.mark.parametrize("dtype", KINDS)
def test_long_sums(dtype: str, engine: str) -> None:
    values = numbers(dtype)
    arrays = [x for row in values.values() for x in row]
    results = td.run(td.distribute(module(dtype), PLAN), arrays, engine=engine)
    errors = {}
    for (name, operands), got in zip(values.items(), results, strict=True):
        assert str(got.dtype) == dtype, name
        wide = [x if x.dtype.kind == "i" else x.astype("float64") for x in operands]
        exact = CASES[name].value(*wide)
        errors[name] = np.abs(got.astype("float64") - exact).max() / np.abs(exact).max()
    assert {name: e for name, e in errors.items() if not e <= 1.01 * STEP[dtype]} == {}


@pytest.mark.parametrize("target", ["llvm", "nvidia/nvidia-h100"])
@pytest.mark.parametrize("dtype", KINDS)
def test_no_kernel_adds_or_multiplies_narrow_floats(dtype: str, target: str) -> None:
    with tvm.target.Target(target):
        kernels = tvm.transform.Sequential(kernel_passes())(module(dtype))
    narrow: list[str] = []

    def visit(node: Any) -> None:
        if is_narrow(str(node.ty.dtype)):
            narrow.append(str(node))

    functions = [fn for fn in kernels.functions.values() if isinstance(fn, tirx.PrimFunc)]
    assert len(functions) >= len(CASES)
    for fn in functions:
        tvm_ffi.structural_walk(fn.body, ((tirx.Add, tirx.Mul, tirx.Div), visit))
    assert narrow == []


@pytest.mark.skipif(
    tvm_ffi.get_global_func("target.build.cuda", allow_missing=True) is None,
    reason="this build of apache-tvm generates no code for CUDA",
)
@pytest.mark.parametrize("dtype", KINDS)
def test_accumulators_of_a_gpu_are_float32(dtype: str) -> None:
    builder = relax.BlockBuilder()
    shapes = {"x": (64, 512), "w": (512, 64), "images": (1, 64, 8, 8), "filters": (8, 64, 3, 3)}
    x, w, images, filters = (
        relax.Var(name, relax.TensorType(shape, dtype)) for name, shape in shapes.items()
    )
    with builder.function("main", [x, w, images, filters]):
        with builder.dataflow():
            product = builder.emit(relax.op.matmul(x, w))
            total = builder.emit(relax.op.sum(x, [1]))
            conv = builder.emit(relax.op.nn.conv2d(images, filters))
            out = builder.emit_output(relax.Tuple([product, total, conv]))
        builder.emit_func_output(out)
    program = td.compile(td.distribute(builder.get(), PLAN), target="cuda:sm_90", dispatch="tvm")
    source = program.kernel_source(program.entries[0])
    accumulators = re.findall(r"(\w+) ((?:matmul|x_red|conv2d)\w*local\w*)\[", source)
    assert {name.split("_")[0] for _, name in accumulators} == {"conv2d", "x"}
    fragments = re.findall(r"wmma::accumulator, \d+, \d+, \d+, (\w+)>", source)
    assert fragments and {kind.rstrip("24") for kind, _ in accumulators} | {*fragments} == {"float"}


def test_an_explicit_rounding_is_kept() -> None:
    """A cast of float32 to float16 rounds, also where TVM has fused it with what follows.

    TVM itself keeps bfloat16 inside of kernels in float32.
    """
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            high = builder.emit(relax.op.astype(x, "float16"))
            low = builder.emit(relax.op.subtract(x, builder.emit(relax.op.astype(high, "float32"))))
            out = builder.emit_output(relax.op.multiply(high, relax.op.astype(low, "float16")))
        builder.emit_func_output(out)
    fused = tvm.transform.Sequential(
        [
            relax.transform.LegalizeOps(),
            relax.transform.AnnotateTIROpPattern(),
            relax.transform.FuseOps(),
            relax.transform.FuseTIR(),
        ]
    )(builder.get())
    assert sum(isinstance(fn, tirx.PrimFunc) for fn in fused.functions.values()) == 1
    values = np.array([1.003, 1 / 3, 1.0, -7.77], "float32")
    (got,) = td.run(td.distribute(fused, PLAN), [values], engine="virtual")
    rounded = values.astype(KINDS["float16"])
    rest = (values - rounded.astype("float32")).astype(KINDS["float16"])
    assert np.abs(rest.astype("float32")).max() > 0
    np.testing.assert_array_equal(got.astype("float32"), (rounded * rest).astype("float32"))


def test_kernels_of_float32_stay() -> None:
    with tvm.target.Target("llvm"):
        legal = tvm.transform.Sequential(kernel_passes()[:-1])(_product("float32"))
        whole = tvm.transform.Sequential(kernel_passes())(_product("float32"))
    ir.assert_structural_equal(legal, whole)


def _product(dtype: str) -> Any:
    builder = relax.BlockBuilder()
    x, w = (relax.Var(n, relax.TensorType((8, 8), dtype)) for n in "xw")
    with builder.function("main", [x, w]):
        with builder.dataflow():
            out = builder.emit_output(relax.op.matmul(x, w))
        builder.emit_func_output(out)
    return builder.get()
