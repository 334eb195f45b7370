# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Lists the ``R.dist`` ops of a function; equal bindings are inspected once."""

from __future__ import annotations

from tvm_distir.core.ir.operators.ops import dist_op_name
from tvm_distir.core.rewriting.native.function_index import OP_CALL, FunctionView

from .class_memo import class_facts


def dist_ops(view: FunctionView) -> list[str | None]:
    """Return per binding the name of the ``R.dist`` op that it calls, or None."""

    def name(number: int) -> str | None:
        return dist_op_name(view.values[number]) if view.kinds[number] == OP_CALL else None

    return class_facts(view, "R.dist ops", name)
