# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Public functions that other functions call work like private ones."""

from __future__ import annotations

import pytest

import tvm_distir as td
from tvm_distir.models.tvmscript import from_tvmscript

TEXT = """
from tvm.script import ir as I
from tvm.script import relax as R


@I.ir_module
class Module:
    @R.function
    def layer(
        x: R.Tensor((8, 16), "float32"), w: R.Tensor((16, 16), "float32")
    ) -> R.Tensor((8, 16), "float32"):
        with R.dataflow():
            y = R.matmul(x, w)
            R.output(y)
        return y

    @R.function
    def main(
        x: R.Tensor((8, 16), "float32"), w: R.Tensor((16, 16), "float32")
    ) -> R.Tensor((8, 16), "float32"):
        cls = Module
        with R.dataflow():
            a = cls.layer(x, w)
            b = cls.layer(a, w)
            R.output(b)
        return b
"""


@pytest.mark.parametrize("strategy", ["data_parallel:axis=tp", "tensor_parallel"])
def test_a_public_function_that_is_called(strategy: str) -> None:
    mod = from_tvmscript(TEXT)
    plan = td.planning.make_plan(mod, strategy, {"tp": 2})
    dist = td.distribute(mod, plan)
    public = [gv.name_hint for gv, fn in dist.functions.items() if "dist.io" in (fn.attrs or {})]
    assert public == ["main"]
    assert td.verify(mod, plan).equal
    result = td.explain(mod, plan, "layer/y", alternatives=False)
    assert result.name == "layer/y"
