# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write and read the folder of a started job: program and inputs, results and failures."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tvm

from tvm_distir.execution.runtime.engines.base import LocalResults
from tvm_distir.execution.runtime.engines.job_libraries import LIBRARIES
from tvm_distir.execution.runtime.program.axis_table import AxisTable
from tvm_distir.execution.runtime.program.communication import Communication
from tvm_distir.execution.runtime.program.counts import CollectiveCount
from tvm_distir.execution.runtime.program.inputs import input_ports
from tvm_distir.execution.runtime.program.io_layout import Bounds, Entries, EntryFunction
from tvm_distir.execution.runtime.program.local_inputs import LocalInputs
from tvm_distir.execution.runtime.program.runnable import Runnable, load_saved
from tvm_distir.execution.runtime.program.sharded import ShardedArray, Stored
from tvm_distir.execution.runtime.program.step_state import StepState
from tvm_distir.execution.runtime.program.tensors import Array
from tvm_distir.support import write_atomically

JOB = "job.pickle"
COUNTS = "counts.pickle"
LOG = "log.txt"


@dataclass(frozen=True)
class SavedArray:
    """A full array in a separate file, as raw bytes."""

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]

    @classmethod
    def write(cls, path: Path, array: Array) -> SavedArray:
        """Write an array."""
        np.ascontiguousarray(array).reshape(-1).view(np.uint8).tofile(path)
        return cls(path, array.shape, array.dtype)

    def read(self, bounds: Bounds) -> Array:
        """Read a box."""
        full: Array = np.fromfile(self.path, np.uint8).view(self.dtype).reshape(self.shape)
        return full[tuple(slice(a, b) for a, b in bounds)]


@dataclass(frozen=True)
class Job:
    """The description of a job for its processes.

    Attributes
    ----------
    entries : tuple of EntryFunction
    axes : AxisTable
    libraries : mapping of function to file name
    inputs : mapping of parameter position to stored or sharded array
    timeout_s : float
    communication : Communication
    preload : tuple of str
        Modules to import first.
    options : mapping of str
        Options of the engine, by the name of its attributes.
    target : str
        The target of the program.
    """

    entries: tuple[EntryFunction, ...]
    axes: AxisTable
    libraries: Mapping[str, str]
    inputs: Mapping[int, Any]
    timeout_s: float
    communication: Communication
    preload: tuple[str, ...] = ()
    options: Mapping[str, object] = field(default_factory=dict)
    target: str = ""

    @property
    def ranks(self) -> list[int]:
        """Return the device ids by process."""
        return sorted(r for e in self.entries for r in e.ranks)


def runtime_alone(job: Job) -> dict[str, str]:
    """Return the environment in which processes load TVM's runtime alone, where it suffices.

    They start in half the time.
    """
    has_libraries = all(name.endswith(".so") for name in job.libraries.values())
    return {"TVM_USE_RUNTIME_LIB": "1"} if has_libraries and not job.preload else {}


class SavedProgram:
    """The program of a job, as its processes run it.

    Parameters
    ----------
    job : Job
    """

    fingerprint = "job"

    def __init__(self, job: Job) -> None:
        self._job, self.target = job, job.target
        self.stored: Mapping[int, Any] = job.inputs
        self.entries, self.axes, self.communication = job.entries, job.axes, job.communication
        self.state = StepState()
        self.overwritten = frozenset(input_ports(self.entries))

    def library(self, entry: EntryFunction) -> tvm.runtime.Module:
        """Return the runtime module that holds the entry function."""
        return load_saved(self.save(entry, Path()), entry.function)

    def save(self, entry: EntryFunction, folder: Path) -> Path:
        """Return the path of the library's file; nothing is written."""
        return Path(self._job.libraries[entry.function])


def result_file(folder: Path, rank: int) -> Path:
    """Return the file with the local results of a rank."""
    return folder / f"result-{rank}.pickle"


def failure_file(folder: Path, rank: int) -> Path:
    """Return the file with the failure that began on a rank."""
    return folder / f"failure-{rank}.pickle"


def end_file(folder: Path, process: int) -> Path:
    """Return the file with time and exit status of a worker that failed, by its process id."""
    return folder / f"end-{process}.pickle"


def process_file(folder: Path, rank: int) -> Path:
    """Return the file with the id of a rank's process; there once it runs."""
    return folder / f"process-{rank}.txt"


def write_value(path: Path, value: object) -> None:
    """Write a file atomically."""
    write_atomically(path, pickle.dumps(value))


class RunCounts(NamedTuple):
    """The counts of a run that an engine keeps.

    Attributes
    ----------
    collectives : tuple of CollectiveCount
    most_in_flight : int
    """

    collectives: tuple[CollectiveCount, ...]
    most_in_flight: int


def write_results(
    job: Job, folder: Path, rank: int, outputs: Sequence[Any], counts: RunCounts
) -> None:
    """Write the sharded outputs of a rank; the first rank writes what was executed."""
    entry = next(e for e in job.entries if rank in e.ranks)
    write_value(result_file(folder, rank), [outputs[p.index].parts[rank] for p in entry.outputs])
    if rank == job.ranks[0]:
        write_value(folder / COUNTS, counts)


def read_results(job: Job, folder: Path) -> tuple[LocalResults, RunCounts]:
    """Return the local results of all ranks, and what they executed."""
    results = {rank: pickle.loads(result_file(folder, rank).read_bytes()) for rank in job.ranks}
    counts: RunCounts = pickle.loads((folder / COUNTS).read_bytes())
    return results, counts


def write_job(
    program: Runnable,
    local: LocalInputs,
    timeout_s: float,
    preload: tuple[str, ...],
    folder: Path,
    options: Mapping[str, object],
) -> Job:
    """Write a job and its inputs into a folder."""
    entries = program.entries
    libraries = {e.function: str(LIBRARIES.path(program, e)) for e in entries}
    job = Job(
        entries,
        program.axes,
        libraries,
        _portable(entries, local, folder),
        timeout_s,
        program.communication,
        preload,
        options,
        program.target,
    )
    (folder / JOB).write_bytes(pickle.dumps(job))
    return job


def _portable(entries: Entries, local: LocalInputs, folder: Path) -> dict[int, Any]:
    """Return inputs as another process can read them; each distinct shard is written once."""
    out: dict[int, Any] = {}
    files: dict[int, tuple[Array, SavedArray]] = {}  # holds the array: no other takes its id
    for index, port in input_ports(entries).items():
        source = local.source(port)
        if _is_stored(source):
            out[index] = source
            continue
        parts: dict[int, object] = {}
        for entry in entries:
            for shard in (p for p in entry.inputs if p.index == index):
                for rank in entry.ranks:
                    array = local.part(entry, shard, rank)
                    if id(array) not in files:
                        path = folder / f"part-{len(files)}.bin"
                        files[id(array)] = array, SavedArray.write(path, array)
                    parts[rank] = files[id(array)][1]
        out[index] = ShardedArray(parts)
    return out


def _is_stored(source: object) -> bool:
    """Return whether the array is stored in files already, so that each rank reads its part."""
    if isinstance(source, ShardedArray):
        return all(isinstance(part, Stored) for part in source.parts.values())
    return isinstance(source, Stored)
