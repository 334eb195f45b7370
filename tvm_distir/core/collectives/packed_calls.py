# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write collectives as calls of the packed functions ``tvm_distir.ccl.*``, and read these.

``LegalizeOps`` writes them, in ``tvm.compile`` or in a pipeline of TVM over a level-5 module. The
signatures are those of :mod:`tvm_distir.execution.runtime.collectives.ccl`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tvm import ir, relax, tirx
from tvm.relax.distributed import DeviceMesh

from tvm_distir.core.ir.mesh import groups_by_axes, mesh_shape, meshes
from tvm_distir.core.ir.operators.names import PACKED_ARGS, PACKED_PREFIX, REDUCE_OPS
from tvm_distir.core.ir.operators.ops import CONSTRUCTORS
from tvm_distir.core.ir.placement import R, placement_text
from tvm_distir.core.ir.types import relax_functions
from tvm_distir.core.rewriting.calls import called_name
from tvm_distir.core.rewriting.functions import calls_op
from tvm_distir.core.rewriting.replacing import replaced_calls
from tvm_distir.core.rewriting.scopes import all_bindings

from .calls import decode_collective, decode_transfer

_CALL = "relax.call_dps_packed"


def packed_arguments(call: ir.Call) -> list[relax.Expr]:
    """Return the arguments of the packed call of a collective, or of its start, but the result."""
    decoded = decode_collective(call)
    arguments: dict[str, Any] = dict(decoded.args)
    groups = _shape([r for group in decoded.groups for r in group])
    first = [*call.args, groups, _int(len(decoded.groups[0]))]
    if decoded.name == "exchange":
        (mesh, _, before), (_, _, after) = arguments["src"], arguments["dst"]
        return [*first, *(_shape(part) for part in (arguments["shape"], mesh, before, after))]
    arguments.setdefault("wrap", 0)
    names = PACKED_ARGS[decoded.name]
    values = [REDUCE_OPS.index(arguments[k]) if k == "op" else arguments[k] for k in names]
    return [*first, *map(_int, values)]


def packed_transfer_arguments(call: ir.Call) -> list[relax.Expr]:
    """Return the arguments of the packed call of a transfer, but operand and result."""
    transfer = decode_transfer(call)
    parts = [_shape(part) for side in (transfer.src, transfer.dst) for part in side]
    return [_int(transfer.tag), _shape(transfer.shape), *parts]


def with_collectives(mod: ir.IRModule) -> ir.IRModule:
    """Return a level-5 module with the ops of collectives for calls of their packed functions.

    Transfers stay calls. The module is not changed, and returned where it has no such call.
    """
    values = (binding.value for _, fn in relax_functions(mod) for binding in all_bindings(fn.body))
    if not calls_op(mod, (_CALL,)) or not any(map(_kind, values)):
        return mod

    def collective(_: relax.BlockBuilder, call: ir.Call) -> ir.Call | None:
        kind = _kind(call)
        return _collective(mod, kind, list(call.args[1].fields)) if kind else None

    return replaced_calls(mod, {_CALL: collective})


def _kind(value: Any) -> str:
    """Return the collective of a packed call; empty for another value."""
    if type(value) is not ir.Call or called_name(value) != _CALL:
        return ""
    prefix, _, kind = str(value.args[0].global_symbol).rpartition(PACKED_PREFIX)
    return kind if not prefix and kind in (*PACKED_ARGS, "exchange") else ""


def _collective(mod: ir.IRModule, kind: str, args: Sequence[Any]) -> ir.Call | None:
    """Return the call of a collective from the arguments of its packed call.

    None where no mesh of the module has its groups.
    """
    at = next(i for i, arg in enumerate(args) if isinstance(arg, relax.ShapeExpr))
    operands, ranks, options = args[:at], _ints(args[at]), args[at + 2 :]
    size = _number(args[at + 1])
    groups = [ranks[i : i + size] for i in range(0, len(ranks), size)]
    inner = _ints(options[1]) if kind == "exchange" else None
    pair = next(_axes(mod, groups, inner), None)
    if pair is None:
        return None
    mesh, axes = pair
    attrs: dict[str, Any] = {}
    if kind == "exchange":
        shape, _, *sides = map(_ints, options)
        for key, labels in zip(("placement", "peer_placement"), sides, strict=True):
            placement = [R] * len(mesh_shape(mesh))
            for axis, label in zip(axes, labels, strict=True):
                placement[axis] = label
            attrs[key] = placement_text(placement)
        attrs["shape"] = shape
    else:
        for key, arg in zip(PACKED_ARGS[kind], options, strict=True):
            attrs[key] = REDUCE_OPS[_number(arg)] if key == "op" else _number(arg)
    single = kind in ("collective_permute", "axis_index")
    key = "mesh_axes" if kind in ("all_reduce", "partial", "exchange") else "mesh_axis"
    attrs[key] = axes[0] if single else list(axes)
    return CONSTRUCTORS[kind](*operands, device_mesh=mesh, **attrs)


def _axes(
    mod: ir.IRModule, groups: Sequence[Sequence[int]], inner: Sequence[int] | None
) -> Iterator[tuple[DeviceMesh, tuple[int, ...]]]:
    """Yield the meshes with the axes whose groups these are; of the sizes ``inner`` if any."""
    for mesh in meshes(mod):
        sizes = mesh_shape(mesh)
        for axes, along in groups_by_axes(mesh):
            if along == groups and (inner is None or [sizes[axis] for axis in axes] == inner):
                yield mesh, axes


def _int(value: int) -> tirx.IntImm:
    return tirx.IntImm("int64", value)


def _shape(values: Sequence[int]) -> relax.ShapeExpr:
    return relax.ShapeExpr([_int(v) for v in values])


def _number(arg: Any) -> int:
    """Return an integer argument, which some passes of TVM wrap in a value of Relax."""
    return int(getattr(arg, "value", arg))


def _ints(arg: Any) -> list[int]:
    return [int(n) for n in arg.values]
