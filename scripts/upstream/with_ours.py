# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin: the passes of tvm_distir in place of TVM's, for the tests beside this file.

What local view is differs: tvm_distir needs no pass that cuts kernels before ``LowerDistIR``, and
its engine runs the result. All stock passes raise, so that none of them does the work.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import ir
from tvm.relax.distributed import DTensorType
from tvm.relax.distributed import transform as stock
from tvm.relax.distributed.transform import _ffi_api

HERE = Path(__file__).resolve().parent
REPLACED = ("PropagateSharding", "LegalizeRedistribute", "LowerDistIR")
NOT_NEEDED = "LowerGlobalViewToLocalView"


def _refuse(*_: Any) -> None:
    raise AssertionError("a stock pass was called")


def _nothing() -> tvm.transform.Pass:
    return tvm.transform.Sequential([], name=NOT_NEEDED)


def _execute(mod: ir.IRModule, inputs: Sequence[np.ndarray], result: Any) -> np.ndarray:
    """Lower what is left to lower, and run it on the engine ``virtual``."""
    import tvm_distir as td

    if any(isinstance(p.ty, DTensorType) for p in mod["main"].params):
        mod = td.transforms.LowerDistIR()(mod)
    (observed,) = td.run(mod, list(inputs), engine="virtual")
    return observed


def pytest_configure() -> None:
    """Swap the passes, and the execution of what they give."""
    sys.path[:0] = [str(HERE / "tests"), str(HERE.parents[1])]
    import virtual_workers

    import tvm_distir as td
    from tvm_distir.execution.runtime.program.compilation import compile_module

    for name in (*REPLACED, NOT_NEEDED):
        if not hasattr(_ffi_api, name):
            raise RuntimeError(f"TVM has no native {name}: nothing would be replaced")
        setattr(_ffi_api, name, _refuse)
        setattr(stock, name, getattr(td.transforms, name, _nothing))
    virtual_workers.execute = _execute
    virtual_workers.build = compile_module
