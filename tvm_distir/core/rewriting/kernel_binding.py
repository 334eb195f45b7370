# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Bind kernels of symbolic extents to the sizes of a call.

Before, at a call with x of shape (4, 8) and ``n = 4``::

    def scale(x: T.Buffer(("n", 8)), n: T.int64, y: T.Buffer(("n", 8))): ...
    y = R.call_tir(cls.scale, (x, 4), out_ty=R.Tensor((4, 8)))

After::

    def scale(x: T.Buffer((4, 8)), y: T.Buffer((4, 8))): ...
    y = R.call_tir(cls.scale, (x,), out_ty=R.Tensor((4, 8)))
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tvm import ir, relax, tirx
from tvm.s_tir import renew_defs

from tvm_distir.core.ir.types import flat_types, static_shape
from tvm_distir.support import Analyzer, ModelError


class KernelCall:
    """A ``call_tir`` or a similar call, with its arguments by parameter of the kernel.

    Parameters
    ----------
    kernel : PrimFunc
    call : Call
    operands : Expr
        The tuple of operands, as it is now.
    """

    def __init__(self, kernel: tirx.PrimFunc, call: ir.Call, operands: ir.Expr) -> None:
        self.kernel = kernel
        self.operand_tuple = operands
        self.fields = list(operands.fields) if isinstance(operands, relax.Tuple) else []
        operand_types = [field.ty for field in self.fields]
        if not self.fields:
            operand_types = list(getattr(operands.ty, "fields", ()))
        result_types = list(flat_types(call.ty_args[0]))
        positions = getattr(call.attrs, "inplace_indices", None)
        if positions is not None:  # a result in the place of an operand has no parameter
            by_operand = zip(result_types, positions, strict=True)
            result_types = [ty for ty, position in by_operand if int(position) < 0]
        self.types = [*operand_types, *result_types]
        # The kernel of another gradient, or the operand of a place, is identified by position.
        self.numbers_can_go = str(call.op.name) == "relax.call_tir"

    def sizes(self, location: str) -> dict[ir.Expr, int]:
        """Return the sizes of the kernel's variables that the call decides.

        Raises
        ------
        ModelError
            DIST0313 where two operands want different ones.
        """
        sizes: dict[ir.Expr, int] = {}
        if self.numbers_can_go:
            numbers = zip(self.kernel.params, self.fields, strict=False)
            sizes = {p: int(f) for p, f in numbers if isinstance(f, tirx.IntImm)}
        analyzer = Analyzer()
        for param, size in sizes.items():
            analyzer.bind(param, tirx.IntImm(param.ty.dtype, size))
        extents = list(self._extents())
        # A variable is defined by a separate dim, or it is a parameter: sums have to agree.
        for is_definition in (True, False):
            for declared, size in extents:
                value = analyzer.simplify(declared)
                if isinstance(value, tirx.IntImm) and int(value) != size:
                    raise contradiction(location, f"the extent {declared}", int(value), size)
                if is_definition and isinstance(value, tirx.Var) and not self._is_parameter(value):
                    sizes[value] = size
                    analyzer.bind(value, tirx.IntImm(value.ty.dtype, size))
        return sizes

    def _extents(self) -> Iterator[tuple[Any, int]]:
        """Return the extents of the kernel's buffers beside the sizes that the call has."""
        for param, ty in zip(self.kernel.params, self.types, strict=True):
            shape = static_shape(ty) if hasattr(param.ty, "shape") else None
            for declared, size in zip(param.ty.shape, shape, strict=True) if shape else ():
                if isinstance(size, int):
                    yield declared, size

    def _is_parameter(self, variable: relax.Var) -> bool:
        return any(variable.same_as(param) for param in self.kernel.params)

    def operands(self, sizes: Mapping[ir.Expr, int]) -> ir.Expr:
        """Return the operands without the numbers that stand in the kernel of these sizes."""
        numbers = zip(self.kernel.params, self.fields, strict=False)
        fields = [field for param, field in numbers if param not in sizes]
        return relax.Tuple(fields) if len(fields) < len(self.fields) else self.operand_tuple


def specialise_kernel(kernel: tirx.PrimFunc, sizes: Mapping[ir.Expr, int]) -> tirx.PrimFunc:
    """Return the kernel with sizes for some of its variables, dropped as parameters."""
    params: Sequence[relax.Var] = list(kernel.params)
    free = [v for v in sizes if not any(v.same_as(param) for param in params)]
    opened = tirx.PrimFunc([*params, *free], kernel.body, kernel.ret_type, kernel.attrs)
    values = {v: tirx.IntImm(v.ty.dtype, size) for v, size in sizes.items()}
    return renew_defs(opened.specialize(values).without_attr("global_symbol"))


def contradiction(location: str, subject: str, size: int, other: int) -> ModelError:
    """Return the error (DIST0313) for a dim that would have two sizes."""
    problem = f"{subject} would be {size} and {other}"
    remedy = "Give the variables consistent sizes."
    return ModelError("DIST0313", problem, location=location, remedy=remedy)
