# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""[Relax] `not_equal` of floats is false where an operand is NaN

On the CPU, `!=` of floats becomes an ordered comparison, which is false for NaN. `equal` is false
as well, so that a number is neither equal to NaN nor unequal. What frameworks write for `isnan`,
`x != x`, finds nothing.

Expected: `not_equal` is true where either operand is NaN, as IEEE 754 and NumPy have it.
"""

import numpy as np
from reporting import report, state_of, virtual_workers
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

TEST = "test_03_nan_not_equal.py::test_not_equal_is_the_opposite_of_equal"


@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((3,), "float32"), y: R.Tensor((3,), "float32")) -> R.Tensor((3,), "bool"):
        with R.dataflow():
            out = R.not_equal(x, y)
            R.output(out)
        return out


def reproduce() -> str:
    """Compare numbers and NaN."""
    x = np.array([1, np.nan, np.nan], "float32")
    y = np.array([2, 2, np.nan], "float32")

    def right() -> bool:
        result = virtual_workers.reference(Module, [x, y])
        print(f"{x} != {y}: {result}")
        return np.array_equal(result, x != y)

    return state_of(right)


if __name__ == "__main__":
    report(reproduce)
