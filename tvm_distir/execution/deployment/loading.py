# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Load and run a deployed folder, for which TVM's runtime-only library suffices."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import tvm

from tvm_distir.execution.runtime.dispatch.packed_names import check_installed
from tvm_distir.execution.runtime.engines.base import Engine
from tvm_distir.execution.runtime.engines.registry import run
from tvm_distir.execution.runtime.program.inputs import Inputs, input_ports
from tvm_distir.execution.runtime.program.io_layout import Bounds, EntryFunction, Port
from tvm_distir.execution.runtime.program.runnable import load_saved
from tvm_distir.execution.runtime.program.sharded import ShardedArray
from tvm_distir.execution.runtime.program.targets import check_machine_runs

from . import safetensors
from .boxes import FileArray
from .manifest import MANIFEST, Manifest, broken, check_built_with, check_file, read_manifest


class Deployment:
    """A deployed program, which :func:`tvm_distir.run` accepts instead of a module.

    Parameters
    ----------
    folder : Path
    manifest : Manifest

    Attributes
    ----------
    inputs : tuple of Port
        The required inputs of a run, in order: the parameters whose weights are not in the folder.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest
        self.entries, self.axes = manifest.entries, manifest.axes
        self.communication, self.target = manifest.communication, json.dumps(manifest.target)
        self.overwritten, self.state = manifest.overwritten, manifest.state
        self.inputs: tuple[Port, ...] = tuple(
            port
            for index, port in input_ports(manifest.entries).items()
            if index not in manifest.weights
        )

    @functools.cached_property
    def fingerprint(self) -> str:
        """Return a fingerprint that is the same in every process exactly for the same program."""
        return hashlib.sha256((self.folder / MANIFEST).read_bytes()).hexdigest()[:16]

    @functools.cached_property
    def stored(self) -> dict[int, ShardedArray]:
        """Return the stored weights by position; a part is read when its rank asks for it."""
        files = {f for parts in self.manifest.weights.values() for f, _ in parts.values()}
        opened = {name: safetensors.read_header(self.folder / name) for name in sorted(files)}
        return {index: self._weight(index, opened) for index in self.manifest.weights}

    def _weight(self, index: int, opened: dict[str, dict[str, FileArray]]) -> ShardedArray:
        parts: dict[int, FileArray] = {}
        boxes: dict[int, Bounds] = {}
        homes = self.manifest.weights[index]
        shape: tuple[int, ...] | None = None
        for entry in self.entries:
            for port in (p for p in entry.inputs if p.index == index):
                shape = port.shape
                for rank in entry.ranks:
                    if rank not in homes or homes[rank][1] not in opened[homes[rank][0]]:
                        raise broken(
                            self.folder, f'the shard of "{port.name}" for device {rank} is missing'
                        )
                    file, key = homes[rank]
                    parts[rank] = opened[file][key]
                    boxes[rank] = entry.bounds(port, rank)
        return ShardedArray(parts, shape, boxes)

    def library(self, entry: EntryFunction) -> tvm.runtime.Module:
        """Return the runtime module that holds the entry function.

        Raises
        ------
        EngineError
            DIST0640 when the file is not the file that was written.
        """
        return load_saved(self.save(entry, self.folder), entry.function)

    def save(self, entry: EntryFunction, folder: Path) -> Path:
        """Return the path of the library's file; nothing is written."""
        name = self.manifest.libraries[entry.function]
        check_file(self.folder, name, self.manifest)
        return self.folder / name

    def run(
        self, inputs: Inputs = (), engine: str | Engine = "threads", outputs: str = "whole"
    ) -> list[Any]:
        """Run the program; see :func:`tvm_distir.run`. Sequences give :attr:`inputs` in order."""
        return run(self, inputs, engine, outputs)


def load(folder: str | os.PathLike[str], check: bool = False) -> Deployment:
    """Load a folder that :func:`.deploying.deploy` wrote.

    Parameters
    ----------
    folder : str or path
    check : bool
        Compare the checksums of all files now. Without it the sizes are compared, and the
        checksum of a library when it is loaded: weights are then read by shards only.

    Raises
    ------
    EngineError
        DIST0609 where this machine cannot run the target of its libraries; DIST0640 when it is
        not whole, or was built on another kind of machine or with another apache-tvm.

    Examples
    --------
    >>> import tempfile
    >>> mod = td.zoo.build("mlp", {"batch": 4, "layers": 1, "hidden": 8})
    >>> plan = td.Plan(mesh={"tp": 2}, rules={"x": td.P(None, "tp")})
    >>> dist = td.distribute(mod, plan)
    >>> inputs = [np.ones((4, 8), "float32"), np.ones((8, 8), "float32"), np.zeros(8, "float32")]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = td.deploy(dist, folder)
    ...     (output,) = td.run(td.load(folder), inputs)
    >>> output[0, :3].tolist()
    [8.0, 8.0, 8.0]
    """
    where = Path(os.path.realpath(folder))
    manifest = read_manifest(where)
    check_built_with(manifest, where)
    check_machine_runs(manifest.target, str(where))
    check_installed(manifest.dispatch)
    for name, (size, _) in manifest.files.items():
        path = where / name
        if not path.is_file():
            raise broken(path, "the file is missing")
        if path.stat().st_size != size:
            raise broken(path, f"it has {path.stat().st_size} bytes instead of {size}")
        if check:
            check_file(where, name, manifest)
    return Deployment(where, manifest)
