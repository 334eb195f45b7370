# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run compiled entry functions with a plain thread per rank, without Disco.

The collectives are the reference in NumPy. Works with TVM's runtime-only library.
"""

from __future__ import annotations

import threading

from tvm_distir.execution.runtime.collectives import ccl
from tvm_distir.execution.runtime.engines.executed import count_executed
from tvm_distir.execution.runtime.engines.fork import run_turn
from tvm_distir.execution.runtime.engines.local_engine import LocalEngine, RankTensors
from tvm_distir.execution.runtime.engines.termination import raise_failure
from tvm_distir.execution.runtime.program.runnable import Runnable

from .engine import TIMEOUT_S, make_job, one_thread_each, work

_COLLECTIVES = "python"


class PlainEngine(LocalEngine):
    """The engine for compiled functions with a plain thread per rank.

    Parameters
    ----------
    timeout_s : float
        The time for which a rank waits for another rank that is busy.
    """

    name = "virtual"

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self.timeout_s = timeout_s

    def run_tensors(self, program: Runnable, tensors: RankTensors) -> RankTensors:
        """Run every rank's entry function on its tensors.

        Raises
        ------
        EngineError
            The first failure of any rank: DIST0610 to DIST0613, or what the rank raised.
        """
        job = make_job(program, tensors, ccl.FABRICS[_COLLECTIVES], self.timeout_s)
        with run_turn(), one_thread_each(len(job.machine)):
            ccl.register(_COLLECTIVES)
            threads = [
                threading.Thread(target=work, args=(job, rank), name=f"rank {rank}", daemon=True)
                for rank in job.machine
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        raise_failure(job.fabric, program.entries)
        fabric = job.fabric
        self.collectives = count_executed(
            program.axes, program.entries, fabric.executed, fabric.received
        )
        return job.outputs
