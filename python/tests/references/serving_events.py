# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run the event loops of serving engines in plain Python (``passes/simulate/serving.cc``)."""

from __future__ import annotations

from bisect import insort
from dataclasses import replace

import numpy as np

from tests.references.serving_engine import ReferenceEngine, ServedRequest
from tvm_distir.planning.serving.engine_loop import EngineLoop, ServedRequests
from tvm_distir.planning.serving.lengths import Ints
from tvm_distir.planning.serving.workload import Requests


class ReferenceReplicas:
    """Serves requests by engines in order of time, and routes each when it arrives.

    Parameters
    ----------
    requests : Requests
    loop : EngineLoop
    """

    def __init__(self, requests: Requests, loop: EngineLoop) -> None:
        self.requests, self.loop, filled = requests, loop, loop.filled
        self.entries = [
            ServedRequest(*[*columns, filled, 0 if filled else columns[1]])
            for columns in np.stack(list(vars(requests).values()), axis=1).tolist()
        ]
        self.unfinished = len(self.entries)
        self.engines: list[ReferenceEngine] = []
        for _ in range(loop.replicas.count):
            free = [0] * loop.times.stages
            self.engines += [
                ReferenceEngine(loop, requests, self.entries, free, self.ended) for _ in free
            ]
        first = min(loop.users, len(self.entries)) if loop.users else len(self.entries)
        arrivals = enumerate(self.entries[:first])
        self.arriving = sorted((e.arrival + loop.host_ps, n) for n, e in arrivals)
        self.later = list(range(first, len(self.entries)))

    def run(self) -> list[tuple[Ints, ServedRequests]]:
        """Return, for each replica, the places of its requests and their times."""
        routed = 0
        while self.unfinished:
            ready = [
                (max(x.now, x.stages[0]), x.now, k)
                for k, x in enumerate(self.engines)
                if x.running or x.queued
            ]
            if self.arriving and (not ready or self.arriving[0][0] <= min(ready)[0]):
                time, number = self.arriving.pop(0)
                replica = routed % len(self.engines)
                if self.loop.replicas.router == "least_requests":
                    loads = [self._in_flight(k, time) for k in range(len(self.engines))]
                    replica = loads.index(min(loads))
                routed += 1
                self.entries[number].replica = replica
                engine = self.engines[replica]
                if not engine.running and not engine.queued:
                    engine.now = max(engine.now, time)
                engine.queued.append(number)
            else:
                time, _, replica = min(ready)
                self.engines[replica].now = time
                self.engines[replica].step()
        return [self._served(k) for k in range(len(self.engines))]

    def _in_flight(self, replica: int, time: int) -> int:
        mine = [e for e in self.entries if e.replica == replica]
        return sum(not 0 <= e.finish <= time for e in mine)

    def _served(self, replica: int) -> tuple[Ints, ServedRequests]:
        which = [n for n, e in enumerate(self.entries) if e.replica == replica]

        def column(name: str) -> Ints:
            return np.array([getattr(self.entries[n], name) for n in which], np.int64)

        positions = np.array(which, np.int64)
        requests = replace(self.requests.some(positions), arrival_ps=column("arrival"))
        steps = np.array(self.engines[replica].steps, np.int64).reshape(-1, 5)
        return positions, ServedRequests(
            requests, column("first"), column("finish"), column("start"), column("preemptions"),
            steps, self.loop.host_ps,
        )  # fmt: skip

    def ended(self, time: int) -> None:
        """Note that a request has ended; in a closed loop the next request arrives then."""
        self.unfinished -= 1
        if self.loop.users and self.later:
            number = self.later.pop(0)
            self.entries[number].arrival = time
            insort(self.arriving, (time + self.loop.host_ps, number))
