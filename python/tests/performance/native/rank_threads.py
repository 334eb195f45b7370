# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Ranks as threads of the test, meeting in a native fabric."""

from __future__ import annotations

import threading


def run_ranks(fabric, ranks, body, limit_s=60):
    """Run ``body(rank)`` on one worker thread per rank; returns results or errors by rank."""
    got = {}

    def work(rank):
        try:
            with fabric.worker(rank):
                got[rank] = body(rank)
            fabric.finish(rank)
        except BaseException as err:
            fabric.fail(rank, f"{type(err).__name__}: {err}")
            got[rank] = err

    threads = [threading.Thread(target=work, args=(r,), daemon=True) for r in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(limit_s)
    assert not any(t.is_alive() for t in threads), "a rank hangs"
    return got
