# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run a rank in a process of an MPI job that :mod:`~.mpi.launch` started."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tvm_distir.execution.runtime.engines.job_folder import process_file
from tvm_distir.execution.runtime.engines.job_launch import START_S, read_job, run_rank
from tvm_distir.support import DependencyError

from .engine import MpiEngine
from .failures import fork_worker
from .library import load_mpi
from .world import world


def main(folder: Path) -> int:
    """Run a rank of the job in a folder; a failure ends the job.

    Returns
    -------
    code : int
    """
    job, mpi = read_job(folder), load_mpi()
    here, size = int(mpi.COMM_WORLD.Get_rank()), int(mpi.COMM_WORLD.Get_size())
    rank = job.ranks[min(here, len(job.ranks) - 1)]

    def make_engine() -> MpiEngine:
        if size != len(job.ranks):
            problem = f"{len(job.ranks)} processes were started, mpi4py sees {size}"
            remedy = "Give the engine the launcher of the MPI that mpi4py loads."
            raise DependencyError("DIST0113", problem, location="engine mpi", remedy=remedy)
        world(max(job.timeout_s, START_S))
        process_file(folder, rank).write_text(str(os.getpid()))
        return MpiEngine(job.timeout_s)

    failure = run_rank(job, folder, rank, "engine mpi", make_engine)
    if failure is not None:
        mpi.COMM_WORLD.Abort(getattr(failure, "exit_code", 1))
    return 0


if __name__ == "__main__":
    location = Path(sys.argv[1])
    ended = fork_worker(location)
    sys.exit(main(location) if ended is None else ended)
