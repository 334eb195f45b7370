# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""`argmax` and `argmin` find the first NaN, and the first of infinities."""

import numpy as np
import pytest
import tvm.testing
import virtual_workers
from tvm import relax

NAN, INF = np.nan, np.inf
ROWS = np.array(
    [
        [1, NAN, 0, NAN],
        [NAN, 1, 2, 0],
        [-INF, -INF, -INF, -INF],
        [INF, INF, INF, INF],
        [3, INF, 1, -INF],
        [4, 2, 4, 2],
    ],
    "float32",
)


def check(name, rows, axis, keepdims=False):
    """An op gives what NumPy gives."""
    op = getattr(relax.op, name)
    observed = virtual_workers.evaluate(lambda x: op(x, axis, keepdims), [rows])
    np.testing.assert_array_equal(observed, getattr(np, name)(rows, axis, keepdims=keepdims))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_places_of_extremes(name, dtype):
    rows = ROWS.astype(dtype)
    for axis in (0, 1, None):
        check(name, rows, axis)
    check(name, rows, 1, keepdims=True)


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_places_of_extremes_of_integers(name):
    check(name, np.array([[3, -7, 3], [2**31 - 1, 0, -(2**31)], [-(2**31)] * 3], "int32"), 1)


if __name__ == "__main__":
    tvm.testing.main()
