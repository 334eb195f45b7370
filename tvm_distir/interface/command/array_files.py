# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write the arrays that a run returns to a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvm_distir.support import UsageError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from .outputs import Outputs

_EXTENSIONS = (".npz", ".safetensors")


def check_array_file(path: Path | None) -> None:
    """Refuse (UsageError DIST0152) an output that is no file of arrays."""
    if path is not None and path.suffix not in _EXTENSIONS:
        problem = f'"{path}" ends with neither .npz nor .safetensors'
        raise UsageError("DIST0152", problem, location="-o", remedy="Use one of these extensions.")


def add_arrays(
    outputs: Outputs, target: Any, arrays: Mapping[str, npt.NDArray[np.generic]]
) -> None:
    """Add a file of arrays by name to the outputs of a command.

    Parameters
    ----------
    outputs : Outputs
    target : Path
        The reserved file; its extension sets the format.
    arrays : mapping of str to array
    """
    import numpy as np

    from tvm_distir.execution.deployment import safetensors

    def write(path: str) -> None:
        if target.suffix == ".npz":
            with open(path, "wb") as file:
                np.savez(file, allow_pickle=False, **arrays)
        else:
            described = {name: (array.shape, str(array.dtype)) for name, array in arrays.items()}
            safetensors.write(Path(path), described, arrays.__getitem__)

    outputs.add(target, write)
