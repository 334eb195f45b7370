# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write a distributed program to a folder: a library per entry, weights by shard, a manifest."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from tvm import ir

from tvm_distir.execution.runtime.dispatch.kernel_dispatch import called_library
from tvm_distir.execution.runtime.dispatch.packed_names import AUTO
from tvm_distir.execution.runtime.program.cuda_backend import load_cuda_backend
from tvm_distir.execution.runtime.program.inputs import bind_some, input_ports
from tvm_distir.execution.runtime.program.io_layout import Bounds, EntryFunction, Port
from tvm_distir.execution.runtime.program.linking import check_room, need_compiler
from tvm_distir.execution.runtime.program.local_inputs import LocalInputs
from tvm_distir.execution.runtime.program.lowered import LoweredProgram
from tvm_distir.execution.runtime.program.targets import as_target
from tvm_distir.execution.runtime.program.tensors import Array
from tvm_distir.support import RECORD, EngineError, OutputRecord, digest_file

from . import safetensors
from .checkpoint import open_weights
from .launch_scripts import SCRIPTS, processes_per_host, write_scripts
from .loading import Deployment
from .manifest import MANIFEST, Manifest, broken, built_with


def deploy(
    dist: ir.IRModule,
    folder: str | os.PathLike[str],
    params: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    *,
    target: Any = None,
    dispatch: str = AUTO,
    hosts: int = 1,
    force: bool = False,
) -> Deployment:
    """Write a distributed program to a folder that runs without a compiler.

    Parameters
    ----------
    dist : IRModule
        The module, at level 5, with ``dist.io``.
    folder : str or path
        A folder that is new or empty, or that was deployed before, which is replaced when all is
        written: where that fails, the folder is as it was.
    params : mapping of parameter name to array, or path, optional
        Weights that go into the folder, cut into shards: whole arrays, stored ones
        (:func:`open_weights`), or the path of a file of them. The other parameters are the
        inputs of every run. Each distinct shard is written once, and held in memory alone.
    target : str, mapping or tvm.target.Target, optional
        The target of the libraries, such as ``"cuda:sm_90"`` (see :func:`.targets.as_target`); by
        default the target in scope (``with target:``), or else this machine's CPU.
    dispatch : str
        Whose kernels compute products, attention and convolutions (see :func:`tvm_distir.run`):
        with ``"torch"``, or ``"auto"`` where it is installed, the folder runs only where PyTorch
        is.
    hosts : int
        The number of hosts for which ``run.sh`` and ``run.sbatch`` are written.
    force : bool
        Whether to write into a folder of other files too, and to replace those whose names the
        deployed files need.

    Returns
    -------
    deployment : Deployment
        The deployment, as :func:`.loading.load` returns it.

    Raises
    ------
    OutputError
        DIST0160 where the folder has a library, weights or a manifest that :func:`deploy` did not
        write, or that was changed since.
    DependencyError
        DIST0112 without a C compiler, which links the libraries.
    EngineError
        DIST0602 for weights that do not fit, DIST0603 not at level 5, DIST0606 when TVM cannot
        compile it, DIST0608 for a kernel without threads on a GPU, DIST0640 when the folder
        cannot be written, DIST0641 for weights that cannot be read, DIST0622 for an unknown target,
        DIST0623 for kernels of an unknown library, DIST0643 for devices that cannot be divided
        among the hosts.

    Examples
    --------
    >>> import os, tempfile
    >>> mod = td.zoo.build("mlp", {"batch": 4, "layers": 1, "hidden": 8})
    >>> plan = td.Plan(mesh={"tp": 2}, rules={"x": td.P(None, "tp")})
    >>> dist = td.distribute(mod, plan)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = td.deploy(dist, folder)
    ...     print(sorted(os.listdir(folder)))
    ['.tvm-distir.json', 'main.so', 'manifest.json', 'run.sbatch', 'run.sh']
    """
    chosen, where = as_target(target), Path(os.path.realpath(folder))
    with chosen:
        program = LoweredProgram(dist, dispatch)
    devices = sum(len(entry.ranks) for entry in program.entries)
    processes_per_host(devices, hosts)
    old = replaceable(where, force)
    need_compiler()
    load_cuda_backend(chosen)
    stored = open_weights(params) if isinstance(params, str | os.PathLike) else params or {}
    values = bind_some(program.entries, stored)
    with chosen, _staged(where, old) as stage:
        libraries = {e.function: _library(program, e, stage) for e in program.entries}
        weights = _write_weights(program.entries, values, stage)
        names = sorted({*libraries.values(), *(f for p in weights.values() for f, _ in p.values())})
        files = {name: digest_file(stage / name) for name in names}
        manifest = Manifest(
            program.entries,
            program.axes,
            libraries,
            weights,
            files,
            built_with(),
            json.loads(str(chosen)),
            program.communication,
            program.state,
            hosts,
            program.overwritten,
            called_library(program.mod),
        )
        manifest.write(stage)
        scripts = write_scripts(stage, devices, hosts, chosen.kind.name == "cuda")
        digests = {name: digest for name, (_, digest) in files.items()}
        digests |= {name: digest_file(stage / name)[1] for name in (MANIFEST, *scripts)}
        record = OutputRecord(where)
        record.forget(old)
        record.write(digests, stage)
    return Deployment(where, manifest)


def _library(program: LoweredProgram, entry: EntryFunction, stage: Path) -> str:
    """Write the library of an entry, after a check for disk space."""
    check_room(stage)
    return program.save(entry, stage).name


@contextmanager
def _staged(where: Path, old: list[str]) -> Iterator[Path]:
    """Yield a folder inside ``where`` whose files replace those of ``old`` atomically.

    Raises
    ------
    EngineError
        DIST0640 where it cannot be written; what was there before is still there then.
    """
    created = [path for path in (where, *where.parents) if not os.path.lexists(path)]
    done = False
    try:
        where.mkdir(parents=True, exist_ok=True)
        stage = Path(tempfile.mkdtemp(prefix=".", suffix=".part", dir=where))
        try:
            yield stage
            for name in old:
                (where / name).unlink()
            for path in sorted(stage.iterdir(), key=_order):
                path.rename(where / path.name)
            done = True
        finally:
            shutil.rmtree(stage, ignore_errors=True)
    except OSError as err:
        raise _unwritable(where, err) from err
    finally:
        for path in created if not done else ():
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()


def _order(path: Path) -> tuple[bool, bool, str]:
    """Return the order of writing: the record of all files first, the manifest last."""
    return path.name != RECORD, path.name == MANIFEST, path.name


_WRITTEN = (MANIFEST, "*.so", "*.safetensors", *SCRIPTS)
"""Names of files that a deployed folder holds."""


def replaceable(where: Path, force: bool = False) -> list[str]:
    """Return the files of an earlier deployment, the manifest first; ``force`` refuses none.

    Raises
    ------
    EngineError
        DIST0640 for a folder of other files that was not deployed before, or one that cannot be
        read.
    OutputError
        DIST0160 for one with files of the user that would be replaced.
    """
    record = OutputRecord(where)
    try:
        if not force:
            record.check(_WRITTEN, str(where))
        entries = sorted(p.name for p in where.iterdir() if p.name != RECORD)
    except FileNotFoundError:
        return []
    except OSError as err:
        raise _unwritable(where, err) from err
    if entries and MANIFEST not in entries and not force:
        problem = f"it contains {entries[0]} and is not a deployed program"
        remedy = "Give a new or an empty folder."
        raise EngineError("DIST0640", problem, location=str(where), remedy=remedy)
    return sorted(record.matching(_WRITTEN), key=lambda name: (name != MANIFEST, name))


def _unwritable(where: Path, error: OSError) -> EngineError:
    problem = f"it cannot be written: {error.strerror or error}"
    return broken(where, problem, "Free disk space, or give another folder.")


def _write_weights(
    entries: tuple[EntryFunction, ...], values: Mapping[int, Any], where: Path
) -> dict[int, dict[int, tuple[str, str]]]:
    """Write every distinct shard into the file of the first rank that holds it."""
    homes: dict[tuple[int, Bounds], tuple[str, str]] = {}
    parts: dict[int, dict[int, tuple[str, str]]] = {}
    stored: dict[str, dict[str, tuple[EntryFunction, Port, int]]] = {}
    for entry in entries:
        for port in entry.inputs:
            if port.index not in values:
                continue
            for rank in entry.ranks:
                box = (port.index, entry.bounds(port, rank))
                if box not in homes:
                    file = f"weights-{rank}.safetensors"
                    homes[box] = file, port.name
                    stored.setdefault(file, {})[port.name] = entry, port, rank
                parts.setdefault(port.index, {})[rank] = homes[box]
    for file, keys in stored.items():
        described = {k: (e.local_shape(p), p.dtype) for k, (e, p, _) in keys.items()}

        def make(key: str, keys: Mapping[str, tuple[EntryFunction, Port, int]] = keys) -> Array:
            entry, port, rank = keys[key]
            # Separate inputs, so that the shard is dropped once it is written.
            alone = LocalInputs({port.index: values[port.index]})
            return np.asarray(alone.part(entry, port, rank))

        safetensors.write(where / file, described, make)
    return {index: parts[index] for index in input_ports(entries) if index in parts}
