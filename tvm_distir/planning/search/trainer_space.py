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

_STATES: Mapping[str, tuple[str, ...]] = {
    "megatron": ("data_parallel", "zero:stage=1"),
    "torchtitan": ("fsdp",),
    "deepspeed": ("data_parallel", "zero:stage=1", "zero:stage=2", "zero:stage=3"),
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
    names = [name for name in enumeration.constraints.axes if name != EXPERTS]
    for sizes in factorisations(enumeration.devices, len(names)):
        mesh = dict(zip(names, sizes, strict=True))
        if not enumeration.allows(mesh):
            continue
        mesh = {name: size for name, size in mesh.items() if size > 1} or {BATCH: 1}
        for text in _shared(trainer, mesh):
            yield from _with_experts(trainer, text, mesh, experts)


def _shared(trainer: str, mesh: Mapping[str, int]) -> Iterator[str]:
    """Yield strategies without experts."""
    tensor = _TENSOR[trainer] if TENSOR in mesh else ("",)
    context = [f"context_parallel:form={method}" for method in _CONTEXT[trainer]]
    states = _STATES[trainer] if BATCH in mesh or CONTEXT in mesh else ("",)
    for state in states:
        if CONTEXT in mesh and BATCH not in mesh:
            state = "" if state == "data_parallel" else _over(state, CONTEXT)
        for sharded in tensor:
            for part in context if CONTEXT in mesh else [""]:
                yield "+".join(filter(None, (state, sharded, part)))


def _with_experts(
    trainer: str, text: str, mesh: Mapping[str, int], experts: int
) -> Iterator[TrainerChoice]:
    """Yield a choice, and those that divide experts over ranks of its axes, the minor ones."""
    yield TrainerChoice(text, mesh)
    inner = [name for name in (CONTEXT, TENSOR) if name in mesh] if trainer == "megatron" else []
    if inner:
        axes = "/".join(inner)
        yield from _divided(text, mesh, experts, inner, f"+expert_parallel:axis={axes}")
    data = mesh.get(BATCH, 1)
    for along in (size for size in range(2, data + 1) if data % size == 0):
        axis, split, shared = BATCH, dict(mesh), text
        if along < data:
            axis, shared = EXPERTS, _over_both(text)
            split = _split_batch(mesh, along)
        for names in [[axis], *([[axis, *inner]] if inner else [])]:
            added = f"+expert_parallel:axis={'/'.join(names)}"
            yield from _divided(shared, split, experts, names, added)


def _split_batch(mesh: Mapping[str, int], along: int) -> dict[str, int]:
    """Return the mesh with so many ranks of the batch on an axis of experts of its own."""
    split: dict[str, int] = {}
    for name, size in mesh.items():
        split[name] = size // along if name == BATCH else size
        if name == BATCH:
            split[EXPERTS] = along
    return split


def _over_both(text: str) -> str:
    """Return strategies whose states are shared over the axis of the batch and of experts."""
    first, plus, rest = text.partition("+")
    if not first.startswith("data_parallel"):
        first = _over(first, f"{BATCH}/{EXPERTS}")
    return first + plus + rest


def _over(state: str, axes: str) -> str:
    """Return a strategy of the training state over axes."""
    return f"{state}{',' if ':' in state else ':'}axis={axes}"


def _divided(
    text: str, mesh: Mapping[str, int], experts: int, axes: Sequence[str], added: str
) -> Iterator[TrainerChoice]:
    """Yield the choice whose experts are divided over axes, where they can be."""
    count = math.prod(mesh[name] for name in axes)
    if experts and experts % count == 0:
        yield TrainerChoice(text + added if text else added[1:], mesh)
