# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Measure the memory of steps of an engine."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_distir.performance import Program
from tvm_distir.planning.study import Study


@dataclass(frozen=True)
class StepMemory:
    """Bytes of a device.

    Attributes
    ----------
    weight_bytes : int
    token_bytes : float
        Bytes of caches per token of all requests.
    workspace_bytes : int
        What the largest step takes beside weights and caches.
    """

    weight_bytes: int
    token_bytes: float
    workspace_bytes: int

    def tokens(self, capacity_bytes: float) -> int:
        """Return the tokens that caches hold in the rest of a memory."""
        rest = capacity_bytes - self.weight_bytes - self.workspace_bytes
        return max(0, int(rest / self.token_bytes))


def memory_of_step(
    study: Study, program: Program, batch: int, seq: int, past: int
) -> tuple[int, list[StepMemory]]:
    """Return tokens, and the memory of each stage, of a sample."""
    page = study.source.mod["main"].params[3].ty.shape[2]
    cached_tokens = batch * -(-(past + seq) // int(page)) * int(page)
    stages = []
    peaks = {device.id: device.peak_memory_bytes for device in study.result.devices}
    for entry in program.entries:
        fn = program.functions[entry.function]
        params = [fn.values[index] for index in fn.params]
        caches = sum(v.bytes for v in params if v.name.endswith("_cache"))
        weights = sum(v.bytes for v in params if not v.name.endswith("_cache"))
        peak = max(peaks[device] for device in program.meshes[entry.mesh].device_ids)
        workspace = max(0, peak - weights - caches)
        stages.append(StepMemory(weights, caches / cached_tokens, workspace))
    return batch * seq, stages
