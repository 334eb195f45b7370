# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Import modules that are written for one of several devices, with ``R.ccl`` collectives.

MLC-LLM defines its models so: sizes are divided by ``tensor_parallel_shards``, partial sums are
reduced by ``R.ccl.allreduce``, and the strategy of each parameter says how a weight is divided.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import ir, relax

from tvm_distir.core.ir import (
    AXES_ATTR,
    MESH_INFO,
    R,
    Segments,
    device_mesh,
    flat_types,
    is_object,
    is_private,
    placement_text,
    static_shape,
)
from tvm_distir.core.ir.attributes import IO_ATTR, num_input, param_names
from tvm_distir.core.passes import dim_text
from tvm_distir.core.rewriting import bind_dims, open_tuples, open_variables, with_mesh_collectives

from .relax_nn import with_names

_AXIS = "tp"
Shards = Mapping[str, tuple[int, tuple[int, ...] | None]]
"""The dim along which a parameter is divided, and the sizes of its segments on a device."""


def from_ccl(exported: Any, size: int, dims: Mapping[str, int] | None = None) -> ir.IRModule:
    """Import a module with ``R.ccl`` collectives as the program of each of several devices.

    Parameters
    ----------
    exported : IRModule, or what ``export_tvm`` returned
        The module of a device. ``(mod, params)`` of ``nn.Module.export_tvm`` has the names of
        parameters, and in their attribute ``shard_strategy`` how each weight is divided (``dim``,
        and ``segs`` for fused weights); without it inputs are replicated.
    size : int
        The number of devices.
    dims : mapping of str to int, optional
        Sizes of symbolic dims, as `tvm_distir.bind_dims` takes them.

    Returns
    -------
    IRModule
        The module at level 5, on a mesh with the axis ``tp``. `tvm_distir.export` takes it, and
        ``tvm_distir.verify(one, dist=module)`` compares it with the module of a single device.
        What workers receive from worker 0 is an input of all devices.

    Raises
    ------
    ModelError
        DIST0343 for a collective that ``R.dist`` does not have.

    Examples
    --------
    >>> mod = td.from_tvmscript('''
    ... @I.ir_module
    ... class Module:
    ...     @R.function
    ...     def main(x: R.Tensor((4, 8), "float32")) -> R.Tensor((4, 8), "float32"):
    ...         return R.ccl.allreduce(x, "sum", False)
    ... ''')
    >>> [op.op for op in td.export(td.from_ccl(mod, size=2)).functions["main"].ops]
    ['relax.dist.all_reduce']
    """
    mod, params = (exported, []) if isinstance(exported, ir.IRModule) else exported[:2]
    named = with_names(open_tuples(mod), [str(name) for name, _ in params])
    strategies = {str(name): param.attrs.get("shard_strategy") for name, param in params}
    shards: dict[str, tuple[int, tuple[int, ...] | None]] = {
        name: (int(how.dim), tuple(how.segs) if how.segs else None)
        for name, how in strategies.items()
        if how is not None
    }
    mesh = device_mesh({_AXIS: size})
    functions: dict[ir.GlobalVar, relax.Function] = {}
    for gv, fn in bind_dims(named, dims or {}).functions.items():
        if not isinstance(fn, relax.Function) or is_private(fn):
            functions[gv] = fn
            continue
        local = with_mesh_collectives(fn, mesh, str(gv.name_hint))
        functions[gv] = local.with_attr(IO_ATTR, _ports(local, str(gv.name_hint), shards, size))
    attrs: dict[str, Any] = {**dict((mod.attrs or {}).items()), AXES_ATTR: [[_AXIS]]}
    return ir.IRModule(
        functions, attrs=ir.make_node("ir.DictAttrs", **attrs), global_infos={MESH_INFO: [mesh]}
    )


def _ports(fn: relax.Function, location: str, shards: Shards, size: int) -> dict[str, Any]:
    """Return ``dist.io`` of a function: what is not divided by its strategy is replicated."""
    dims = {str(v.name): (v, 1) for v in open_variables(fn)}

    def port(
        ty: ir.Type, shard: tuple[int, tuple[int, ...] | None] | None = None
    ) -> dict[str, Any]:
        if is_object(ty):
            return {"shape": [], "dtype": "object", "placement": placement_text([R])}
        shape = [
            n if isinstance(n, int) else dim_text(n, dims, location) for n in static_shape(ty) or ()
        ]
        item = {"shape": shape, "dtype": str(ty.dtype), "placement": placement_text([R])}
        if shard is not None:
            dim, parts = shard
            shape[dim] = int(shape[dim]) * size
            item["placement"] = placement_text([dim])
            if parts is not None:
                full = tuple(int(n) * size for n in parts)
                item["segments"] = Segments(dim, full, size).to_list()
        return item

    data = num_input(fn)
    inputs = []
    for i, (param, name) in enumerate(zip(fn.params, param_names(fn), strict=True)):
        item = {"index": i, "name": str(param.name), **port(param.ty, shards.get(name))}
        if data is not None and item["dtype"] != "object":
            item["role"] = "data" if i < data else "weight"
        inputs.append(item)
    outputs = [{"index": i, **port(ty)} for i, ty in enumerate(flat_types(fn.ret_ty))]
    io: dict[str, Any] = {"mesh": 0, "inputs": inputs, "outputs": outputs}
    return {**io, "dims": dict.fromkeys(dims, 1)} if dims else io
