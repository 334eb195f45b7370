# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Further kernels treat NaN and infinities as NumPy does; no contribution repairs them yet."""

import ctypes
from pathlib import Path

import numpy as np
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
    np.testing.assert_array_equal(virtual_workers.evaluate(make, [ROWS]), expected)


def test_sort():
    """The sorts stand in a library that TVM loads with its backends, here by itself."""
    ctypes.CDLL(str(Path(tvm.__file__).parent / "lib" / "libtvm_runtime_extra.so"))
    check(lambda x: relax.op.sort(x, 1), np.sort(ROWS, 1))


def test_sign():
    check(relax.op.sign, np.sign(ROWS))


def test_product_with_zero():
    zero = relax.const(0, "float32")
    check(lambda x: relax.op.multiply(x, zero), ROWS * np.float32(0))


if __name__ == "__main__":
    tvm.testing.main()
