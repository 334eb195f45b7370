# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``distribute``: the passes from an imported module to each device's program, in order."""

from __future__ import annotations

import tvm
from tvm import ir

from ..plan import Plan
from .annotate import AnnotateSharding
from .legalize import LegalizeRedistribute
from .lower import LowerDistIR
from .optimize import OptimizeCollectives
from .propagate import PropagateSharding


def pipeline(plan: Plan) -> tvm.transform.Sequential:
    """The named pipeline: annotate, propagate, legalize, optimize, lower."""
    return tvm.transform.Sequential(
        [
            AnnotateSharding(plan),
            PropagateSharding(),
            LegalizeRedistribute(),
            OptimizeCollectives(),
            LowerDistIR(),
        ],
        name="tvm_distir.distribute",
    )


def distribute(mod: ir.IRModule, plan: Plan) -> ir.IRModule:
    """Distribute a module as a plan says and lower it to what each device runs.

    Parameters
    ----------
    mod : IRModule
        Level 1 or 2; it is not changed.
    plan : Plan

    Returns
    -------
    IRModule
        Level 5: local tensors, collectives, one entry function per mesh with ``dist.io``.

    Raises
    ------
    DistIRError
        What the passes raise, naming the place.
    """
    return pipeline(plan)(mod)
