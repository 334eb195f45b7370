# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read modules of other frontends, such as JAX's ``shard_map``, like traces of ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from tvm import ir, relax
from tvm.relax.distributed import DeviceMesh

from tvm_distir.core.ir import (
    AXES_ATTR,
    MESH_INFO,
    R,
    device_mesh,
    flat_types,
    mesh_devices,
    mesh_key,
    mesh_shape,
    parse_placement,
    placement_text,
)
from tvm_distir.core.ir.attributes import IO_ATTR, PARAM_NAMES_ATTR
from tvm_distir.core.passes import port_mesh
from tvm_distir.models import LINES_ATTR, TRACE_ATTR
from tvm_distir.support import ModelError, update_type
from tvm_distir.transforms import InlinePrivateFunctions

from .placing import Sharding


def as_trace(
    mod: ir.IRModule,
) -> tuple[ir.IRModule, dict[str, Sharding], dict[str, Sharding]]:
    """Return a module with the attributes of a trace, and how inputs and outputs are sharded.

    Of a trace neither is known; of other modules of several ranks both are. The order of axes in
    a sharding is that of an input or output, the major axis first.

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
        return mod, {}, {}
    mod = InlinePrivateFunctions()(mod)
    entries = [e for e in mod.functions.items() if isinstance(e[1], relax.Function)]
    meshes = list((mod.global_infos or {}).get(MESH_INFO, []))
    io = entries[0][1].attrs.get(IO_ATTR) if len(entries) == 1 and entries[0][1].attrs else None
    listed = [[str(axis) for axis in axes] for axes in mod.attrs[AXES_ATTR]] if meshes else [[]]
    views = zip(meshes, listed)
    one_mesh = all(_is_view(view, axes, meshes[0], listed[0]) for view, axes in views)
    if len(entries) != 1 or (io is None and meshes) or not one_mesh:
        problem = "the module is no trace, and not one program of level 1 or 5 on one mesh"
        remedy = "Trace ranks with td.trace_ranks, or read a shard_map of all devices."
        raise ModelError("DIST0365", problem, location="td.check", remedy=remedy)
    gv, fn = entries[0]
    known = (fn.attrs or {}).get(PARAM_NAMES_ATTR)
    names = [str(n) for n in known or [var.name for var in fn.params]]
    axes, mesh = ["rank"], device_mesh({"rank": 1})
    types = flat_types(fn.ret_ty)
    results = [f"output{i}" for i in range(len(types))]
    known_inputs, known_outputs = dict[str, Sharding](), dict[str, Sharding]()
    if io is not None:
        axes, mesh = listed[0], meshes[0]
        axes_of = {mesh_key(view): order for view, order in zip(meshes, listed)}
        known_inputs = _shardings(names, io["inputs"], mesh, axes_of)
        known_outputs = _shardings(results, io["outputs"], mesh, axes_of)
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
    trace = ir.IRModule(
        {gv: fn}, attrs=ir.make_node("ir.DictAttrs", **attrs), global_infos={MESH_INFO: [mesh]}
    )
    return trace, known_inputs, known_outputs


def _shardings(
    names: Sequence[str],
    ports: Sequence[Mapping[str, object]],
    mesh: DeviceMesh,
    axes_of: Mapping[tuple[tuple[int, ...], tuple[int, ...]], Sequence[str]],
) -> dict[str, Sharding]:
    """Return the shardings of ports, the axes of each in the order of its mesh."""
    shardings = {}
    for name, port in zip(names, ports, strict=True):
        labels = parse_placement(str(port["placement"]))
        pairs = zip(axes_of[mesh_key(port_mesh(port, mesh))], labels)
        shardings[name] = {axis: label for axis, label in pairs if label != R}
    return shardings


def _is_view(view: DeviceMesh, order: Sequence[str], mesh: DeviceMesh, axes: Sequence[str]) -> bool:
    """Return whether a mesh has the axes and devices of another one, in any order of axes."""
    if sorted(order) != sorted(axes):
        return False
    turned = mesh_devices(view).transpose([order.index(axis) for axis in axes])
    return bool(np.array_equal(turned, mesh_devices(mesh)))


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
