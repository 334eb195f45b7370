# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the plugin's ``relax.dist.*`` ops: constructors, registration, TVMScript names.

Each op works on DTensors (levels 3 and 4) and on local tensors (level 5); its attributes are
plain values, so that it prints as ``R.dist.<name>(...)`` and parses back structurally equal.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tvm_ffi
from tvm import ir
from tvm.relax.distributed import DeviceMesh

from tvm_distir.core.ir.handles import handle
from tvm_distir.core.ir.placement import parse_placement, placement_text
from tvm_distir.support import lookup_device_mesh

from .infer import INFER

PREFIX = "relax.dist."
IMPURE = ("send", "recv")
"""Ops that must neither be removed nor reordered: they stand in plain binding blocks of
functions marked impure."""

_CALL = tvm_ffi.get_global_func("ir.Call")
_MISSING = ir.Type.missing()

MeshAxes = int | Sequence[int]
Maker = Callable[..., ir.Call]
CONSTRUCTORS: dict[str, Maker] = {}


def _mesh(mesh: DeviceMesh | str) -> DeviceMesh:
    return mesh if not isinstance(mesh, str) else lookup_device_mesh(mesh)


def _ints(values: Sequence[int | ir.Expr]) -> list[int]:
    return [int(v) for v in values]


def _text(placement: Any) -> str:
    """Return the normal form of a placement given as text or as TVM's object."""
    return placement_text(parse_placement(str(placement).strip().strip('"')))


def _axes(value: MeshAxes) -> int | list[int]:
    """Return the normal form of the mesh axes of a step: an int for an axis, else a sorted list."""
    axes = [int(value)] if isinstance(value, int) else sorted({int(v) for v in value})
    return axes[0] if len(axes) == 1 else axes


def call_axes(call: ir.Call) -> tuple[int, ...]:
    """Return the mesh axes that a collective works along, in mesh order."""
    attrs = call.attrs
    value = attrs["mesh_axes"] if "mesh_axes" in attrs else attrs["mesh_axis"]
    return (int(value),) if isinstance(value, int) else tuple(sorted({int(a) for a in value}))


def dist_call(name: str, args: Sequence[ir.Expr], **attrs: Any) -> ir.Call:
    """Return the call of an op of ``R.dist`` by its short name."""
    return _CALL(_MISSING, _op(name), list(args), ir.DictAttrs(attrs), [], None)


@functools.cache
def _op(name: str) -> ir.Op:
    return ir.Op.get(PREFIX + name)


_ATTRIBUTES: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("device_mesh", "peer_mesh"), _mesh),
    **dict.fromkeys(("placement", "peer_placement"), _text),
    **dict.fromkeys(("mesh_axes", "shape"), _ints),
    **dict.fromkeys(("dim", "gather_dim", "split_dim", "shift", "tag"), int),
    **{"mesh_axis": _axes, "dtype": str, "op": str},
}
"""How each attribute is read, so that constructors take what users and TVMScript write."""


def _mesh_call(name: str, args: Sequence[ir.Expr], **attrs: Any) -> ir.Call:
    """Return the call of an op that works on a mesh."""
    return dist_call(name, args, **{key: _ATTRIBUTES[key](x) for key, x in attrs.items()})


def _constructor(fn: Maker) -> Maker:
    CONSTRUCTORS[fn.__name__] = fn
    return fn


@_constructor
def partial(
    x: ir.Expr, device_mesh: DeviceMesh | str, mesh_axes: Sequence[int], op: str = "sum"
) -> ir.Call:
    """Leave (or make) ``x`` an unfinished reduction along ``mesh_axes``; typed as ``x``."""
    return _mesh_call("partial", [x], device_mesh=device_mesh, mesh_axes=mesh_axes, op=op)


@_constructor
def all_reduce(
    x: ir.Expr, device_mesh: DeviceMesh | str, mesh_axes: Sequence[int], op: str = "sum"
) -> ir.Call:
    """Reduce over the product group of ``mesh_axes``; typed as ``x``."""
    return _mesh_call("all_reduce", [x], device_mesh=device_mesh, mesh_axes=mesh_axes, op=op)


@_constructor
def all_gather(x: ir.Expr, device_mesh: DeviceMesh | str, mesh_axis: MeshAxes, dim: int) -> ir.Call:
    """Convert ``S[dim]`` to ``R`` along ``mesh_axis``: concatenate the group's shards in order."""
    return _mesh_call("all_gather", [x], device_mesh=device_mesh, mesh_axis=mesh_axis, dim=dim)


@_constructor
def reduce_scatter(
    x: ir.Expr, device_mesh: DeviceMesh | str, mesh_axis: MeshAxes, dim: int, op: str = "sum"
) -> ir.Call:
    """Convert partial sums to ``S[dim]`` along ``mesh_axis``: reduce, and keep the rank's part."""
    return _mesh_call(
        "reduce_scatter", [x], device_mesh=device_mesh, mesh_axis=mesh_axis, dim=dim, op=op
    )


@_constructor
def all_to_all(
    x: ir.Expr, device_mesh: DeviceMesh | str, mesh_axis: MeshAxes, gather_dim: int, split_dim: int
) -> ir.Call:
    """Convert ``S[gather_dim]`` to ``S[split_dim]`` along ``mesh_axis``."""
    dims = {"gather_dim": gather_dim, "split_dim": split_dim}
    return _mesh_call("all_to_all", [x], device_mesh=device_mesh, mesh_axis=mesh_axis, **dims)


@_constructor
def local_slice(
    x: ir.Expr, device_mesh: DeviceMesh | str, mesh_axis: MeshAxes, dim: int
) -> ir.Call:
    """Split ``R`` to ``S[dim]`` along ``mesh_axis``: each rank keeps its part, without traffic."""
    return _mesh_call("local_slice", [x], device_mesh=device_mesh, mesh_axis=mesh_axis, dim=dim)


@_constructor
def collective_permute(
    x: ir.Expr, device_mesh: DeviceMesh | str, mesh_axis: int, shift: int, wrap: bool = False
) -> ir.Call:
    """Send ``x`` from rank i of a group to rank i + shift; ranks without a sender get zeros.

    With ``wrap``, which is written only where it is true, the group is a ring: all send.
    """
    attrs = {"device_mesh": _mesh(device_mesh), "mesh_axis": int(mesh_axis), "shift": int(shift)}
    return dist_call("collective_permute", [x], **attrs, **({"wrap": True} if wrap else {}))


@_constructor
def exchange(
    x: ir.Expr,
    device_mesh: DeviceMesh | str,
    mesh_axes: Sequence[int],
    placement: str,
    peer_placement: str,
    shape: Sequence[int],
) -> ir.Call:
    """Convert ``placement`` to ``peer_placement``: each rank receives the tiles that it lacks.

    ``x`` is of full ``shape``. Tiles travel along ``mesh_axes`` only; along the other axes both
    placements are ``R`` (an unfinished reduction along them stays unfinished).
    """
    axes = sorted({int(a) for a in mesh_axes})
    ends = {"placement": placement, "peer_placement": peer_placement, "shape": shape}
    return _mesh_call("exchange", [x], device_mesh=device_mesh, mesh_axes=axes, **ends)


@_constructor
def send(
    x: ir.Expr,
    device_mesh: DeviceMesh | str,
    peer_mesh: DeviceMesh | str,
    placement: str,
    peer_placement: str,
    shape: Sequence[int],
    tag: int,
) -> ir.Call:
    """Send ``x``, of full ``shape`` and ``placement``, to ``peer_mesh``; typed as ``x``."""
    ends = {"placement": placement, "peer_placement": peer_placement, "shape": shape}
    return _mesh_call("send", [x], device_mesh=device_mesh, peer_mesh=peer_mesh, **ends, tag=tag)


@_constructor
def recv(
    *sent: ir.Expr,
    device_mesh: DeviceMesh | str,
    peer_mesh: DeviceMesh | str,
    placement: str,
    peer_placement: str,
    shape: Sequence[int],
    dtype: str,
    tag: int,
) -> ir.Call:
    """Receive on ``device_mesh`` with ``placement`` the tensor that ``peer_mesh`` sent.

    At level 4 the operand is the ``send``'s result; at level 5 there is none.
    """
    ends = {"placement": placement, "peer_placement": peer_placement, "shape": shape}
    return _mesh_call(
        "recv", sent, device_mesh=device_mesh, peer_mesh=peer_mesh, **ends, dtype=dtype, tag=tag
    )


@_constructor
def axis_index(device_mesh: DeviceMesh | str, mesh_axis: int) -> ir.Call:
    """Return the device's coordinate along ``mesh_axis``, an int64 scalar tensor (level 5)."""
    return _mesh_call("axis_index", [], device_mesh=device_mesh, mesh_axis=int(mesh_axis))


@_constructor
def view(x: ir.Expr, device_mesh: DeviceMesh | str) -> ir.Call:
    """Name the tiles of ``x`` by the axes of another view of its mesh: nothing moves.

    A partial sum stays one, along the same axes of the devices.
    """
    return _mesh_call("view", [x], device_mesh=device_mesh)


def dist_op_name(expr: Any) -> str | None:
    """Return the short name (``"all_reduce"``) of a call of one of these ops, else None."""
    return _names().get(handle(expr.op)) if type(expr) is ir.Call else None


@functools.cache
def _names() -> dict[int, str]:
    """Return the short names by the handles of the ops, of which there is a node each."""
    return {handle(ir.Op.get(PREFIX + name)): name for name in CONSTRUCTORS}


def register() -> None:
    """Add the ops to TVM's registry and to the TVMScript parser. Existing ops stay untouched."""
    import tvm.relax.script.parser.dist as parser_dist

    add = tvm_ffi.get_global_func("ir.RegisterOp")
    known = set(ir.Op.list_op_names())
    for name, make in CONSTRUCTORS.items():
        setattr(parser_dist, name, make)
        if PREFIX + name in known:
            continue
        add(PREFIX + name, (make.__doc__ or "").splitlines()[0])
        ir.register_op_attr(PREFIX + name, "FInferType", INFER[name])
        ir.register_op_attr(PREFIX + name, "dist.FInferType", INFER[name])
        ir.register_op_attr(PREFIX + name, "FPurity", name not in IMPURE)
    _names.cache_clear()
