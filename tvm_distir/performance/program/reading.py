# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read programs from JSON and check all that the simulator relies on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from tvm_distir.core.plan import Schedule
from tvm_distir.support import (
    Check,
    InvalidValue,
    PlanError,
    SimulationError,
    check_version,
    parse_json,
    read_model,
    read_text,
)

from .checks import check_program
from .mesh import Mesh
from .parts import SCHEMA_VERSION, STAGED_VERSION, Entry, Function
from .pipeline_program import Edge, PipelineProgram, Stage, StageSum
from .stage_kind import StageKind
from .storage import BRANCH, CALL, Storage

EXPORT = "Export the program again."


def _check_callees(storage: Storage) -> Storage:
    """Refuse a storage plan that names functions that it does not have."""
    steps = (step for function in storage.functions.values() for step in function.steps)
    called = {name for step in steps if step.kind in (CALL, BRANCH) for name in step.names}
    missing = sorted({*called, *storage.entries} - set(storage.functions))
    if missing:
        raise InvalidValue(f"there is no function {missing[0]!r}", "Plan the storage again.")
    return storage


@dataclass(frozen=True, kw_only=True)
class _ProgramFile:
    """The content of the file of any program, except its schema version."""

    meshes: tuple[Mesh, ...]
    functions: Mapping[str, Function]
    storage: Annotated[Storage, Check(_check_callees)] | None = None


@dataclass(frozen=True, kw_only=True)
class _EntriesFile(_ProgramFile):
    """The content of the file of a program without stages."""

    entries: tuple[Entry, ...]


@dataclass(frozen=True, kw_only=True)
class _StagesFile(_ProgramFile):
    """The content of the file of a pipelined program."""

    schedule: Schedule
    roles: tuple[StageKind, ...]
    stages: tuple[Stage, ...]
    edges: tuple[Edge, ...]
    sums: tuple[StageSum, ...]


Made = TypeVar("Made")


def _wrong(location: str, problem: str, remedy: str) -> SimulationError:
    return SimulationError("DIST0710", problem, location=location, remedy=remedy)


def _other_version(location: str, problem: str, remedy: str) -> SimulationError:
    return SimulationError("DIST0711", problem, location=location, remedy=remedy)


def load(path: str | Path, make: Callable[..., Made]) -> Made:
    """Read a file; see :meth:`.program.Program.load`."""
    text = read_text(path, _wrong, "Give a file that `tvm-distir analyze -o` wrote.")
    return parse_text(text, str(path), make)


def parse_text(text: str, location: str, make: Callable[..., Made]) -> Made:
    """Read JSON text; see :meth:`.program.Program.from_json`."""
    return parse(parse_json(text, location, _wrong, EXPORT), location, make)


def parse(data: Any, location: str, make: Callable[..., Made]) -> Made:
    """Pass the checked parts of a program to ``make``; see :meth:`.program.Program.from_dict`."""
    content = check_version(
        data, location, _wrong, SCHEMA_VERSION, STAGED_VERSION, other=_other_version
    )
    entries: tuple[Entry, ...] = ()
    staged: PipelineProgram | None = None
    file: _EntriesFile | _StagesFile
    if data["schema_version"] == STAGED_VERSION:
        try:
            file = read_model(_StagesFile, content, location, _wrong)
        except PlanError as error:  # of the schedule
            raise _wrong(f"{location}/schedule", error.what, error.remedy) from None
        staged = PipelineProgram(file.schedule, file.roles, file.stages, file.edges, file.sums)
    else:
        file = read_model(_EntriesFile, content, location, _wrong)
        entries = file.entries
    check_program(file.meshes, file.functions, entries, staged, location)
    storage = file.storage
    if storage is not None and len(storage.entries) != (len(entries) or len(file.meshes)):
        raise _wrong(f"{location}/storage", f"{len(storage.entries)} entries", EXPORT)
    return make(file.meshes, file.functions, entries, staged, storage)
