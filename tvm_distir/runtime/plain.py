# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Runs compiled entry functions with one plain thread per rank, without Disco.

The collectives are the reference in NumPy. Works with TVM's runtime-only library.
"""

from __future__ import annotations

import threading

from . import ccl
from .base import LocalResults
from .counts import CollectiveCount
from .ends import raise_failure
from .executed import count_executed
from .inputs import LocalInputs
from .runnable import Runnable
from .threads import TIMEOUT_S, make_job, one_thread_each, run_lock, wait, work

_COLLECTIVES = "python"


def run_plain(
    program: Runnable, local: LocalInputs, timeout_s: float = TIMEOUT_S
) -> tuple[LocalResults, tuple[CollectiveCount, ...]]:
    """Run every rank's entry function on its local inputs.

    Returns
    -------
    results : mapping of rank to list of arrays
    collectives : tuple of CollectiveCount

    Raises
    ------
    RuntimeError_
        The first failure of any rank: DIST0610 to DIST0613, or what the rank raised.
    """
    job = make_job(program, local, ccl.FABRICS[_COLLECTIVES], timeout_s)
    with run_lock, one_thread_each(len(job.machine)):
        ccl.register(_COLLECTIVES)
        threads = [
            threading.Thread(target=work, args=(job, rank), name=f"rank {rank}", daemon=True)
            for rank in job.machine
        ]
        for thread in threads:
            thread.start()
        wait(job, timeout_s)
    raise_failure(job.fabric, program.entries)
    return job.outputs, count_executed(program.axes, program.entries, job.fabric)
