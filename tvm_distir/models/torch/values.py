# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The tensors that a program holds, as arrays."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch
from torch.export import ExportedProgram


def stored_values(program: ExportedProgram) -> dict[str, Any]:
    """Parameters, buffers and constants that the program has values of, by name."""
    held: dict[str, Any] = {**program.constants, **program.state_dict}
    return {name: value for name, value in held.items() if _has_values(value)}


def _has_values(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or value.device.type == "meta":
        return False
    return not isinstance(value, torch._subclasses.FakeTensor)


def as_array(value: Any) -> npt.NDArray[np.generic]:
    """A tensor's values, bfloat16 as NumPy's of ml_dtypes; a view where that is possible."""
    value = value.detach().cpu().contiguous()
    if value.dtype is torch.bfloat16:
        bits: npt.NDArray[np.generic] = value.view(torch.uint16).numpy()
        return bits.view(ml_dtypes.bfloat16)
    array: npt.NDArray[np.generic] = value.numpy()
    return array
