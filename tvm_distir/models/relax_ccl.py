# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Import modules that are written for one of several devices, with ``R.ccl`` collectives.

MLC-LLM defines its models so: sizes are divided by ``tensor_parallel_shards``, partial sums are
reduced by ``R.ccl.allreduce``, and the strategy of each parameter says how a weight is divided.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm import ir, relax
from tvm.relax.frontend import nn

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
    relax_functions,
    static_shape,
)
from tvm_distir.core.ir.attributes import (
    IO_ATTR,
    WORKER_INDEX_ATTR,
    WORKERS_ATTR,
    num_input,
    param_names,
)
from tvm_distir.core.passes import dim_text
from tvm_distir.core.rewriting import (
    bind_dims,
    has_attr,
    open_tuples,
    reached_from,
    with_mesh_collectives,
)
from tvm_distir.support import ModelError
from tvm_distir.transforms import InlinePrivateFunctions

from .export.shard_loading import SHARD_INFO
from .relax_nn import with_names

_AXIS = "tp"
Ports = Mapping[str, object]
"""What ``dist.io`` says of an entry."""
Shards = Mapping[str, tuple[int, tuple[int, ...] | None]]
"""The dim along which a parameter is divided, and the sizes of its segments on a device."""


def from_ccl(exported: Any, size: int, dims: Mapping[str, int] | None = None) -> ir.IRModule:
    """Import a module with ``R.ccl`` collectives as the program of each of several devices.

    Parameters
    ----------
    exported : IRModule, or what ``export_tvm`` returned
        The module of a device. What `tvm_distir.to_ccl` wrote keeps its mesh, inputs and outputs.
        ``(mod, params)`` of ``nn.Module.export_tvm`` has the names of
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
        DIST0343 for a collective that ``R.dist`` does not have, or another number of devices
        than `tvm_distir.to_ccl` wrote the module for.

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
    workers = (mod.attrs or {}).get(WORKERS_ATTR)
    if workers is None:
        named = with_names(open_tuples(mod), [str(name) for name, _ in params])
        shards = _shards(params)
        return _on_mesh(
            bind_dims(named, dims or {}),
            {_AXIS: size},
            1,
            lambda fn, name: _ports(fn, name, shards, size),
        )
    axes = {str(a): int(n) for a, n in zip(workers["axes"], workers["sizes"], strict=True)}
    if math.prod(axes.values()) != size:
        problem = f"the module was written for {math.prod(axes.values())} workers, not {size}"
        remedy = f"Give size={math.prod(axes.values())}."
        raise ModelError("DIST0343", problem, location="from_ccl", remedy=remedy)
    read = _on_mesh(mod, axes, int(workers["groups"]), lambda fn, _: fn.attrs[WORKERS_ATTR])
    return bind_dims(read, dims or {})


def _shards(params: Sequence[tuple[str, nn.Parameter]]) -> Shards:
    """Return how the strategies of parameters divide them, by name."""
    strategies = {str(name): param.attrs.get("shard_strategy") for name, param in params}
    return {
        name: (int(how.dim), tuple(how.segs) if how.segs else None)
        for name, how in strategies.items()
        if how is not None
    }


def _on_mesh(
    mod: ir.IRModule,
    axes: Mapping[str, int],
    groups: int,
    io: Callable[[relax.Function, str], Ports],
) -> ir.IRModule:
    """Return the module at level 5: ``io`` returns ``dist.io`` of an entry and its name."""
    mesh = device_mesh(axes)
    indices = [str(g.name_hint) for g, f in relax_functions(mod) if has_attr(f, WORKER_INDEX_ATTR)]
    read = with_mesh_collectives(mod, mesh, groups)
    read = InlinePrivateFunctions(indices)(read) if indices else read
    entries = {str(gv.name_hint): fn for gv, fn in relax_functions(read) if not is_private(fn)}
    entries.pop(SHARD_INFO, None)
    functions = reached_from(read, list(entries))
    for name, fn in entries.items():
        local = fn.with_attr(IO_ATTR, io(fn, name))
        functions[read.get_global_var(name)] = local.without_attr(WORKERS_ATTR)
    attrs = {**dict((mod.attrs or {}).items()), AXES_ATTR: [list(axes)]}
    attrs.pop(WORKERS_ATTR, None)
    return ir.IRModule(
        functions, attrs=ir.make_node("ir.DictAttrs", **attrs), global_infos={MESH_INFO: [mesh]}
    )


def _ports(fn: relax.Function, location: str, shards: Shards, size: int) -> Ports:
    """Return ``dist.io`` of a function: what is not divided by its strategy is replicated."""
    dims = {str(v.name): (v, 1) for v in relax.analysis.defined_symbolic_vars(fn)}

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
    io: Ports = {"mesh": 0, "inputs": inputs, "outputs": outputs}
    return {**io, "dims": dict.fromkeys(dims, 1)} if dims else io
