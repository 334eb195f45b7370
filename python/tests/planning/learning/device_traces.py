# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write traces of a device by hand: calls of the host, each with kernels of known durations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HOST, AUTOGRAD = 10, 11
NODE = "autograd::engine::evaluate_function: "


class DeviceTrace:
    """Events of a trace; times are in microseconds."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.number = 0
        self.free = {7: 0.0, 20: 0.0}

    def add(self, cat: str, name: str, tid: int, ts: float, dur: float, **args: Any) -> None:
        """Add an event."""
        event = {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur}
        self.events.append({**event, "args": args})

    def call(
        self, name: str, kernels: list[tuple[str, float]], at: float, stream: int = 7, **facts: Any
    ) -> None:
        """Add a call that launches kernels at a time; each starts when its stream is free."""
        tid = AUTOGRAD if name.startswith(NODE) else HOST
        self.add("cpu_op", name, tid, at, 2.0 * len(kernels) + 1.0)
        for place, (kernel, duration) in enumerate(kernels):
            self.number += 1
            issued = at + 0.5 + 2.0 * place
            self.add("cuda_runtime", "cudaLaunchKernel", tid, issued, 1.0, correlation=self.number)
            start = max(issued + 1.0, self.free[stream])
            self.add("kernel", kernel, stream, start, duration, correlation=self.number, **facts)
            self.free[stream] = start + duration

    def step(self, number: int, start: float, duration: float) -> None:
        """Add the window of a step."""
        self.add("user_annotation", f"ProfilerStep#{number}", HOST, start, duration)

    def write(self, path: Path) -> Path:
        """Write the file."""
        path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": self.events}))
        return path
