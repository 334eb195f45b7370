# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""How well a table of kernels predicts those that it leaves out."""

from __future__ import annotations

import numpy as np

from tvm_distir.hardware.systems.kernel_tables import KernelTable


def left_out_errors(table: KernelTable) -> np.ndarray:
    """Return the relative error of each kernel, predicted from all others.

    Notes
    -----
    Rasmussen and Williams 2006, equation 5.12. The power law is that of all kernels.
    """
    covariance, residual = table.regression
    inverse = np.linalg.inv(covariance)
    return np.asarray(np.expm1(-(inverse @ residual) / np.diag(inverse)))
