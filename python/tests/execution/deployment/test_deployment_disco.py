# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""A deployed module in TVM's own ``R.ccl`` ops, on TVM's own Disco session.

The wheel has no NCCL: two workers add through a function registered where NCCL's would stand
(an empty name of the library, so ``runtime.disco..allreduce``). All else is TVM's own.
"""

from __future__ import annotations

import threading

import numpy as np
import tvm
import tvm_ffi

import tvm_distir as td
from tvm_distir.execution.runtime.program.joining import same_bits
from tvm_distir.models.tvmscript import from_tvmscript
from tvm_distir.support.disco import repair_disco

SOURCE = """
from tvm.script import ir as I, relax as R

@I.ir_module
class Module:
    @R.function
    def main(
        x: R.Tensor((4, 8), "float32"), w: R.Tensor((8, 6), "float32")
    ) -> R.Tensor((4, 6), "float32"):
        with R.dataflow():
            y = R.matmul(x, w)
            R.output(y)
        return y
"""
WORKERS = 2


def contraction_sharded(tmp_path):
    """A matmul whose contraction is cut in two: one all-reduce."""
    path = tmp_path / "matmul.py"
    path.write_text(SOURCE)
    rules = [
        {"param": "x", "placement": "S[1]", "stationary": True},
        {"param": "w", "placement": "S[0]", "stationary": True},
    ]
    plan = td.Plan.from_dict({"schema_version": 1, "mesh": {"tp": WORKERS}, "rules": rules})
    return from_tvmscript(str(path)), plan


def test_a_deployed_library_runs_on_a_stock_disco_session(tmp_path):
    mod, plan = contraction_sharded(tmp_path)
    lowered = td.distribute(mod, plan)
    stock = td.transform.UseStockCollectives()(lowered)
    assert "R.ccl.allreduce" in stock.script()
    td.deploy(stock, tmp_path / "deployed")

    barrier, terms = threading.Barrier(WORKERS, timeout=20), {}
    worker_rank = tvm_ffi.get_global_func("runtime.disco.worker_rank")

    def allreduce(send, kind, in_group, receive):
        terms[int(worker_rank())] = send.numpy()
        barrier.wait()
        receive.copyfrom(terms[0] + terms[1])
        barrier.wait()

    tvm_ffi.register_global_func("runtime.disco..allreduce", allreduce, override=True)
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-2, 3, shape).astype("float32") for shape in ((4, 8), (8, 6)))
    session = repair_disco().ThreadedSession(WORKERS)
    machine = session.load_vm_module(str(tmp_path / "deployed" / "main.so"), device=tvm.cpu())
    halves = []
    for whole, axis in ((x, 1), (w, 0)):
        parts = np.split(whole, WORKERS, axis=axis)
        held = session.empty(parts[0].shape, "float32", device=tvm.cpu())
        for worker, part in enumerate(parts):
            held.debug_copy_from(worker, np.ascontiguousarray(part))
        halves.append(held)
    out = machine["main"](*halves)
    for worker in range(WORKERS):
        assert same_bits(out.debug_get_from_remote(worker).numpy(), x @ w)
