# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Build dropout kernels with stored masks."""

from __future__ import annotations

from typing import Any

from tvm_distir.core import DROPOUT_KERNEL, DROPOUT_RATE_ATTR, known_shape
from tvm_distir.transforms.training.autodiff.functions import Functions

from .masks import mask_keeping_kernel, masked_kernel


class MaskKernels:
    """Builder of the two kernels of a dropout, once per type and rate.

    Parameters
    ----------
    functions : Functions
        New ones are added.
    """

    def __init__(self, functions: Functions) -> None:
        self.functions = functions
        self._made: dict[tuple[Any, ...], tuple[Any, Any]] = {}

    def __call__(self, handle: Any, ty: Any) -> tuple[Any, Any] | None:
        """Return the kernel that stores the mask, and the kernel that reads it.

        Parameters
        ----------
        handle : GlobalVar
            Of the kernel; None is returned where it draws no mask.
        ty : TensorType
            Of its result.
        """
        kernel = self.functions.of.get(str(handle.name_hint))
        rate = (getattr(kernel, "attrs", None) or {}).get(DROPOUT_RATE_ATTR)
        if rate is None:
            return None
        rate = float(rate)
        shape, dtype = known_shape(ty) or (), str(ty.dtype)
        key = (shape, dtype, rate)
        if key not in self._made:
            keeping = mask_keeping_kernel(shape, dtype, rate)
            masked = masked_kernel(shape, dtype, rate)
            self._made[key] = (
                self.functions.add(f"{DROPOUT_KERNEL}_keeping", keeping),
                self.functions.add(f"{DROPOUT_KERNEL}_masked", masked),
            )
        return self._made[key]


__all__ = ["MaskKernels"]
