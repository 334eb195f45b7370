# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Small hand-made analyses whose figures can be added up on paper."""

from __future__ import annotations

from tvm_distir.interface.report.model import (
    Analysis,
    Hardware,
    ReportEvent,
    ReportLane,
    ReportMesh,
    ReportParameter,
)
from tvm_distir.performance.simulation.device_results import (
    CollectiveTotal,
    DeviceResult,
    ModuleTime,
    OpTime,
)

GIB = 2**30


def events(layers: int) -> tuple[ReportEvent, ...]:
    """Per layer a matmul of 3 ms, an add of 1 ms and an all-reduce of 1 ms."""
    created = []
    for i in range(layers):
        at_s, scope = i * 5e-3, f"main/layer[{i}]"
        created.append(ReportEvent(f"mm{i}", "matmul", "compute", at_s, 3e-3, scope, "6 GFLOP"))
        created.append(ReportEvent(f"add{i}", "add", "compute", at_s + 3e-3, 1e-3, scope))
        created.append(ReportEvent(f"ar{i}", "all_reduce", "comm", at_s + 4e-3, 1e-3, scope))
    return tuple(created)


def sample(
    *,
    layers: int = 4,
    capacity_bytes: int | None = 16 * GIB,
    peak_bytes: int = 8 * GIB,
    model: str = "model.onnx",
    parameter: str = "layers.{}.weight",
    unmodelled: tuple[str, ...] = (),
) -> Analysis:
    """Two by two devices; each layer computes 4 ms and communicates 1 ms, nothing overlaps."""
    devices = tuple(
        DeviceResult(
            i,
            "mesh0",
            4e-3 * layers,
            1e-3 * layers,
            1e-3 * layers,
            0.0,
            peak_bytes,
            GIB,
            10**9,
            capacity_bytes or 0,
        )
        for i in range(4)
    )
    return Analysis(
        model=model,
        command=f"tvm-distir analyze {model} --strategy data_parallel --mesh dp=2,tp=2",
        time_s=5e-3 * layers,
        peak_memory_bytes=peak_bytes,
        hardware=Hardware("box", capacity_bytes, 1e12, 1e12, (("devices", "4 of a kind"),)),
        meshes=(ReportMesh("mesh0", ("dp", "tp"), (2, 2), (0, 1, 2, 3)),),
        devices=devices,
        collectives=(
            CollectiveTotal(
                "all_reduce", "mesh0", "tp", 2, layers, layers * GIB, layers * GIB, 4e-3
            ),
        ),
        unmodelled_ops=unmodelled,
        timelines=(
            ReportLane("mesh0", (0, 1, 2, 3), events(layers), ((0.0, GIB), (5e-3, peak_bytes))),
        ),
        ops=(
            OpTime(
                "matmul", "layers.*.mlp", "forward", layers, 3e-3 * layers, 10**9, GIB, "compute"
            ),
            OpTime("add", "layers.*", "backward", layers, 1e-3 * layers, 0, GIB, "memory"),
        ),
        modules=(
            ModuleTime("layers.*.mlp", "forward", 3e-3 * layers, 1e-3 * layers, 10**9),
            ModuleTime("layers.*", "backward", 1e-3 * layers, 0.0, 0),
        ),
        parameters=tuple(
            ReportParameter(
                parameter.format(i), (64, 32), "float32", "mesh0", "R, S[1]", 8192, 4096
            )
            for i in range(layers)
        ),
        plan={"schema_version": 1, "mesh": {"dp": 2, "tp": 2}, "rules": []},
        strategy="data_parallel",
        batch=8,
        assumptions=("Collectives follow the ring.",),
        timings_s={"load": 1.0, "simulate": 0.5},
    )
