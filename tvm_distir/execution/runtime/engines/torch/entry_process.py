# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run a rank in a process of a torch.distributed job that :mod:`~.torch.launch` started."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tvm_distir.execution.runtime.engines.fork import die_with_parent
from tvm_distir.execution.runtime.engines.job_launch import read_job, run_rank

from .engine import TorchEngine


def main(folder: Path) -> int:
    """Run a rank of the job in a folder; returns the exit code."""
    die_with_parent()
    job = read_job(folder)
    rank = job.ranks[int(os.environ["RANK"])]
    failure = run_rank(job, folder, rank, "engine torch", lambda: TorchEngine(job.timeout_s))
    return int(failure is not None)


if __name__ == "__main__":
    code = main(Path(sys.argv[1]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads that wait for messages of a failed run do not end
