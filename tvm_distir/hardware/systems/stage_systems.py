# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Join systems whose devices run different stages of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from .faults import unequal

Joined = TypeVar("Joined", bound=Any)
"""The class of systems, which imports this module."""
_MEANS = "price_per_hour", "watts"
LINKS = "intra_node", "inter_node", "outer_tiers", "graph"


def joined(stages: Sequence[Joined], location: str, name: str = "") -> Joined:
    """Return a system of unequal devices, of which each runs an equal number of pipeline stages.

    Apart from ``stages``, its numbers are those of the slowest device, by which placements and
    recomputation are chosen, with the least memory, and the mean cost and power.

    Parameters
    ----------
    stages : sequence of System
        Systems from the first stages to the last. Equal ones alone are returned as they are.
    location : str
        The place of an error.
    name : str
        The name of the system; by default those of ``stages``.

    Raises
    ------
    HardwareError
        DIST0706 for different kernel profiles, and for a graph of links in one of several networks.
    """
    if nested := [stage.name for stage in stages if stage.stages]:
        problem = f'the system "{nested[0]}" of a stage has several types of devices itself'
        raise unequal(location, problem, "List the device of each stage.")
    first = stages[0]
    if all(stage == first for stage in stages):
        return replace(first, name=name or first.name)
    profiles = sorted({stage.kernels for stage in stages})
    if len(profiles) > 1:
        problem = f"the stages have the kernel profiles {' and '.join(profiles)}, and a job has one"
        raise unequal(location, problem, "Name systems of one profile.")
    slowest = min(stages, key=lambda stage: stage.peak_flops_per_s("bfloat16"))
    devices = [stage.device for stage in stages]
    device = replace(
        slowest.device,
        name=" and ".join(dict.fromkeys(device.name for device in devices)),
        memory_capacity_GiB=min(device.memory_capacity_GiB for device in devices),
        **{key: _mean([getattr(device, key) for device in devices]) for key in _MEANS},
    )
    system = replace(
        slowest,
        name=name or ",".join(stage.name for stage in stages),
        description=", ".join(dict.fromkeys(stage.description for stage in stages)),
        device=device,
        stages=tuple(stages),
    )
    if not system.has_one_network and any(stage.graph is not None for stage in stages):
        problem = "a graph of links has no link to the network of the other stages"
        raise unequal(location, problem, 'List the devices in the "device" of one system.')
    return system


def _mean(numbers: Sequence[float | None]) -> float | None:
    """Return the mean of numbers, or None where one is not known."""
    known = [value for value in numbers if value is not None]
    return sum(known) / len(known) if len(known) == len(numbers) else None
