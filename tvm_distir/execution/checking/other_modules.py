# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read modules of other frontends, such as JAX's ``shard_map``, like traces of ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import ir, relax

from tvm_distir.core.ir import (
    AXES_ATTR,
    MESH_INFO,
    R,
    device_mesh,
    flat_types,
    mesh_shape,
    parse_placement,
    placement_text,
)
from tvm_distir.core.ir.attributes import IO_ATTR, PARAM_NAMES_ATTR
from tvm_distir.models import LINES_ATTR, TRACE_ATTR
from tvm_distir.support import ModelError, update_type
from tvm_distir.transforms import InlinePrivateFunctions

from .placing import Sharding


def as_trace(mod: ir.IRModule) -> tuple[ir.IRModule, dict[str, Sharding]]:
    """Return a module with the attributes of a trace, and how its inputs are known to be sharded.

    Parameters
    ----------
    mod : IRModule
        A trace; or a module of level 5 with one entry function for all ranks, as
        :func:`tvm_distir.from_stablehlo` reads a ``shard_map``; or one of level 1, as that of a
        single rank. Results of modules that are no traces are named ``output0``, ``output1``, ...

    Raises
    ------
    ModelError
        DIST0365 for another module.
    """
    if TRACE_ATTR in (mod.attrs or {}):
        return mod, {}
    mod = InlinePrivateFunctions()(mod)
    entries = [e for e in mod.functions.items() if isinstance(e[1], relax.Function)]
    meshes = list((mod.global_infos or {}).get(MESH_INFO, []))
    io = entries[0][1].attrs.get(IO_ATTR) if len(entries) == 1 and entries[0][1].attrs else None
    if len(entries) != 1 or len(meshes) > 1 or (io is None and meshes):
        problem = "the module is no trace, and not one program of level 1 or 5"
        remedy = "Trace ranks with td.trace_ranks, or read a shard_map of all devices."
        raise ModelError("DIST0365", problem, location="td.check", remedy=remedy)
    (gv, fn), shardings = entries[0], dict[str, Sharding]()
    known = (fn.attrs or {}).get(PARAM_NAMES_ATTR)
    names = [str(n) for n in known or [var.name for var in fn.params]]
    axes, mesh = ["rank"], device_mesh({"rank": 1})
    if io is not None:
        axes, mesh = [str(axis) for axis in mod.attrs[AXES_ATTR][0]], meshes[0]
        for name, port in zip(names, io["inputs"], strict=True):
            labels = zip(axes, parse_placement(str(port["placement"])))
            shardings[name] = {axis: label for axis, label in labels if label != R}
    types = flat_types(fn.ret_ty)
    results = [f"output{i}" for i in range(len(types))]
    io = {
        "mesh": 0,
        "devices": list(range(math.prod(mesh_shape(mesh)))),
        "inputs": _ports(names, [var.ty for var in fn.params], len(axes)),
        "outputs": _ports(results, types, len(axes)),
    }
    gv = ir.GlobalVar(str(gv.name_hint))
    update_type(gv, fn.ty)
    fn = _returning_fields(fn).with_attrs({IO_ATTR: io, LINES_ATTR: {}, PARAM_NAMES_ATTR: names})
    attrs = {
        AXES_ATTR: [axes],
        TRACE_ATTR: {"inputs": names, "outputs": results, "integers": {}},
    }
    return ir.IRModule(
        {gv: fn}, attrs=ir.make_node("ir.DictAttrs", **attrs), global_infos={MESH_INFO: [mesh]}
    ), shardings


def _returning_fields(fn: relax.Function) -> relax.Function:
    """Return a function whose body is a tuple expression where it is a variable of one."""
    body = fn.body.body
    for binding in [b for block in fn.body.blocks for b in block.bindings]:
        if binding.var.same_as(body) and isinstance(binding.value, relax.Tuple):
            body = binding.value
    seq = relax.SeqExpr(fn.body.blocks, body)
    update_type(seq, body.ty)
    return relax.Function(fn.params, seq, fn.ret_ty, fn.is_pure, fn.attrs)


def _ports(
    names: Sequence[str], types: Sequence[relax.TensorType], axes: int
) -> list[dict[str, object]]:
    """Return ports of ``dist.io`` whose tensors a rank holds completely."""
    return [
        {
            "index": index,
            "name": name,
            "shape": [int(n) for n in ty.shape],
            "dtype": str(ty.dtype),
            "placement": placement_text([R] * axes),
        }
        for index, (name, ty) in enumerate(zip(names, types, strict=True))
    ]
