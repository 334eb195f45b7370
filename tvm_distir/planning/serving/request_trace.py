# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write served requests as a trace in Chrome's JSON format, which Perfetto opens.

A process per replica: the steps of its engine, the pages of its caches in use, and the requests, in
as many rows as there are at a time. A request passes the host, waits in the queue, fills its cache,
and decodes.
Numbers of threads follow `Trace Event Format <https://docs.google.com/document/d/
1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU>`_; times are microseconds.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .engine_loop import ServedRequests

_US = 1_000_000
"""Picoseconds of a microsecond."""
_STEPS = 1
_FIRST_ROW = 2


def request_trace(served: Sequence[ServedRequests]) -> str:
    """Return the trace of the requests of replicas as text.

    Parameters
    ----------
    served : sequence of ServedRequests
        Those of each replica.
    """
    events = [event for pid, part in enumerate(served, 1) for event in _replica(pid, part)]
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events}, separators=(",", ":"))


def _replica(pid: int, part: ServedRequests) -> Iterator[dict[str, Any]]:
    yield _title("process_name", pid, 0, f"replica {pid - 1}")
    yield _title("thread_name", pid, _STEPS, "steps")
    for begin, span, decoding, tokens, pages in part.steps.tolist():
        name = f"{decoding} decode" if decoding else ""
        name += (" + " if name and tokens else "") + (f"{tokens} of prompts" if tokens else "")
        args = {"decoding": decoding, "prompt_tokens": tokens}
        yield _slice(name, pid, _STEPS, begin, begin + span, args)
        counter = {"ph": "C", "name": "pages in use", "pid": pid, "ts": begin / _US}
        yield {**counter, "args": {"pages": pages}}
    yield from _requests(pid, part)


def _requests(pid: int, part: ServedRequests) -> Iterator[dict[str, Any]]:
    """Yield the requests in order of arrival, each in the first row that is free."""
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    rows = 0
    known = part.requests
    for number in np.argsort(known.arrival_ps, kind="stable").tolist():
        arrival, finish = int(known.arrival_ps[number]), int(part.finish_ps[number])
        while busy and busy[0][0] <= arrival:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            row = heapq.heappop(free)
        else:
            row, rows = _FIRST_ROW + rows, rows + 1
            yield _title("thread_name", pid, row, f"requests {row - _FIRST_ROW}")
        heapq.heappush(busy, (finish, row))
        args = {
            "request": number,
            "input_tokens": int(known.input_tokens[number]),
            "output_tokens": int(known.output_tokens[number]),
            "preemptions": int(part.preemptions[number]),
        }
        start, first = int(part.start_ps[number]), int(part.first_ps[number])
        times = (arrival, arrival + part.host_ps, start, first, finish)
        names = ("host", "queue", "prefill", "decode")
        for name, begin, end in zip(names, times, times[1:], strict=False):
            if end > begin:
                yield _slice(name, pid, row, begin, end, args)


def _slice(
    name: str, pid: int, tid: int, begin: int, end: int, args: dict[str, Any]
) -> dict[str, Any]:
    times = {"ts": begin / _US, "dur": (end - begin) / _US}
    return {"ph": "X", "name": name, "pid": pid, "tid": tid, **times, "args": args}


def _title(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}
