# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The records of a manifest's file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from tvm_distir.support import Check, Count, InvalidValue, PositiveCount, Text

DEPLOY_AGAIN = "Deploy the program again."
Dispatch = Literal["torch", "numpy", "tvm"]


@dataclass(frozen=True)
class EntryFile:
    """The keys of an entry function."""

    function: Text
    mesh: Count
    mesh_shape: tuple[PositiveCount, ...]
    device_ids: tuple[Count, ...]
    library: Text
    inputs: tuple[dict[str, Any], ...]
    outputs: tuple[dict[str, Any], ...]
    mesh_device_ids: tuple[Count, ...] | None = None
    dims: dict[str, PositiveCount] = field(default_factory=dict)


@dataclass(frozen=True)
class PartFile:
    """The keys of the part of a weight that a device holds."""

    device: Count
    file: Text
    key: Text


@dataclass(frozen=True)
class WeightFile:
    """The keys of a weight."""

    index: Count
    parts: tuple[PartFile, ...]


@dataclass(frozen=True)
class StateFile:
    """The keys of an output that is an input of the next step."""

    output: Count
    input: Count
    zero: bool = False
    optimizer: bool | None = None
    master_of: Count | None = None


@dataclass(frozen=True)
class ListedFile:
    """The size and the SHA-256 digest of a file."""

    bytes: Count
    sha256: str


def _check_target(target: dict[str, object]) -> dict[str, object]:
    if not isinstance(target.get("kind"), str) or not target["kind"]:
        raise InvalidValue("the target has no kind", DEPLOY_AGAIN)
    return target


def _unnamed_target() -> dict[str, object]:
    """Return the target of folders that name none: version 0.1 wrote them for CPUs."""
    return {"kind": "llvm"}


@dataclass(frozen=True)
class ManifestFile:
    """The keys of a manifest, except its schema version."""

    built_with: dict[str, Text]
    entries: tuple[EntryFile, ...]
    meshes: dict[str, Any]
    weights: tuple[WeightFile, ...]
    files: dict[str, ListedFile]
    target: Annotated[dict[str, object], Check(_check_target)] = field(
        default_factory=_unnamed_target
    )
    groups: tuple[tuple[Count, ...], ...] = ()
    transfers: tuple[tuple[Count, Count], ...] = ()
    state: tuple[StateFile, ...] = ()
    hosts: PositiveCount = 1
    overwritten: tuple[Count, ...] | None = None
    caches: tuple[tuple[Count, Count], ...] = ()
    dispatch: Dispatch = "tvm"
