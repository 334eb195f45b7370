# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Stages and schedule from JSON."""

from __future__ import annotations

from collections.abc import Callable

from tvm_distir.core import Schedule
from tvm_distir.support import JsonValue, PlanError

from .parts import Value
from .staged import DIRECTIONS, Edge, Phase, PipelineProgram, Stage, StageKind, StageSum

KEYS = ("roles", "schedule", "stages", "edges", "sums")


def read_staged(top: JsonValue, value: Callable[[JsonValue], Value]) -> PipelineProgram:
    """Read the keys :data:`KEYS` of a program; ``value`` reads a :class:`Value`."""
    try:
        schedule = Schedule.from_json(top["schedule"])
    except PlanError as error:
        raise top["schedule"].wrong(error.what, error.remedy) from None
    return PipelineProgram(
        schedule,
        tuple(_role(one, value) for one in top["roles"].items()),
        tuple(_stage(one) for one in top["stages"].items()),
        tuple(_edge(one) for one in top["edges"].items()),
        tuple(_sum(one) for one in top["sums"].items()),
    )


def _role(data: JsonValue, value: Callable[[JsonValue], Value]) -> StageKind:
    found = data.object(("name", "slots", "params", "results", "sums", "updates", "phases"))
    return StageKind(
        found["name"].text(),
        tuple(value(one) for one in found["slots"].items()),
        found["params"].integers(),
        found["results"].integers(),
        tuple(read_pair(one) for one in found["sums"].items()),
        tuple(read_pair(one) for one in found["updates"].items()),
        tuple(_phase(one) for one in found["phases"].items()),
    )


def _phase(data: JsonValue) -> Phase:
    found = data.object(("name", "function", "inputs", "outputs"))
    return Phase(
        found["name"].text(),
        found["function"].text(),
        found["inputs"].integers(),
        found["outputs"].integers(),
    )


def _stage(data: JsonValue) -> Stage:
    found = data.object(("role", "names", "results"))
    return Stage(
        found["role"].integer(),
        tuple(one.text() for one in found["names"].items()),
        tuple(one.text(empty=True) for one in found["results"].items()),
    )


def _edge(data: JsonValue) -> Edge:
    found = data.object(("from", "to", "direction", "bytes", "wire_bytes", "placements"))
    words = [one.text() for one in found["placements"].items()]
    if len(words) != 2:
        raise found["placements"].wrong(f"{len(words)} placements", "Give that of either end.")
    return Edge(
        read_pair(found["from"]),
        read_pair(found["to"]),
        found["direction"].word(DIRECTIONS),
        read_pair(found["bytes"]),
        read_pair(found["wire_bytes"]),
        (words[0], words[1]),
    )


def _sum(data: JsonValue) -> StageSum:
    found = data.object(("name", "stages", "edges"))
    return StageSum(
        found["name"].text(),
        found["stages"].integers(),
        tuple(_edge(one) for one in found["edges"].items()),
    )


def read_pair(data: JsonValue) -> tuple[int, int]:
    """Read two numbers."""
    numbers = data.integers()
    if len(numbers) != 2:
        raise data.wrong(f"{len(numbers)} numbers", "Give two.")
    return numbers[0], numbers[1]
