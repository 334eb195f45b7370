# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Kernels that overwrite an operand, as ``DataflowUseInplaceCalls`` and MLC LLM call them."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

import tvm_distir as td
from tests.core.forms.parsing import ROWS, X_COLUMNS, X, agrees, main, parsed

SCALE = """
@T.prim_func(private=True, s_tir=True)
def scale(A: T.Buffer((8, 16), "float32")):
    for i, j in T.grid(8, 16):
        with T.sblock("scale"):
            vi, vj = T.axis.remap("SS", [i, j])
            A[vi, vj] = A[vi, vj] * T.float32(2)
"""
FIRST_ROWS = SCALE.replace("T.grid(8, 16)", "T.grid(3, 16)")
TWO = """
@T.prim_func(private=True, s_tir=True)
def scale(A: T.Buffer((8, 16), "float32"), B: T.Buffer((8, 16), "float32")):
    for i, j in T.grid(8, 16):
        with T.sblock("sum"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] + T.float32(1)
    for i, j in T.grid(8, 16):
        with T.sblock("scale"):
            vi, vj = T.axis.remap("SS", [i, j])
            A[vi, vj] = A[vi, vj] * T.float32(2)
"""
CALL = """
h = R.nn.relu(x)
y = R.call_tir_inplace(cls.scale, (h,), inplace_indices=[0],
    out_ty=R.Tensor((8, 16), "float32"))
"""
BOTH = """
h = R.nn.relu(x)
y = R.call_tir_inplace(cls.scale, (h,), inplace_indices=[0, -1],
    out_ty=[R.Tensor((8, 16), "float32"), R.Tensor((8, 16), "float32")])
"""


@pytest.mark.parametrize("plan", [ROWS, X_COLUMNS], ids=["rows", "columns"])
@pytest.mark.parametrize(
    ("kernel", "call"), [(SCALE, CALL), (FIRST_ROWS, CALL), (TWO, BOTH)], ids=["all", "part", "two"]
)
def test_a_kernel_may_overwrite_its_operand(kernel: str, call: str, plan: td.Plan) -> None:
    agrees(parsed(kernel, main(call, X)), plan)


def test_the_kernel_has_the_rule_of_a_call_tir() -> None:
    dist = td.distribute(parsed(SCALE, main(CALL, X)), ROWS)
    assert "all_gather" not in dist.script()
    assert [int(n) for n in dist["main"].ret_ty.shape] == [4, 16]


def test_the_input_of_a_run_is_not_overwritten() -> None:
    mod = parsed(SCALE, main(CALL.replace("R.nn.relu(x)", "x"), X))
    values = np.arange(128, dtype="f4").reshape(8, 16)
    (result,) = td.run(td.distribute(mod, ROWS), [values], engine="virtual")
    assert np.array_equal(values, np.arange(128, dtype="f4").reshape(8, 16))
    assert np.array_equal(result, values * 2)


def test_what_tvm_writes_in_place_is_distributed() -> None:
    mod = parsed(main("h = R.add(x, x)\nk = R.multiply(h, h)\ny = R.nn.relu(k)", X))
    mod = relax.transform.LegalizeOps()(relax.transform.ConvertToDataflow(1)(mod))
    agrees(relax.transform.DataflowUseInplaceCalls()(mod), ROWS)
