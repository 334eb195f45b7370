# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find the groups in which the tokens of a sample are sent to experts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from .strategies.registry import StrategySpec, find_strategy

KEY = "token_groups"
"""The key of a model with experts, as :class:`tvm_distir.models.zoo.decoder_config` has it."""

_SEQUENCES = ("sequence", "context_parallel")
"""Strategies that shard the sequence along their axis."""


def token_groups(specs: Sequence[StrategySpec], mesh: Mapping[str, int]) -> int:
    """Return into how many parts the axes of experts shard the sequence.

    Devices that have a part of a sample each send its tokens to experts by themselves, as trainers
    do: slots of experts that are counted over the whole sample need all of its tokens first.

    Parameters
    ----------
    specs : sequence of StrategySpec
        The strategies, ``expert_parallel`` among them where there are any groups.
    mesh : mapping of str to int
    """
    experts = [name for spec in specs if spec.name == "expert_parallel" for name in _axes(spec)]
    parts = [
        name
        for spec in specs
        if spec.name in _SEQUENCES or (spec.name == "megatron" and spec.options.get("sequence"))
        for name in _axes(spec)
    ]
    return math.prod(mesh.get(name, 1) for name in {*experts}.intersection(parts))


def _axes(spec: StrategySpec) -> list[str]:
    """Return the names of the axes of a strategy."""
    default = find_strategy(spec.name).options["axis"].default
    return [name.strip() for name in str(spec.options.get("axis", default)).split("/")]
