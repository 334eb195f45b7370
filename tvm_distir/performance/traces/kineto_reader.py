# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read the steps of traces that PyTorch's profiler (Kineto) wrote, as calls of ops.

A call is an op that the program calls, or a node of its automatic gradient, with all kernels that
it launches. Kernels are joined with their calls by the correlation of their launches; on CPUs,
where there are none, a call is its own kernel.
"""

from __future__ import annotations

import gzip
import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from tvm_distir.support import SimulationError, lists_by_key, shipped_data

from .records import BACKWARD, FORWARD, OPTIMIZER
from .traced_steps import TracedCall, TracedStep

_NAMES = shipped_data(__file__, "kernel_families.json")
_WRAPPERS, _VIEWS = re.compile(_NAMES["wrappers"]), re.compile(_NAMES["views"])
_DEVICE_COLLECTIVE, _HOST_COLLECTIVE = re.compile("[nr]ccl"), re.compile("(gloo|mpi|ucc):")
_NODE, _STEP = "autograd::engine::evaluate_function: ", "ProfilerStep#"
_MODULE = re.compile(r"nn\.Module: (.+?)(?:_\d+)?$")
"""What the profiler records of calls of modules with ``with_stack=True``."""
_KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")
_HOST = ("cpu_op", "user_annotation", "cuda_runtime", "cuda_driver", "python_function")
_PRODUCTS = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1}
"""Products, and the number of operands before those that are multiplied."""
_BYTES = {"float": 4, "double": 8, "half": 2, "bfloat16": 2, "long": 8, "int": 4, "char": 1}
LONGEST_GAP_S = 1e-3
"""On CPUs, up to so much time between two calls is the host's work for the first one."""

_Event = Mapping[str, Any]


@dataclass(eq=False)
class _Call:
    """A call of the host, and where it is from the start to the end of the trace."""

    name: str
    phase: str
    start: float
    end: float
    flops: int = 0
    module: str = ""
    sequence: int | None = None


class _Record(NamedTuple):
    """A kernel as a call, when the host issued it, and the call that it is a part of."""

    issued: float
    call: _Call | None
    kernel: TracedCall


def family_of(*names: str, table: str = "families") -> str:
    """Return the family of the first of some names that has one; empty for none."""
    return next(filter(None, (_family(name, table) for name in names)), "")


@cache
def _family(name: str, table: str) -> str:
    expressions: Mapping[str, str] = _NAMES[table]
    return next((f for f, text in expressions.items() if re.search(text, name.lower())), "")


def read_kineto(path: str | Path) -> list[TracedStep]:
    """Read the steps of a trace.

    Parameters
    ----------
    path : str or Path
        A ``.json`` file, as ``torch.profiler`` exports it; also compressed by gzip.

    Returns
    -------
    steps : list of TracedStep
        One for each ``ProfilerStep`` with calls; a single one of the whole trace without any.

    Raises
    ------
    SimulationError
        DIST0731 for a file that cannot be read, is no such trace, or has no ops.
    """
    problem = "it has no kernels and no ops"
    try:
        raw = Path(path).read_bytes()
        data = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
        events = [event for event in data["traceEvents"] if event.get("ph") == "X"]
        steps = [step for step in _steps(events) if step.busy_s > 0]
        if steps:
            return steps
    except (OSError, EOFError, ValueError, TypeError, KeyError, AttributeError) as error:
        problem = f"it cannot be read as a trace: {getattr(error, 'strerror', None) or error!r}"
    raise SimulationError(
        "DIST0731", problem, location=str(path),
        remedy="Give what torch.profiler's export_chrome_trace wrote; tables of steps: calibrate.",
    )  # fmt: skip


class _Host:
    """The calls of the host, their launches by correlation, and their ops by external id."""

    def __init__(self, events: Iterable[_Event]) -> None:
        self.calls: list[_Call] = []
        self.launches: dict[object, tuple[float, _Call | None]] = {}
        self.ops: dict[object, _Call] = {}
        self.modules: dict[int | None, str] = {}
        calls = (event for event in events if not event["name"].startswith(_STEP))
        for thread in lists_by_key((event["tid"], event) for event in calls).values():
            self._read(sorted(thread, key=lambda event: (event["ts"], -event["dur"])))
        self.calls.sort(key=lambda call: call.start)
        last = ""
        for call in self.calls:
            if call.phase == BACKWARD and not call.module:
                # Gradients are added to sums behind the node that made them, without a number.
                known = call.sequence is not None
                call.module = last = self.modules.get(call.sequence, "") if known else last

    def _read(self, events: Iterable[_Event]) -> None:
        """Read the events of a thread, each inside of those that have not ended."""
        stack: list[tuple[float, str, _Call | None, str]] = []
        for event in events:
            start, end = _ends(event)
            while stack and stack[-1][0] <= start:
                stack.pop()
            _, phase, call, module = stack[-1] if stack else (0.0, FORWARD, None, "")
            name, args = event["name"], event.get("args", {})
            if event["cat"] == "user_annotation":
                phase = OPTIMIZER if name.startswith("Optimizer.") else phase
                module = _joined(module, name) if phase == FORWARD else module
            elif event["cat"] == "python_function":
                match = _MODULE.match(name)
                module = _joined(module, match[1]) if match else module
            elif event["cat"] != "cpu_op":
                self.launches[args.get("correlation")] = start, call
            elif call is None and not _WRAPPERS.match(name):
                phase = BACKWARD if name.startswith(_NODE) else phase
                number = args.get("Sequence number") if phase == BACKWARD else None
                call = _Call(name.removeprefix(_NODE), phase, start, end, 0, module, number)
                self.calls.append(call)
            if call is not None:
                self.ops[args.get("External id")] = call
                call.flops += _flops(name, args.get("Input Dims", ()))
            if phase == FORWARD and module and "Sequence number" in args:
                self.modules[args["Sequence number"]] = module  # the last op makes the node
            stack.append((end, phase, call, module))


def _joined(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name


def _ends(event: _Event) -> tuple[float, float]:
    return event["ts"] * 1e-6, (event["ts"] + event["dur"]) * 1e-6


def _flops(name: str, dims: Sequence[Any]) -> int:
    """Return the FLOPs of a matrix product; 0 of other ops."""
    first = _PRODUCTS.get(name, len(dims))
    if len(dims) < first + 2:
        return 0
    return 2 * math.prod(map(int, dims[first])) * int(dims[first + 1][-1])


def _steps(events: Sequence[_Event]) -> Iterator[TracedStep]:
    """Yield the steps; a call is part of the step in which the host issued it."""
    host = _Host(event for event in events if event.get("cat") in _HOST)
    kernels = [event for event in events if event.get("cat") in _KERNELS]
    records = list(_device_records(host, kernels) if kernels else _host_records(host, events))
    windows = [(*_ends(e), e["name"]) for e in events if e["name"].startswith(_STEP)]
    for start, end, name in sorted(windows) or [(-math.inf, math.inf, "trace")]:
        chosen = [record for record in records if start <= record.issued < end]
        if not chosen:
            continue
        last = max((r.issued for r in chosen if r.kernel.phase == BACKWARD), default=math.inf)
        calls: dict[int, TracedCall] = {}
        for issued, call, kernel in sorted(chosen, key=lambda record: record.issued):
            key = id(kernel) if call is None or kernel.is_collective else id(call)
            phase = OPTIMIZER if kernel.phase == FORWARD and issued > last else kernel.phase
            before_s = calls[key].duration_s if key in calls else 0.0
            first = calls.get(key, kernel._replace(phase=phase))
            calls[key] = first._replace(duration_s=before_s + kernel.duration_s)
        everything_s = _covered(r.kernel for r in chosen)
        busy_s = _covered(r.kernel for r in chosen if not r.kernel.is_collective)
        length_s = end - start if windows else everything_s
        exposed_s, times = everything_s - busy_s, [record.issued for record in chosen]
        issued_s = max(times) - min(times)
        yield TracedStep(
            name, length_s, tuple(calls.values()), busy_s, exposed_s, issued_s, bool(kernels)
        )


def _device_records(host: _Host, kernels: Iterable[_Event]) -> Iterator[_Record]:
    """Yield the kernels of a device."""
    for event in kernels:
        args, (start, end), name = event.get("args", {}), _ends(event), event["name"]
        issued, call = host.launches.get(args.get("correlation", ""), (start, None))
        call = call or host.ops.get(args.get("External id", "")) or _Call(name, FORWARD, 0, 0)
        is_collective = _DEVICE_COLLECTIVE.match(name) is not None
        title = name if is_collective else call.name
        table = "collectives" if is_collective else "families"
        family = family_of(title, name, table=table)
        size = int(args.get("In msg nelems", 0)) * _BYTES.get(str(args.get("dtype")).lower(), 0)
        fields = (
            title, family, call.phase, is_collective, start, end - start, call.flops, size,
            call.module,
        )  # fmt: skip
        yield _Record(issued, call, TracedCall(*fields))


def _host_records(host: _Host, events: Iterable[_Event]) -> Iterator[_Record]:
    """Yield the calls of a CPU, with the time up to the next one, and its collectives."""
    calls = [call for call in host.calls if not _VIEWS.match(call.name)]
    for call, after in itertools.zip_longest(calls, calls[1:]):
        gap = 0.0 if after is None else after.start - call.end
        spent_s = call.end - call.start + (gap if 0 < gap <= LONGEST_GAP_S else 0.0)
        fields = call.name, family_of(call.name), call.phase, False, call.start, spent_s
        yield _Record(call.start, call, TracedCall(*fields, call.flops, module=call.module))
    for event in events:
        if _HOST_COLLECTIVE.match(event["name"]):
            args, (start, end), name = event.get("args", {}), _ends(event), event["name"]
            operands = zip(args.get("Input Dims", ()), args.get("Input type", ()), strict=False)
            size = sum(math.prod(dims) * _BYTES.get(kind, 0) for dims, kind in operands if dims)
            fields = name, family_of(name, table="collectives"), BACKWARD, True, start, end - start
            yield _Record(start, None, TracedCall(*fields, size_bytes=size))


def _covered(kernels: Iterable[TracedCall]) -> float:
    """Return the seconds in which at least one of some kernels runs."""
    total, last = 0.0, -math.inf
    for start, end in sorted((k.start_s, k.start_s + k.duration_s) for k in kernels):
        total += max(end - max(start, last), 0.0)
        last = max(last, end)
    return total


def typical_step(steps: Sequence[TracedStep]) -> TracedStep:
    """Return the step of the median duration, with medians over all steps of the same calls."""
    ordered = sorted(steps, key=lambda step: step.duration_s)
    middle = ordered[len(ordered) // 2]
    names = [call.name for call in middle.calls]
    similar = [step for step in steps if [call.name for call in step.calls] == names]
    calls = tuple(
        column[0]._replace(duration_s=median(call.duration_s for call in column))
        for column in zip(*(step.calls for step in similar), strict=True)
    )
    return replace(middle, calls=calls, duration_s=median(step.duration_s for step in similar))
