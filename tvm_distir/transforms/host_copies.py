# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Make calls that copy tensors to the memory of the host, and back."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import ir, relax

from tvm_distir.core.ir.operators import HOST_PREFIX
from tvm_distir.core.plan import FETCH


def host_copy(kind: str, values: Sequence[ir.Expr]) -> ir.Call:
    """Return a call that copies tensors, whose result is the copy, or a tuple of copies.

    Parameters
    ----------
    kind : str
        ``store`` or ``fetch``.
    values : sequence of Expr
        Tensors.
    """
    function = relax.ExternFunc(f"{HOST_PREFIX}{kind}")
    types = [value.ty for value in values]
    if kind == FETCH:
        return relax.op.call_dps_packed(function, list(values), out_ty=types)
    result = types[0] if len(types) == 1 else relax.TupleType(types)
    return relax.op.call_pure_packed(function, *values, ty_args=[result])
