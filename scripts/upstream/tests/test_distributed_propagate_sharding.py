# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Sharding propagation has one result, takes linear time, and goes through calls."""

import time

import tvm
import tvm.testing
from tvm import ir, relax
from tvm.relax.distributed import DeviceMesh, Placement
from tvm.relax.op import add, matmul
from tvm.relax.op.distributed import annotate_sharding
from tvm.relax.op.nn import relu
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R


def chain(layers):
    """Layers of two products with relu between; the first product of each is annotated."""
    mesh = DeviceMesh((2,), ir.Range(0, 2))
    x = relax.Var("x", relax.TensorType((8, 8), "float32"))
    weights = [relax.Var(name, relax.TensorType((8, 8), "float32")) for name in ("up", "down")]
    builder = relax.BlockBuilder()
    with builder.function("main", [x, *weights]):
        with builder.dataflow():
            y = x
            for _ in range(layers):
                h = builder.emit(matmul(y, weights[0]))
                h = builder.emit(annotate_sharding(h, mesh, Placement.from_text("S[0]")))
                y = builder.emit(add(y, builder.emit(matmul(relu(h), weights[1]))))
            y = builder.emit_output(y)
        builder.emit_func_output(y)
    mod = builder.get()
    mod.update_global_info("mesh", [mesh])
    return mod


def seconds(layers, rounds):
    """CPU time of the pass, the best of several rounds."""
    best = float("inf")
    for _ in range(rounds):
        mod = chain(layers)
        start = time.process_time()
        relax.distributed.transform.PropagateSharding()(mod)
        best = min(best, time.process_time() - start)
    return best


def test_time_is_linear_in_annotated_layers():
    """Twice the slope of a line is allowed."""
    assert seconds(120, 1) < 8 * seconds(30, 3)


def test_the_result_does_not_depend_on_addresses():
    @I.ir_module
    class Module:
        I.module_global_infos(
            {"mesh": [R.device_mesh((1,), I.Range(0, 1)), R.device_mesh((1,), I.Range(1, 2))]}
        )

        @R.function
        def main(
            x: R.Tensor((4, 4), "float32"),
            a: R.Tensor((4, 4), "float32"),
            b: R.Tensor((4, 4), "float32"),
            c: R.Tensor((4, 4), "float32"),
            d: R.Tensor((4, 4), "float32"),
        ) -> R.Tensor((4, 4), "float32"):
            with R.dataflow():
                x0 = R.dist.annotate_sharding(x, device_mesh="mesh[0]", placement="R")
                a0 = R.dist.annotate_sharding(a, device_mesh="mesh[0]", placement="R")
                b0 = R.dist.annotate_sharding(b, device_mesh="mesh[0]", placement="R")
                y = R.matmul(R.nn.relu(R.matmul(x0, a0)), b0)
                y1 = R.dist.annotate_sharding(y, device_mesh="mesh[1]", placement="R")
                c1 = R.dist.annotate_sharding(c, device_mesh="mesh[1]", placement="R")
                d1 = R.dist.annotate_sharding(d, device_mesh="mesh[1]", placement="R")
                z = R.matmul(R.nn.relu(R.matmul(y1, c1)), d1)
                R.output(z)
            return z

    text = Module.script()

    def once():
        return relax.distributed.transform.PropagateSharding()(tvm.script.from_source(text))

    first = once()
    for _ in range(63):
        tvm.ir.assert_structural_equal(once(), first)


def test_placements_go_through_calls_of_private_functions():
    @I.ir_module
    class Before:
        I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

        @R.function(private=True)
        def layer(x: R.Tensor((4, 8), "float32"), w: R.Tensor((8, 8), "float32")) -> R.Tensor(
            (4, 8), "float32"
        ):
            with R.dataflow():
                lv = R.matmul(x, w)
                out = R.nn.relu(lv)
                R.output(out)
            return out

        @R.function
        def main(
            x: R.Tensor((4, 8), "float32"),
            a: R.Tensor((8, 8), "float32"),
            b: R.Tensor((8, 8), "float32"),
        ) -> R.Tensor((4, 8), "float32"):
            cls = Before
            with R.dataflow():
                rows = R.dist.annotate_sharding(x, device_mesh="mesh[0]", placement="S[0]")
                y = cls.layer(rows, a)
                z = cls.layer(y, b)
                R.output(z)
            return z

    @I.ir_module
    class Expected:
        I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

        @R.function(private=True)
        def layer(
            x: R.DTensor((4, 8), "float32", "mesh[0]", "S[0]"),
            w: R.DTensor((8, 8), "float32", "mesh[0]", "R"),
        ) -> R.DTensor((4, 8), "float32", "mesh[0]", "S[0]"):
            with R.dataflow():
                lv = R.matmul(x, w)
                out = R.nn.relu(lv)
                R.output(out)
            return out

        @R.function
        def main(
            x: R.DTensor((4, 8), "float32", "mesh[0]", "S[0]"),
            a: R.DTensor((8, 8), "float32", "mesh[0]", "R"),
            b: R.DTensor((8, 8), "float32", "mesh[0]", "R"),
        ) -> R.DTensor((4, 8), "float32", "mesh[0]", "S[0]"):
            cls = Expected
            with R.dataflow():
                y = cls.layer(x, a)
                z = cls.layer(y, b)
                R.output(z)
            return z

    after = relax.distributed.transform.PropagateSharding()(Before)
    tvm.ir.assert_structural_equal(after, Expected)


if __name__ == "__main__":
    tvm.testing.main()
