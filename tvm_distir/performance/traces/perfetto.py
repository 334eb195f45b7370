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
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np

from tvm_distir.hardware import PICOSECONDS
from tvm_distir.performance.event_loop.function_summaries import Ints

from .packets import NS, SIZE_BYTES, counters, descriptor, interned, pairs, start_packet
from .records import MessageRecords, OpRecords, RecordKind, TracedDevices

UNITS, COMPUTE, COMM, SEND, MEMORY, RECV = range(1, 7)
"""Numbers of the tracks of a process; receives, of several peers, come last."""

_TRACKS = 1 << 12
"""Bound of the tracks of a process."""

_NAMES = {COMPUTE: "compute", COMM: "comm", SEND: "send"}


def write_perfetto(device_groups: Sequence[TracedDevices]) -> Callable[[BinaryIO], None]:
    """Make the writer of the trace of lanes."""

    def fill(stream: BinaryIO) -> None:
        writer = _Writer(stream)
        for number, lane in enumerate(device_groups, 1):
            writer.lane(number * _TRACKS, lane)

    return fill


class _Writer:
    """Writer into a stream; it remembers the numbers of names, notes and messages."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._names, self._notes = _Numbers(), _Numbers()
        self._name = self._names.of
        self._flows: dict[Hashable, int] = {}
        self._ids: dict[int, tuple[Sequence[RecordKind], Ints]] = {}
        stream.write(start_packet())

    def lane(self, uuid: int, lane: TracedDevices) -> None:
        """Write a process."""
        pid = lane.devices[0] + 1  # Perfetto keeps process 0 for what is idle
        self._stream.write(descriptor(uuid, lane.title, pid=pid))
        runs: list[tuple[int, memoryview]] = []
        units: list[tuple[Ints, Any]] = []
        used: set[int] = set()
        for sheet in lane.sheets():
            used |= self._sheet(uuid, sheet, runs)
            if sheet.unit:
                units.append((sheet.order, self._units(uuid, sheet)))
        tracks = [(UNITS, "units")] if units else []
        tracks += [(track, name) for track, name in _NAMES.items() if track in used]
        for track, name in tracks:
            self._stream.write(descriptor(uuid + track, name, parent=uuid, rank=track))
        if units:
            order = np.concatenate([order for order, _ in units])
            rows = np.concatenate([unit_rows for _, unit_rows in units])
            self._stream.write(rows[np.argsort(order, kind="stable")].tobytes())
        self._stream.writelines(row for _, row in sorted(runs, key=lambda pair: pair[0]))
        self._messages(uuid, lane.messages())
        self._memory(uuid + MEMORY, uuid, lane.memory())

    def _sheet(self, uuid: int, sheet: OpRecords, runs: list[tuple[int, memoryview]]) -> set[int]:
        """Make the packets of all runs; returns the tracks."""
        if not sheet.kinds or not sheet.start.size:
            return set()
        duration = (sheet.end - sheet.start)[0]
        if not np.array_equal(sheet.end - sheet.start, np.broadcast_to(duration, sheet.end.shape)):
            raise ValueError("the runs of a unit have different durations")
        ids = self._kind_ids(sheet.kinds, duration)
        packets = pairs(uuid + ids[:, 2], ids[:, 0], ids[:, 1], sheet.start // NS, sheet.end // NS)
        flat = packets.reshape(len(packets), -1)
        runs += [(k, row.data) for k, row in zip(sheet.order.tolist(), flat, strict=True)]
        return set(ids[:, 2].tolist())

    def _units(self, uuid: int, sheet: OpRecords) -> Any:
        """Return the packets of the units themselves, (runs, 1, bytes)."""
        word, args = sheet.unit, {"unit": sheet.unit, "place": sheet.location}
        names = [f"{word} {micro}" if micro >= 0 else word for micro in sheet.micros.tolist()]
        duration = sheet.span[:, 1] - sheet.span[:, 0]
        notes = {time: self._note(args, time) for time in np.unique(duration).tolist()}
        rows = [(self._name(name), notes[time]) for name, time in zip(names, duration.tolist())]
        ids = np.array(rows, np.int64)
        self._flush()
        track = np.full(len(ids), uuid + UNITS)
        first, last = (sheet.span // NS).T
        return pairs(track, ids[:, 0], ids[:, 1], first[None], last[None])[0]

    def _kind_ids(self, kinds: Sequence[RecordKind], duration: Ints) -> Ints:
        """Return name, note and track of each op, (ops, 3); those of equal lists are known."""
        key = id(kinds)
        cached = self._ids.get(key)
        if cached is not None and cached[0] is kinds and np.array_equal(cached[1][:, 3], duration):
            return cached[1]
        rows = [
            (
                self._name(kind.title),
                self._note(kind.args, time),
                COMPUTE if kind.stream == "compute" else COMM,
                time,
            )
            for kind, time in zip(kinds, duration.tolist(), strict=True)
        ]
        self._flush()
        ids = np.array(rows, np.int64).reshape(-1, 4)
        self._ids[key] = kinds, ids
        return ids

    def _note(self, args: Mapping[str, object], spent_ps: int) -> int:
        return self._notes.of(json.dumps({**args, "duration_ps": spent_ps}, allow_nan=False))

    def _flush(self) -> None:
        """Write the definitions of new numbers."""
        self._stream.write(interned(self._names.new(), self._notes.new()))

    def _messages(self, uuid: int, messages: Iterable[MessageRecords]) -> None:
        """Write sends, and receives by peer, each with its arrow."""
        tracks: dict[str, int] = {}
        rows: dict[int, list[tuple[Ints, Any]]] = {}
        for records in messages:
            if not records.start.size:
                continue
            receives = records.stream not in ("send", "store")
            other = SEND if records.stream == "send" else RECV + len(tracks)
            track = tracks.setdefault(records.stream, other)
            duration = (records.end - records.start).tolist()
            keys = [(id(kind), time) for kind, time in zip(records.kinds, duration, strict=True)]
            notes = {
                key: self._note(kind.args, key[1])
                for key, kind in dict(zip(keys, records.kinds, strict=True)).items()
            }
            ids = [(self._name(name), notes[key]) for name, key in zip(records.names, keys)]
            flows = [self._flows.setdefault(key, len(self._flows) + 1) for key in records.flows]
            id_rows = np.array(ids, np.int64)
            track_ids = np.full(len(ids), uuid + track)
            times = (records.start[None] // NS, records.end[None] // NS)
            pair_packets = pairs(
                track_ids, id_rows[:, 0], id_rows[:, 1], *times, np.array(flows), receives
            )
            rows.setdefault(track, []).append((records.start, pair_packets[0]))
        self._flush()
        for name, track in tracks.items():
            self._stream.write(descriptor(uuid + track, name, parent=uuid, rank=track))
            start = np.concatenate([start for start, _ in rows[track]])
            packets = np.concatenate([pair_packets for _, pair_packets in rows[track]])
            self._stream.write(packets[np.argsort(start, kind="stable")].tobytes())

    def _memory(self, track: int, uuid: int, steps: Sequence[tuple[float, int]]) -> None:
        if not steps:
            return
        self._stream.write(
            descriptor(track, "live memory", parent=uuid, rank=MEMORY, unit=SIZE_BYTES)
        )
        when = np.array([round(time_s * PICOSECONDS) // NS for time_s, _ in steps], np.int64)
        sizes = np.array([size for _, size in steps], np.int64)
        self._stream.write(counters(track, when, sizes).tobytes())


class _Numbers:
    """Numbers of texts, from 1 on."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}
        self._new: list[tuple[int, str]] = []

    def of(self, text: str) -> int:
        """Number of a text, which may be new."""
        if text not in self._known:
            self._known[text] = len(self._known) + 1
            self._new.append((len(self._known), text))
        return self._known[text]

    def new(self) -> list[tuple[int, str]]:
        """Return the texts that were not given before."""
        created, self._new = self._new, []
        return created
