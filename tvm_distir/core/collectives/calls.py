# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Decode level-5 ``R.dist.*`` calls for the engines and the legalization."""

from __future__ import annotations

import math
from typing import Any

from tvm import ir
from tvm.relax.distributed import DeviceMesh

from tvm_distir.core.ir.mesh import axis_groups, mesh_devices, mesh_shape
from tvm_distir.core.ir.operators.async_ops import collective_op
from tvm_distir.core.ir.operators.ops import call_axes, dist_op_name
from tvm_distir.core.ir.placement import parse_placement

from .meaning import Collective
from .tiles import Side, Transfer

_INT_ARGS = ("dim", "gather_dim", "split_dim", "shift")


def _group_side(call: ir.Call, placement: str) -> Side:
    """Return a side of an exchange in a group, with positions in the group as devices."""
    axes, sizes = call_axes(call), mesh_shape(call.attrs["device_mesh"])
    labels = parse_placement(str(call.attrs[placement]))
    inner = tuple(sizes[a] for a in axes)
    return inner, tuple(range(math.prod(inner))), tuple(labels[a] for a in axes)


def decode_collective(call: ir.Call) -> Collective:
    """Decode a call of any op but ``send`` and ``recv``."""
    attrs = call.attrs
    groups = tuple(tuple(g) for g in axis_groups(attrs["device_mesh"], call_axes(call)))
    args: list[tuple[str, Any]] = [(k, int(attrs[k])) for k in _INT_ARGS if k in attrs]
    if "wrap" in attrs:
        args.append(("wrap", int(attrs["wrap"])))
    if "op" in attrs:
        args.append(("op", str(attrs["op"])))
    kind = collective_op(call) or str(call.op.name)
    if kind == "exchange":
        args += [
            ("shape", tuple(int(n) for n in attrs["shape"])),
            ("src", _group_side(call, "placement")),
            ("dst", _group_side(call, "peer_placement")),
        ]
    return Collective(kind, groups, tuple(args))


def make_side(mesh: DeviceMesh, placement: Any) -> Side:
    """Return a side of a transfer from a mesh and a placement text."""
    devices = tuple(int(d) for d in mesh_devices(mesh).ravel())
    return mesh_shape(mesh), devices, parse_placement(str(placement))


def decode_transfer(call: ir.Call) -> Transfer:
    """Decode a call of ``send`` or ``recv``."""
    attrs = call.attrs
    source = make_side(attrs["device_mesh"], attrs["placement"])
    peer = make_side(attrs["peer_mesh"], attrs["peer_placement"])
    src, dst = (source, peer) if dist_op_name(call) == "send" else (peer, source)
    return Transfer(int(attrs["tag"]), tuple(int(n) for n in attrs["shape"]), src, dst)
