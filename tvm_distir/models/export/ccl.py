# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write local modules as programs of Disco's workers, with the collectives of ``R.ccl``.

Before, on a mesh ``{"tp": 2}``::

    y = R.dist.all_reduce(x, device_mesh="mesh[0]", mesh_axes=[0], op="sum")
    z = R.dist.all_gather(y, device_mesh="mesh[0]", mesh_axis=0, dim=1)      # y: (4, 8)

After::

    y = R.ccl.allreduce(x, op_type="sum", in_group=False)
    z_rows = R.ccl.allgather(y, num_workers=2, in_group=False)               # (8, 8)
    z_parts = R.reshape(z_rows, (2, 4, 8))
    z_moved = R.permute_dims(z_parts, [1, 0, 2])
    z = R.reshape(z_moved, (4, 16))
"""

from __future__ import annotations

import math

from tvm import ir, relax, te, tirx

from tvm_distir.core.analysis import check_level
from tvm_distir.core.collectives import with_collectives
from tvm_distir.core.ir import (
    AXES_ATTR,
    check_module,
    mesh_axes,
    mesh_devices,
    mesh_shape,
    meshes,
    relax_functions,
    static_shape,
)
from tvm_distir.core.ir.attributes import IO_ATTR, WORKER_INDEX_ATTR, WORKERS_ATTR
from tvm_distir.core.ir.operators import PREFIX, call_axes, free_name
from tvm_distir.core.ir.views import are_views
from tvm_distir.core.ops.local import neutral_element
from tvm_distir.core.passes import Rewrite, module_pass
from tvm_distir.core.rewriting import (
    Replacements,
    all_bindings,
    gc_paused,
    location_of,
    replaced_calls,
    scalar,
)
from tvm_distir.support import ModelError
from tvm_distir.transforms import WRITTEN_OPS

from .shard_loading import with_shard_info

_EMULATED = {
    "reduce_scatter": "an all_reduce and a slice, with twice the traffic",
    "all_to_all": "an all_gather and a slice, with the traffic of the all_gather",
}
_INDEXED = ("axis_index", "local_slice", "partial", *_EMULATED)
"""Ops for which a worker needs its position in its group."""
_COMMUNICATING = ("all_reduce", "all_gather", *_EMULATED)
_INTEGERS = ("int8", "uint8", "int32", "uint32", "int64", "uint64")
_DTYPES = (*_INTEGERS, "float16", "bfloat16", "float32", "float64")


@module_pass("local", "global")
def LowerToCCL(emulate: bool = False) -> Rewrite:
    """Write the program of a device for Disco's workers, with the collectives R.ccl.

    Parameters
    ----------
    emulate : bool
        Whether collectives that Disco lacks are written by others: a reduce_scatter as an
        all_reduce and a slice, an all_to_all as an all_gather and a slice, with their traffic

    Returns
    -------
    Pass
        A module pass. It raises what :func:`to_ccl` raises.
    """
    return lambda mod: to_ccl(mod, emulate=emulate)


@gc_paused()
def to_ccl(mod: ir.IRModule, *, emulate: bool = False) -> ir.IRModule:
    """Write a module of level 5 as TVM's own program of several workers, with ``R.ccl``.

    Parameters
    ----------
    mod : IRModule
        A module of level 5, on one mesh of the devices 0 to n - 1.
    emulate : bool
        Whether collectives that Disco lacks are written by others: a ``reduce_scatter`` as an
        all-reduce and a slice, an ``all_to_all`` as an all-gather and a slice. Values are the
        same; the first has twice the traffic, the second that of the all-gather.

    Returns
    -------
    IRModule
        A module without ops, meshes and levels of this package, which ``tvm.compile`` takes, and
        which runs in a Disco session of n workers. Its attribute ``dist.workers`` has the names
        and sizes of the mesh's axes, and the number of ``groups`` of the session. Entries keep in
        theirs how inputs and outputs are sharded. The function ``get_shard_info`` tells
        ``runtime.disco.ShardLoader`` which kernel of the module divides each weight.
        `tvm_distir.from_ccl` reads the module.

    Raises
    ------
    LevelError
        DIST0451 for a module of another level.
    ModelError
        DIST0381 naming what Disco cannot do.

    Examples
    --------
    >>> mod = td.zoo.build("mlp", {"batch": 4, "layers": 1, "hidden": 8})
    >>> plan = td.Plan(mesh={"tp": 2}, rules={"x": td.P(None, "tp")})
    >>> workers = td.to_ccl(td.distribute(mod, plan))
    >>> workers.attrs["dist.workers"]["groups"]
    1
    """
    check_module(mod, "td.to_ccl")
    check_level(mod, "local")
    writer = _Writer(with_collectives(mod), emulate)
    base = writer.with_index_functions()
    return with_shard_info(writer.finished(replaced_calls(base, writer.table())), writer.sizes)


def _refusal(problem: str, location: str, remedy: str) -> ModelError:
    return ModelError("DIST0381", problem, location=location, remedy=remedy)


class _Writer:
    """A writer of the collectives of a module.

    Attributes
    ----------
    sizes : tuple of int
        The sizes of the mesh's axes.
    group : int
        The number of workers of a Disco group: all, unless a collective has fewer.
    index : dict
        By mesh axes the function that returns a worker's position along them.
    """

    def __init__(self, mod: ir.IRModule, emulate: bool) -> None:
        if len(meshes(mod)) > 1 and all(are_views(x, meshes(mod)[0]) for x in meshes(mod)):
            problem = "values on several views of the mesh, and Disco's groups have one order"
            raise _refusal(problem, "mesh", "Lower the module without the pass `order`.")
        if len(meshes(mod)) != 1:
            problem = f"a program of {len(meshes(mod))} meshes has workers that run other programs"
            raise _refusal(problem, "mesh", "Distribute over one mesh, without pipeline stages.")
        (mesh,) = meshes(mod)
        self.mod, self.emulate, self.sizes = mod, emulate, mesh_shape(mesh)
        self.count = self.group = math.prod(self.sizes)
        self.index: dict[tuple[int, ...], ir.GlobalVar | None] = {}
        if mesh_devices(mesh).ravel().tolist() != list(range(self.count)):
            problem = "the devices of the mesh are not those of ids 0 to n - 1, in order"
            raise _refusal(problem, "mesh", "Leave the device ids of the mesh out.")
        for gv, fn in relax_functions(mod):
            for binding in all_bindings(fn.body):
                value = binding.value
                if isinstance(value, ir.Call) and isinstance(value.op, ir.Op):
                    self._check(value, location_of(str(gv.name_hint), binding.var, value))

    def _check(self, call: ir.Call, location: str) -> None:
        """Refuse a call that Disco cannot do, and note its group and what it needs."""
        name = str(call.op.name)
        if not name.startswith(PREFIX) or name in WRITTEN_OPS:
            return
        name = name.removeprefix(PREFIX)
        if name not in (*_INDEXED, *_COMMUNICATING):
            problem = f"R.ccl has no {name}"
            remedy = "Choose a plan without it, or run the module by an engine (td.run)."
            if name.endswith("_start") or name == "collective_done":
                remedy = "Leave the pass split out: Disco's collectives wait for each other."
            raise _refusal(problem, location, remedy)
        if name in _EMULATED and not self.emulate:
            remedy = f"Give emulate=True (-p 'ccl{{emulate=true}}'): {_EMULATED[name]}."
            raise _refusal(f"R.ccl has no {name}", location, remedy)
        axes = call_axes(call)
        if name in _INDEXED:
            self.index[axes] = None
        if name in _COMMUNICATING:
            self._check_group(axes, str(call.args[0].ty.dtype), location)

    def _check_group(self, axes: tuple[int, ...], dtype: str, location: str) -> None:
        if dtype not in _DTYPES:
            remedy = "Convert it before and after, as to int8."
            raise _refusal(f"collectives of Disco have no {dtype}", location, remedy)
        size = math.prod(self.sizes[a] for a in axes)
        others = [a for a, n in enumerate(self.sizes) if n > 1 and a not in axes]
        if others and max(others) > min(
            (a for a in axes if self.sizes[a] > 1), default=len(self.sizes)
        ):
            problem = f"the groups along mesh axes {list(axes)} are not consecutive workers"
            remedy = "Make the axis the last one of the mesh, and communicate along no other."
            raise _refusal(problem, location, remedy)
        if size not in (self.count, self.group) and self.group != self.count:
            problem = f"groups of {size} workers, and elsewhere of {self.group}"
            remedy = "A session has groups of one size: communicate along other axes."
            raise _refusal(problem, location, remedy)
        self.group = min(self.group, size)

    def with_index_functions(self) -> ir.IRModule:
        """Return the module with a function for each position that workers need."""
        builder = relax.BlockBuilder(self.mod)
        names = [str(gv.name_hint) for gv in self.mod.functions]
        (titles,) = mesh_axes(self.mod)
        for axes in self.index:
            title = free_name("_".join([*(titles[a] for a in axes), "index"]), names)
            names.append(title)
            with builder.function(title, [], {WORKER_INDEX_ATTR: list(axes)}, private=True):
                worker = relax.op.call_pure_packed(
                    "runtime.disco.worker_id", ty_args=relax.ShapeType(ndim=1)
                )
                rank = tirx.Var("worker", "int64")
                builder.match_cast(builder.emit(worker), relax.ShapeType([rank]))
                result = builder.emit_te(self._position, rank, axes, primfunc_name_hint="position")
                self.index[axes] = builder.emit_func_output(result)
        return builder.get()

    def _position(self, worker: tirx.Var, axes: tuple[int, ...]) -> te.Tensor:
        """Return a worker's coordinates along mesh axes as one number, in row-major order."""
        position = tirx.IntImm("int64", 0)
        for a in axes:
            coordinate = worker // math.prod(self.sizes[a + 1 :]) % self.sizes[a]
            position = position * self.sizes[a] + coordinate
        return te.compute((), lambda *_: position, name="position")

    def finished(self, mod: ir.IRModule) -> ir.IRModule:
        """Return the module without its mesh, of which attributes have what workers need."""
        (titles,) = mesh_axes(self.mod)
        functions = dict(mod.functions.items())
        for gv, fn in relax_functions(mod):
            if fn.attrs and IO_ATTR in fn.attrs:
                moved = fn.with_attr(WORKERS_ATTR, fn.attrs[IO_ATTR])
                functions[gv] = moved.without_attr(IO_ATTR)
        attrs = dict((self.mod.attrs or {}).items())
        attrs.pop(AXES_ATTR, None)
        workers = {"axes": titles, "sizes": self.sizes, "groups": self.count // self.group}
        attrs[WORKERS_ATTR] = workers
        return ir.IRModule(functions, attrs=ir.make_node("ir.DictAttrs", **attrs))

    def table(self) -> Replacements:
        """Return the writer of each op."""
        writers = {
            "all_reduce": self._all_reduce,
            "all_gather": lambda b, call: self._gathered(b, call, int(call.attrs["dim"])),
            "local_slice": lambda b, call: self._part(b, call, call.args[0], "dim"),
            "reduce_scatter": lambda b, call: self._part(
                b, call, b.emit(self._all_reduce(b, call)), "dim"
            ),
            "all_to_all": lambda b, call: self._part(
                b, call, b.emit(self._gathered(b, call, int(call.attrs["gather_dim"]))), "split_dim"
            ),
            "axis_index": lambda b, call: ir.Call(self.index[call_axes(call)], []),
            "partial": self._partial,
        }
        return {**WRITTEN_OPS, **{PREFIX + name: write for name, write in writers.items()}}

    def _workers(self, call: ir.Call) -> int:
        return math.prod(self.sizes[a] for a in call_axes(call))

    def _all_reduce(self, _: relax.BlockBuilder, call: ir.Call) -> ir.Call:
        inner = self._workers(call) < self.count
        return relax.op.ccl.allreduce(call.args[0], str(call.attrs["op"]), inner)

    def _gathered(self, builder: relax.BlockBuilder, call: ir.Call, dim: int) -> ir.Call:
        """Gather along dim 0, where R.ccl does, and move the parts to their dim."""
        x, count = call.args[0], self._workers(call)
        shape = list(static_shape(x.ty) or ())
        rows = relax.op.ccl.allgather(x, count, count < self.count)
        if dim == 0:
            return rows
        joined = [*shape[:dim], shape[dim] * count, *shape[dim + 1 :]]
        rows = builder.emit(rows)
        if all(n == 1 for n in shape[:dim]):
            return relax.op.reshape(rows, joined)
        parts = builder.emit(relax.op.reshape(rows, [count, *shape]))
        order = [*range(1, dim + 1), 0, *range(dim + 1, len(shape) + 1)]
        return relax.op.reshape(builder.emit(relax.op.permute_dims(parts, order)), joined)

    def _part(self, builder: relax.BlockBuilder, call: ir.Call, x: ir.Expr, key: str) -> ir.Call:
        """Take the worker's part of a dim."""
        dim, shape = int(call.attrs[key]), list(static_shape(call.ty) or ())
        split = [*shape[:dim], self._workers(call), *shape[dim:]]
        parts = builder.emit(relax.op.reshape(x, split))
        index = builder.emit(ir.Call(self.index[call_axes(call)], []))
        return relax.op.take(parts, index, dim)

    def _partial(self, builder: relax.BlockBuilder, call: ir.Call) -> ir.Call:
        """Keep a value on the first worker of a group; others have the neutral element."""
        x, kind = call.args[0], str(call.attrs["op"])
        neutral = scalar(neutral_element(kind, str(x.ty.dtype)), str(x.ty.dtype))
        first = builder.emit(ir.Call(self.index[call_axes(call)], []))
        first = builder.emit(relax.op.equal(first, relax.const(0, "int64")))
        return relax.op.where(first, x, neutral)
