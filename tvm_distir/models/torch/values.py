# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read the tensors of a program as arrays."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch
from torch.export import ExportedProgram


def stored_values(program: ExportedProgram) -> dict[str, Any]:
    """Return the stored parameters, buffers and constants of the program, by name."""
    held: dict[str, Any] = {**program.constants, **program.state_dict}
    return {name: value for name, value in held.items() if _has_values(value)}


def _has_values(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or value.device.type == "meta":
        return False
    return not isinstance(value, torch._subclasses.FakeTensor)


def as_array(value: Any) -> npt.NDArray[np.generic]:
    """Return a tensor's values, bfloat16 by ml_dtypes, as a view if possible."""
    value = value.detach().cpu().contiguous()
    if value.dtype is torch.bfloat16:
        bits: npt.NDArray[np.generic] = value.view(torch.uint16).numpy()
        return bits.view(ml_dtypes.bfloat16)
    array: npt.NDArray[np.generic] = value.numpy()
    return array
