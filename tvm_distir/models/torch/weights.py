# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read the weights of a program or an archive as arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from torch.export import ExportedProgram

from .archive import read_archive
from .signature import weight_values
from .values import as_array


def load_weights(source: ExportedProgram | str | Path) -> dict[str, npt.NDArray[np.generic]]:
    """Read the weights of a program or of its archive, by parameter name.

    Raises
    ------
    ModelError
        DIST0301, DIST0303 the archive cannot be read.
    """
    program = source if isinstance(source, ExportedProgram) else read_archive(source)
    return {name: as_array(value) for name, value in weight_values(program).items()}
