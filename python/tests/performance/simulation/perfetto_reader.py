# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Reads Perfetto's traces by its published schema, as its trace processor does: slices by track.

The messages are built at run time from the few fields that matter; nothing of the writer is used.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_FIELD = descriptor_pb2.FieldDescriptorProto
_TYPES = {
    "u64": _FIELD.TYPE_UINT64, "i64": _FIELD.TYPE_INT64, "u32": _FIELD.TYPE_UINT32,
    "i32": _FIELD.TYPE_INT32, "f64": _FIELD.TYPE_FIXED64, "text": _FIELD.TYPE_STRING,
}  # fmt: skip
_SCHEMA = {
    "Trace": "packet*=1:TracePacket",
    "TracePacket": "timestamp=8:u64 trusted_packet_sequence_id=10:u32 track_event=11:TrackEvent "
    "interned_data=12:InternedData sequence_flags=13:u32 track_descriptor=60:TrackDescriptor",
    "TrackEvent": "type=9:i32 track_uuid=11:u64 name_iid=10:u64 counter_value=30:i64 "
    "flow_ids*=47:f64 terminating_flow_ids*=48:f64 debug_annotations*=4:DebugAnnotation",
    "DebugAnnotation": "name_iid=1:u64 string_value_iid=17:u64",
    "InternedData": "event_names*=2:Interned debug_annotation_names*=3:Interned "
    "debug_annotation_string_values*=29:Interned",
    "Interned": "iid=1:u64 text=2:text",
    "TrackDescriptor": "uuid=1:u64 name=2:text process=3:Process parent_uuid=5:u64 "
    "counter=8:Counter child_ordering=11:i32 sibling_order_rank=12:i32",
    "Process": "pid=1:i32 process_name=6:text",
    "Counter": "unit=3:i32",
}


def messages(schema: dict[str, str], package: str) -> dict[str, Any]:
    """Message classes of a schema: ``name=number:type``, with ``*`` where it repeats."""
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{package}.proto", package=package, syntax="proto3"
    )
    for name, fields in schema.items():
        message = file.message_type.add(name=name)
        for text in fields.split():
            label, _, kind = text.partition(":")
            word, _, number = label.partition("=")
            single = message.field.add(name=word.rstrip("*"), number=int(number))
            single.label = _FIELD.LABEL_REPEATED if word.endswith("*") else _FIELD.LABEL_OPTIONAL
            single.type = _TYPES.get(kind, _FIELD.TYPE_MESSAGE)
            if kind not in _TYPES:
                single.type_name = f".{package}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in schema
    }


@dataclass
class Slice:
    """A slice: name, times in nanoseconds, its note, arrows that begin and end in it."""

    name: str
    start: int
    end: int
    note: dict[str, Any]
    begins: tuple[int, ...]
    ends: tuple[int, ...]


@dataclass
class Read:
    """Slices and counters by (process, track), and what the tracks are."""

    slices: dict[tuple[str, str], list[Slice]] = field(default_factory=lambda: defaultdict(list))
    counters: dict[tuple[str, str], list[tuple[int, int]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    pids: dict[str, int] = field(default_factory=dict)


def read(data: bytes) -> Read:
    """Decode, sort by time as a viewer does, and pair begins with ends."""
    kinds = messages(_SCHEMA, "tracecheck")
    trace = kinds["Trace"]()
    trace.ParseFromString(data)
    assert trace.ByteSize() <= len(data)
    names: dict[int, str] = {}
    notes: dict[int, str] = {}
    tracks: dict[int, Any] = {}
    events = []
    for number, packet in enumerate(trace.packet):
        assert packet.trusted_packet_sequence_id == 1
        assert (number == 0) == (packet.sequence_flags & 1 == 1)
        if packet.HasField("interned_data"):
            for table, observed in (
                (names, packet.interned_data.event_names),
                (notes, packet.interned_data.debug_annotation_string_values),
            ):
                for each in observed:
                    assert table.setdefault(each.iid, each.text) == each.text
        if packet.HasField("track_descriptor"):
            tracks[packet.track_descriptor.uuid] = packet.track_descriptor
        if packet.HasField("track_event"):
            event = packet.track_event
            known = (None, None)
            if event.type == 1:
                assert packet.sequence_flags & 2
                (note,) = event.debug_annotations
                known = names[event.name_iid], json.loads(notes[note.string_value_iid])
            events.append((packet.timestamp, event, known))
    result = Read()
    for each in tracks.values():
        if each.HasField("process"):
            result.pids[each.process.process_name] = each.process.pid
    open_slices: dict[tuple[str, str], list[Slice]] = defaultdict(list)
    for when, event, (name, note) in sorted(events, key=lambda single: single[0]):
        track = tracks[event.track_uuid]
        key = (tracks[track.parent_uuid].process.process_name, track.name)
        if event.type == 4:
            assert track.counter.unit == 3
            result.counters[key].append((when, event.counter_value))
        elif event.type == 1:
            arrows = tuple(event.flow_ids), tuple(event.terminating_flow_ids)
            observed = Slice(name, when, -1, note, *arrows)
            open_slices[key].append(observed)
            result.slices[key].append(observed)
        else:
            open_slices[key].pop().end = when
    assert not any(open_slices.values())
    return result
