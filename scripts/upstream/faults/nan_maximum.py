# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""[Relax] `max`, `maximum` and `relu` drop NaN

The maximum of floats is compiled to a selection by `a > b`, which is false for NaN: what comes
behind a NaN takes its place. A row that holds NaN has a maximum that depends on the order of its
elements, a NaN in a network ends at the next `relu`, and a row of minus infinities has the lowest
finite number as its maximum.

Expected: NaN is the result where an operand is NaN, and an infinity of infinities, as in NumPy,
PyTorch, JAX and ONNX.
"""

import numpy as np
from reporting import report, state_of, virtual_workers
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

TEST = "test_01_nan_maximum.py::test_extremes"


@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((3, 3), "float32")) -> R.Tensor((3,), "float32"):
        with R.dataflow():
            out = R.max(x, axis=1)
            R.output(out)
        return out


def reproduce() -> str:
    """The maxima of three rows."""
    x = np.array([[1, np.nan, 0], [np.nan, 1, 2], [-np.inf, -np.inf, -np.inf]], "float32")

    def right() -> bool:
        result = virtual_workers.reference(Module, [x])
        print(f"maxima: {result}, NumPy: {x.max(1)}")
        return np.array_equal(result, x.max(1), equal_nan=True)

    return state_of(right)


if __name__ == "__main__":
    report(reproduce)
