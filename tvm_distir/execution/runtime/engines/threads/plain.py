# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run compiled entry functions with a plain thread per rank, without Disco.

Works with TVM's runtime-only library.
"""

from __future__ import annotations

import threading

from tvm_distir.execution.runtime.collectives import ccl
from tvm_distir.execution.runtime.engines.fork import run_turn

from .engine import ThreadJob, ThreadsEngine, one_thread_each, wait, work


class PlainEngine(ThreadsEngine):
    """The engine ``virtual`` for compiled functions; see :class:`.engine.ThreadsEngine`."""

    name = "virtual"
    records_trace = False

    def _call(self, job: ThreadJob, workers: int) -> None:
        with run_turn(), one_thread_each(len(job.machine)):
            ccl.register()
            for rank in job.machine:
                name = f"rank {rank}"
                threading.Thread(target=work, args=(job, rank), name=name, daemon=True).start()
            wait(job, self.timeout_s)
