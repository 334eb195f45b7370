# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Open ``.pt2`` archives without running their code."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from tvm_distir.models.common.quiet import reason
from tvm_distir.models.common.spec import check_file
from tvm_distir.support import ModelError


def read_archive(path: str | Path) -> ExportedProgram:
    """Load a file of ``torch.export.save``.

    Raises
    ------
    ModelError
        DIST0301 there is no file, DIST0303 it is no archive of an exported program.
    """
    check_file(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program: Any = torch.export.load(path)
    except Exception as error:  # torch raises what its readers of zip, JSON and pickle raise
        raise ModelError(
            "DIST0303",
            f"the archive cannot be loaded: {reason(error)}",
            place=str(path),
            remedy=f"Write it by torch.export.save, with torch {torch.__version__}.",
        ) from error
    return program
