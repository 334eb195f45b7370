# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run a rank in a process of a torch.distributed job that :mod:`~.torch.launch` started."""

from __future__ import annotations

import importlib
import os
import pickle
import sys
import time
from pathlib import Path
from typing import Any

from tvm_distir.execution.runtime.collectives.fabric import worker_failed
from tvm_distir.execution.runtime.engines.fork import die_with_parent
from tvm_distir.execution.runtime.engines.job_folder import (
    JOB,
    Job,
    RunCounts,
    SavedProgram,
    failure_file,
    write_results,
    write_value,
)
from tvm_distir.support import DistIRError


def _run(job: Job, rank: int, folder: Path) -> None:
    from .engine import TorchEngine

    options: dict[str, Any] = dict(job.options)
    device = str(options.pop("device"))
    trace = options.pop("trace")
    engine = TorchEngine(job.timeout_s, **options)
    engine.trace = trace
    outputs = engine.join(SavedProgram(job), [], "sharded", device)
    counts = RunCounts(engine.collectives, engine.most_in_flight)
    write_results(job, folder, rank, outputs, counts)


def main(folder: Path) -> int:
    """Run a rank of the job in a folder; returns the exit code."""
    die_with_parent()
    job: Job = pickle.loads((folder / JOB).read_bytes())
    rank = job.ranks[int(os.environ["RANK"])]
    try:
        for name in job.preload:
            importlib.import_module(name)
        _run(job, rank, folder)
    except BaseException as err:
        known = isinstance(err, DistIRError | KeyboardInterrupt)
        failure = err if known else worker_failed(err, rank, "engine torch")
        write_value(failure_file(folder, rank), (time.time(), failure))
        return 1
    return 0


if __name__ == "__main__":
    code = main(Path(sys.argv[1]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads that wait for messages of a failed run do not end
