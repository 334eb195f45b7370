# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""[Relax] `argmax` is wrong where NaN occurs, and -1 for a row of minus infinities

A number behind a NaN counts as greater, so that the place depends on what follows. The search
begins with the place -1 and the lowest finite number, which no minus infinity exceeds.

Expected: the place of the first NaN, where there is one, and of the first infinity, as in NumPy,
PyTorch and JAX.
"""

import numpy as np
from reporting import report, state_of, virtual_workers
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

TEST = "test_02_nan_argmax.py::test_places_of_extremes"


@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((2, 3), "float32")) -> R.Tensor((2,), "int64"):
        with R.dataflow():
            out = R.argmax(x, axis=1)
            R.output(out)
        return out


def reproduce() -> str:
    """The places of the maxima of two rows."""
    x = np.array([[1, np.nan, 0], [-np.inf, -np.inf, -np.inf]], "float32")

    def right() -> bool:
        result = virtual_workers.reference(Module, [x])
        print(f"places: {result}, NumPy: {x.argmax(1)}")
        return np.array_equal(result, x.argmax(1))

    return state_of(right)


if __name__ == "__main__":
    report(reproduce)
