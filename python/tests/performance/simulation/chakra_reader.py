# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Reads Chakra's traces by its published schema, and plays them as a simulator would."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.unknown_fields import UnknownFieldSet

from tests.performance.simulation.perfetto_reader import messages

_ATTRIBUTE = "name=1:text int32_val=7:i32 int64_val=9:i64 uint64_val=13:u64 string_val=29:text"
_SCHEMA = {
    "GlobalMetadata": "version=1:text",
    "Node": "id=1:u64 name=2:text type=3:i32 ctrl_deps*=4:u64 data_deps*=5:u64 "
    "duration_micros=7:u64 inputs=8:IOInfo attr*=10:AttributeProto",
    "IOInfo": "values=1:text",
    "AttributeProto": _ATTRIBUTE + " bool_val=27:u32",
}


@dataclass
class Node:
    """A node: its kind as ``NodeType`` says, what it waits for, its attributes."""

    name: str
    kind: int
    waits: tuple[int, ...]
    micros: int
    facts: dict[str, Any]


def read_rank(path: Path) -> tuple[dict[int, Node], list[dict[str, Any]]]:
    """Nodes by id, in the order of the file, and the groups that it declares."""
    kinds = messages(_SCHEMA, "chakracheck")
    data, at, result = path.read_bytes(), 0, []
    while at < len(data):
        size, shift = 0, 0
        while True:
            byte, at = data[at], at + 1
            size |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        single = (kinds["Node"] if result else kinds["GlobalMetadata"])()
        single.ParseFromString(data[at : at + size])
        assert not len(UnknownFieldSet(single))
        result.append(single)
        at += size
    head, init, *nodes = result
    assert head.version and init.type == 1
    read = {}
    for node in nodes:
        facts = {}
        for attribute in node.attr:
            ((field, value),) = [
                (f.name, v) for f, v in attribute.ListFields() if f.name != "name"
            ] or [("", 0)]
            facts[attribute.name] = value
            known = {"comm_size": "int64_val", "comm_src": "int32_val", "pg_name": "string_val"}
            assert field in ("", known.get(attribute.name, field))
        waits = (*node.data_deps, *node.ctrl_deps)
        assert node.id not in read
        read[node.id] = Node(node.name, node.type, waits, node.duration_micros, facts)
    return read, json.loads(init.inputs.values)


def play(ranks: dict[int, dict[int, Node]], groups: dict[str, list[int]]) -> int:
    """Run all ranks as early as possible; returns the end in picoseconds.

    Messages meet by sender, receiver and tag, in order; collectives by group, in order.
    """
    ends: dict[tuple[int, int], int] = {}
    sent: dict[Any, list[int]] = defaultdict(list)
    used: dict[Any, int] = defaultdict(int)
    met: dict[Any, dict[int, tuple[int, int]]] = defaultdict(dict)
    turn: dict[tuple[int, str], int] = defaultdict(int)
    turns: dict[tuple[int, int], int] = {}
    waiting = {(rank, number) for rank, nodes in ranks.items() for number in nodes}
    while waiting:
        before = len(waiting)
        for rank, number in sorted(waiting):
            node = ranks[rank][number]
            if any((rank, other) not in ends for other in node.waits):
                continue
            start = max((ends[rank, other] for other in node.waits), default=0)
            duration = node.facts.get("duration_ps", 0)
            if node.kind in (5, 6):
                pair = (node.facts.get("comm_src", 0), node.facts.get("comm_dst", 0))
                key = (*pair, node.facts.get("comm_tag", 0), node.facts["comm_size"])
                assert pair[node.kind == 6] == rank != pair[node.kind == 5]
                if node.kind == 5:
                    sent[key].append(start)
                elif len(sent[key]) > used[key]:
                    start = sent[key][used[key]]
                    used[key] += 1
                else:
                    continue
            elif node.kind == 7:
                group = node.facts["pg_name"]
                assert rank in groups[group]
                if (rank, number) not in turns:
                    turns[rank, number] = turn[rank, group]
                    turn[rank, group] += 1
                there = met[group, turns[rank, number]]
                there[rank] = (start, duration)
                if len(there) < len(groups[group]):
                    continue
                start, duration = (
                    max(each for each, _ in there.values()),
                    max(s for _, s in there.values()),
                )
            ends[rank, number] = start + duration
            waiting.discard((rank, number))
        assert len(waiting) < before, "ranks wait for each other"
    assert all(len(starts) == used[key] for key, starts in sent.items())
    return max(ends.values())
