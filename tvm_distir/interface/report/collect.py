# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Convert a simulation's result, program and system to the data of a report."""

from __future__ import annotations

import functools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm_distir.hardware import StepUse, System
from tvm_distir.performance import (
    HOSTS,
    DeviceGroupResult,
    Event,
    Program,
    Result,
    Verdict,
    critical_path,
    entry_number,
    first_numbers,
    titled,
    verdict,
)
from tvm_distir.planning import ErrorBand, StepKind, band_of, bits_of, program_family
from tvm_distir.support import shipped_data
from tvm_distir.support.display import units

from .collected_hardware import hardware_of, main_dtype
from .links import links_of
from .model import Analysis, LinkUse, ReportEvent, ReportLane, ReportMesh, ReportParameter
from .text_table import ranges

_ASSUMPTIONS = shipped_data(__file__, "assumptions.json")


def analysis_of(
    result: Result, program: Program, system: System, model: str, command: str
) -> Analysis:
    """Collect what a simulation says; :func:`.analyze_study` adds what was asked for.

    Parameters
    ----------
    result : Result
        Of simulating ``program`` on ``system``.
    program : Program
    system : System
    model, command : str
        As given by the user.

    Returns
    -------
    analysis : Analysis
        Ops and modules are those of the busiest device.
    """
    links = links_of(result.collectives, program, system)
    busiest = max(result.devices, key=lambda d: d.compute_s + d.exposed_comm_s, default=None)
    shown = next((lane for lane in result.lanes if busiest and busiest.id in lane.devices), None)
    return Analysis(
        model=model,
        command=command,
        time_s=result.time_s,
        peak_memory_bytes=result.peak_memory_bytes,
        hardware=hardware_of(
            system,
            result.memory_capacity_bytes,
            _products(result) or {main_dtype(program): 1},
            _step_use(result, links),
            (busiest.compute_s, busiest.exposed_comm_s, busiest.idle_s) if busiest else (0, 0, 0),
        ),
        meshes=tuple(
            ReportMesh(mesh.name, mesh.axes, mesh.shape, mesh.device_ids)
            for number, mesh in enumerate(program.meshes)
            if number in first_numbers(program.meshes)
        ),
        devices=result.devices,
        collectives=result.collectives,
        unmodelled_ops=tuple(result.unmodelled_ops),
        branches=result.branches,
        timelines=tuple(_lane(lane) for lane in result.lanes),
        ops=shown.ops if shown else (),
        modules=shown.modules if shown else (),
        focus=f"devices {ranges(shown.devices)} of {shown.mesh}" if shown else "",
        parameters=parameters_of(program),
        assumptions=_assumptions(result),
        pipeline=result.pipeline,
        verdict=_verdict(result, program),
        links=links,
        path=functools.partial(critical_path, result.lanes),
        kernels=system.kernels,
    )


def error_band(
    result: Result, program: Program, system: System, software: str, trained: bool
) -> ErrorBand:
    """Return the error band of a step; ``software`` is a stack, or a kernel profile."""
    products = _products(result)
    dtype = max(products, key=lambda name: products[name], default=main_dtype(program))
    family = program_family(program, 1 if result.pipeline is None else result.pipeline.ranks)
    return band_of(StepKind(software, system.device.name, family, bits_of(dtype)), trained)


def _assumptions(result: Result) -> tuple[str, ...]:
    """Return the assumptions behind a result."""
    allocators = {lane.account.allocator for lane in result.lanes}
    reserved = (_ASSUMPTIONS["reserved"],) if "pytorch" in allocators else ()
    pipeline = (_ASSUMPTIONS["pipeline"],) if result.pipeline is not None else ()
    return (*_ASSUMPTIONS["every"], *reserved, *pipeline)


def _verdict(result: Result, program: Program) -> Verdict | None:
    """Return the verdict on the fullest devices if they do not fit."""
    lane = max(result.lanes, key=lambda lane: lane.account.peak_bytes / lane.memory_capacity_bytes)
    number = entry_number(program, lane.devices[0])
    return verdict(program, number, lane.account, result.memory_capacity_bytes)


def _lane(lane: DeviceGroupResult) -> ReportLane:
    return ReportLane(
        mesh=lane.mesh,
        devices=tuple(lane.devices),
        events=_Events(lane),
        memory=tuple(lane.memory),
        account=lane.account,
        events_total=lane.events_total,
        capacity_bytes=lane.memory_capacity_bytes,
    )


class _Events(Sequence[ReportEvent]):
    """The events of a lane, created on first access: text and JSON do not show them."""

    def __init__(self, lane: DeviceGroupResult) -> None:
        self._lane = lane

    @functools.cached_property
    def _made(self) -> tuple[ReportEvent, ...]:
        return tuple(_event(event) for event in self._lane.events())

    def __len__(self) -> int:
        return len(self._made)

    def __getitem__(self, index: Any) -> Any:
        return self._made[index]


_FACTS: Mapping[str, Callable[[Any], str]] = {
    "flops": lambda flops: units.count(flops, "FLOP"),
    "bytes": lambda size: f"{units.size(size)} read and written",
    "payload_bytes": lambda size: f"{units.size(size)} per device",
    "wire_bytes": lambda size: f"{units.size(size)} on the wire",
    "group_size": "groups of {}".format,
    "bound_by": "bound by {}".format,
}


def _event(event: Event) -> ReportEvent:
    args = event.args
    facts = [words(args[key]) for key, words in _FACTS.items() if args.get(key)]
    return ReportEvent(
        name=str(args.get("binding", event.name)),
        op=event.name,
        stream="compute" if event.stream == "compute" else "comm",
        start_s=event.start_s,
        duration_s=event.duration_s,
        scope=str(args.get("scope", "")),
        detail=", ".join(facts),
        title=titled(event.name, args.get("module", "")),
    )


def _products(result: Result) -> Counter[str]:
    """Return the FLOPs of the matrix products of all devices, by the type of their arithmetic."""
    total = Counter[str]()
    for lane in result.lanes:
        for dtype, flops in lane.products.items():
            total[dtype] += flops * len(lane.devices)
    return total


def _step_use(result: Result, links: Sequence[LinkUse]) -> StepUse:
    """Return what the time of a step depends on, with the seconds of all devices together."""
    kernels: defaultdict[tuple[str, str], float] = defaultdict(float)
    host: defaultdict[str, float] = defaultdict(float)
    for lane in result.lanes:
        for key, spent_s in lane.kernels.items():
            if key[0] in HOSTS:
                host[HOSTS[key[0]]] += len(lane.devices) * spent_s
            else:
                kernels[key] += len(lane.devices) * spent_s
    return StepUse(kernels, {link.part: link.time_s for link in links}, host)


def parameters_of(program: Program) -> tuple[ReportParameter, ...]:
    """Return the inputs and weights of the step with their placements."""
    parameters = []
    for number, name, value in program.inputs():
        shape = value.full_shape
        local = math.prod(value.shape)
        item_bytes = value.bytes // local if local else 0
        parameters.append(
            ReportParameter(
                name=name,
                shape=tuple(shape),
                dtype=value.dtype,
                mesh=program.meshes[number].name,
                placement=value.placement or "",
                full_bytes=math.prod(shape) * item_bytes,
                device_bytes=value.bytes,
            )
        )
    return tuple(parameters)


def batch_of(program: Program) -> int | None:
    """Return dim 0 of the first data input with dims; None without such an input."""
    for _, _, value in program.inputs():
        if value.role == "input" and value.whole_shape:
            return value.whole_shape[0]
    return None
