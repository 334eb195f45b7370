# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write a result as a Chrome trace like PyTorch's Kineto, which Perfetto opens."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tvm_distir.performance.traces.files import write_file

from .costs import RECV, STREAMS
from .device_results import DeviceGroupResult, Event


def write_trace(
    system: str, lanes: Sequence[DeviceGroupResult], device_count: int, path: str | Path
) -> None:
    """Write the trace of a result into a new file and move it to its place.

    Parameters
    ----------
    system : str
        Name of the system.
    lanes : sequence of DeviceGroupResult
    device_count : int
        Of all lanes together.
    path : str or Path

    Raises
    ------
    UsageError
        DIST0153 when the file cannot be written.
    """
    write_file(
        path,
        lambda file: file.writelines(
            piece.encode() for piece in _pieces(system, lanes, device_count)
        ),
    )


def _pieces(system: str, lanes: Sequence[DeviceGroupResult], device_count: int) -> Iterator[str]:
    """Yield the JSON text, an event at a time."""
    head = {
        "schemaVersion": 1,
        "displayTimeUnit": "ms",
        "deviceProperties": [
            {"id": lane.devices[0], "name": system, "devices": list(lane.devices)} for lane in lanes
        ],
        "distributedInfo": {
            "backend": "tvm_distir",
            "rank": lanes[0].devices[0] if lanes else 0,
            "world_size": device_count,
        },
    }
    yield json.dumps(head)[:-1] + ', "traceEvents": [\n'
    separator = ""
    for event in _events(lanes):
        yield separator + json.dumps(event, allow_nan=False)
        separator = ",\n"
    yield "\n]}\n"


def _events(lanes: Sequence[DeviceGroupResult]) -> Iterator[dict[str, Any]]:
    correlation = 0
    for lane in lanes:
        threads = _Threads()
        pid = lane.devices[0]
        for event in lane.events():
            correlation += 1
            tid = threads.of(event)
            yield {
                "ph": "X",
                "cat": "kernel",
                "name": event.name,
                "pid": pid,
                "tid": tid,
                "ts": event.start_s * 1e6,
                "dur": event.duration_s * 1e6,
                "args": {
                    **event.args,
                    "device": pid,
                    "stream": tid,
                    "correlation": correlation,
                },
            }
        yield from _names(lane, threads.names)
        for time_s, live_bytes in lane.memory:
            yield {
                "ph": "C",
                "name": "live memory",
                "pid": pid,
                "ts": time_s * 1e6,
                "args": {"bytes": live_bytes},
            }


class _Threads:
    """Threads of a process: one per stream, and as many as receives need.

    Receives of different peers may overlap, which spans of one thread must not.
    """

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self._free_at_s: list[float] = []

    def of(self, event: Event) -> int:
        """Return the thread of an event."""
        tid = STREAMS.index(event.stream)
        name = event.stream
        if tid == RECV:
            ends = self._free_at_s
            free = [i for i, end_s in enumerate(ends) if end_s <= event.start_s]
            number = free[0] if free else len(ends)
            if number == len(ends):
                ends.append(0.0)
            ends[number] = event.start_s + event.duration_s
            tid, name = tid + number, f"{name} {number}" if number else name
        self.names[tid] = name
        return tid


def _names(lane: DeviceGroupResult, threads: dict[int, str]) -> Iterator[dict[str, Any]]:
    """Yield the names of the process (devices) and its threads (streams), in order."""
    pid, count = lane.devices[0], len(lane.devices)
    others = f" and {count - 1} alike" if count > 1 else ""
    yield _metadata("process_name", pid, 0, {"name": f"{lane.mesh}: device {pid}{others}"})
    yield _metadata("process_sort_index", pid, 0, {"sort_index": pid})
    for tid, name in sorted(threads.items()):
        yield _metadata("thread_name", pid, tid, {"name": name})
        yield _metadata("thread_sort_index", pid, tid, {"sort_index": tid})


def _metadata(name: str, pid: int, tid: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": args}
