# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Record the work of a device as arrays in picoseconds, from which all traces are written."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tvm_distir.performance.event_loop.function_summaries import Ints

FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"
"""Passes of a step."""
STREAMS = ("compute", "comm", "send", "store", "fetch", "recv")
"""Streams of a device. Compute, collectives, sends and copies to and from the host run in order of
issue, each on its own stream; a receive only waits for its send."""


def titled(op: str, module: str) -> str:
    """Return an op with its module, as ``einsum of layers.*.mlp.up_proj``."""
    return f"{op} of {module}" if module else op


@dataclass(frozen=True)
class Event:
    """Task of a device.

    ``stream`` is ``compute``, ``comm``, ``send``, ``recv``, or ``store`` and ``fetch``: a stash on
    its way to the host's memory and back.

    ``args`` has ``op``, ``binding``, ``scope``, ``bound_by``, and ``flops`` and ``bytes`` or
    ``payload_bytes``, ``wire_bytes`` and ``group_size``; an op also has ``module`` and ``pass``.
    """

    device: int
    stream: str
    name: str
    start_s: float
    duration_s: float
    args: Mapping[str, Any]


class RecordKind(NamedTuple):
    """Kind of op: name, stream, and the properties of all its executions."""

    name: str
    stream: str
    args: Mapping[str, Any]

    @property
    def title(self) -> str:
        """Return the name with its module."""
        return titled(self.name, self.args.get("module", ""))


@dataclass(frozen=True)
class OpRecords:
    """Ops that are issued in sequence, as often as they are run.

    Attributes
    ----------
    kinds : sequence of RecordKind (ops,)
        The kinds of the ops of streams that run in sequence: compute and collectives.
    start, end : int64 arrays (runs, ops)
    order : int64 array (runs,)
        Places among all runs of the device.
    unit : str
        The name of a run; empty where it is the full step.
    location : str
        The place of the unit.
    micros : int64 array (runs,)
        Micro-batch of each run; -1 of none.
    span : int64 array (runs, 2)
        Start and end of the unit.
    """

    kinds: Sequence[RecordKind]
    start: Ints
    end: Ints
    order: Ints
    unit: str
    location: str
    micros: Ints
    span: Ints


@dataclass(frozen=True)
class MessageRecords:
    """Messages of an end, in time in sequence.

    Attributes
    ----------
    stream : str
        ``send``, or ``recv`` with the peer that they come from.
    kinds : sequence of RecordKind (messages,)
    names : sequence of str (messages,)
    start, end : int64 arrays (messages,)
    flows : sequence of hashable (messages,)
        A key that the two ends of a message have in common.
    """

    stream: str
    kinds: Sequence[RecordKind]
    names: Sequence[str]
    start: Ints
    end: Ints
    flows: Sequence[Hashable]


class Task(NamedTuple):
    """Task of devices.

    Attributes
    ----------
    name, kind : str
        ``compute``, ``send``, ``recv``, ``store``, ``fetch``, or the word of a collective.
    data, after : tuple of int
        Tasks that it needs, and tasks before it on its stream, by their places.
    duration_ps, flops, bytes : int
        ``bytes``: of the operand of a collective, moved by a kernel, or on the wire.
    mesh : int
    axes : tuple of int
        The mesh axes of a collective.
    peer, tag : int
        The mesh at the other end of a message, and the tag that joins the ends.
    """

    name: str
    kind: str
    data: tuple[int, ...]
    after: tuple[int, ...]
    duration_ps: int
    flops: int = 0
    bytes: int = 0
    mesh: int = 0
    axes: tuple[int, ...] = ()
    peer: int = 0
    tag: int = 0


@dataclass(frozen=True)
class TracedDevices:
    """Devices that did the same at the same times.

    Attributes
    ----------
    mesh : str
    devices : tuple of int
    sheets : callable giving an iterator of OpRecords
    messages : callable giving an iterator of MessageRecords
    tasks : callable giving a list of Task
        A function that returns the tasks of the devices, without times.
    memory : callable giving a sequence of (time_s, bytes)
        Live memory from each time on.
    events : callable giving an iterator of Event
        A function that yields the events in order of issue; each unit of a pipeline is an event.
    """

    mesh: str
    devices: tuple[int, ...]
    sheets: Callable[[], Iterator[OpRecords]]
    messages: Callable[[], Iterator[MessageRecords]]
    tasks: Callable[[], Sequence[Task]]
    memory: Callable[[], Sequence[tuple[float, int]]]
    events: Callable[[], Iterable[Event]]

    @property
    def title(self) -> str:
        """Return the title of the devices."""
        count = len(self.devices) - 1
        others = f" and {count} alike" if count else ""
        return f"{self.mesh}: device {self.devices[0]}{others}"
