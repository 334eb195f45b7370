# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Convert an analysis to the JSON of the command line."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from tvm_distir.support import InternalError

from .advice import advice
from .figures import basis, figures
from .model import SCHEMA_VERSION, Analysis
from .module_tree import module_tree


def to_dict(analysis: Analysis) -> dict[str, object]:
    """Return the content of the JSON of ``tvm-distir analyze``.

    Returns
    -------
    data : dict
        ``schema_version``, ``time_s``, ``peak_memory_bytes``, ``fits``, ``throughput`` (also
        utilisation and cost), ``flops`` before distribution, ``basis`` (system, kernel profile,
        and all numbers of the system with their sources), ``band`` of the time, ``bound_by``,
        ``spent_s`` by what it goes to, ``devices``, ``modules`` as a tree by pass, ``collectives``
        and ``ops`` with their times, ``memory``, ``out_of_memory``, ``advice``, ``links``,
        ``warnings``, ``unmodelled_ops``, ``branches``, ``timings_s``, ``meshes``, of a pipelined
        step ``pipeline``, and what was asked for.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "model": analysis.model,
        "system": analysis.hardware.name,
        "strategy": analysis.strategy,
        "batch": analysis.batch,
        "time_s": analysis.time_s,
        "peak_memory_bytes": analysis.peak_memory_bytes,
        "memory_capacity_bytes": analysis.capacity_bytes,
        "fits": analysis.fits,
        "throughput": {"tokens": analysis.tokens, **figures(analysis)._asdict()},
        "flops": None if analysis.flops is None else analysis.flops._asdict(),
        "basis": basis(analysis),
        "band": None if analysis.band is None else analysis.band.to_dict(analysis.time_s),
        "bound_by": analysis.bound_by,
        "spent_s": analysis.spent_s,
        "meshes": [
            {"name": m.name, "axes": dict(zip(m.axes, m.shape)), "device_ids": list(m.device_ids)}
            for m in analysis.meshes
        ],
        "devices": [device.to_dict() for device in analysis.devices],
        "collectives": [{**c.to_dict(), "time_s": c.time_s} for c in analysis.collectives],
        "modules": [node.to_dict() for node in module_tree(analysis.modules).children],
        "ops": [dict(vars(op)) for op in analysis.ops],
        "memory": [
            {"mesh": lane.mesh, "devices": list(lane.devices), **lane.account.to_dict()}
            for lane in analysis.timelines
            if lane.account is not None
        ],
        "out_of_memory": None if analysis.verdict is None else analysis.verdict.to_dict(),
        "warnings": [*analysis.notes, *analysis.warnings],
        "advice": [part.to_dict() for part in advice(analysis)],
        "links": [dict(vars(link)) for link in analysis.links],
        "unmodelled_ops": list(analysis.unmodelled_ops),
        "branches": [dict(vars(branch)) for branch in analysis.branches],
        "timings_s": {stage: round(took_s, 6) for stage, took_s in analysis.timings_s.items()},
        **({} if analysis.pipeline is None else {"pipeline": analysis.pipeline.to_dict()}),
    }


def to_json(data: Mapping[str, object]) -> str:
    """Return a result as JSON, and refuse NaN and infinities, which JSON cannot represent.

    Raises
    ------
    InternalError
        DIST0902 for a number that is not finite.
    """
    path = _not_finite(data, "")
    if path is not None:
        raise InternalError("DIST0902", "a result is not a finite number", location=path)
    return json.dumps(data, indent=1, allow_nan=False) + "\n"


def _not_finite(value: object, path: str) -> str | None:
    if isinstance(value, float) and not math.isfinite(value):
        return path
    if isinstance(value, dict):
        items = [(f"{path}.{key}" if path else str(key), item) for key, item in value.items()]
    elif isinstance(value, (list, tuple)):
        items = [(f"{path}[{i}]", item) for i, item in enumerate(value)]
    else:
        return None
    for where, item in items:
        infinite = _not_finite(item, where)
        if infinite is not None:
            return infinite
    return None
