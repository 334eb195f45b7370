# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Which values may share memory with parameters, and when these are read last."""

from __future__ import annotations

import pytest
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

from tvm_distir.core.analysis import param_aliases

pytestmark = pytest.mark.quick


@I.ir_module
class Module:
    @R.function(private=True)
    def passed(x: R.Tensor((4, 4), "float32"), y: R.Tensor((4, 4), "float32")) -> R.Tuple(
        R.Tensor((16,), "float32"), R.Tensor((4, 4), "float32")
    ):
        with R.dataflow():
            flat = R.reshape(x, (16,))
            both = (flat, R.multiply(y, y))
            R.output(both)
        return both

    @R.function
    def main(
        w: R.Tensor((4, 4), "float32"),
        v: R.Tensor((4, 4), "float32"),
        u: R.Tensor((4, 4), "float32"),
    ) -> R.Tuple(R.Tensor((16,), "float32"), R.Tensor((4, 4), "float32")):
        cls = Module
        with R.dataflow():
            pair = cls.passed(w, v)
            view = pair[0]
            new = R.add(v, u)
            late = R.multiply(view, view)
            R.output(late, new)
        return (late, new)


def test_views_and_callees_share_memory_and_kernels_do_not() -> None:
    aliases = {str(gv.name_hint): found for gv, found in param_aliases(Module).items()}
    assert aliases["passed"].result == {0}
    main = aliases["main"]
    shared = {str(var.name): params for var, params in main.of.items()}
    assert shared["view"] == {0}
    assert shared["new"] == shared["late"] == frozenset()
    assert main.result == frozenset()
    assert main.last_read == {0: 3, 1: 2, 2: 2}


def test_what_may_be_returned_has_no_last_read() -> None:
    aliases = {str(gv.name_hint): found for gv, found in param_aliases(Module).items()}
    assert set(aliases["passed"].last_read) == {1}
