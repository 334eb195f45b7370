# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write traces like PyTorch's profiler, a file per rank, for Holistic Trace Analysis.

A kernel has the device as its process and a stream as its thread; one of communication is called as
NCCL's are, by which HTA knows it. Each has a launch of the same correlation, at its start: when the
host issued it is not told. All stand inside of one ``ProfilerStep``. Times are in microseconds.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tvm_distir.performance.engine.functions import Ints

from .records import Traced

_NCCL = {
    "all_reduce": "AllReduce_Sum",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter_Sum",
    "broadcast": "Broadcast",
    "reduce": "Reduce_Sum",
}
"""NCCL's words; what else moves is made of sends and receives."""

_COPIES = {
    "store": "Memcpy DtoH (Device -> Pinned)",
    "fetch": "Memcpy HtoD (Pinned -> Device)",
}
"""CUDA's words for stashes on their way to the host's memory and back."""

_COMPUTE, _COMM, _SEND, _RECV = 7, 20, 21, 22
_HOST = 1 << 20
"""Number of the process that launches for device 0."""

_DEVICE = "\x00device\x00"
"""Stands for the device in what all devices of a lane have in common."""


def hta_pages(lanes: Sequence[Traced], finish_s: float) -> Iterator[tuple[str, str]]:
    """Yield the names and texts of the files, one for each rank.

    Parameters
    ----------
    lanes : sequence of Traced
    finish_s : float
        End of the step.
    """
    count = sum(len(lane.devices) for lane in lanes)
    for lane in lanes:
        events = ",\n".join(_events(lane, finish_s))
        for device in lane.devices:
            about = {"backend": "nccl", "rank": device, "world_size": count}
            head = {
                "schemaVersion": 1,
                "deviceProperties": [{"id": device, "name": lane.mesh}],
                "distributedInfo": about,
                "traceName": f"rank{device}",
            }
            page = events.replace(f'"{_DEVICE}host"', str(_HOST + device))
            page = page.replace(f'"{_DEVICE}"', str(device))
            text = json.dumps(head)[:-1] + ', "traceEvents": [\n' + page + "\n]}\n"
            yield f"rank{device}.json", text


def _events(lane: Traced, finish_s: float) -> Iterator[str]:
    """Yield the events as JSON, the device left open."""
    host = f"{_DEVICE}host"
    yield _json("user_annotation", "ProfilerStep#1", host, 1, 0.0, finish_s * 1e6, {})
    for number, (name, stream, start, spent, args) in enumerate(_kernels(lane), 1):
        at, took = start / 1e6, spent / 1e6
        launch = {"correlation": number, "cbid": 211, "External id": number}
        yield _json("cuda_runtime", "cudaLaunchKernel", host, 1, at, 0.0, launch)
        facts = {"stream": stream, "correlation": number, "External id": number, "device": _DEVICE}
        yield _json("kernel", name, _DEVICE, stream, at, took, {**facts, **args})


def _json(
    kind: str, name: str, pid: str, tid: int, ts: float, dur: float, args: dict[str, Any]
) -> str:
    event = {"ph": "X", "cat": kind, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur}
    text = json.dumps({**event, "args": args}, allow_nan=False)
    return text.replace("\\u0000", "\x00")


_Kernel = tuple[str, int, int, int, dict[str, Any]]
"""Name, stream, start and time taken, what else is known."""


def _kernels(lane: Traced) -> Iterator[_Kernel]:
    """Yield all that takes time, by streams."""
    for sheet in lane.sheets():
        for starts, ends in zip(sheet.start.tolist(), sheet.end.tolist(), strict=True):
            for kind, start, end in zip(sheet.kinds, starts, ends, strict=True):
                if end > start:
                    computes = kind.stream == "compute"
                    name = kind.name if computes else _nccl(kind.name)
                    stream = _COMPUTE if computes else _COMM
                    yield name, stream, start, end - start, _args(kind.args)
    receives = itertools.count(_RECV)
    for wire in lane.wires():
        stream = _SEND if wire.stream == "send" else next(receives)
        for kind, (start, end) in zip(wire.kinds, _times(wire.start, wire.end), strict=True):
            if end > start:
                name = _COPIES.get(wire.stream) or _nccl(kind.name)
                yield name, stream, start, end - start, _args(kind.args)


def _times(start: Ints, end: Ints) -> Iterable[tuple[int, int]]:
    return zip(start.tolist(), end.tolist(), strict=True)


def _args(args: Any) -> dict[str, Any]:
    """Return what of an op its kernel tells."""
    return {key: args[key] for key in ("binding", "scope", "flops", "wire_bytes") if key in args}


def _nccl(name: str) -> str:
    """Name of a kernel of NCCL, of a collective that may be started only."""
    word = _NCCL.get(name.removesuffix("_start"))
    return "ncclDevKernel_SendRecv" if word is None else f"ncclDevKernel_{word}_RING_LL"
