# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the result of a simulation, in seconds and bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvm_distir.performance.program.mesh import Mesh
from tvm_distir.performance.traces.chakra import chakra_files
from tvm_distir.performance.traces.files import trace_format, write_trace
from tvm_distir.performance.traces.kineto import chrome_trace, hta_pages
from tvm_distir.performance.traces.perfetto import write_perfetto
from tvm_distir.performance.traces.records import Event
from tvm_distir.support import Displayed, UsageError

from .device_results import Branch, CollectiveTotal, DeviceGroupResult, DeviceResult
from .devices import Devices
from .result_display import draw_result, result_headline, result_tables

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class PipelineResult:
    """Result of a pipelined step: how it was run.

    Attributes
    ----------
    schedule : str
        The kind of the schedule.
    ranks, chunks, micro_batches : int
        Ranks of the pipeline, stages per rank, parts of the batch.
    bubble : float
        Share of the step in which ranks neither compute nor communicate, on average over them.
    """

    schedule: str
    ranks: int
    chunks: int
    micro_batches: int
    bubble: float

    def to_dict(self) -> dict[str, Any]:
        """Give the fields by name."""
        return dict(self.__dict__)


@dataclass(frozen=True)
class Result(Displayed):
    """Result of a simulated step.

    Attributes
    ----------
    system : str
        Name of the system.
    time_s : float
        The time from the start to the end of the last task.
    devices : sequence of DeviceResult
        The results of all devices, by id; they are computed, with their memory, when they are asked
        for.
    collectives : tuple of CollectiveTotal
        Sorted by mesh, kind, axes and group size.
    unmodelled_ops : tuple of str
        Ops whose work is not known (their time is that of moving their operands).
    branches : tuple of Branch
        The ``If`` of the program, and which way they go.
    lanes : tuple of DeviceGroupResult
        Devices that behave alike, once.
    timings_s : mapping of str to float
        Wall-clock seconds of the stages of the simulation itself.
    pipeline : PipelineResult, optional
        The results of a pipelined step.
    meshes : tuple of Mesh
        The meshes of the program.
    """

    system: str
    time_s: float
    devices: Devices
    collectives: tuple[CollectiveTotal, ...]
    unmodelled_ops: tuple[str, ...]
    lanes: tuple[DeviceGroupResult, ...]
    timings_s: Mapping[str, float]
    branches: tuple[Branch, ...] = ()
    meshes: tuple[Mesh, ...] = ()
    pipeline: PipelineResult | None = None

    @property
    def fullest(self) -> DeviceResult:
        """Return the device whose peak takes the largest share of its memory."""
        devices = self.devices.distinct
        return max(devices, key=lambda d: d.peak_memory_bytes / d.memory_capacity_bytes)

    @property
    def peak_memory_bytes(self) -> int:
        """Return the peak memory of the fullest device."""
        peaks = [(lane.peak_of(), lane.memory_capacity_bytes) for lane in self.lanes]
        return max(peaks, key=lambda peak: peak[0] / peak[1])[0]

    @property
    def memory_capacity_bytes(self) -> int:
        """Return the memory of the fullest device."""
        return self.fullest.memory_capacity_bytes

    @property
    def fits(self) -> bool:
        """Return whether every device's peak is within its memory."""
        return self.peak_memory_bytes <= self.memory_capacity_bytes

    @property
    def events(self) -> Iterator[Event]:
        """Return the events of the first device of every lane."""
        for lane in self.lanes:
            yield from lane.events()

    @property
    def memory_timeline(self) -> dict[int, tuple[tuple[float, int], ...]]:
        """Return the live memory over time of the first device of every lane."""
        return {lane.devices[0]: lane.memory for lane in self.lanes}

    _headline = result_headline
    _tables = result_tables
    _draw = draw_result

    def to_pandas(self) -> Any:
        """Return a row per device as a ``pandas.DataFrame`` (DIST0111 without pandas)."""
        return result_tables(self, None)[0].to_pandas()

    def to_dict(self) -> dict[str, Any]:
        """Give the content of the JSON of ``tvm-distir simulate``."""
        return {
            "schema_version": SCHEMA_VERSION,
            "system": self.system,
            "time_s": self.time_s,
            "peak_memory_bytes": self.peak_memory_bytes,
            "memory_capacity_bytes": self.memory_capacity_bytes,
            "fits": self.fits,
            "devices": [device.to_dict() for device in self.devices],
            "collectives": [collective.to_dict() for collective in self.collectives],
            "memory": [
                {"mesh": lane.mesh, "devices": list(lane.devices), **lane.account.to_dict()}
                for lane in self.lanes
            ],
            "unmodelled_ops": list(self.unmodelled_ops),
            "branches": [branch.to_dict() for branch in self.branches],
            "timings_s": dict(self.timings_s),
            **({} if self.pipeline is None else {"pipeline": self.pipeline.to_dict()}),
        }

    def to_perfetto(self, path: str | Path, form: str | None = None) -> None:
        """Write a trace for https://ui.perfetto.dev, completely or not at all.

        Parameters
        ----------
        path : str or Path
        form : str, optional
            The format: ``json``, Chrome's JSON, in which each unit of a pipeline is an event; or
            ``pftrace``, Perfetto's protocol buffers, with all ops. If it is not given, the
            extension of the path decides.

        Raises
        ------
        UsageError
            DIST0153 when the file cannot be written.
        """
        device_groups = [lane.traced() for lane in self.lanes]
        if (form or trace_format(path)) == "pftrace":
            write_trace(path, write_perfetto(device_groups))
        else:
            pieces = (piece.encode() for piece in chrome_trace(self.system, device_groups))
            write_trace(path, lambda file: file.writelines(pieces))

    def to_hta(self, folder: str | Path) -> None:
        """Write traces for Holistic Trace Analysis into a folder, a file per rank.

        Raises
        ------
        UsageError
            DIST0153 when a file cannot be written.
        """
        self._write_files("hta", folder)

    def to_chakra(self, folder: str | Path) -> None:
        """Write execution traces of Chakra into a folder, a file per rank.

        Raises
        ------
        UsageError
            DIST0153 when a file cannot be written.
        """
        self._write_files("chakra", folder)

    def _write_files(self, form: str, folder: str | Path) -> None:
        """Write the files of a trace; the folder is made where there is none."""
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                "DIST0153", f"the folder cannot be made: {error.strerror}", location=str(folder),
                remedy="Give a path where a folder can be.",
            ) from error  # fmt: skip
        for name, content in self.trace_files(form):
            write_trace(Path(folder) / name, content)

    def trace_files(self, form: str) -> Iterator[tuple[str, bytes]]:
        """Yield the names and contents of the files of a trace in a form that has several.

        Those are ``hta`` and ``chakra``.
        """
        device_groups = [lane.traced() for lane in self.lanes]
        if form == "chakra":
            yield from chakra_files(device_groups, self.meshes)
            return
        for name, page in hta_pages(device_groups, self.time_s):
            yield name, page.encode()
