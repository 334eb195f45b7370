# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write traces as Perfetto protocol buffers (``.pftrace``): https://perfetto.dev/docs.

A process per lane (devices that do the same), a track per stream, one of the units of a step in
stages, one of live memory; arrows from sends to receives. Times are rounded down to nanoseconds;
the annotation ``op`` of a slice has ``duration_ps``. Numbers of fields are those of
``trace_packet.proto``, ``track_event.proto`` and ``track_descriptor.proto``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import BinaryIO

import numpy as np

from tvm_distir.hardware import PICOSECONDS
from tvm_distir.performance.event_loop.function_summaries import Ints

from .protobuf import FIXED64, LENGTH, VARINT, block, integer, padded, tag, varint
from .records import MessageRecords, OpRecords, TracedDevices

NS = 1000
"""Picoseconds of a nanosecond."""

UNITS, COMPUTE, COMM, SEND, MEMORY, RECV = range(1, 7)
"""Numbers of the tracks of a process; receives, of several peers, come last."""

_TRACKS = 1 << 12
"""Bound of the tracks of a process."""

SIZE_BYTES = 3
"""``CounterDescriptor.Unit`` of memory."""

_SEQUENCE = integer(10, 1)  # TracePacket.trusted_packet_sequence_id
_BEGIN, _END, _COUNTER = 1, 2, 4  # TrackEvent.Type
_CLEARED, _NEEDS = integer(13, 1), integer(13, 2)  # TracePacket.SequenceFlags
_NAMES, _NOTES = 2, 29  # InternedData.event_names, InternedData.debug_annotation_string_values
_FLOW, _LAST_FLOW = 47, 48  # TrackEvent.flow_ids, TrackEvent.terminating_flow_ids
_NOTE = integer(1, 1)  # the number of the name "op" of annotations

_Rows = Iterable[tuple[int, bytes]]
"""Packets with the numbers by which they are ordered."""


def write_perfetto(device_groups: Sequence[TracedDevices]) -> Callable[[BinaryIO], None]:
    """Make the writer of the trace of lanes."""

    def fill(stream: BinaryIO) -> None:
        writer = _Writer(stream)
        for number, lane in enumerate(device_groups, 1):
            writer.lane(number * _TRACKS, lane)

    return fill


class _Writer:
    """Writer into a stream; it remembers the numbers of texts and messages."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._numbers: dict[tuple[int, str], int] = {}
        self._flows: dict[Hashable, int] = {}
        self._packet(_CLEARED + block(12, block(3, _NOTE + block(2, "op"))))

    def lane(self, uuid: int, lane: TracedDevices) -> None:
        """Write a process."""
        process = integer(1, lane.devices[0] + 1)  # Perfetto keeps process 0 for what is idle
        ordered = integer(11, 3)  # as its tracks say
        self._packet(
            block(60, integer(1, uuid) + block(3, process + block(6, lane.title)) + ordered)
        )
        sheets = list(lane.sheets())
        units = [sheet for sheet in sheets if sheet.unit]
        if units:
            self._track(uuid, UNITS, "units")
        used = {kind.stream == "compute" for sheet in sheets for kind in sheet.kinds}
        for computes, track, name in ((True, COMPUTE, "compute"), (False, COMM, "comm")):
            if computes in used:
                self._track(uuid, track, name)
        self._write(row for sheet in units for row in self._units(uuid + UNITS, sheet))
        self._write(row for sheet in sheets for row in self._runs(uuid, sheet))
        self._messages(uuid, lane.messages())
        self._memory(uuid, lane.memory())

    def _packet(self, content: bytes) -> None:
        self._stream.write(block(1, _SEQUENCE + content))

    def _write(self, rows: _Rows) -> None:
        """Write packets in order, behind the texts that making them defines."""
        self._stream.writelines(data for _, data in sorted(rows, key=itemgetter(0)))

    def _track(self, uuid: int, track: int, name: str, unit: bytes = b"") -> None:
        """Write a track of a process."""
        parent = integer(5, uuid) + integer(12, track)
        self._packet(block(60, integer(1, uuid + track) + block(2, name) + parent + unit))

    def _number(self, table: int, text: str) -> int:
        """Return the number of a text, which is defined where it is new."""
        if (table, text) not in self._numbers:
            self._numbers[table, text] = number = len(self._numbers) + 1
            self._packet(_NEEDS + block(12, block(table, integer(1, number) + block(2, text))))
        return self._numbers[table, text]

    def _slice(
        self, track: int, name: str, args: Mapping[str, object], spent_ps: int, flow: bytes = b""
    ) -> tuple[bytes, bytes, bytes]:
        """Return a slice: what stands before, between and behind its start and its end."""
        note = self._number(_NOTES, json.dumps({**args, "duration_ps": spent_ps}, allow_nan=False))
        named = integer(10, self._number(_NAMES, name)) + block(4, _NOTE + integer(17, note))
        head, tail = _around_time(_BEGIN, integer(11, track) + named + flow)
        end_head, end_tail = _around_time(_END, integer(11, track))
        return head, tail + end_head, end_tail

    def _runs(self, uuid: int, sheet: OpRecords) -> Iterator[tuple[int, bytes]]:
        """Yield the slices of each run."""
        if not sheet.kinds or not sheet.start.size:
            return
        duration = (sheet.end - sheet.start)[0]
        if not np.array_equal(sheet.end - sheet.start, np.broadcast_to(duration, sheet.end.shape)):
            raise ValueError("the runs of a unit have different durations")
        slices = [
            self._slice(uuid + (COMPUTE if k.stream == "compute" else COMM), k.title, k.args, time)
            for k, time in zip(sheet.kinds, duration.tolist(), strict=True)
        ]
        for order, start, end in zip(sheet.order.tolist(), sheet.start, sheet.end, strict=True):
            times = zip(slices, _encoded(start), _encoded(end), strict=True)
            yield order, b"".join([x for (a, b, c), s, e in times for x in (a, s, b, e, c)])

    def _units(self, track: int, sheet: OpRecords) -> Iterator[tuple[int, bytes]]:
        """Yield the slice of each unit."""
        word, args = sheet.unit, {"unit": sheet.unit, "place": sheet.location}
        starts, ends = map(_encoded, sheet.span.T)
        durations = (sheet.span[:, 1] - sheet.span[:, 0]).tolist()
        rows = zip(
            sheet.order.tolist(), sheet.micros.tolist(), durations, starts, ends, strict=True
        )
        for order, micro, time, start, end in rows:
            a, b, c = self._slice(track, f"{word} {micro}" if micro >= 0 else word, args, time)
            yield order, a + start + b + end + c

    def _messages(self, uuid: int, messages: Iterable[MessageRecords]) -> None:
        """Write sends, and receives by peer, each with its arrow."""
        tracks: dict[str, int] = {}
        rows: list[tuple[int, bytes]] = []
        for records in messages:
            if records.start.size and records.stream not in tracks:
                other = SEND if records.stream == "send" else RECV + len(tracks)
                tracks[records.stream] = other
                self._track(uuid, other, records.stream)
            durations, starts = (records.end - records.start).tolist(), records.start.tolist()
            arrow = _FLOW if records.stream in ("send", "store") else _LAST_FLOW
            columns = (records.names, records.kinds, records.flows, durations, starts)
            times = _encoded(records.start), _encoded(records.end)
            for name, kind, key, time, at, start, end in zip(*columns, *times, strict=True):
                flow = self._flows.setdefault(key, len(self._flows) + 1)
                joined = tag(arrow, FIXED64) + flow.to_bytes(8, "little")
                track = uuid + tracks[records.stream]
                a, b, c = self._slice(track, name, kind.args, time, joined)
                rows.append((at, a + start + b + end + c))
        self._write(rows)

    def _memory(self, uuid: int, steps: Sequence[tuple[float, int]]) -> None:
        if steps:
            self._track(uuid, MEMORY, "live memory", block(8, integer(3, SIZE_BYTES)))
        when = _encoded(np.array([round(time_s * PICOSECONDS) for time_s, _ in steps], np.int64))
        for time, (_, size_bytes) in zip(when, steps, strict=True):
            value = integer(11, uuid + MEMORY) + integer(30, size_bytes)
            head, tail = _around_time(_COUNTER, value)
            self._stream.write(head + time + tail)


def _around_time(kind: int, content: bytes) -> tuple[bytes, bytes]:
    """Return an event's packet: what stands before its eight bytes of time, and behind them."""
    tail = _SEQUENCE + _NEEDS + block(11, integer(9, kind) + content)
    return tag(1, LENGTH) + varint(1 + 8 + len(tail)) + tag(8, VARINT), tail


def _encoded(time_ps: Ints) -> list[bytes]:
    """Return times as eight bytes each."""
    data = padded(time_ps // NS).tobytes()
    return [data[at : at + 8] for at in range(0, len(data), 8)]
