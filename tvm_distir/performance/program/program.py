# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define ``Program``: the work of every device as hierarchical plain data."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvm_distir.core.plan import Schedule, mesh_text
from tvm_distir.core.rewriting import gc_paused
from tvm_distir.support import align

from .checks import check_program
from .parts import (
    COMMON_KEYS,
    EXTRA_KEYS,
    SCHEMA_VERSION,
    STAGED_VERSION,
    Entry,
    Function,
    Mesh,
    Op,
    Value,
)
from .pipeline_program import BEGIN, Phase, PipelineProgram, Stage, StageKind
from .reading import load, parse, parse_text
from .storage import Storage

_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)

_DEEPEST = 3
"""The depth of the objects whose keys have separate lines: program, functions, function."""


@dataclass(frozen=True)
class Program:
    """Work of every device in a step, hierarchical: functions call functions.

    Attributes
    ----------
    meshes : tuple of Mesh
    functions : mapping of str to Function
    entries : tuple of Entry
        The entries, an entry per mesh that runs something; where meshes share devices, an entry for
        all devices that belong to the same meshes. There are none where the step is pipelined.
    staged : PipelineProgram, optional
        Stages and schedule, whose phases take the place of entries.
    storage : Storage, optional
        TVM's storage plan: what is taken and freed where TVM runs the program.

    Examples
    --------
    >>> mod = td.zoo.build("mlp", {"batch": 4, "layers": 1, "hidden": 8})
    >>> plan = td.Plan(mesh={"tp": 2}, rules={"x": td.P(None, "tp")})
    >>> dist = td.distribute(mod, plan)
    >>> program = td.export(dist)
    >>> td.Program.from_json(program.to_json()) == program
    True
    """

    meshes: tuple[Mesh, ...]
    functions: Mapping[str, Function]
    entries: tuple[Entry, ...]
    staged: PipelineProgram | None = None
    storage: Storage | None = None

    def __str__(self) -> str:
        meshes = ", ".join(
            f"{x.name} ({mesh_text(dict(zip(x.axes, x.shape)))})" for x in self.meshes
        )
        columns = ("function", "mesh", "ops", "collectives")
        rows = [
            [name, self.meshes[fn.mesh].name, f"{len(fn.ops):,}", f"{_collectives(fn):,}"]
            for name, fn in self.functions.items()
        ]
        head = f"program of {self.device_count():,} devices on {meshes}"
        return "\n".join([head, "", *align(columns, rows, "llrr")])

    def to_dict(self) -> dict[str, Any]:
        """Give the program as plain data, the content of its JSON file."""
        out = {
            "schema_version": SCHEMA_VERSION if self.staged is None else STAGED_VERSION,
            "meshes": [
                {
                    "name": mesh.name,
                    "axes": list(mesh.axes),
                    "shape": list(mesh.shape),
                    "device_ids": list(mesh.device_ids),
                }
                for mesh in self.meshes
            ],
            "functions": {name: _function_dict(fn) for name, fn in self.functions.items()},
            **({} if self.storage is None else {"storage": self.storage.to_dict()}),
        }
        if self.staged is None:
            return {**out, "entries": [_entry_dict(entry) for entry in self.entries]}
        return {**out, **self.staged.to_dict(_value_dict)}

    @gc_paused()
    def to_json(self) -> str:
        """Give the program as JSON text, a line for each value and op."""
        return _lines_of(self.to_dict())

    def save(self, path: str | Path) -> None:
        """Write the JSON file."""
        Path(path).write_text(self.to_json() + "\n", encoding="utf-8")

    @staticmethod
    def from_dict(data: Any, place: str = "program") -> Program:
        """Read plain data, each key and index checked.

        Raises
        ------
        SimulationError
            DIST0710 for an unknown, missing or wrong value, DIST0711 for another schema version,
            DIST0712 for what contradicts itself, such as a callee that is not there, DIST0713
            for cyclic calls.
        """
        return parse(data, place, Program)

    @staticmethod
    def from_json(text: str, place: str = "program") -> Program:
        """Read JSON text. Errors as in :meth:`from_dict`; DIST0710 for text that is not JSON."""
        return parse_text(text, place, Program)

    @staticmethod
    def load(path: str | Path) -> Program:
        """Read a JSON file. Errors as in :meth:`from_json`."""
        return load(path, Program)

    def check(self, place: str = "program") -> None:
        """Refuse a program that contradicts itself.

        Raises
        ------
        SimulationError
            DIST0712, or DIST0713 for cyclic calls.
        """
        check_program(self.meshes, self.functions, self.entries, self.staged, place)

    @functools.cached_property
    def as_stages(self) -> PipelineProgram:
        """Return the pipelined step; of a program without one, a stage for each entry."""
        return self.staged or _stages_of(self.functions, self.entries)

    def device_count(self) -> int:
        """Number of devices that run something."""
        if self.staged is not None:
            return sum(len(mesh.device_ids) for mesh in self.meshes)
        return sum(len(self.devices_of(entry)) for entry in self.entries)

    def devices_of(self, entry: Entry) -> tuple[int, ...]:
        """Return the devices that run an entry."""
        return entry.device_ids or self.meshes[entry.mesh].device_ids

    def leads(self, entry: Entry, mesh: int) -> bool:
        """Return whether an entry runs on the first device of a mesh."""
        return self.meshes[mesh].device_ids[0] in self.devices_of(entry)

    def inputs(self) -> Iterator[tuple[int, str, Value]]:
        """Yield the inputs and weights of the full step: mesh, name and value, once per mesh."""
        for entry in self.entries:
            fn = self.functions[entry.function]
            for value in (fn.values[index] for index in fn.params):
                number = entry.mesh if value.mesh is None else value.mesh
                if self.leads(entry, number):  # another entry on this mesh may have it too
                    yield number, value.name, value
        if self.staged is not None:
            yield from self.staged.inputs()

    def executed(self, function: str) -> Iterator[tuple[Function, Op]]:
        """Yield the ops in execution order, each with the function that contains it.

        Calls are followed, once for each call; a ``branch`` is yielded itself, since which of its
        sides runs is not known.
        """
        fn = self.functions[function]
        for op in fn.ops:
            if op.kind == "call" and op.callee is not None:
                yield from self.executed(op.callee)
            else:
                yield fn, op

    def place_of(self, entry: Entry) -> str:
        """Return the names of the meshes that an entry works on, ``mesh0+mesh1``."""
        fn = self.functions[entry.function]
        values = [fn.values[i] for i in fn.params]
        meshes = {entry.mesh, *(value.mesh for value in values if value.mesh is not None)}
        meshes.update(op.mesh for op in fn.ops if op.kind in ("collective", "transfer"))
        return "+".join(self.meshes[number].name for number in sorted(meshes))


def _collectives(fn: Function) -> int:
    return sum(op.kind == "collective" for op in fn.ops)


def _entry_dict(entry: Entry) -> dict[str, Any]:
    out: dict[str, Any] = {"mesh": entry.mesh, "function": entry.function}
    if entry.device_ids:
        out["device_ids"] = list(entry.device_ids)
    if entry.alias:
        out["alias"] = [list(pair) for pair in entry.alias]
    return out


def _function_dict(fn: Function) -> dict[str, Any]:
    return {
        "mesh": fn.mesh,
        "params": list(fn.params),
        "results": list(fn.results),
        "values": [_value_dict(value) for value in fn.values],
        "ops": [_op_dict(op) for op in fn.ops],
    }


def _value_dict(value: Value) -> dict[str, Any]:
    out: dict[str, Any] = {
        "name": value.name,
        "shape": list(value.shape),
        "dtype": value.dtype,
        "bytes": value.bytes,
    }
    if value.role != "activation":
        out["role"] = value.role
    if value.whole_shape is not None:
        out["whole_shape"] = list(value.whole_shape)
    if value.placement is not None:
        out["placement"] = value.placement
    if value.mesh is not None:
        out["mesh"] = value.mesh
    return out


def _op_dict(op: Op) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key in (*COMMON_KEYS, *EXTRA_KEYS[op.kind]):
        value = getattr(op, key)
        out[key] = list(value) if isinstance(value, tuple) else value
    if not op.modelled:
        out["reason"] = op.reason
    if op.measured_ps:
        out["measured_ps"] = op.measured_ps
    if op.selects:
        out["selects"] = list(op.selects)
    return out


def _lines_of(data: Any, depth: int = 0) -> str:
    """Return the JSON text with a line per function key, value and op.

    Examples
    --------
    >>> print(_lines_of({"version": 1, "functions": {"f": {"params": [0, 1], "ops": [{"a": 2}]}}}))
    {
    "version":1,
    "functions":{
    "f":{
    "params":[0,1],
    "ops":[
    {"a":2}]}}}
    """
    if isinstance(data, dict) and data and depth < _DEEPEST:
        pairs = (f"{_ENCODER.encode(k)}:{_lines_of(v, depth + 1)}" for k, v in data.items())
        return "{\n" + ",\n".join(pairs) + "}"
    if isinstance(data, list) and any(isinstance(item, dict) for item in data):
        return "[\n" + ",\n".join(map(_ENCODER.encode, data)) + "]"
    return _ENCODER.encode(data)


def _stages_of(functions: Mapping[str, Function], entries: Sequence[Entry]) -> PipelineProgram:
    """Return entries as stages: each is the only phase of its stage, which runs once.

    Its parameters are slots in front of its results; of equal names, the later are numbered.
    """
    roles, stages = [], []
    for number, entry in enumerate(entries):
        fn = functions[entry.function]
        count = len(fn.params)
        params = tuple(range(count))
        results = tuple(range(count, count + len(fn.results)))
        names: dict[str, None] = {}
        for name in (fn.values[index].name for index in fn.params):
            names[f"{name} {len(names)}" if name in names else name] = None
        roles.append(
            StageKind(
                name=entry.function,
                slots=tuple(fn.values[index] for index in (*fn.params, *fn.results)),
                params=params,
                results=results,
                sums=(),
                updates=tuple((param, results[place]) for place, param in entry.alias),
                phases=(Phase(BEGIN, entry.function, params, results),),
            )
        )
        stages.append(Stage(number, tuple(names), tuple(map(str, results))))
    return PipelineProgram(Schedule(stages=len(entries)), tuple(roles), tuple(stages), ())
