# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Open ``.pt2`` archives without running their code, and read weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.export import ExportedProgram

from tvm_distir.models.common.quiet import reason, warnings_ignored
from tvm_distir.models.common.spec import check_archive, check_file
from tvm_distir.support import ModelError

from .foreign_classes import register_stand_ins
from .signature import as_array, weight_values


def read_archive(path: str | Path) -> ExportedProgram:
    """Load a file of ``torch.export.save``.

    Raises
    ------
    ModelError
        DIST0301 there is no file, DIST0303 it is no archive of an exported program.
    """
    check_file(path)
    check_archive(path)
    register_stand_ins(path)
    try:
        with warnings_ignored():
            program: Any = torch.export.load(path)
    except Exception as error:  # torch raises what its readers of zip, JSON and pickle raise
        problem = f"the archive cannot be loaded: {reason(error)}"
        remedy = f"Write it with torch.export.save and torch {torch.__version__}."
        raise ModelError("DIST0303", problem, location=str(path), remedy=remedy) from error
    return program


def load_weights(source: ExportedProgram | str | Path) -> dict[str, npt.NDArray[np.generic]]:
    """Read the weights of a program or of its archive, by parameter name.

    Raises
    ------
    ModelError
        DIST0301, DIST0303 the archive cannot be read.
    """
    program = source if isinstance(source, ExportedProgram) else read_archive(source)
    return {name: as_array(value) for name, value in weight_values(program).items()}
