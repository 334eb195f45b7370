# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Encode Perfetto packets as bytes; many slices and counters at once, in tables.

A table has a packet pattern with fields of equal length (:func:`.protobuf.padded`), repeated,
into which tracks, numbers and times are written column by column.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tvm_distir.performance.event_loop.function_summaries import Ints

from .protobuf import Bytes, block, integer, put_padded, tag, varint

NS = 1000
"""Picoseconds of a nanosecond."""

SIZE_BYTES = 3
"""``CounterDescriptor.Unit`` of memory."""

_SEQUENCE = integer(10, 1)  # TracePacket.trusted_packet_sequence_id
_BEGIN, _END, _COUNTER = 1, 2, 4  # TrackEvent.Type
_CLEARED, _NEEDS = 1, 2  # TracePacket.SequenceFlags
_NOTE = 1  # of the name "op" of annotations
_PAD = b"\x80" * 7 + b"\x00"  # varints of eight bytes and of four
_SHORT = b"\x80" * 3 + b"\x00"


def _packet(content: bytes) -> bytes:
    return block(1, content)  # Trace.packet


def start_packet() -> bytes:
    """Return the first packet, which says that numbers begin anew."""
    name = block(3, integer(1, _NOTE) + block(2, "op"))  # InternedData.debug_annotation_names
    return _packet(_SEQUENCE + integer(13, _CLEARED) + block(12, name))


def interned(names: Sequence[tuple[int, str]], notes: Sequence[tuple[int, str]]) -> bytes:
    """Return the texts of new numbers of names and of notes."""
    content = b"".join(
        block(field, integer(1, number) + block(2, text))
        for field, table in ((2, names), (29, notes))  # event_names, debug_annotation_string_values
        for number, text in table
    )
    flags = integer(13, _NEEDS)
    return _packet(_SEQUENCE + flags + block(12, content)) if content else b""


def descriptor(
    uuid: int, name: str, *, pid: int | None = None, parent: int = 0, rank: int = 0, unit: int = 0
) -> bytes:
    """Return a track: of a process, of a stream of a process, or of a counter with a unit."""
    content = integer(1, uuid)
    if pid is not None:  # ordered as its tracks say
        content += block(3, integer(1, pid) + block(6, name)) + integer(11, 3)
    else:
        content += block(2, name) + integer(5, parent) + integer(12, rank)
    if unit:
        content += block(8, integer(3, unit))
    return _packet(_SEQUENCE + block(60, content))


class _Pattern:
    """Pattern of an event's packet, with the positions of the fields that differ.

    Parameters
    ----------
    flags : bytes
        The flags of the packet.
    fields : sequence of (name, bytes, int)
        The fields of the event; each ends with so many bytes that differ, none without a name.
    """

    def __init__(self, flags: bytes, fields: list[tuple[str, bytes, int]]) -> None:
        body = b"".join(piece for _, piece, _ in fields)
        inner = tag(8, 0) + _PAD + _SEQUENCE + flags + tag(11, 2) + varint(len(body))
        front = tag(1, 2) + varint(len(inner) + len(body))
        self.bytes = front + inner + body
        self.positions = {"time": len(front) + 1}
        at = len(front) + len(inner)
        for name, piece, size in fields:
            at += len(piece)
            self.positions[name] = at - size


_TRACK = ("track", tag(11, 0) + _SHORT, 4)


def _slice(flow: int) -> tuple[_Pattern, _Pattern]:
    """Return the patterns of a slice's begin and end; ``flow`` is its arrow's field, or 0."""
    note = block(4, integer(1, _NOTE) + tag(17, 0) + _SHORT)
    begin = [
        ("", integer(9, _BEGIN), 0),
        _TRACK,
        ("name", tag(10, 0) + _SHORT, 4),
        ("note", note, 4),
    ]
    arrow = [("flow", tag(flow, 1) + bytes(8), 8)] if flow else []
    end = [("", integer(9, _END), 0), _TRACK]
    return _Pattern(integer(13, _NEEDS), begin + arrow), _Pattern(b"", end)


def pairs(
    track: Ints, name: Ints, note: Ints, start_ns: Ints, end_ns: Ints,
    flow: Ints | None = None, receives: bool = False,
) -> Bytes:  # fmt: skip
    """Return the slices, (runs, slices, bytes), each as its begin and its end.

    Parameters
    ----------
    track, name, note : int64 arrays (slices,)
    start_ns, end_ns : int64 arrays (runs, slices)
    flow : int64 array (slices,), optional
        Numbers of arrows, which begin here, or end here with ``receives``.
    """
    begin, end = _slice(0 if flow is None else 48 if receives else 47)
    template = np.tile(np.frombuffer(begin.bytes + end.bytes, np.uint8), (1, track.size, 1))
    at = len(begin.bytes)
    put_padded(template, begin.positions["track"], track[None], 4)
    put_padded(template, at + end.positions["track"], track[None], 4)
    put_padded(template, begin.positions["name"], name[None], 4)
    put_padded(template, begin.positions["note"], note[None], 4)
    if flow is not None:
        position = begin.positions["flow"]
        template[0, :, position : position + 8] = flow.astype("<u8")[:, None].view(np.uint8)
    rows = np.tile(template, (len(start_ns), 1, 1))
    put_padded(rows, begin.positions["time"], start_ns)
    put_padded(rows, at + end.positions["time"], end_ns)
    return rows


def counters(track: int, when_ns: Ints, values: Ints) -> Bytes:
    """Return the values of a counter over time, (values, bytes)."""
    value = ("value", tag(30, 0) + _PAD, 8)
    pattern = _Pattern(b"", [("", integer(9, _COUNTER), 0), _TRACK, value])
    rows = np.tile(np.frombuffer(pattern.bytes, np.uint8), (values.size, 1))
    put_padded(rows, pattern.positions["track"], np.full(values.size, track), 4)
    put_padded(rows, pattern.positions["time"], when_ns)
    put_padded(rows, pattern.positions["value"], values)
    return rows
