# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read the results of `analyze` and `simulate` from their JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from tvm_distir.core.plan import mesh_text
from tvm_distir.support import (
    OTHER_KEYS,
    Count,
    Keys,
    NotNegative,
    PositiveCount,
    SimulationError,
    Text,
    check_version,
    read_json,
    read_model,
)

from . import model
from .figures import Figures

ANALYSIS, REPORT = "analysis.json", "report.html"
"""The result in the folder of ``analyze -o``, and the page beside it."""


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
    band_s : (float, float), optional
        The ends of the error band of the time.
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
    band_s: tuple[float, float] | None = None

    def is_level_with(self, other: Outcome) -> bool:
        """Return whether the error bands of both overlap; False where one is unknown."""
        if self.band_s is None or other.band_s is None:
            return False
        return self.band_s[0] <= other.band_s[1] and other.band_s[0] <= self.band_s[1]

    @property
    def bound_by(self) -> str:
        """Return the largest part of the busiest device's step."""
        return max(self.spent_s, key=lambda kind: self.spent_s[kind])

    @property
    def sent_bytes(self) -> int:
        """Return the bytes that a device sends, at most."""
        return sum(self.wire_bytes.values())

    @property
    def fits(self) -> bool | None:
        """Return whether the peak is within the memory of a device; None where that is unknown."""
        capacity = self.memory_capacity_bytes
        return None if capacity is None else self.peak_memory_bytes <= capacity

    def named(self, name: str) -> Outcome:
        """Return the outcome under another name."""
        return replace(self, name=name)

    def to_dict(self) -> dict[str, object]:
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
    def most_sent(rows: Iterable[tuple[str, str, int]]) -> dict[str, int]:
        """Return the bytes by kind of the mesh with the most, from those of each collective."""
        meshes: dict[str, dict[str, int]] = {}
        for mesh, kind, size in rows:
            sizes = meshes.setdefault(mesh, {})
            sizes[kind] = sizes.get(kind, 0) + size
        return max(meshes.values(), key=lambda sizes: sum(sizes.values()), default={})

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], name: str, location: str = "result") -> Outcome:
        """Read the JSON of ``analyze``.

        Raises
        ------
        SimulationError
            DIST0740 where it is no such JSON.
        """
        content = check_version(data, location, _refuse, model.SCHEMA_VERSION)
        result = read_model(_ResultFile, content, location, _refuse)
        rows = ((x["mesh"], x["kind"], x["wire_bytes_per_device"]) for x in result.collectives)
        return cls(
            name=name,
            model=result.model,
            system=result.system,
            strategy=result.strategy,
            mesh=_mesh_words(result.meshes),
            time_s=result.time_s,
            spent_s=result.spent_s,
            peak_memory_bytes=result.peak_memory_bytes,
            memory_capacity_bytes=result.memory_capacity_bytes,
            wire_bytes=cls.most_sent(rows),
            bubble=None if result.pipeline is None else result.pipeline["bubble"],
            figures={
                key: value
                for key, value in result.throughput.items()
                if value is not None and key in Figures._fields
            },
            band_s=None if result.band is None else (result.band["low_s"], result.band["high_s"]),
        )


_SPENT = Keys(dict.fromkeys(("compute", "memory", "launch", "communication", "idle"), NotNegative))
"""The time of the busiest device, by what it goes to."""
_BAND = Keys({"low_s": NotNegative, "high_s": NotNegative}, others="ignore")
_MESH = Keys({"axes": dict[str, PositiveCount]}, others="ignore")
_COLLECTIVE = Keys({"mesh": Text, "kind": Text, "wire_bytes_per_device": Count}, others="ignore")
_PIPELINE = Keys({"bubble": NotNegative}, others="ignore")


@dataclass(frozen=True)
class _ResultFile:
    """The keys that are read of a result."""

    __pydantic_config__: ClassVar[object] = OTHER_KEYS
    system: Text
    time_s: NotNegative
    spent_s: Annotated[Mapping[str, float], _SPENT]
    peak_memory_bytes: Count
    memory_capacity_bytes: PositiveCount | None
    meshes: tuple[Annotated[Mapping[str, dict[str, int]], _MESH], ...]
    collectives: tuple[Annotated[Mapping[str, Any], _COLLECTIVE], ...]
    model: str | None = None
    strategy: str | None = None
    pipeline: Annotated[Mapping[str, float], _PIPELINE] | None = None
    band: Annotated[Mapping[str, float], _BAND] | None = None
    throughput: dict[str, NotNegative | None] = field(default_factory=dict)


def _refuse(location: str, problem: str, remedy: str) -> SimulationError:
    return SimulationError("DIST0740", problem, location=location, remedy=remedy)


def _mesh_words(meshes: Iterable[Mapping[str, Mapping[str, int]]]) -> str:
    """Format meshes as ``dp=2,tp=4``, or ``4 x (dp=2)`` for a pipeline."""
    words = [mesh_text(mesh["axes"]) for mesh in meshes]
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
