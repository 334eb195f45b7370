# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Kernels treat NaN and infinities as NumPy does."""

import ctypes
from pathlib import Path

import numpy as np
import pytest
import tvm
import tvm.testing
import virtual_workers
from tvm import relax

NAN, INF = np.nan, np.inf
ROWS = np.array(
    [[1, NAN, 0, 2], [NAN, 1, 2, 0], [-INF, -INF, -INF, -INF], [3, INF, 1, NAN], [4, 2, 3, 1]],
    "float32",
)


def check(make, expected):
    """An op on the rows gives what NumPy gives."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(list(ROWS.shape), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(make(x))
        builder.emit_func_output(result)
    observed = virtual_workers.reference(builder.finalize(), [ROWS])
    np.testing.assert_array_equal(observed, expected)


def test_not_equal_is_the_opposite_of_equal():
    check(lambda x: relax.op.not_equal(x, x), np.isnan(ROWS))


@pytest.mark.parametrize("name", ["max", "min"])
def test_extremes(name):
    check(lambda x: getattr(relax.op, name)(x, 1), getattr(ROWS, name)(1))


def test_relu():
    check(relax.op.nn.relu, np.maximum(ROWS, 0))


def test_sort():
    """The sorts stand in a library that TVM loads with its backends, here by itself."""
    ctypes.CDLL(str(Path(tvm.__file__).parent / "lib" / "libtvm_runtime_extra.so"))
    check(lambda x: relax.op.sort(x, 1), np.sort(ROWS, 1))


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_places_of_extremes(name):
    check(lambda x: getattr(relax.op, name)(x, 1), getattr(ROWS, name)(1))


def test_sign():
    check(relax.op.sign, np.sign(ROWS))


def test_product_with_zero():
    zero = relax.const(0, "float32")
    check(lambda x: relax.op.multiply(x, zero), ROWS * np.float32(0))


if __name__ == "__main__":
    tvm.testing.main()
