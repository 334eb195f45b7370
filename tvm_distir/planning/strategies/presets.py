# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define strategies under the names that users of other libraries know.

FSDP and HSDP: Zhao et al. 2023, "PyTorch FSDP", sections 3.2.1 and 3.2.2. DeepSpeed's stages:
Rajbhandari et al. 2020, "ZeRO". Sharded training of Lightning (FairScale) is stage 2.
"""

from __future__ import annotations

from typing import Protocol

from tvm import ir

from tvm_distir.core.plan import Plan

from .composition import merge
from .data_parallelism import data_parallel
from .model_info import MeshLike, as_mesh_spec, mesh_axis
from .registry import plan_maker
from .zero_redundancy import stored_in_parts


class _Preset(Protocol):
    def __call__(
        self, mod: ir.IRModule, mesh: MeshLike, axis: str = "", *, others: Plan | None = None
    ) -> Plan: ...


def _preset(name: str, stage: int, summary: str) -> _Preset:
    """Return the strategy "zero" with a stage, under another name."""

    def preset(
        mod: ir.IRModule, mesh: MeshLike, axis: str = "", *, others: Plan | None = None
    ) -> Plan:
        return stored_in_parts(mod, mesh, axis, stage, others, name)

    preset.__name__ = preset.__qualname__ = name
    preset.__doc__ = f"""{summary}

    Parameters
    ----------
    mod, mesh, others
        As :func:`.zero_redundancy.zero` has them; so are the errors.
    axis : str
        The mesh axes that shard the state, as :func:`.zero_redundancy.zero` has them.
    """
    return plan_maker(preset)


fsdp = _preset(
    "fsdp", 3, 'Plan of fully sharded data parallel: "zero:stage=3", weights stored in parts too.'
)
deepspeed_zero1 = _preset(
    "deepspeed_zero1", 1, "Plan of DeepSpeed's ZeRO stage 1: optimizer states stored in parts."
)
deepspeed_zero2 = _preset(
    "deepspeed_zero2",
    2,
    "Plan of DeepSpeed's ZeRO stage 2: optimizer states and gradients stored in parts.",
)
deepspeed_zero3 = _preset(
    "deepspeed_zero3",
    3,
    "Plan of DeepSpeed's ZeRO stage 3: optimizer states, gradients and weights stored in parts.",
)
lightning_sharded = _preset(
    "lightning_sharded",
    2,
    'Plan of Lightning\'s sharded training: "zero:stage=2", optimizer states and gradients.',
)


@plan_maker
def hsdp(
    mod: ir.IRModule,
    mesh: MeshLike,
    axis: str = "",
    replicas: str = "pod",
    *,
    others: Plan | None = None,
) -> Plan:
    """Plan of hybrid sharding: "fsdp" within each of several replicas.

    Parameters
    ----------
    mod, mesh, others
        As :func:`.zero_redundancy.zero` has them; so are the errors.
    axis : str
        The mesh axes that shard the state, as :func:`.zero_redundancy.zero` has them.
    replicas : str
        The mesh axis along which all of that is repeated. It divides the batch too.
    """
    mesh_axis(as_mesh_spec(mesh), replicas, "hsdp", "replicas")
    parts = stored_in_parts(mod, mesh, axis, 3, others, "hsdp")
    return merge([("replicas", data_parallel(mod, mesh, axis=replicas)), ("parts", parts)])
