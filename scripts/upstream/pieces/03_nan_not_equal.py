# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``!=`` of floats that is true where an operand is NaN.

In C++, one word of ``CodeGenLLVM::VisitExpr_(const NENode*)`` in
``src/target/llvm/codegen_llvm.cc``: the comparison of floats is unordered::

    return builder_->CreateFCmpUNE(a, b);

Code generators that write C, such as that for CUDA, give the unordered comparison already. This
module says the same in TE, where ``a == b`` is ordered, and registers it for the operator of
Relax. The negation is a selection: the simplifier writes ``not (a == b)`` as ``a != b``.
"""

from __future__ import annotations

import tvm
from tvm import relax, te, tirx, topi

LEVEL = 11  # above the 10 that `register_legalize` uses


def not_equal(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    """Return where two tensors differ; operands broadcast, and NaN differs from everything."""
    shape = topi.add(a, b).shape
    a, b = topi.broadcast_to(a, shape), topi.broadcast_to(b, shape)
    no, yes = tirx.const(False, "bool"), tirx.const(True, "bool")
    return te.compute(shape, lambda *i: tirx.Select(a(*i).equal(b(*i)), no, yes), name="not_equal")


def _legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    return builder.call_te(not_equal, *call.args)


def install() -> None:
    """Legalize ``R.not_equal`` by this definition."""
    tvm.ir.register_op_attr("relax.not_equal", "FLegalize", _legalize, level=LEVEL)
