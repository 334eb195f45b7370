# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read stages and schedule from JSON."""

from __future__ import annotations

from collections.abc import Callable

from tvm_distir.core import Schedule
from tvm_distir.support import JsonValue, PlanError

from .parts import Value
from .pipeline_program import DIRECTIONS, Edge, Phase, PipelineProgram, Stage, StageKind, StageSum

KEYS = ("roles", "schedule", "stages", "edges", "sums")


def read_staged(top: JsonValue, value: Callable[[JsonValue], Value]) -> PipelineProgram:
    """Read the keys :data:`KEYS` of a program; ``value`` reads a :class:`Value`."""
    try:
        schedule = Schedule.from_json(top["schedule"])
    except PlanError as error:
        raise top["schedule"].wrong(error.what, error.remedy) from None
    return PipelineProgram(
        schedule,
        tuple(_role(item, value) for item in top["roles"].items()),
        tuple(_stage(item) for item in top["stages"].items()),
        tuple(_edge(item) for item in top["edges"].items()),
        tuple(_sum(item) for item in top["sums"].items()),
    )


def _role(data: JsonValue, value: Callable[[JsonValue], Value]) -> StageKind:
    fields = data.object(("name", "slots", "params", "results", "sums", "updates", "phases"))
    return StageKind(
        fields["name"].text(),
        tuple(value(item) for item in fields["slots"].items()),
        fields["params"].integers(),
        fields["results"].integers(),
        tuple(read_pair(pair) for pair in fields["sums"].items()),
        tuple(read_pair(pair) for pair in fields["updates"].items()),
        tuple(_phase(item) for item in fields["phases"].items()),
    )


def _phase(data: JsonValue) -> Phase:
    fields = data.object(("name", "function", "inputs", "outputs"))
    return Phase(
        fields["name"].text(),
        fields["function"].text(),
        fields["inputs"].integers(),
        fields["outputs"].integers(),
    )


def _stage(data: JsonValue) -> Stage:
    fields = data.object(("role", "names", "results"))
    return Stage(
        fields["role"].integer(),
        tuple(item.text() for item in fields["names"].items()),
        tuple(item.text(empty=True) for item in fields["results"].items()),
    )


def _edge(data: JsonValue) -> Edge:
    fields = data.object(("from", "to", "direction", "bytes", "wire_bytes", "placements"))
    words = [item.text() for item in fields["placements"].items()]
    if len(words) != 2:
        raise fields["placements"].wrong(f"{len(words)} placements", "Give the key of either end.")
    return Edge(
        read_pair(fields["from"]),
        read_pair(fields["to"]),
        fields["direction"].word(DIRECTIONS),
        read_pair(fields["bytes"]),
        read_pair(fields["wire_bytes"]),
        (words[0], words[1]),
    )


def _sum(data: JsonValue) -> StageSum:
    fields = data.object(("name", "stages", "edges"))
    return StageSum(
        fields["name"].text(),
        fields["stages"].integers(),
        tuple(_edge(item) for item in fields["edges"].items()),
    )


def read_pair(data: JsonValue) -> tuple[int, int]:
    """Read two numbers."""
    numbers = data.integers()
    if len(numbers) != 2:
        raise data.wrong(f"{len(numbers)} numbers", "Give two.")
    return numbers[0], numbers[1]
