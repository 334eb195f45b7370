# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the pass ``LowerDistIR`` and the order in which it lowers functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm_ffi
from tvm import ir, relax
from tvm.relax.distributed import DeviceMesh

from tvm_distir.core.analysis.levels import has_dtensor
from tvm_distir.core.ir.attributes.keys import INPUTS_ATTR, IO_ATTR
from tvm_distir.core.ir.branches import branch_of
from tvm_distir.core.ir.mesh import mesh_shape, meshes, same_mesh
from tvm_distir.core.ir.operators.names import TRANSFERS
from tvm_distir.core.ir.placement import R, labels_of, placement_text
from tvm_distir.core.ir.segments import SEGMENTS_ATTR, Segments, segments_of
from tvm_distir.core.ir.types import is_object, is_private, is_shape, static_shape
from tvm_distir.core.ops.dist_ops import dist_ops
from tvm_distir.core.ops.index_ranges import IndexRange, input_index_ranges
from tvm_distir.core.passes.branches.restore import restore_branches
from tvm_distir.core.passes.declaration import Rewrite, module_pass
from tvm_distir.core.passes.legalize.local_view import has_local_view
from tvm_distir.core.rewriting.calls import typed
from tvm_distir.core.rewriting.dims import open_dims
from tvm_distir.core.rewriting.entries import reached_from
from tvm_distir.core.rewriting.functions import retyped, with_functions
from tvm_distir.core.rewriting.native.function_index import Member, read_module
from tvm_distir.core.rewriting.native.making import make_ports
from tvm_distir.support import LevelError, LoweringError

from .context import Context
from .divisible_dims import Dims, dim_text, write_divisible_dims
from .function import LocalFunction
from .inlining import inline_functions
from .local_view import lower_local_view
from .partitions import restore_partitions
from .sharing import described_mesh, device_classes, entry_names, merged, transfer_order
from .values import LocalValues


@module_pass("legalized", "local")
def LowerDistIR() -> Rewrite:
    """Give every device its program.

    Each DTensor becomes a Tensor of the shape of a (padded) shard, each public function one
    entry function per mesh it works on, with the attribute ``dist.io``; where meshes share
    devices, one for all devices that belong to the same meshes (:mod:`.sharing`). Private
    functions stay, unless they work on several meshes: those are inlined first.

    A module in TVM's local view (``call_tir_local_view``, 1-D meshes) is lowered as TVM's pass
    of this name does: inputs are scattered or broadcast from worker 0.

    Returns
    -------
    pass : tvm.transform.Pass

    Raises
    ------
    LevelError
        DIST0451 when the module is not at level 4.
    LoweringError
        DIST0502 to DIST0508, see :data:`tvm_distir.support.errors.codes.CODES`.
    """
    return lower


def _meshes_of(member: Member, context: Context) -> list[int]:
    """Return the meshes that a function works on, sorted; equal types are looked at once."""
    cached = context.worked_on.get(member.name)
    if cached is None:
        reading = member.reading
        firsts = dict(zip(reversed(reading.types), reversed(reading.variables)))
        numbers = {m for var in firsts.values() for m in context.meshes_of(var.ty)}
        cached = sorted(numbers.union(context.meshes_of(member.fn.ret_ty)))
        context.worked_on[member.name] = cached
    return cached


def _mixed(members: Sequence[Member], context: Context) -> list[str]:
    """Return the private functions that work on several meshes, directly or through callees.

    Those with a transfer between views of a mesh are among them: its tag is that of one call.
    """
    views = len(set(context.firsts)) < len(context.firsts)
    where: dict[str, set[int]] = {}
    for member in members:
        if is_private(member.fn):
            called = [where.get(str(c.name_hint), set()) for c in member.reading.callees]
            direct = set(_meshes_of(member, context))
            if views and any(name in TRANSFERS for name in dist_ops(member.reading)):
                direct.add(-1)
            where[member.name] = direct.union(*called)
    return [name for name, numbers in where.items() if len(numbers) > 1]


def lower(mod: ir.IRModule) -> ir.IRModule:
    """Apply :func:`LowerDistIR`."""
    members = read_module(mod)
    if has_local_view(members):
        return lower_local_view(mod)
    if not any(has_dtensor(member.fn) for member in members):
        problem = "the module contains no DTensor"
        remedy = "Run PropagateSharding and LegalizeRedistribute first."
        raise LevelError("DIST0451", problem, location="LowerDistIR", remedy=remedy)
    dims: dict[str, Dims] = {}
    if open_dims(mod):
        mod, dims = write_divisible_dims(mod)
        members = read_module(mod)
    context = _context(mod)
    mixed = _mixed(members, context)
    for name in mixed:
        if branch_of(mod[name]):
            problem = "a branch of an If uses several meshes: one mesh would decide for the other"
            remedy = "Place the entire branch on a single mesh."
            raise LoweringError("DIST0504", problem, location=name, remedy=remedy)
    if mixed:
        mod = inline_functions(mod, [(m.gv, m.fn) for m in members], mixed)
        members, context = read_module(mod), _context(mod)
    infos = meshes(mod)
    result: dict[ir.GlobalVar, ir.Expr] = {}
    for member in members:
        gv, fn, reading = member
        if not has_dtensor(fn):
            result[gv] = fn
            context.callees[gv] = gv
            continue
        where = _meshes_of(member, context)
        if is_private(fn):
            values = LocalValues(context, member.name, where[0], infos[where[0]])
            new = LocalFunction(values, fn, reading, entry=False).run()
            context.callees[gv] = retyped(gv, new.ty)
            result[context.callees[gv]] = new
            continue
        result.update(_entries(context, member, where, infos, dims.get(member.name, {})))
    for gv, fn in mod.functions.items():
        if not isinstance(fn, relax.Function):
            result[gv] = fn
    result.update(context.prim_funcs.values())
    lowered = ir.IRModule(result, attrs=mod.attrs, global_infos=mod.global_infos)
    return restore_branches(restore_partitions(_without_unused(lowered)))


def _context(mod: ir.IRModule) -> Context:
    return Context(mod, meshes(mod))


def _entries(
    context: Context, member: Member, where: Sequence[int], infos: Sequence[DeviceMesh], dims: Dims
) -> dict[ir.GlobalVar, relax.Function]:
    """Return the entries of a public function for each class of devices."""
    name = member.name
    indices = input_index_ranges(context.mod, member.fn)
    parts = {
        n: _part(LocalValues(context, name, n, infos[n]), member, indices, dims) for n in where
    }
    classes = device_classes(infos, where)
    order = transfer_order(member.reading)
    entries = {}
    for device_class, entry in zip(classes, entry_names(name, infos, classes)):
        new = merged([parts[n] for n in device_class.meshes], infos, device_class, order, entry)
        entries[typed(ir.GlobalVar(entry), new.ty)] = new
    return entries


def _part(
    values: LocalValues, member: Member, indices: Mapping[tuple[int, str], IndexRange], dims: Dims
) -> relax.Function:
    """Return the part of a public function on a mesh, with ``dist.io``."""
    fn = member.fn
    lowered = LocalFunction(values, fn, member.reading, entry=True)
    new = lowered.run()
    attrs = {k: v for k, v in (fn.attrs or {}).items() if k not in ("global_symbol", "num_input")}
    segments = segments_of(attrs)
    attrs.pop(SEGMENTS_ATTR, None)
    data = {str(n) for n in attrs[INPUTS_ATTR]} if INPUTS_ATTR in attrs else None
    description, which = _Described(values.mesh, dims, values.name), []
    for position, name, ty, like in lowered.param_leaves:
        usage = ""
        if data is not None:
            usage = "data" if lowered.repeated.names[position] in data else "weight"
        base = lowered.repeated.names[position]
        allowed = indices.get((position, name.removeprefix(base) if name != base else ""))
        which.append(description.number(ty, like, usage, allowed, segments.get(name)))
    names = [leaf.name for leaf in lowered.param_leaves]
    positions = [leaf.position for leaf in lowered.param_leaves]
    inputs = make_ports(names, positions, description.rows, which)
    outputs = [
        {"index": o.position, **description.rows[description.number(o.ty, o.like)]}
        for o in lowered.outputs
    ]
    if "num_input" in (fn.attrs or {}):
        first = int(fn.attrs["num_input"])
        attrs["num_input"] = sum(1 for leaf in lowered.param_leaves if leaf.position < first)
    attrs["global_symbol"] = values.name
    attrs[IO_ATTR] = {"mesh": values.number, "inputs": inputs, "outputs": outputs}
    if dims:
        attrs[IO_ATTR]["dims"] = {dim: parts for dim, (_, parts) in dims.items()}
    dictionary = ir.make_node("ir.DictAttrs", **attrs)
    return relax.Function(lowered.params, new.body, new.ret_ty, bool(new.is_pure), dictionary)


class _Described:
    """The cache of ``dist.io`` descriptions of types.

    Attributes
    ----------
    rows : list of dict
        The descriptions, by number.
    """

    def __init__(self, mesh: DeviceMesh, dims: Dims, location: str) -> None:
        self.mesh, self.dims, self.location = mesh, dims, location
        self.replicated = placement_text((R,) * len(mesh_shape(mesh)))
        self.rows: list[dict[str, Any]] = []
        self._cache: dict[tuple[int, str, IndexRange | None, Segments | None], int] = {}

    def number(
        self,
        ty: ir.Type,
        like: int,
        usage: str = "",
        allowed: IndexRange | None = None,
        segments: Segments | None = None,
    ) -> int:
        """Return the number of the description of type ``like`` in a role."""
        number = self._cache.get((like, usage, allowed, segments))
        if number is not None:
            return number
        if is_object(ty) or is_shape(ty):
            empty = tvm_ffi.convert([])
            self.rows.append({"shape": empty, "dtype": "object", "placement": self.replicated})
            return len(self.rows) - 1
        row = {
            "shape": tvm_ffi.convert([self._size(n) for n in static_shape(ty) or ()]),
            "dtype": str(ty.tensor_ty.dtype),
            "placement": placement_text(labels_of(ty.placement)),
        }
        if not same_mesh(ty.device_mesh, self.mesh):
            row["mesh"] = described_mesh(ty.device_mesh)
        if usage:
            row["role"] = usage
        if allowed is not None:
            row["index_range"] = tvm_ffi.convert(list(allowed.numbers()))
        if segments is not None:
            row["segments"] = tvm_ffi.convert(segments.to_list())
        self.rows.append(row)
        if like >= 0:
            self._cache[like, usage, allowed, segments] = len(self.rows) - 1
        return len(self.rows) - 1

    def _size(self, extent: int | ir.Expr) -> int | str:
        return extent if isinstance(extent, int) else dim_text(extent, self.dims, self.location)


def _without_unused(mod: ir.IRModule) -> ir.IRModule:
    """Drop private functions that no entry reaches."""
    roots = [
        str(gv.name_hint)
        for gv, fn in mod.functions.items()
        if not (isinstance(fn, relax.Function) and is_private(fn))
        and "global_symbol" in (fn.attrs or {})
    ]
    reached = reached_from(mod, roots)
    return with_functions(mod, {gv: fn for gv, fn in mod.functions.items() if gv in reached})
