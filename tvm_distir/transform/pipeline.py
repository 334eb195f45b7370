# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``distribute``: the passes from an imported module to each device's program, in order."""

from __future__ import annotations

import tvm
from tvm import ir

from ..plan import Plan
from ..system import System
from .annotate import AnnotateSharding
from .legalize import LegalizeRedistribute
from .lower import LowerDistIR
from .optimize import (
    BucketGathers,
    BucketReductions,
    OptimizeCollectives,
    ScheduleCollectives,
    SplitCollectives,
)
from .propagate import PropagateSharding


def pipeline(
    plan: Plan, *, bucket_bytes: int | None = None, overlap: System | str | None = None
) -> tvm.transform.Sequential:
    """The named pipeline: annotate, propagate, legalize, optimize, lower.

    After it, where asked for, ``BucketReductions`` and ``BucketGathers``, and
    ``SplitCollectives`` with ``ScheduleCollectives``; see :func:`distribute`.
    """
    passes = [
        AnnotateSharding(plan),
        PropagateSharding(),
        LegalizeRedistribute(),
        OptimizeCollectives(),
        LowerDistIR(),
    ]
    if bucket_bytes is not None:
        passes += [BucketReductions(bucket_bytes), BucketGathers(bucket_bytes)]
    if overlap is not None:
        passes += [SplitCollectives(), ScheduleCollectives(overlap)]
    return tvm.transform.Sequential(passes, name="tvm_distir.distribute")


def distribute(
    mod: ir.IRModule,
    plan: Plan,
    *,
    bucket_bytes: int | None = None,
    overlap: System | str | None = None,
) -> ir.IRModule:
    """Distribute a module as a plan says and lower it to what each device runs.

    Parameters
    ----------
    mod : IRModule
        Level 1 or 2; it is not changed.
    plan : Plan
    bucket_bytes : int, optional
        Join small reductions, and small gathers, to buckets of at most so many bytes. None: leave
        them single, which takes no copies.
    overlap : System or str, optional
        Split collectives into a start and a done and order other work between them, by the times
        of this system. None: leave the order as it is, which takes least memory.

    Returns
    -------
    IRModule
        Level 5: local tensors, collectives, one entry function with ``dist.io`` per mesh, or
        where meshes share devices for all devices that belong to the same meshes.

    Raises
    ------
    DistIRError
        What the passes raise, naming the place.
    """
    return pipeline(plan, bucket_bytes=bucket_bytes, overlap=overlap)(mod)
