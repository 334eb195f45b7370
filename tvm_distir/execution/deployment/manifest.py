# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read and write the manifest of a deployed folder, which lists and verifies its files."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import cast

from tvm_distir.execution.runtime.dispatch.packed_names import TVM
from tvm_distir.execution.runtime.program.axis_table import AxisTable
from tvm_distir.execution.runtime.program.communication import Communication
from tvm_distir.execution.runtime.program.inputs import input_ports
from tvm_distir.execution.runtime.program.io_layout import EntryFunction, check_entries, read_port
from tvm_distir.execution.runtime.program.step_state import StepState
from tvm_distir.support import (
    EngineError,
    Faults,
    check_version,
    digest_file,
    read_json,
    read_model,
    shortened,
)

from .manifest_file import (
    DEPLOY_AGAIN,
    Dispatch,
    EntryFile,
    ListedFile,
    ManifestFile,
    PartFile,
    StateFile,
    WeightFile,
)

MANIFEST = "manifest.json"
SCHEMA_VERSION = 1


def broken(location: Path, problem: str, remedy: str = DEPLOY_AGAIN) -> EngineError:
    """Return the error DIST0640 for a folder that cannot be used."""
    return EngineError("DIST0640", problem, location=str(location), remedy=remedy)


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
    communication : Communication
        The groups and pairs of ranks that communicate.
    state : StepState
        The outputs that are inputs of the next step, of a training step.
    hosts : int
        The number of hosts that the program is meant for.
    overwritten : frozenset of int
        The positions of the inputs whose memory a run may overwrite; all of them for folders of
        versions that did not state it.
    dispatch : str
        The library whose kernels the program calls: ``torch``, ``numpy``, or ``tvm`` for none.
    """

    entries: tuple[EntryFunction, ...]
    axes: AxisTable
    libraries: Mapping[str, str]
    weights: Mapping[int, Mapping[int, tuple[str, str]]]
    files: Mapping[str, tuple[int, str]]
    built_with: Mapping[str, str]
    target: Mapping[str, object]
    communication: Communication
    state: StepState
    hosts: int = 1
    overwritten: frozenset[int] = frozenset()
    dispatch: str = TVM

    def write(self, folder: Path) -> None:
        """Write the manifest into its folder."""
        text = json.dumps(self._to_dict(), indent=1)
        (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")

    def _to_dict(self) -> dict[str, object]:
        """Return the JSON form, which :class:`.ManifestFile` reads."""
        state, communication = self.state, self.communication
        pairs = [
            StateFile(o, i, i in state.zeros, i in state.optimizer, state.masters.get(i))
            for o, i in state.inputs.items()
        ]
        weights = [
            WeightFile(index, tuple(PartFile(rank, *span) for rank, span in parts.items()))
            for index, parts in self.weights.items()
        ]
        file = ManifestFile(
            dict(self.built_with),
            tuple(self._entry_file(entry) for entry in self.entries),
            self.axes.to_dict(),
            tuple(weights),
            {name: ListedFile(size, digest) for name, (size, digest) in self.files.items()},
            dict(self.target),
            communication.groups,
            communication.transfers,
            tuple(pairs),
            self.hosts,
            tuple(sorted(self.overwritten)),
            tuple(state.caches.items()),
            cast("Dispatch", self.dispatch),
        )
        return {"schema_version": SCHEMA_VERSION, **asdict(file)}

    def _entry_file(self, entry: EntryFunction) -> EntryFile:
        return EntryFile(
            entry.function,
            entry.mesh_index,
            entry.mesh_shape,
            entry.ranks,
            self.libraries[entry.function],
            tuple(port.to_dict() for port in entry.inputs),
            tuple(port.to_dict() for port in entry.outputs),
            entry.mesh_ranks or entry.ranks,
            dict(entry.dims),
        )


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
    content = check_version(read_json(path, _refuse), str(path), _refuse, SCHEMA_VERSION)
    file = read_model(ManifestFile, content, str(path), _refuse)
    try:
        return _manifest(file, path)
    except (KeyError, TypeError, ValueError, AttributeError) as err:  # of a port or an axis
        raise broken(path, f"a value is missing or wrong: {type(err).__name__}: {err}") from err


def _refuse(location: str, problem: str, remedy: str) -> EngineError:
    return broken(Path(location), problem, remedy)


def _manifest(file: ManifestFile, path: Path) -> Manifest:
    """Return the content of a manifest, each of whose files is listed and inside the folder."""
    faults = Faults(str(path), broken(path, "the manifest has several faults"))
    for name in file.files:
        with faults.gathered():
            _check_inside(name, path)

    def check_listed(name: str, location: str) -> str:
        if name not in file.files:
            problem = f"{shortened(repr(name))} is not among the files"
            faults.add(broken(path / location, problem))
        return name

    libraries = {
        entry.function: check_listed(entry.library, f"entries/{number}/library")
        for number, entry in enumerate(file.entries)
    }
    weights = {
        weight.index: {
            part.device: (check_listed(part.file, f"weights/{w}/parts/{p}/file"), part.key)
            for p, part in enumerate(weight.parts)
        }
        for w, weight in enumerate(file.weights)
    }
    faults.raise_all()
    axes = AxisTable.from_dict(file.meshes)
    entries = check_entries([_entry(entry) for entry in file.entries])
    return Manifest(
        entries,
        axes,
        libraries,
        weights,
        {name: (entry.bytes, entry.sha256) for name, entry in file.files.items()},
        file.built_with,
        file.target,
        Communication(file.groups or _axis_groups(axes), file.transfers),
        StepState(
            {item.output: item.input for item in file.state},
            tuple(item.input for item in file.state if item.zero),
            frozenset(
                item.input
                for item in file.state
                if (item.zero if item.optimizer is None else item.optimizer)
            ),
            {item.input: item.master_of for item in file.state if item.master_of is not None},
            dict(file.caches),
        ),
        file.hosts,
        frozenset(input_ports(entries) if file.overwritten is None else file.overwritten),
        file.dispatch,
    )


def _axis_groups(axes: AxisTable) -> tuple[tuple[int, ...], ...]:
    """Return the groups along all axes, for folders that do not list the groups they use."""
    groups = {group: None for _, groups in axes.axes for group in groups}
    return tuple(groups)


def _check_inside(name: str, path: Path) -> None:
    """Check that the name of a file leads nowhere out of the folder, links included."""
    folder = path.parent
    if os.path.basename(name) != name or name in ("", ".", "..") or "\0" in name:
        problem = f"{shortened(repr(name))} is not the name of a file in the folder"
        raise broken(path / "files", problem)
    if os.path.dirname(os.path.realpath(folder / name)) != os.path.realpath(folder):
        raise broken(path / "files" / name, f"{name} is a link to a path outside of the folder")


def _entry(file: EntryFile) -> EntryFunction:
    inputs, outputs = (
        tuple(read_port(port, file.function, file.mesh_shape) for port in side)
        for side in (file.inputs, file.outputs)
    )
    devices = file.device_ids if file.mesh_device_ids is None else file.mesh_device_ids
    return EntryFunction(
        file.function,
        file.mesh,
        file.mesh_shape,
        file.device_ids,
        inputs,
        outputs,
        devices,
        file.dims,
    )


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
