# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Maxima and minima keep NaN, and are infinities of infinities."""

import numpy as np
import pytest
import tvm.testing
import virtual_workers
from tvm import relax

NAN, INF = np.nan, np.inf
ROWS = np.array(
    [[1, NAN, 0, 2], [NAN, 1, 2, 0], [-INF, -INF, -INF, -INF], [3, INF, 1, NAN], [4, 2, 3, 1]],
    "float32",
)


def check(make, expected, inputs=(ROWS,)):
    """An op gives what NumPy gives."""
    observed = virtual_workers.evaluate(make, inputs)
    np.testing.assert_array_equal(observed, expected)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("axis", [0, 1, None])
@pytest.mark.parametrize("name", ["max", "min"])
def test_extremes(name, axis, dtype):
    rows = ROWS.astype(dtype)
    for keepdims in (False, True):
        expected = getattr(rows, name)(axis, keepdims=keepdims)
        check(lambda x: getattr(relax.op, name)(x, axis, keepdims), expected, [rows])


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_extremes_of_two(name):
    inputs = [ROWS, ROWS[::-1].copy()]
    check(lambda x, y: getattr(relax.op, name)(x, y), getattr(np, name)(*inputs), inputs)
    inputs = [ROWS, ROWS[1]]
    check(lambda x, y: getattr(relax.op, name)(x, y), getattr(np, name)(*inputs), inputs)


def test_relu():
    check(relax.op.nn.relu, np.maximum(ROWS, 0))


@pytest.mark.parametrize("name", ["max", "min"])
def test_extremes_of_integers(name):
    rows = np.array([[3, -7, 2], [-(2**31), 0, 2**31 - 1]], "int32")
    check(lambda x: getattr(relax.op, name)(x, 1), getattr(rows, name)(1), [rows])


if __name__ == "__main__":
    tvm.testing.main()
