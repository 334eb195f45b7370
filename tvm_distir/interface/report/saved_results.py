# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read the results of `analyze` and `simulate` from their JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tvm_distir.support import JsonValue, SimulationError, read_json

from . import model
from .figures import Figures

ANALYSIS = "analysis.json"
"""The result in the folder of ``analyze -o``."""


@dataclass(frozen=True)
class Outcome:
    """A simulated step. Times are in seconds, sizes in bytes.

    Attributes
    ----------
    name : str
        What to call it.
    model, strategy : str, optional
    system, mesh : str
    time_s : float
    spent_s : mapping of str to float
        Of the busiest device, by what it goes to: :attr:`.model.Analysis.spent_s`.
    peak_memory_bytes : int
    memory_capacity_bytes : int, optional
    wire_bytes : mapping of str to int
        By kind of collective, of the mesh whose devices send most.
    bubble : float, optional
        The share of a pipelined step.
    figures : mapping of str to float
        The known figures of :class:`.figures.Figures`, by name.
    """

    name: str
    model: str | None
    system: str
    strategy: str | None
    mesh: str
    time_s: float
    spent_s: Mapping[str, float]
    peak_memory_bytes: int
    memory_capacity_bytes: int | None
    wire_bytes: Mapping[str, int]
    bubble: float | None = None
    figures: Mapping[str, float] = field(default_factory=dict)

    @property
    def bound_by(self) -> str:
        """Return the largest part of the busiest device's step."""
        return max(self.spent_s, key=lambda kind: self.spent_s[kind])

    @property
    def fits(self) -> bool | None:
        """Whether the peak is within the memory of a device; None where that is unknown."""
        capacity = self.memory_capacity_bytes
        return None if capacity is None else self.peak_memory_bytes <= capacity

    def named(self, name: str) -> Outcome:
        """Return the outcome under another name."""
        return replace(self, name=name)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name."""
        return {
            **self.__dict__,
            "spent_s": dict(self.spent_s),
            "wire_bytes": dict(self.wire_bytes),
            "figures": dict(self.figures),
            "bound_by": self.bound_by,
            "fits": self.fits,
        }

    @staticmethod
    def most_wire(rows: Iterable[tuple[str, str, int]]) -> dict[str, int]:
        """Return the bytes by kind of the mesh with the most, from those of each collective."""
        meshes: dict[str, dict[str, int]] = {}
        for mesh, kind, size in rows:
            sizes = meshes.setdefault(mesh, {})
            sizes[kind] = sizes.get(kind, 0) + size
        return max(meshes.values(), key=lambda sizes: sum(sizes.values()), default={})

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], name: str, place: str = "result") -> Outcome:
        """Read the JSON of ``analyze``.

        Raises
        ------
        SimulationError
            DIST0740 where it is no such JSON.
        """
        fix = "Write it again with `tvm-distir analyze --json`."
        whole = JsonValue(data, place, _refuse, fix).object()
        keys = ("schema_version", "system", "time_s", "spent_s", "peak_memory_bytes", "meshes")
        for key in (*keys, "collectives", "memory_capacity_bytes"):
            if key not in whole:
                raise _refuse(f"{place}/{key}", "the key is missing: this is not a result", fix)
        whole["schema_version"].version(model.SCHEMA_VERSION)
        spent = {kind: value.number(0) for kind, value in whole["spent_s"].fields()}
        if set(spent) != set(_KINDS):
            raise _refuse(f"{place}/spent_s", f"the keys must be {', '.join(_KINDS)}", fix)
        capacity = whole["memory_capacity_bytes"]
        pipeline = whole["pipeline"].object()["bubble"].number(0) if "pipeline" in whole else None
        return cls(
            name=name,
            model=_optional_text(whole, "model"),
            system=whole["system"].text(),
            strategy=_optional_text(whole, "strategy"),
            mesh=_mesh_words(whole["meshes"]),
            time_s=whole["time_s"].number(0),
            spent_s={kind: spent[kind] for kind in _KINDS},
            peak_memory_bytes=whole["peak_memory_bytes"].integer(),
            memory_capacity_bytes=None if capacity.data is None else capacity.integer(1),
            wire_bytes=cls.most_wire(map(_collective, whole["collectives"].items())),
            bubble=pipeline,
            figures={
                key: value.number(0)
                for key, value in (whole["throughput"].fields() if "throughput" in whole else ())
                if value.data is not None and key in Figures._fields
            },
        )


_KINDS = ("compute", "memory", "launch", "communication", "idle")


def _refuse(place: str, what: str, remedy: str) -> SimulationError:
    return SimulationError("DIST0740", what, place=place, remedy=remedy)


def _optional_text(whole: JsonValue, key: str) -> str | None:
    if key not in whole or whole[key].data is None:
        return None
    return whole[key].text(empty=True)


def _collective(value: JsonValue) -> tuple[str, str, int]:
    keys = ("mesh", "kind", "wire_bytes_per_device")
    for key in keys:
        if key not in value.object():
            raise value.wrong(f'the key "{key}" is missing', value.fix)
    return value["mesh"].text(), value["kind"].text(), value["wire_bytes_per_device"].integer()


def _mesh_words(meshes: JsonValue) -> str:
    """Format meshes as ``dp=2,tp=4``, or ``4 x (dp=2)`` for a pipeline."""
    words = []
    for mesh in meshes.items():
        if "axes" not in mesh.object():
            raise mesh.wrong('the key "axes" is missing', mesh.fix)
        sizes = mesh["axes"].fields()
        words.append(",".join(f"{axis}={size.integer(1)}" for axis, size in sizes))
    if len(words) > 1 and len(set(words)) == 1:
        return f"{len(words)} x ({words[0]})"
    return "; ".join(words)


def read_outcomes(path: Path) -> list[Outcome]:
    """Read a result's file, or the results of a folder.

    A folder contains a result (:data:`ANALYSIS`), or ``.json`` files and folders with results,
    which are read in the order of their names.

    Raises
    ------
    SimulationError
        DIST0740 for a file that is not a result, and for a folder without results.
    """
    if not path.is_dir():
        return [_read(path, path.stem if path.name != ANALYSIS else path.parent.name or path.stem)]
    if (path / ANALYSIS).exists():
        return [_read(path / ANALYSIS, path.name or str(path))]
    files = sorted(path.glob("*.json"))
    folders = [file.parent for file in path.glob(f"*/{ANALYSIS}")]
    outcomes = [_read(file, f"{path.name}/{file.stem}") for file in files]
    outcomes += [
        _read(folder / ANALYSIS, f"{path.name}/{folder.name}") for folder in sorted(folders)
    ]
    if not outcomes:
        raise _refuse(
            str(path),
            "the folder contains no result",
            "Name the folder of `analyze -o`, or its parent.",
        )
    return outcomes


def _read(path: Path, name: str) -> Outcome:
    data = read_json(path, _refuse, "Name a file that `tvm-distir analyze --json` printed.")
    return Outcome.from_dict(data, name, str(path))
