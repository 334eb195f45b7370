# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The engine ``mpi`` runs a process per rank of an MPI job."""

from __future__ import annotations
