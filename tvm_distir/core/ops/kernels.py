# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Describes the kernel of a call of level 5: how much it computes, reads and writes.

The scheduler and the exporter, and so the simulator, use this description: they time the same
kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir, relax, tirx

from tvm_distir.core.ir.operators.names import LOCAL_STEPS, relax_names
from tvm_distir.core.ir.operators.ops import dist_op_name
from tvm_distir.core.ir.types import element_type, static_shape, tensor_type, value_types
from tvm_distir.core.ops.kernel_classes import VIEW
from tvm_distir.support import PropagationError, SBlockRealize

from .dims import size_bytes
from .factor import Work
from .lookup import work_of
from .packed import is_packed_call, packed_functions, packed_name, packed_rule, packed_types

_OWN_KERNELS = ("relax.call_tir", "relax.call_tir_inplace")
VIEWS = frozenset(
    relax_names(
        "reshape expand_dims squeeze flatten nn.batch_flatten memory.view builtin.stop_lift_params"
    )
)
"""Ops that TVM runs without touching the data."""


@dataclass(frozen=True)
class Kernel:
    """Kernel that a device runs for a call.

    Attributes
    ----------
    name : str
        The name of the op, the PrimFunc or the external function.
    work : Work
        The work of the kernel; its kernel class is ``view`` where the result is the operand's
        memory.
    dtype : str
        Type of the arithmetic.
    reason : str
        The reason why the work is not known; it then is that of moving all operands and results.
        Empty where it is known.
    """

    name: str
    work: Work
    dtype: str
    reason: str = ""

    @property
    def is_view(self) -> bool:
        """Return whether the result shares the operand's memory."""
        return self.work.kernel_class == VIEW

    @property
    def moved_bytes(self) -> int:
        """Return the bytes read and written."""
        return sum(self.work.in_bytes) + sum(self.work.out_bytes)


def kernel_of(call: ir.Call, mod: ir.IRModule, ty: ir.Type, in_place: bool = False) -> Kernel:
    """Return the kernel of a call of an op, a PrimFunc or an external function.

    Parameters
    ----------
    call : ir.Call
        No collective, no transfer, and no call of a Relax function.
    mod : IRModule
        Holds the PrimFuncs that are called.
    ty : Type
        The type of the result.
    in_place : bool
        Whether the result needs no memory although it is no view: an op of
        :func:`.transposes.transposed_operands`.
    """
    ins, outs = [t for arg in call.args for t in _tensors(arg.ty)], _tensors(ty)
    full = Work(0, _sizes(ins), _sizes(outs))
    dtype = _dtype([*ins, *outs])
    dist = dist_op_name(call)
    if dist in LOCAL_STEPS:
        return Kernel(str(call.op.name), Work(0, full.out_bytes, full.out_bytes), dtype)
    if dist == "axis_index":
        return Kernel(str(call.op.name), Work(0, (), full.out_bytes), dtype)
    if not isinstance(call.op, ir.Op) or is_packed_call(call):
        return _external(call, full, dtype)
    name, view = _called(call, mod)
    if not outs:
        return Kernel(str(call.op.name), full, dtype, "its result is not a tensor")
    if (view or in_place) and len(ins) == 1:
        return Kernel(name, Work(0, (), (), VIEW), dtype)
    try:
        work = work_of(call, mod, ty)
    except PropagationError as err:
        return Kernel(name, full, dtype, err.what)
    if work.kernel_class == VIEW:  # a view by its rule, but TVM copies
        work = Work(work.flops, full.in_bytes, full.out_bytes)
    return Kernel(name, work, dtype)


def _tensors(ty: ir.Type) -> list[ir.Type]:
    return [leaf for leaf in value_types(ty) if tensor_type(leaf) is not None]


def _sizes(types: Sequence[ir.Type]) -> tuple[int, ...]:
    """Return sizes in bytes; 0 for a tensor without a shape."""
    shapes = [(0,) if (shape := static_shape(ty)) is None else shape for ty in types]
    return tuple(map(size_bytes, shapes, map(element_type, types)))


def _dtype(types: Sequence[ir.Type]) -> str:
    """Return the arithmetic dtype: of the first floating operand, else of the first tensor."""
    dtypes = [element_type(ty) for ty in types]
    floating = [dtype for dtype in dtypes if dtype.startswith(("float", "bfloat"))]
    return (floating or dtypes or [""])[0]


def _external(call: ir.Call, full: Work, dtype: str) -> Kernel:
    """Return the kernel of a packed function; its work is known only with a rule."""
    name = packed_name(call) if is_packed_call(call) else type(call.op).__name__
    if isinstance(call.op, ir.GlobalVar):
        return Kernel(str(call.op.name_hint), full, dtype, "a PrimFunc called directly")
    if name not in packed_functions():
        return Kernel(str(name), full, dtype, "an external function")
    rule, _ = packed_rule(call, [None] * len(packed_types(call)))
    return Kernel(str(name), Work(0, rule.work.in_bytes, rule.work.out_bytes), dtype)


def _called(call: ir.Call, mod: ir.IRModule) -> tuple[str, bool]:
    """Return the display name (that of a PrimFunc which is called), and whether it is a view."""
    op = str(call.op.name)
    if op not in _OWN_KERNELS or not isinstance(call.args[0], ir.GlobalVar):
        return op, op in VIEWS
    target = call.args[0]
    func = mod[target] if target in mod.functions else None
    # TVM's analysis wants blocks; a kernel that has none is written as loops by hand.
    has_blocks = isinstance(func, tirx.PrimFunc) and isinstance(func.body, SBlockRealize)
    view = has_blocks and bool(relax.analysis.has_reshape_pattern(func))
    return str(target.name_hint), view
