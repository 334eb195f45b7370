# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""`not_equal` is true where an operand is NaN."""

import numpy as np
import pytest
import tvm.testing
import virtual_workers
from tvm import relax

NAN, INF = np.nan, np.inf
ROWS = np.array([[1, NAN, 0, 2], [NAN, 1, INF, -INF]], "float32")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_not_equal_is_the_opposite_of_equal(dtype):
    rows = ROWS.astype(dtype)
    for other in (rows, rows[0], rows[::-1].copy()):
        observed = virtual_workers.evaluate(relax.op.not_equal, [rows, other])
        np.testing.assert_array_equal(observed, rows != other)


def test_not_equal_of_integers():
    x, y = np.array([1, 2, 3]), np.array([1, 3, 3])
    np.testing.assert_array_equal(virtual_workers.evaluate(relax.op.not_equal, [x, y]), x != y)


if __name__ == "__main__":
    tvm.testing.main()
