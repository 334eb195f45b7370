# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Importing the package changes no stock pass and replaces no attribute that answered."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = '''
import sys, hashlib
import tvm
from tvm import ir, relax
if "with" in sys.argv:
    import tvm_distir
from tvm.relax.distributed import transform as stock

TEXT = """
@I.ir_module
class Module:
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})
    @R.function
    def main(x: R.Tensor((8, 8), "float32"), a: R.Tensor((8, 8), "float32"),
             b: R.Tensor((8, 8), "float32")) -> R.Tensor((8, 8), "float32"):
        with R.dataflow():
            lv = R.matmul(x, a)
            lv1 = R.nn.gelu(lv)
            lv2 = R.dist.annotate_sharding(lv1, device_mesh="mesh[0]", placement="S[1]")
            lv3 = R.matmul(lv2, b)
            R.output(lv3)
        return lv3
"""
mod = tvm.script.from_source(TEXT)
print(stock.PropagateSharding()(mod).script())
legal = relax.transform.LegalizeOps()(mod)
lowered = tvm.transform.Sequential([
    stock.PropagateSharding(), stock.LowerGlobalViewToLocalView(), stock.LegalizeRedistribute(),
    stock.LowerDistIR()])(legal)
print(lowered.script())

x = relax.Var("x", relax.TensorType((4, 6), "float32"))
for call in (relax.op.concat([x, x], 1), relax.op.stack([x, x], 0), relax.op.exp(x),
             relax.op.einsum([x, x], "ij,ij->i")):
    print(call.op.name, relax.BlockBuilder().normalize(call).ty)
print([n for n in sorted(ir.Op.list_op_names()) if n.startswith("relax.")
       and not n.startswith("relax.dist.")])
'''


def output(*arguments):
    """What the program prints."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout


def test_stock_passes_and_ops_answer_as_without_the_package():
    """The same text from stock passes and inference, with and without the import."""
    plain = output()
    assert "S[1]" in plain and "allreduce" in plain
    assert output("with") == plain


def test_tvms_runtime_only_library_has_no_ops_to_add():
    """With TVM_USE_RUNTIME_LIB=1 the import neither fails nor warns."""
    env = {**os.environ, "TVM_USE_RUNTIME_LIB": "1"}
    code = "import tvm, tvm_distir; from tvm_distir.interface.autoload import autoload; autoload()"
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == done.stderr == ""
