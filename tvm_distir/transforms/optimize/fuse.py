# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Fuse two consecutive collectives into one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import ir
from tvm.relax import Expr, Var

from tvm_distir.core.collectives import sent_bytes
from tvm_distir.core.ir import (
    Labels,
    blocks_fault,
    element_type,
    local_shape,
    mesh_key,
    parse_placement,
)
from tvm_distir.core.ir.operators import call_axes, dist_op_name, ops
from tvm_distir.core.ops import size_bytes
from tvm_distir.core.passes import Rewrite, module_pass
from tvm_distir.core.redistribution import bounds_of

from .binding_rewriter import Editor, FunctionStep, axes_dim, rewrite_of


@module_pass("legalized")
def FuseCollectives() -> Rewrite:
    """Fuse two consecutive collectives into one.

    ======================================  ==========================  =====================
    two                                     one                         wire bytes
    ======================================  ==========================  =====================
    ``all_reduce``, ``local_slice``         ``reduce_scatter``          half
    ``all_reduce``, ``local_slice`` along   the slice first             1/n
    other axes
    ``all_gather``, ``local_slice`` of      ``all_to_all``              1/n
    another dim
    ``all_to_all``, ``all_gather`` of its   ``all_gather``              fewer by 1/(n + 1)
    ``split_dim``
    ``reduce_scatter``, ``all_gather``      ``all_reduce``              the same
    ``all_reduce``, ``all_reduce`` along    ``all_reduce`` along all    fewer
    other axes
    ``all_reduce``, ``send``                ``reduce_scatter``, and     half; what is sent
                                            each device sends its part  stays
    ======================================  ==========================  =====================

    Each only where nothing else reads the values between them. The last but one changes the
    order of a sum over two axes: of the whole group instead of one axis after the other. The
    others change no number. The last is done where no device sends or receives more for it,
    both meshes seen together.

    Returns
    -------
    pass : tvm.transform.Pass
    """
    return rewrite_of([FUSE])


class _Fuse(Editor):
    def visit(self, var: Var, value: Expr, kind: str | None) -> Expr:
        """Fuse a collective with the collective that computed its operand."""
        if kind == "send":
            return self._sent(var, value)
        if kind == "recv":
            return self._received(value)
        if kind not in ("local_slice", "all_gather", "all_reduce"):
            return value
        first = self.single(value.args[0])
        make = _PAIRS.get((dist_op_name(first), kind))
        joined = None if make is None else make(self, var, first, value)
        return value if joined is None else self.normalize(joined)

    def _sent(self, var: Var, value: ir.Call) -> Any:
        """Fuse a reduction and a send: each device sends the part that it reduces."""
        first = self.single(value.args[0])
        if first is None or dist_op_name(first) != "all_reduce":
            return value
        dim = dim_to_scatter(first, value)
        if dim is None:
            return value
        mesh, op = first.attrs["device_mesh"], str(first.attrs["op"])
        scattered = ops.reduce_scatter(first.args[0], mesh, call_axes(first), dim, op)
        part = self.emit(scattered, str(value.args[0].name))
        attrs = {**dict(value.attrs.items()), "placement": str(part.ty.placement)}
        return self.emit(ops.send(part, **attrs), str(var.name))

    def _received(self, value: ir.Call) -> Any:
        """Fuse two transfers: receive from the original source."""
        sent = self.known.get(value.args[0]) if len(value.args) else None
        if sent is None or dist_op_name(sent) != "send":
            return value
        placement = str(sent.attrs["placement"])
        if placement == str(value.attrs["peer_placement"]):
            return value
        attrs = {**dict(value.attrs.items()), "peer_placement": placement}
        return self.normalize(ops.recv(value.args[0], **attrs))


def _scattered(edit: _Fuse, var: Var, first: ir.Call, second: ir.Call) -> ir.Call | None:
    """Fuse a sum and a slice into a ``reduce_scatter``."""
    (axes, dim), reduced = axes_dim(second), call_axes(first)
    mesh, op = second.attrs["device_mesh"], str(first.attrs["op"])
    if not set(axes) & set(reduced):
        part = edit.emit(ops.local_slice(first.args[0], mesh, axes, dim), str(var.name))
        return ops.all_reduce(part, mesh, reduced, op)
    if not set(axes) <= set(reduced):
        return None
    new = ops.reduce_scatter(first.args[0], mesh, axes, dim, op)
    rest = [a for a in reduced if a not in axes]
    return ops.all_reduce(edit.emit(new, str(var.name)), mesh, rest, op) if rest else new


def _exchanged(_: _Fuse, __: Var, first: ir.Call, second: ir.Call) -> ir.Call | None:
    """Fuse a gather of a single dim and a slice of another into an ``all_to_all``."""
    (axes, gathered), (other_axes, dim) = axes_dim(first), axes_dim(second)
    if axes != other_axes or gathered == dim:
        return None
    return ops.all_to_all(first.args[0], second.attrs["device_mesh"], axes, gathered, dim)


def _fuse_gather(_: _Fuse, __: Var, first: ir.Call, second: ir.Call) -> ir.Call | None:
    """Fuse an exchange and a gather into a gather of the original dim."""
    if (call_axes(first), int(first.attrs["split_dim"])) != axes_dim(second):
        return None
    axes, gather_dim = call_axes(first), int(first.attrs["gather_dim"])
    return ops.all_gather(first.args[0], second.attrs["device_mesh"], axes, gather_dim)


def _reduced(_: _Fuse, __: Var, first: ir.Call, second: ir.Call) -> ir.Call | None:
    """Fuse a scattered sum and its gather into an ``all_reduce``."""
    if axes_dim(first) != axes_dim(second):
        return None
    op = str(first.attrs["op"])
    return ops.all_reduce(first.args[0], second.attrs["device_mesh"], call_axes(first), op)


def _reduced_at_once(_: _Fuse, __: Var, first: ir.Call, second: ir.Call) -> ir.Call | None:
    """Fuse reductions along different axes into a single reduction along all of them."""
    op = str(second.attrs["op"])
    if str(first.attrs["op"]) != op:
        return None
    axes = sorted({*call_axes(first), *call_axes(second)})
    return ops.all_reduce(first.args[0], second.attrs["device_mesh"], axes, op)


_PAIRS: dict[tuple[str | None, str], Any] = {
    ("all_reduce", "local_slice"): _scattered,
    ("all_gather", "local_slice"): _exchanged,
    ("all_to_all", "all_gather"): _fuse_gather,
    ("reduce_scatter", "all_gather"): _reduced,
    ("all_reduce", "all_reduce"): _reduced_at_once,
}

FUSE = FunctionStep(_Fuse, ("local_slice", "all_gather", "all_reduce"))


def received_elements(
    shape: tuple[int, ...], src: tuple[Any, Labels], dst: tuple[Any, Labels]
) -> list[int]:
    """Return the elements that each device of ``dst`` receives from others in a transfer.

    Parameters
    ----------
    shape : tuple of int
        Whole shape.
    src, dst : (mesh key, labels)
    """
    (sizes, devices), labels = src
    low, high = bounds_of(shape, labels, sizes)
    has = {device: (low[i], high[i]) for i, device in enumerate(devices)}
    (sizes, devices), labels = dst
    bounds = bounds_of(shape, labels, sizes)
    counts = []
    for device, start, stop in zip(devices, *bounds):
        local = 0
        if device in has:
            first, last = has[device]
            overlap = zip(start.tolist(), stop.tolist(), first.tolist(), last.tolist())
            local = math.prod(max(0, min(b, d) - max(a, c)) for a, b, c, d in overlap)
        counts.append(math.prod((stop - start).tolist()) - local)
    return counts


def dim_to_scatter(reduction: ir.Call, send: ir.Call) -> int | None:
    """Return the dim to scatter along when a value is reduced only to be sent.

    Parameters
    ----------
    reduction : Call
        ``R.dist.all_reduce``.
    send : Call
        ``R.dist.send`` of its result.

    Returns
    -------
    dim : int or None
        None where no device of the two meshes would send or receive less.
    """
    axes, attrs = call_axes(reduction), send.attrs
    source, target = mesh_key(attrs["device_mesh"]), mesh_key(attrs["peer_mesh"])
    shape = tuple(int(n) for n in attrs["shape"])
    labels, peer = (parse_placement(str(attrs[k])) for k in ("placement", "peer_placement"))
    count = math.prod(source[0][a] for a in axes)
    dtype = element_type(reduction.ty)

    def price(kind: str, scattered: Labels) -> tuple[int, int]:
        """Return the most elements that a device moves, and the total."""
        part = size_bytes(tuple(local_shape(shape, scattered, source[0])), dtype)
        reduced = sent_bytes(kind, part, count)
        received = received_elements(shape, (source, scattered), (target, peer))
        moved = [size_bytes((n,), dtype) for n in received]
        return reduced + max(moved), reduced * len(source[1]) + sum(moved)

    best, chosen = price("all_reduce", labels), None
    for dim in sorted(range(len(shape)), key=lambda d: d not in peer):
        scattered_labels = _scattered_labels(shape, labels, source[0], axes, dim)
        if scattered_labels is None:
            continue
        cost = price("reduce_scatter", scattered_labels)
        if cost[0] < best[0] and cost[1] <= best[1]:
            best, chosen = cost, dim
    return chosen


def _scattered_labels(
    shape: tuple[int, ...], labels: Labels, mesh: Sequence[int], axes: Sequence[int], dim: int
) -> Labels | None:
    """Return the placement after an even scatter without padding, or None."""
    if blocks_fault(labels, axes, dim):
        return None
    scattered = tuple(dim if a in axes else x for a, x in enumerate(labels))
    full, part = (math.prod(local_shape(shape, x, mesh)) for x in (labels, scattered))
    return scattered if part * math.prod(mesh[a] for a in axes) == full else None
