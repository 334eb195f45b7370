# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Elementwise kernels that follow each other run as one, with the bits of separate kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import ir, relax
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_distir as td
from tvm_distir.core.rewriting import all_bindings
from tvm_distir.execution.runtime.program import compilation
from tvm_distir.transforms import kernel_passes
from tvm_distir.transforms.kernels.kernel_joiner import join_elementwise

pytestmark = pytest.mark.quick

UPDATES = {"sgd": ("sgd", {"momentum": 0.9, "decay": 0.01}), "adam": ("adam", {"decay": 0.01})}
UPDATES |= {name: (name, {}) for name in ("adamw", "lion")}


def _step(optimizer: str, dtype: str = "float32", **options: Any) -> ir.IRModule:
    # 7 x 11 and 11 elements: neither divides a chunk
    model = td.zoo.build("mlp", {"batch": 2, "layers": 1, "hidden": 11, "dtype": dtype})
    return td.train_step(model, optimizer=optimizer, **options)


def _kernels(mod: ir.IRModule) -> list[str]:
    lowered = tvm.transform.Sequential(kernel_passes())(mod)
    calls = [b.value for b in all_bindings(lowered["main"].body) if isinstance(b.value, ir.Call)]
    return [str(call.args[0].name_hint) for call in calls if len(call.args)]


def _separate() -> list[Any]:
    passes = [each for each in kernel_passes() if each is not join_elementwise]
    assert len(passes) == len(kernel_passes()) - 1
    return passes


def _results(mod: ir.IRModule, inputs: list[Any]) -> list[Any]:
    machine = relax.VirtualMachine(compilation.compile_module(mod), tvm.cpu())
    return [result.numpy() for result in machine["main"](*map(tvm.runtime.tensor, inputs))]


def _inputs(mod: ir.IRModule) -> list[Any]:
    draw = np.random.default_rng(0)
    types = [param.ty for param in mod["main"].params]
    return [(4 * draw.random([int(n) for n in ty.shape])).astype(str(ty.dtype)) for ty in types]


@pytest.mark.parametrize("name", UPDATES)
def test_an_update_is_one_kernel_per_weight_with_the_bits_of_separate_ones(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimizer, options = UPDATES[name]
    step = _step(optimizer, **options)
    kernels = _kernels(step)
    updates = kernels[-2:]
    assert all(kernel.startswith("joined") for kernel in updates), kernels
    assert sum(kernel.startswith("joined") for kernel in kernels) == 2
    inputs = _inputs(step)
    joined = _results(step, inputs)
    monkeypatch.setattr(compilation, "kernel_passes", _separate)
    for one, other in zip(joined, _results(step, inputs), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("master", [False, True])
def test_half_precision_is_rounded_as_between_separate_kernels(
    master: bool, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = _step("adamw", dtype=dtype, master=master)
    joins = any(kernel.startswith("joined") for kernel in _kernels(step))
    assert joins == (master or dtype == "float16")  # kernels of bfloat16 stay separate
    inputs = _inputs(step)
    joined = _results(step, inputs)
    monkeypatch.setattr(compilation, "kernel_passes", _separate)
    for one, other in zip(joined, _results(step, inputs), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_kernel_does_not_wait_for_another_kind_of_kernel() -> None:
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((8, 8), "float32"), w: R.Tensor((8, 8), "float32")) -> R.Tuple(
            R.Tensor((8, 8), "float32"), R.Tensor((8, 8), "float32")
        ):
            with R.dataflow():
                a = R.multiply(x, x)
                b = R.matmul(x, w)
                c = R.add(a, b)
                d = R.exp(c)
                R.output(a, d)
            return (a, d)

    kernels = _kernels(Module)
    assert kernels == ["multiply", "matmul", "joined"]


def test_results_of_a_group_that_are_read_between_end_it() -> None:
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((4, 8), "float32"), y: R.Tensor((8,), "float32")) -> R.Object:
            with R.dataflow():
                a = R.multiply(x, x)
                b = R.exp(a)
                c = R.exp(y)
                d = R.add(b, c)
                e = R.sqrt(b)
                R.output(d, e)
            return (d, e)

    kernels = _kernels(Module)
    assert kernels == ["joined", "tir_exp1", "add", "tir_sqrt"]
    inputs = [np.ones((4, 8), "float32"), np.zeros(8, "float32")]
    first, second = _results(Module, inputs)
    np.testing.assert_allclose(first, np.full((4, 8), np.e + 1), rtol=1e-6)
    np.testing.assert_allclose(second, np.full((4, 8), np.sqrt(np.e)), rtol=1e-6)


@pytest.mark.parametrize("name", ["equal", "not_equal", "less_equal", "subtract", "divide"])
def test_values_that_are_compared_with_themselves_may_be_nan(name: str) -> None:
    builder, x = relax.BlockBuilder(), relax.Var("x", R.Tensor((96,), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            same = builder.emit(relax.op.astype(getattr(relax.op, name)(x, x), "float32"))
            square = builder.emit(relax.op.multiply(x, x))
            results = [builder.emit_output(v) for v in (relax.op.add(same, same), square)]
        builder.emit_func_output(relax.Tuple(results))
    assert any(kernel.startswith("joined") for kernel in _kernels(builder.get()))
    values = np.resize(np.array([1.5, np.nan, np.inf, -np.inf, 0.0], "float32"), 96)
    total, square = _results(builder.get(), [values])
    with np.errstate(invalid="ignore"):
        expected = getattr(np, name)(values, values).astype("float32")
        np.testing.assert_array_equal(total, expected + expected)
        np.testing.assert_array_equal(square, values * values)
