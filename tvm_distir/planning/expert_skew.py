# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find the load of the most loaded device of expert parallelism."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tvm_distir.support import UsageError

from .strategies.registry import parse

_STRATEGY = "expert_parallel"


def most_loaded(
    skew: float | Sequence[float], strategy: str | None, mesh: Mapping[str, int] | None
) -> float:
    """Return the rows of the experts of the most loaded device, over the mean of all devices.

    All others wait for it at the next all-to-all, so that it determines the time of the products
    of experts and of the all-to-alls.

    Parameters
    ----------
    skew : float or sequence of float
        This factor, or the loads of the experts (or of equal groups of them) in their order, of
        which each device has as many that follow each other.
    strategy : str or None
        The strategies, ``expert_parallel`` among them.
    mesh : mapping of str to int, or None

    Raises
    ------
    UsageError
        DIST0151 without expert parallelism, DIST0152 for a factor below 1 or above the number of
        devices, and for loads that are negative, all 0, or not divisible among the devices.
    """
    specs = [spec for spec in parse(strategy or _STRATEGY) if spec.name == _STRATEGY]
    devices = (mesh or {}).get(str(specs[0].options.get("axis", "ep")), 0) if specs else 0
    if strategy is None or not devices:
        problem = "an uneven load of experts needs expert parallelism"
        remedy = "Give --strategy expert_parallel with its axis: --mesh ep=8."
        raise UsageError("DIST0151", problem, location="expert_skew", remedy=remedy)
    loads = [skew] if isinstance(skew, int | float) else list(skew)
    if any(not 0 <= load < math.inf for load in loads) or not sum(loads):
        raise _wrong("loads are not negative, and not all 0", "Give loads such as 3,1,1,1.")
    if len(loads) == 1:
        if not 1 <= loads[0] <= devices:
            problem = f"the most loaded of {devices} devices has 1 to {devices} times the mean"
            raise _wrong(problem, "Give such a factor.")
        return float(loads[0])
    if len(loads) % devices:
        remedy = "Give the load of each expert."
        raise _wrong(f"{len(loads)} loads do not divide among {devices} devices", remedy)
    each = len(loads) // devices
    of_devices = [sum(loads[i : i + each]) for i in range(0, len(loads), each)]
    return max(of_devices) * devices / sum(loads)


def _wrong(problem: str, remedy: str) -> UsageError:
    return UsageError("DIST0152", problem, location="expert_skew", remedy=remedy)
