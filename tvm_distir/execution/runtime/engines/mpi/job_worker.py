# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run a rank in a process of an MPI job that :mod:`~.mpi.launch` started."""

from __future__ import annotations

import importlib
import os
import pickle
import sys
import time
from pathlib import Path

from tvm_distir.execution.runtime.collectives.fabric import worker_failed
from tvm_distir.execution.runtime.engines.job_folder import (
    JOB,
    Job,
    RunCounts,
    SavedProgram,
    failure_file,
    process_file,
    write_results,
    write_value,
)
from tvm_distir.support import DependencyError, DistIRError

from .failures import fork_worker
from .launch import START_S
from .library import load_mpi
from .world import world


def _run(job: Job, rank: int, folder: Path) -> None:
    from .engine import MpiEngine

    engine = MpiEngine(job.timeout_s)
    engine.trace = job.options.get("trace")
    outputs = engine.join(SavedProgram(job), [], "sharded")
    counts = RunCounts(engine.collectives, engine.most_in_flight)
    write_results(job, folder, rank, outputs, counts)


def main(folder: Path) -> int:
    """Run a rank of the job in a folder; a failure ends the job.

    Returns
    -------
    code : int
    """
    job: Job = pickle.loads((folder / JOB).read_bytes())
    mpi = load_mpi()
    here, size = int(mpi.COMM_WORLD.Get_rank()), int(mpi.COMM_WORLD.Get_size())
    rank = job.ranks[min(here, len(job.ranks) - 1)]
    try:
        if size != len(job.ranks):
            raise DependencyError(
                "DIST0113",
                f"{len(job.ranks)} processes were started, mpi4py sees {size}",
                place="engine mpi",
                remedy="Give the engine the launcher of the MPI that mpi4py loads.",
            )
        for name in job.preload:
            importlib.import_module(name)
        world(max(job.timeout_s, START_S))
        process_file(folder, rank).write_text(str(os.getpid()))
        _run(job, rank, folder)
    except BaseException as err:
        failure = err if isinstance(err, DistIRError) else worker_failed(err, rank, "engine mpi")
        write_value(failure_file(folder, rank), (time.time(), failure))
        mpi.COMM_WORLD.Abort(failure.exit_code)
    return 0


if __name__ == "__main__":
    place = Path(sys.argv[1])
    ended = fork_worker(place)
    sys.exit(main(place) if ended is None else ended)
