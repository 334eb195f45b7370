# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Record the calls of kernels and collectives of each rank in a run, and write them as a trace.

The file is in Chrome's JSON, which Perfetto opens: a process per rank, a thread for kernels, one
for the calls of collectives, and a span from the start to the done of each collective in flight.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tvm.runtime.vm import VirtualMachine

from tvm_distir.core.ir.operators import PACKED_PREFIX
from tvm_distir.performance import write_trace
from tvm_distir.support import UsageError

from .async_names import DONE, START

_BUILTIN = "vm.builtin."
_US = 1e-3
_KERNELS, _CALLS = 1, 2


class CallSpan(NamedTuple):
    """One call of a function by the virtual machine of a rank.

    Attributes
    ----------
    name : str
    begin_ns, end_ns : int
        The times of this host's clock, in nanoseconds since 1970.
    address : int
        The address of the result of a start or a done, else 0.
    """

    name: str
    begin_ns: int
    end_ns: int
    address: int = 0

    @property
    def is_collective(self) -> bool:
        """Return whether the function is one of collectives and transfers."""
        return self.name.startswith(PACKED_PREFIX)

    @property
    def is_start(self) -> bool:
        """Return whether the call starts a collective, which a done completes."""
        return self.is_collective and self.name.endswith(START)


class RankTrace:
    """The calls of a rank, in the order of their ends.

    On a GPU the time of a kernel's call is that of its launch.

    Attributes
    ----------
    spans : list of CallSpan
    """

    def __init__(self) -> None:
        self.spans: list[CallSpan] = []
        self._begun_ns: list[int] = []

    def attach(self, machine: VirtualMachine) -> None:
        """Record the calls of a virtual machine from now on."""
        machine.set_instrument(self._record)

    def _record(self, _: object, name: str, before: bool, __: object, *args: Any) -> int:
        """Take note of a call; TVM calls this before and after each."""
        if str(name).startswith(_BUILTIN):
            return 0
        if before:
            self._begun_ns.append(time.time_ns())
            return 0
        end_ns, name, address = time.time_ns(), str(name), 0
        if name == DONE:
            address = args[0].data_ptr()
        elif name.startswith(PACKED_PREFIX) and name.endswith(START):
            address = args[-1].data_ptr()
        self.spans.append(CallSpan(name, self._begun_ns.pop(), end_ns, address))
        return 0


def spans_in_flight(spans: Sequence[CallSpan]) -> list[tuple[CallSpan, CallSpan]]:
    """Return each start of a rank with its done, in the order of the starts."""
    started: dict[int, CallSpan] = {}
    pairs = []
    for span in spans:
        if span.is_start:
            started[span.address] = span
        elif span.name == DONE and span.address in started:
            pairs.append((started.pop(span.address), span))
    return sorted(pairs, key=lambda pair: pair[0].begin_ns)


def check_trace_path(path: str | Path, location: str = "trace") -> Path:
    """Return the path of a trace of a run; DIST0152 where it is none of a JSON file."""
    if Path(path).suffix != ".json":
        problem = f'"{path}" does not end with .json'
        remedy = "Traces of runs are written in Chrome's JSON, which Perfetto opens."
        raise UsageError("DIST0152", problem, location=location, remedy=remedy)
    return Path(path).absolute()


def write_run_trace(path: Path, ranks: Mapping[int, Sequence[CallSpan]]) -> None:
    """Write the trace of a run.

    Parameters
    ----------
    path : Path
    ranks : mapping of int to sequence of CallSpan
        The calls of each rank.

    Raises
    ------
    UsageError
        DIST0153 when the file cannot be written.
    """
    first_ns = min((s.begin_ns for spans in ranks.values() for s in spans), default=0)
    events = [
        event for rank, spans in sorted(ranks.items()) for event in _events(rank, spans, first_ns)
    ]
    write_trace(path, json.dumps({"displayTimeUnit": "ms", "traceEvents": events}).encode())


def _events(rank: int, spans: Sequence[CallSpan], first_ns: int) -> Iterator[dict[str, Any]]:
    """Yield the events of a rank; times are in microseconds."""
    for thread, name in ((None, f"rank {rank}"), (_KERNELS, "kernels"), (_CALLS, "collectives")):
        kind = "process_name" if thread is None else "thread_name"
        yield {"ph": "M", "pid": rank, "tid": thread or 0, "name": kind, "args": {"name": name}}
    for span in spans:
        yield {
            "ph": "X",
            "pid": rank,
            "tid": _CALLS if span.is_collective else _KERNELS,
            "name": span.name.removeprefix(PACKED_PREFIX),
            "ts": (span.begin_ns - first_ns) * _US,
            "dur": (span.end_ns - span.begin_ns) * _US,
        }
    changes: list[tuple[int, int]] = []
    for number, (start, done) in enumerate(spans_in_flight(spans)):
        name = start.name.removeprefix(PACKED_PREFIX).removesuffix(START)
        common = {"pid": rank, "tid": _CALLS, "cat": "in flight", "name": name, "id": number}
        yield {"ph": "b", **common, "ts": (start.begin_ns - first_ns) * _US}
        yield {"ph": "e", **common, "ts": (done.end_ns - first_ns) * _US}
        changes += [(start.begin_ns, 1), (done.end_ns, -1)]
    count = 0
    for time_ns, change in sorted(changes):
        count += change
        counter = {"ph": "C", "pid": rank, "name": "in flight", "args": {"collectives": count}}
        yield {**counter, "ts": (time_ns - first_ns) * _US}
