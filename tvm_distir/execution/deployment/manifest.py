# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read and write the manifest of a deployed folder, which lists and verifies its files."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tvm_distir.execution.runtime.program.axis_table import AxisTable
from tvm_distir.execution.runtime.program.io_layout import EntryFunction, check_entries, read_port
from tvm_distir.support import EngineError, JsonValue, digest_file, read_json, shortened

MANIFEST = "manifest.json"
SCHEMA_VERSION = 1
_AGAIN = "Deploy the program again."


def broken(place: Path, what: str, remedy: str = _AGAIN) -> EngineError:
    """Return the error DIST0640 for a folder that cannot be used."""
    return EngineError("DIST0640", what, place=str(place), remedy=remedy)


@dataclass(frozen=True)
class Manifest:
    """The content of a deployed folder.

    Attributes
    ----------
    entries : tuple of EntryFunction
    axes : AxisTable
    libraries : mapping of function to file name
    weights : mapping of parameter position to {rank: (file name, key)}
    files : mapping of file name to (bytes, SHA-256)
    built_with : mapping of str to str
        Versions of the packages, and the machine's kind.
    target : mapping
        The target for which the libraries are compiled, as TVM's JSON form: ``kind``, ``mcpu``, ...
    """

    entries: tuple[EntryFunction, ...]
    axes: AxisTable
    libraries: Mapping[str, str]
    weights: Mapping[int, Mapping[int, tuple[str, str]]]
    files: Mapping[str, tuple[int, str]]
    built_with: Mapping[str, str]
    target: Mapping[str, Any]

    def write(self, folder: Path) -> None:
        """Write the manifest into its folder."""
        text = json.dumps(self._to_dict(), indent=1)
        (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")

    def _to_dict(self) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "built_with": dict(self.built_with),
            "target": dict(self.target),
            "entries": [
                {
                    "function": e.function,
                    "mesh": e.mesh_index,
                    "mesh_shape": list(e.mesh_shape),
                    "mesh_device_ids": list(e.mesh_ranks or e.ranks),
                    "device_ids": list(e.ranks),
                    "library": self.libraries[e.function],
                    "inputs": [p.to_dict() for p in e.inputs],
                    "outputs": [p.to_dict() for p in e.outputs],
                }
                for e in self.entries
            ],
            "meshes": self.axes.to_dict(),
            "weights": [
                {
                    "index": index,
                    "parts": [
                        {"device": rank, "file": file, "key": key}
                        for rank, (file, key) in parts.items()
                    ],
                }
                for index, parts in self.weights.items()
            ],
            "files": {
                name: {"bytes": size, "sha256": digest}
                for name, (size, digest) in self.files.items()
            },
        }


def read_manifest(folder: Path) -> Manifest:
    """Read a folder's manifest.

    Raises
    ------
    EngineError
        DIST0640 when it is missing, broken, or of another schema version.
    """
    path = folder / MANIFEST
    if not os.path.exists(path):
        raise broken(folder, f"it contains no {MANIFEST}", "Give a folder that td.deploy wrote.")
    top = JsonValue(read_json(path, _refuse), str(path), _refuse).object()
    version = (
        top["schema_version"] if "schema_version" in top else JsonValue(None, top.place, _refuse)
    )
    version.version(SCHEMA_VERSION)
    try:
        return _manifest(top.object(_KEYS, optional=("target",)))
    except (KeyError, TypeError, ValueError, AttributeError) as err:  # of a port or an axis
        raise broken(path, f"a value is missing or wrong: {type(err).__name__}: {err}") from err


_KEYS = ("schema_version", "built_with", "target", "entries", "meshes", "weights", "files")
_UNNAMED_TARGET = {"kind": "llvm"}
"""The target of folders that name none: version 0.1 wrote them for CPUs."""
_ENTRY = (
    "function", "mesh", "mesh_shape", "mesh_device_ids", "device_ids", "library", "inputs",
    "outputs",
)  # fmt: skip


def _refuse(place: str, what: str, remedy: str) -> EngineError:
    return broken(Path(place), what, remedy)


def _manifest(top: JsonValue) -> Manifest:
    folder = Path(top.place).parent
    items = [item.object(_ENTRY, optional=("mesh_device_ids",)) for item in top["entries"].items()]
    files = {
        _check_inside(name, folder, file): file.object(("bytes", "sha256"))
        for name, file in top["files"].object().fields()
    }

    def listed(value: JsonValue) -> str:
        name = value.text()
        if name not in files:
            raise value.wrong(f"{shortened(repr(name))} is not among the files", _AGAIN)
        return name

    weights = {}
    for item in top["weights"].items():
        weight = item.object(("index", "parts"))
        parts = (part.object(("device", "file", "key")) for part in weight["parts"].items())
        weights[weight["index"].integer()] = {
            part["device"].integer(): (listed(part["file"]), part["key"].text()) for part in parts
        }
    return Manifest(
        check_entries([_entry(item) for item in items]),
        AxisTable.from_dict(top["meshes"].data),
        {item["function"].text(): listed(item["library"]) for item in items},
        weights,
        {
            name: (file["bytes"].integer(), file["sha256"].text(empty=True))
            for name, file in files.items()
        },
        {name: text.text() for name, text in top["built_with"].object().fields()},
        _target(top["target"]) if "target" in top else _UNNAMED_TARGET,
    )


def _target(value: JsonValue) -> dict[str, Any]:
    """Return a target's JSON form, which has a kind."""
    fields = value.object()
    fields["kind"].text()
    return dict(fields.data)


def _check_inside(name: str, folder: Path, value: JsonValue) -> str:
    """Check that the name of a file leads nowhere out of the folder, links included."""
    if os.path.basename(name) != name or name in ("", ".", "..") or "\0" in name:
        raise value.wrong(
            f"{shortened(repr(name))} is not the name of a file in the folder", _AGAIN
        )
    if os.path.dirname(os.path.realpath(folder / name)) != os.path.realpath(folder):
        raise value.wrong(f"{name} is a link to a path outside of the folder", _AGAIN)
    return name


def _entry(item: JsonValue) -> EntryFunction:
    name, shape = item["function"].text(), item["mesh_shape"].integers(least=1)
    inputs, outputs = (
        tuple(read_port(port.data, name, shape) for port in item[side].items())
        for side in ("inputs", "outputs")
    )
    ranks = item["device_ids"].integers()
    devices = item["mesh_device_ids"].integers() if "mesh_device_ids" in item else ranks
    return EntryFunction(name, item["mesh"].integer(), shape, ranks, inputs, outputs, devices)


def built_with() -> dict[str, str]:
    """Return the versions that a library depends on."""
    versions = {"machine": platform.machine()}
    for name in ("tvm_distir", "apache-tvm", "apache-tvm-ffi"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "unknown"
    return versions


def check_built_with(manifest: Manifest, folder: Path) -> None:
    """Refuse (DIST0640) libraries of another kind of machine or another apache-tvm."""
    here = built_with()
    for name in ("machine", "apache-tvm"):
        was = manifest.built_with.get(name, "unknown")
        if _series(was) != _series(here[name]):
            raise broken(
                folder,
                f"it was built with {name} {was}, and {here[name]} is installed",
                "Deploy it again in the environment where it runs.",
            )


def _series(text: str) -> str:
    """Return ``0.27`` of ``0.27.0.post1``; other words as they are."""
    return ".".join(text.split(".")[:2])


def check_file(folder: Path, name: str, manifest: Manifest) -> None:
    """Refuse (DIST0640) a file whose bytes are not those that were written."""
    if digest_file(folder / name) != manifest.files[name]:
        raise broken(folder / name, "its checksum differs from that of the manifest")
