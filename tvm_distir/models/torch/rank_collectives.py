# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Translate functional collectives and messages of a rank to ``R.dist`` ops."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import relax
from tvm.relax import Expr
from tvm.relax.distributed import DeviceMesh

from tvm_distir.core.ir import device_mesh, mesh_shape, ops
from tvm_distir.models.common.translation import Unsupported, dtype_of, shape_of

from .aten_call import AtenCall, constant

FUNCTIONAL = "_c10d_functional"
_KINDS = {"sum": "sum", "avg": "sum", "product": "prod", "min": "min", "max": "max"}


@dataclass
class RankGroups:
    """Process groups of a role as axes of meshes, and the messages of its rank.

    Attributes
    ----------
    rank : int
        The rank whose graph is translated.
    axes : dict of str to (DeviceMesh, list of int)
        The mesh and axes of each group, by the name in the graph.
    messages : dict of (int, int, int) to int
        The number of messages so far, by source, destination and tag.
    peers : list of DeviceMesh
        The meshes of the ends of messages.
    """

    rank: int
    axes: dict[str, tuple[DeviceMesh, list[int]]]
    messages: dict[tuple[int, int, int], int] = field(default_factory=dict)
    peers: list[DeviceMesh] = field(default_factory=list)

    def of(self, call: AtenCall) -> tuple[DeviceMesh, list[int], int]:
        """Return the mesh and axes of a call's group, and its size."""
        mesh, axes = self.axes[str(call.argument("group_name"))]
        return mesh, axes, math.prod(mesh_shape(mesh)[a] for a in axes)

    def number(self, source: int, target: int, tag: int) -> int:
        """Return a tag that no other message between two ranks has."""
        key = source, target, tag
        self.messages[key] = self.messages.get(key, -1) + 1
        return (tag << 20) + self.messages[key]


def _all_reduce(call: AtenCall, group: RankGroups, x: Expr) -> Expr:
    mesh, axes, size = group.of(call)
    kind = _kind(call)
    return _mean(call, call.emit(ops.all_reduce(x, mesh, axes, _KINDS[kind])), kind, size)


def _kind(call: AtenCall) -> str:
    """Return the reduction of a call, by torch's name."""
    kind = str(call["reduce_op"])
    if kind not in _KINDS:
        raise Unsupported(f'a reduction by "{kind}"')
    return kind


def _mean(call: AtenCall, total: Expr, kind: str, size: int) -> Expr:
    """Divide a sum over a group that a call averages."""
    if kind != "avg":
        return total
    return call.emit(relax.op.divide(total, constant(float(size), dtype_of(total))))


def _all_gather(call: AtenCall, group: RankGroups, x: Expr) -> Expr:
    mesh, axes, _ = group.of(call)
    if not shape_of(x):
        x = call.reshaped(x, [1])
    return call.emit(ops.all_gather(x, mesh, axes, 0))


def _reduce_scatter(call: AtenCall, group: RankGroups, x: Expr) -> Expr:
    mesh, axes, size = group.of(call)
    kind = _kind(call)
    return _mean(call, call.emit(ops.reduce_scatter(x, mesh, axes, 0, _KINDS[kind])), kind, size)


def _all_to_all(call: AtenCall, group: RankGroups, x: Expr) -> Expr:
    mesh, axes, size = group.of(call)
    shape = list(shape_of(x))
    for name in ("output_split_sizes", "input_split_sizes"):
        if len({int(n) for n in call[name]}) > 1:
            raise Unsupported(f"all_to_all_single with unequal {name}")
    parts = call.reshaped(x, [size, shape[0] // size, *shape[1:]])
    return call.reshaped(call.emit(ops.all_to_all(parts, mesh, axes, 1, 0)), shape)


def _broadcast(call: AtenCall, group: RankGroups, x: Expr) -> Expr:
    """Add the value of the source, a position in the group, to zeros of the other ranks."""
    mesh, axes, _ = group.of(call)
    index, is_source = int(call["src"]), constant(True, "bool")
    for axis in reversed(axes):
        index, position = divmod(index, mesh_shape(mesh)[axis])
        here = call.emit(ops.axis_index(mesh, axis))
        equal = call.emit(relax.op.equal(here, constant(position, "int64")))
        is_source = call.emit(relax.op.logical_and(is_source, equal))
    sent = call.emit(relax.op.where(is_source, x, constant(0, dtype_of(x))))
    return call.emit(ops.all_reduce(sent, mesh, axes, "sum"))


_Writer = Callable[[AtenCall, RankGroups, Expr], Expr]


def _single(write: _Writer) -> Callable[[AtenCall, RankGroups], Any]:
    return lambda call, group: write(call, group, call["input"])


def _several(write: _Writer) -> Callable[[AtenCall, RankGroups], Any]:
    return lambda call, group: [write(call, group, x) for x in call["inputs"]]


def _ends(call: AtenCall, group: RankGroups, sends: bool, shape: Sequence[int]) -> dict[str, Any]:
    """Return the attributes of a message between two ranks."""
    peer, tag = int(call["peer"]), int(call["tag"])
    ends = (group.rank, peer) if sends else (peer, group.rank)
    mesh, peer_mesh = (device_mesh({"rank": 1}, device_ids=[r]) for r in (group.rank, peer))
    group.peers += [mesh, peer_mesh]
    return {
        "device_mesh": mesh, "peer_mesh": peer_mesh, "placement": "R", "peer_placement": "R",
        "shape": list(shape), "tag": group.number(*ends, tag),
    }  # fmt: skip


def _send(call: AtenCall, group: RankGroups) -> Expr:
    x = call["x"]
    return call.emit(ops.send(x, **_ends(call, group, True, shape_of(x))))


def _receive(call: AtenCall, group: RankGroups) -> Expr:
    ends = _ends(call, group, False, [int(n) for n in call.results[0].shape])
    return call.emit(ops.recv(**ends, dtype=call.dtype))


COLLECTIVES: dict[str, Callable[[AtenCall, RankGroups], Any]] = {
    f"{FUNCTIONAL}.all_reduce.default": _single(_all_reduce),
    f"{FUNCTIONAL}.all_reduce_coalesced.default": _several(_all_reduce),
    f"{FUNCTIONAL}.all_gather_into_tensor.default": _single(_all_gather),
    f"{FUNCTIONAL}.all_gather_into_tensor_coalesced.default": _several(_all_gather),
    f"{FUNCTIONAL}.reduce_scatter_tensor.default": _single(_reduce_scatter),
    f"{FUNCTIONAL}.reduce_scatter_tensor_coalesced.default": _several(_reduce_scatter),
    f"{FUNCTIONAL}.all_to_all_single.default": _single(_all_to_all),
    f"{FUNCTIONAL}.broadcast.default": _single(_broadcast),
    f"{FUNCTIONAL}.wait_tensor.default": lambda call, group: call["tensor"],
    "tvm_distir.send.default": _send,
    "tvm_distir.recv.default": _receive,
}
"""The writer of each collective and message, by its name in graphs."""

MESSAGES = ("tvm_distir.send.default", "tvm_distir.recv.default")
