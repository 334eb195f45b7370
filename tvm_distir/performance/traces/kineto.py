# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write JSON traces like PyTorch's profiler, Kineto: for Perfetto, and for Holistic Trace Analysis.

A kernel has the device as its process and a stream as its thread; times are in microseconds. For
Perfetto all lanes (devices that do the same) are in a single file, units of a pipeline are an event
each, and live memory is a counter. For HTA each rank has a file with all of its ops: communication
has the names of NCCL's kernels, by which HTA knows it; each kernel has a launch of the same
correlation at its start, because a result does not say when the host issued it; and all events are
inside a ``ProfilerStep``.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from .records import STREAMS, Event, RecordKind, TracedDevices, titled

_NCCL = {
    "all_reduce": "AllReduce_Sum",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter_Sum",
    "broadcast": "Broadcast",
    "reduce": "Reduce_Sum",
}
"""NCCL's words; what else moves is made of sends and receives."""

_COPIES = {"store": "Memcpy DtoH (Device -> Pinned)", "fetch": "Memcpy HtoD (Pinned -> Device)"}
"""CUDA's words for stashes on their way to the host's memory and back."""

_COMPUTE, _COMM, _SEND, _RECV = 7, 20, 21, 22
"""Threads of the streams for HTA."""

_HOST = 1 << 20
"""Number of the process that launches for device 0."""

_DEVICE, _HOST_OF_DEVICE = "\x00device\x00", "\x00host\x00"
"""Stand for the device and its host in what all devices of a lane have in common."""

_TAIL = "\n]}\n"


def chrome_trace(system: str, device_groups: Sequence[TracedDevices]) -> Iterator[str]:
    """Yield the text of a file with the events of all lanes.

    Parameters
    ----------
    system : str
        Name of the system.
    device_groups : sequence of TracedDevices
    """
    about = {
        "displayTimeUnit": "ms",
        "deviceProperties": [
            {"id": lane.devices[0], "name": system, "devices": list(lane.devices)}
            for lane in device_groups
        ],
    }
    rank = device_groups[0].devices[0] if device_groups else 0
    yield _head(about, "tvm_distir", rank, device_groups)
    separator = ""
    for event in _chrome_events(device_groups):
        yield separator + event
        separator = ",\n"
    yield _TAIL


def hta_pages(device_groups: Sequence[TracedDevices], finish_s: float) -> Iterator[tuple[str, str]]:
    """Yield the names and texts of the files of all ranks.

    Parameters
    ----------
    device_groups : sequence of TracedDevices
    finish_s : float
        End of the step.
    """
    for lane in device_groups:
        events = ",\n".join(_hta_events(lane, finish_s))
        for device in lane.devices:
            page = events.replace(json.dumps(_HOST_OF_DEVICE), str(_HOST + device))
            page = page.replace(json.dumps(_DEVICE), str(device))
            properties = [{"id": device, "name": lane.mesh}]
            about = {"deviceProperties": properties, "traceName": f"rank{device}"}
            head = _head(about, "nccl", device, device_groups)
            yield f"rank{device}.json", head + page + _TAIL


def _head(
    about: Mapping[str, Any], backend: str, rank: int, device_groups: Sequence[TracedDevices]
) -> str:
    """Return the text in front of the events."""
    count = sum(len(lane.devices) for lane in device_groups)
    ranks = {"backend": backend, "rank": rank, "world_size": count}
    head = {"schemaVersion": 1, **about, "distributedInfo": ranks}
    return json.dumps(head)[:-1] + ', "traceEvents": [\n'


def _span(
    category: str,
    name: str,
    pid: int | str,
    tid: int,
    start_us: float,
    duration_us: float,
    args: Mapping[str, object],
) -> str:
    """Return an event that takes time."""
    kind = {"ph": "X", "cat": category, "name": name}
    times = {"ts": start_us, "dur": duration_us}
    return json.dumps({**kind, "pid": pid, "tid": tid, **times, "args": args}, allow_nan=False)


def _chrome_events(device_groups: Sequence[TracedDevices]) -> Iterator[str]:
    numbers = itertools.count(1)
    for lane in device_groups:
        threads = _Threads()
        pid = lane.devices[0]
        for event in lane.events():
            tid = threads.of(event)
            args = {**event.args, "device": pid, "stream": tid, "correlation": next(numbers)}
            times = event.start_s * 1e6, event.duration_s * 1e6
            name = titled(event.name, args.get("module", ""))
            yield _span("kernel", name, pid, tid, *times, args)
        yield _metadata("process_name", pid, 0, {"name": lane.title})
        yield _metadata("process_sort_index", pid, 0, {"sort_index": pid})
        for tid, name in sorted(threads.names.items()):
            yield _metadata("thread_name", pid, tid, {"name": name})
            yield _metadata("thread_sort_index", pid, tid, {"sort_index": tid})
        for time_s, live_bytes in lane.memory():
            counter = {"ph": "C", "name": "live memory", "pid": pid, "ts": time_s * 1e6}
            yield json.dumps({**counter, "args": {"bytes": live_bytes}}, allow_nan=False)


class _Threads:
    """Threads of a process: a thread per stream, and as many as receives need.

    Receives of different peers may overlap, which spans of a thread must not.
    """

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self._free_at_s: list[float] = []

    def of(self, event: Event) -> int:
        """Return the thread of an event."""
        tid = STREAMS.index(event.stream)
        name = event.stream
        if name == "recv":
            ends = self._free_at_s
            free = [i for i, end_s in enumerate(ends) if end_s <= event.start_s]
            number = free[0] if free else len(ends)
            if number == len(ends):
                ends.append(0.0)
            ends[number] = event.start_s + event.duration_s
            tid, name = tid + number, f"{name} {number}" if number else name
        self.names[tid] = name
        return tid


def _metadata(name: str, pid: int, tid: int, args: dict[str, object]) -> str:
    return json.dumps({"ph": "M", "name": name, "pid": pid, "tid": tid, "args": args})


def _hta_events(lane: TracedDevices, finish_s: float) -> Iterator[str]:
    """Yield the events, the device left open."""
    host = _HOST_OF_DEVICE
    yield _span("user_annotation", "ProfilerStep#1", host, 1, 0.0, finish_s * 1e6, {})
    for number, (name, stream, start, duration, args) in enumerate(_kernels(lane), 1):
        at, length_us = start / 1e6, duration / 1e6
        launch = {"correlation": number, "cbid": 211, "External id": number}
        yield _span("cuda_runtime", "cudaLaunchKernel", host, 1, at, 0.0, launch)
        facts = {"stream": stream, "correlation": number, "External id": number, "device": _DEVICE}
        yield _span("kernel", name, _DEVICE, stream, at, length_us, {**facts, **args})


_Kernel = tuple[str, int, int, int, dict[str, object]]
"""Name, stream, start and time taken, what else is known."""


def _kernels(lane: TracedDevices) -> Iterator[_Kernel]:
    """Yield all that takes time, by streams."""
    for sheet in lane.sheets():
        for starts, ends in zip(sheet.start.tolist(), sheet.end.tolist(), strict=True):
            for kind, start, end in zip(sheet.kinds, starts, ends, strict=True):
                computes = kind.stream == "compute"
                name = kind.title if computes else _nccl(kind.name)
                yield from _kernel(kind, name, _COMPUTE if computes else _COMM, start, end)
    receives = itertools.count(_RECV)
    for records in lane.messages():
        stream = _SEND if records.stream == "send" else next(receives)
        times = zip(records.start.tolist(), records.end.tolist(), strict=True)
        for kind, (start, end) in zip(records.kinds, times, strict=True):
            name = _COPIES.get(records.stream) or _nccl(kind.name)
            yield from _kernel(kind, name, stream, start, end)


def _kernel(kind: RecordKind, name: str, stream: int, start: int, end: int) -> Iterable[_Kernel]:
    """Yield a kernel with the properties of its op, if it takes time."""
    if end > start:
        fields = ("binding", "scope", "flops", "wire_bytes")
        args = {key: kind.args[key] for key in fields if key in kind.args}
        yield name, stream, start, end - start, args


def _nccl(name: str) -> str:
    """Return the name of a kernel of NCCL, of a collective that may be started only."""
    word = _NCCL.get(name.removesuffix("_start"))
    return "ncclDevKernel_SendRecv" if word is None else f"ncclDevKernel_{word}_RING_LL"
