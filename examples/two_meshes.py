# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""A private function called on two meshes: the request this project began with.

``mlp`` is private and called twice. A mutator of your own annotates the first argument of each
call, taking the module's two meshes in turn. PropagateSharding then gives two DTensor
specialisations of ``mlp``; the rest of the pipeline gives one program per mesh, joined by a send
and a receive, which two workers run.

Run it: ``python examples/two_meshes.py``.
"""

from __future__ import annotations

import numpy as np
import tvm
from tvm import ir, relax
from tvm.relax.distributed import Placement
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.relax.op.distributed import annotate_sharding
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import tvm_distir as td


@I.ir_module
class Module:
    """Two calls of one private function."""

    I.module_attrs({"device_num": 2})
    I.module_global_infos(
        {"mesh": [R.device_mesh((1,), I.Range(0, 1)), R.device_mesh((1,), I.Range(1, 2))]}
    )

    @R.function(private=True)
    def mlp(
        x: R.Tensor((128, 128), "float32"),
        A: R.Tensor((128, 128), "float32"),
        B: R.Tensor((128, 128), "float32"),
    ) -> R.Tensor((128, 128), "float32"):
        with R.dataflow():
            lv = R.matmul(x, A)
            lv1 = R.nn.relu(lv)
            out = R.matmul(lv1, B)
            R.output(out)
        return out

    @R.function
    def main(
        x: R.Tensor((128, 128), "float32"),
        A: R.Tensor((128, 128), "float32"),
        B: R.Tensor((128, 128), "float32"),
        C: R.Tensor((128, 128), "float32"),
        D: R.Tensor((128, 128), "float32"),
    ) -> R.Tensor((128, 128), "float32"):
        cls = Module
        with R.dataflow():
            y = cls.mlp(x, A, B)
            z = cls.mlp(y, C, D)
            R.output(z)
        return z


@mutator
class AnnotateFirstArgument(PyExprMutator):
    """Annotates the first argument of each private call, mesh by mesh."""

    def __init__(self, mod: ir.IRModule, *, emit: bool) -> None:
        super().__init__(mod)
        self.meshes = list(mod.global_infos["mesh"])
        self.emit = emit

    def visit_call_(self, call: ir.Call) -> ir.Expr:
        """Rewrite the argument in place, or emit a binding of its own."""
        args = [self.visit_expr(a) for a in call.args]
        if not isinstance(call.op, ir.GlobalVar):
            return ir.Call(call.op, args, call.attrs, call.ty_args)
        first = annotate_sharding(args[0], self.meshes.pop(0), Placement.from_text("R"))
        if self.emit:
            first = self.builder_.emit(first)
        return ir.Call(call.op, [first, *args[1:]])


def annotated(emit: bool = True) -> ir.IRModule:
    """The module with the user's annotations."""
    mod = Module.clone()
    main = AnnotateFirstArgument(mod, emit=emit).visit_expr(mod["main"])
    mod.update_func(mod.get_global_var("main"), main)
    return mod


def pipeline() -> tvm.transform.Sequential:
    """From annotations to one program per mesh."""
    return tvm.transform.Sequential(
        [
            td.transforms.PropagateSharding(),
            td.transforms.LegalizeRedistribute(),
            td.transforms.OptimizeCollectives(),
            td.transforms.LowerDistIR(),
        ]
    )


def main() -> None:
    """Print the distributed module and compare two workers with one device."""
    mod = annotated()
    distributed = td.transforms.PropagateSharding()(mod)
    print(distributed.script())
    lowered = pipeline()(mod)
    print(lowered.script())

    rng = np.random.default_rng(0)
    inputs = [rng.integers(-2, 3, (128, 128)).astype("float32") for _ in range(5)]
    (result,) = td.run(lowered, inputs, engine="threads")

    executable = tvm.compile(Module, target="llvm")
    machine = relax.VirtualMachine(executable, tvm.cpu())
    expected = machine["main"](*[tvm.runtime.tensor(a) for a in inputs]).numpy()
    print("equal to one device, bit by bit:", bool(np.array_equal(result, expected)))


if __name__ == "__main__":
    main()
