# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define ``Program``: the work of every device as hierarchical plain data."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvm_distir.core.plan import Schedule, mesh_text
from tvm_distir.core.rewriting import gc_paused
from tvm_distir.support import align

from .checks import check_program
from .mesh import Mesh, first_numbers
from .parts import SCHEMA_VERSION, STAGED_VERSION, Entry, Function, Op, Value
from .pipeline_program import PipelineProgram, Stage
from .reading import load, parse, parse_text
from .stage_kind import BEGIN, Phase, StageKind
from .storage import Storage
from .writing import lines_of, plain


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
        steps = {"entries": plain(self.entries)} if self.staged is None else self.staged.to_dict()
        return {
            "schema_version": SCHEMA_VERSION if self.staged is None else STAGED_VERSION,
            "meshes": plain(self.meshes),
            "functions": plain(self.functions),
            **({} if self.storage is None else {"storage": self.storage.to_dict()}),
            **steps,
        }

    @gc_paused()
    def to_json(self) -> str:
        """Give the program as JSON text, a line for each value and op."""
        return lines_of(self.to_dict())

    def save(self, path: str | Path) -> None:
        """Write the JSON file."""
        Path(path).write_text(self.to_json() + "\n", encoding="utf-8")

    @staticmethod
    def from_dict(data: Any, location: str = "program") -> Program:
        """Read plain data, each key and index checked.

        Raises
        ------
        SimulationError
            DIST0710 for an unknown, missing or wrong value, DIST0711 for another schema version,
            DIST0712 for what contradicts itself, such as a callee that is not there, DIST0713
            for cyclic calls.
        """
        return parse(data, location, Program)

    @staticmethod
    def from_json(text: str, location: str = "program") -> Program:
        """Read JSON text. Errors as in :meth:`from_dict`; DIST0710 for text that is not JSON."""
        return parse_text(text, location, Program)

    @staticmethod
    def load(path: str | Path) -> Program:
        """Read a JSON file. Errors as in :meth:`from_json`."""
        return load(path, Program)

    def check(self, location: str = "program") -> None:
        """Refuse a program that contradicts itself.

        Raises
        ------
        SimulationError
            DIST0712, or DIST0713 for cyclic calls.
        """
        check_program(self.meshes, self.functions, self.entries, self.staged, location)

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

    def location_of(self, entry: Entry) -> str:
        """Return the names of the meshes that an entry works on, ``mesh0+mesh1``; not of views."""
        fn = self.functions[entry.function]
        values = [fn.values[i] for i in fn.params]
        meshes = {entry.mesh, *(value.mesh for value in values if value.mesh is not None)}
        meshes.update(op.mesh for op in fn.ops if op.kind in ("collective", "transfer"))
        first = first_numbers(self.meshes)
        named = sorted({first[number] for number in meshes})
        return "+".join(self.meshes[number].name for number in named)


def _collectives(fn: Function) -> int:
    return sum(op.kind == "collective" for op in fn.ops)


def _stages_of(functions: Mapping[str, Function], entries: Sequence[Entry]) -> PipelineProgram:
    """Return entries as stages: each is the only phase of its stage, which runs once.

    Its parameters are slots in front of its results; of equal names, the later are numbered.
    """
    stage_kinds, stages = [], []
    for number, entry in enumerate(entries):
        fn = functions[entry.function]
        count = len(fn.params)
        params = tuple(range(count))
        results = tuple(range(count, count + len(fn.results)))
        names: dict[str, None] = {}
        for name in (fn.values[index].name for index in fn.params):
            names[f"{name} {len(names)}" if name in names else name] = None
        stage_kinds.append(
            StageKind(
                name=entry.function,
                slots=tuple(fn.values[index] for index in (*fn.params, *fn.results)),
                params=params,
                results=results,
                sums=(),
                updates=tuple((param, results[position]) for position, param in entry.alias),
                phases=(Phase(BEGIN, entry.function, params, results),),
            )
        )
        stages.append(Stage(number, tuple(names), tuple(map(str, results))))
    return PipelineProgram(Schedule(stages=len(entries)), tuple(stage_kinds), tuple(stages), ())
