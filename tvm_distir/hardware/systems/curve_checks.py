# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Check the curves of networks."""

from __future__ import annotations

from tvm_distir.support import Faults

from .collective_algorithms import RINGED, algorithm_named
from .faults import wrong
from .hardware import Curve


def needed_algorithm(kind: str) -> str:
    """Return the algorithm whose curve each collective of a kind needs."""
    return "ring" if kind in RINGED else "direct"


def check_curve(curve: Curve, line_rate: float, location: str, faults: Faults) -> None:
    """Refuse a curve of an unknown algorithm, or one that is faster than the link."""
    with faults.gathered():
        kinds = algorithm_named(curve.algorithm).kinds
        if curve.kind not in kinds:
            problem = f"the algorithm {curve.algorithm} does not compute {curve.kind}"
            raise wrong(f"{location}/kind", problem, f"It computes {', '.join(kinds)}.")
    if curve.bandwidth_GBps > line_rate:
        problem = f"{curve.bandwidth_GBps:g} GB/s over links of {line_rate:g} GB/s"
        remedy = "Give what the algorithm reaches, at most the line rate."
        faults.add(wrong(f"{location}/bandwidth_GBps", problem, remedy))
