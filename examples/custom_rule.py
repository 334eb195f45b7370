# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Register a sharding rule, so that ``eye_like`` is sharded along rows and columns.

Run it: ``python examples/custom_rule.py``.
"""

from __future__ import annotations

import numpy as np
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_distir as td
from tvm_distir.core.ops import CallShape, Draft, register_sharding_rule
from tvm_distir.core.ops.local import LocalCall


@I.ir_module
class Module:
    """A matrix plus a diagonal of ones."""

    @R.function
    def main(x: R.Tensor((6, 8), "float32")) -> R.Tensor((6, 8), "float32"):
        with R.dataflow():
            eye = R.eye_like(x, 1)
            y = R.add(x, eye)
            R.output(y)
        return y


def positions(cx: LocalCall, dim: int) -> relax.Expr:
    """Return the global indices of the rows or columns of a device."""
    shard = cx.ins[0].shard
    indices = cx.emit(relax.op.arange(0, shard.local[dim], 1, "int64"))
    if cx.axes_of_dim(0, dim):
        indices = cx.emit(relax.op.add(indices, cx.start(0, dim)))
    return cx.emit(relax.op.reshape(indices, [-1, 1] if dim == 0 else [1, -1]))


def eye_on_shards(cx: LocalCall) -> relax.Expr:
    """Return what a device computes: ones where column - row is the diagonal."""
    offset = cx.emit(relax.op.subtract(positions(cx, 1), positions(cx, 0)))
    diagonal = relax.const(cx.argument_int(1), "int64")
    return relax.op.astype(cx.emit(relax.op.equal(offset, diagonal)), cx.outs[0].dtype)


@register_sharding_rule("relax.eye_like", local=eye_on_shards, override=True)
def eye_like(call: CallShape) -> Draft:
    """Shard rows and columns of the operand and the result together."""
    draft = Draft(call)
    draft.tie({0: 0}, {0: 0})
    draft.tie({0: 1}, {0: 1})
    draft.work(0, in_bytes={0: 0})
    return draft


def main() -> None:
    """Shard the matrix over two axes, and run it."""
    plan = td.Plan(mesh={"a": 2, "b": 2}, rules={"x": td.P("a", "b")})
    local = td.distribute(Module, plan)
    print(td.visualize((6, 8), td.P("a", "b"), {"a": 2, "b": 2}))
    x = np.arange(48, dtype="float32").reshape(6, 8)
    (y,) = td.run(local, [x], engine="threads")
    print("equal:", bool(np.array_equal(y, x + np.eye(6, 8, 1, dtype="float32"))))
    print("collectives:", local.script().count("R.dist.all_"))


if __name__ == "__main__":
    main()
