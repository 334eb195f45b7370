# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``distribute``: the passes from an imported module to each device's program, in order."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import ir

from ..plan import Plan, PlanLike, as_plan
from ..propagation import Decision
from ..system import System
from .registry import passes_for
from .spec import PassSpec


def pipeline(
    plan: Plan,
    *,
    system: System | str | None = None,
    bucket_bytes: int | None = None,
    overlap: System | str | None = None,
    decision: Decision | None = None,
) -> tvm.transform.Sequential:
    """The named pipeline: annotate, propagate, legalize, optimize, lower; ``RingAttention`` for a
    plan with rings.

    After it, where asked for, ``BucketReductions`` and ``BucketGathers``, and
    ``SplitCollectives`` with ``ScheduleCollectives``; see :func:`distribute`. With a ``decision``
    about a module at level 2 the passes begin with the one that writes it.
    """
    wanted: list[tuple[str, dict[str, Any]]] = [
        (name, {**given, "system": system}) for name, given in passes_for(plan)
    ]
    if decision is not None:
        wanted = [(name, given) for name, given in wanted if name != "annotate"]
        wanted[0] = (wanted[0][0], {**wanted[0][1], "decision": decision})
    if bucket_bytes is not None:
        wanted += [(name, {"bucket_bytes": bucket_bytes}) for name in ("bucket", "bucket-gathers")]
    if overlap is not None:
        wanted += [("split", {}), ("schedule", {"system": overlap})]
    passes = [PassSpec(name).make(**given) for name, given in wanted]
    return tvm.transform.Sequential(passes, name="tvm_distir.distribute")


def distribute(
    mod: ir.IRModule,
    plan: PlanLike = None,
    *,
    system: System | str | None = None,
    bucket_bytes: int | None = None,
    overlap: System | str | None = None,
) -> ir.IRModule:
    """Distribute a module as a plan says and lower it to what each device runs.

    Parameters
    ----------
    mod : IRModule
        Level 1 or 2; it is not changed.
    plan : Plan, mapping, str or Path, optional
        A plan, its JSON form, or the path of its file. None: the module's annotations.
    system : System or str, optional
        Whose times decide what the plan leaves open, and by which collectives values move. None:
        bytes and operations count, by fixed weights.
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
    return pipeline(as_plan(plan, mod), system=system, bucket_bytes=bucket_bytes, overlap=overlap)(
        mod
    )
