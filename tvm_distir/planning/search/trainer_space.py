# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Enumerate the strategies that options of trainers stand for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .candidates import BATCH, STAGES, Enumeration, factorisations

TENSOR, CONTEXT, EXPERTS = "tp", "cp", "ep"
"""Names of the axes of tensor and context parallelism, and of experts inside of the batch."""

FOLDING, _REPLICAS = "megatron", "data_parallel"
"""The trainer that divides experts over ranks of tensor and context parallelism; the strategy of
replicas."""

_STATES: Mapping[str, tuple[str, ...]] = {
    "megatron": (_REPLICAS, "zero:stage=1"),
    "torchtitan": ("fsdp",),
    "deepspeed": (_REPLICAS, "zero:stage=1", "zero:stage=2", "zero:stage=3"),
}
"""What shards the training state, by the trainer."""

_TENSOR: Mapping[str, tuple[str, ...]] = {
    "megatron": ("megatron", "megatron:sequence=1"),
    "torchtitan": ("megatron", "megatron:sequence=1"),
    "deepspeed": ("megatron",),
}
_CONTEXT: Mapping[str, tuple[str, ...]] = {
    "megatron": ("all_to_all", "gather", "ring"),
    "torchtitan": ("gather",),
    "deepspeed": (),
}


@dataclass(frozen=True)
class TrainerChoice:
    """Strategies on a mesh, whose axes are in the order of the ranks of trainers."""

    strategy: str
    mesh: Mapping[str, int]

    @property
    def stages(self) -> int:
        """Return the number of pipeline stages."""
        return self.mesh.get(STAGES, 1)

    @property
    def parts(self) -> int:
        """Return into how many parts the batch is divided."""
        return self.mesh.get(BATCH, 1) * self.mesh.get(EXPERTS, 1)


def trainer_choices(
    trainer: str, enumeration: Enumeration, experts: int
) -> Iterator[TrainerChoice]:
    """Yield the choices of a trainer on all devices, within the constraints of a search.

    Parameters
    ----------
    trainer : str
        The format of the trainer's options in ``export_plan``.
    enumeration : Enumeration
        Whose axes are those of the constraints.
    experts : int
        The number of experts of a layer; 0 for a model without any.
    """
    for sizes in factorisations(enumeration.devices, len(enumeration.constraints.axes)):
        degrees = dict(zip(enumeration.constraints.axes, sizes, strict=True))
        data = degrees.get(BATCH, 1)
        for along in range(1, data + 1 if experts else 2):
            if data % along or not enumeration.allows(degrees):
                continue
            mesh: dict[str, int] = {}
            for name, size in degrees.items():
                mesh |= {BATCH: size // along, EXPERTS: along} if name == BATCH else {name: size}
            mesh = {name: size for name, size in mesh.items() if size > 1} or {BATCH: 1}
            along_data = [EXPERTS] if EXPERTS in mesh else []
            inner = [name for name in (CONTEXT, TENSOR) if name in mesh]
            for axes in (
                [along_data, along_data + inner]
                if inner and experts and trainer == FOLDING
                else [along_data]
            ):
                if not axes or experts % math.prod(mesh[name] for name in axes) == 0:
                    yield from (TrainerChoice(t, mesh) for t in _strategies(trainer, mesh, axes))


def _strategies(trainer: str, mesh: Mapping[str, int], experts: Sequence[str]) -> Iterator[str]:
    """Yield the strategies on a mesh, with the axes of experts."""
    shared = [name for name in (BATCH, EXPERTS, CONTEXT) if name in mesh]
    methods = [f"context_parallel:form={method}" for method in _CONTEXT[trainer]]
    last = f"expert_parallel:axis={'/'.join(experts)}" if experts else ""
    for state in _STATES[trainer] if shared else ("",):
        if state == _REPLICAS:
            state = state if BATCH in mesh else ""
        elif state:
            state += f"{',' if ':' in state else ':'}axis={'/'.join(shared)}"
        for tensor in _TENSOR[trainer] if TENSOR in mesh else ("",):
            for context in methods if CONTEXT in mesh else ("",):
                yield "+".join(filter(None, (state, tensor, context, last)))
