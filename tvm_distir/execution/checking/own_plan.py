# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Distribute the reference of a check as this package does, on the same mesh."""

from __future__ import annotations

from tvm import ir, relax

from tvm_distir.core.ir import placement_text
from tvm_distir.core.ir.attributes import NUM_INPUT_ATTR, PARAM_NAMES_ATTR
from tvm_distir.core.plan import Plan
from tvm_distir.transforms import distribute

from .comparison import GRADIENT
from .placing import Sharding
from .report import CheckReport
from .traced_module import TracedModule

_KEPT = ("global_symbol", NUM_INPUT_ATTR, PARAM_NAMES_ATTR)


def distributed_reference(reference: ir.IRModule, report: CheckReport) -> ir.IRModule:
    """Return the reference as a plan with the placements of the ranks distributes it.

    Inputs, gradients as their parameters, and outputs whose placement the ranks declare are placed
    as the ranks have them; propagation chooses the rest, so that only what lies between is another
    program.

    Parameters
    ----------
    reference : IRModule
        A trace of :func:`tvm_distir.trace_ranks` of a single rank.
    report : CheckReport
        Of the ranks and this reference.

    Returns
    -------
    IRModule
        Of level 5, on the mesh of the ranks.

    Raises
    ------
    ModelError
        DIST0365 where the reference is no trace.
    """
    outputs = TracedModule(reference).codes[0].outputs
    axes, placements = list(report.mesh), report.placements or {}

    def text(name: str) -> str:
        return placement_text([placements.get(name, {}).get(axis, -1) for axis in axes])

    gv, fn = next(iter(reference.functions.items()))
    rules: list[dict[str, object]] = [
        {"param": str(v.name), "placement": _spec(placements.get(str(v.name), {}), len(v.ty.shape))}
        for v in fn.params
    ]
    for name, value in outputs.items():
        parameter = name.removeprefix(GRADIENT)
        if (parameter != name or name in placements) and isinstance(value, relax.Var):
            rules.append({"value": str(value.name), "placement": text(parameter)})
    plain = relax.Function(fn.params, fn.body, fn.ret_ty, fn.is_pure)
    plain = plain.with_attrs({key: fn.attrs[key] for key in _KEPT})
    plan = Plan.from_dict({"schema_version": 1, "mesh": report.mesh, "rules": rules})
    return distribute(ir.IRModule({gv: plain}), plan)


def _spec(sharding: Sharding, ndim: int) -> list[list[str] | None]:
    """Return the axes that shard each dim of a parameter, in their order."""
    return [[a for a, dim in sharding.items() if dim == d] or None for d in range(ndim)]
