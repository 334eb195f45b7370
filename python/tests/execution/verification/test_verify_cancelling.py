# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Outputs whose terms cancel are judged by their terms; what is wrong is told all the same."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op

import tvm_distir as td
from tvm_distir.execution.verification.cancellation import with_terms
from tvm_distir.execution.verification.compare import compare_outputs
from tvm_distir.planning.strategies.composition import make_plan


def centred(private: bool):
    """Sums of rows less their mean, which are nothing but rounding, seen through a view."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([64, 6], "float32"))
    if private:
        inner = relax.Var("inner", relax.TensorType([64, 6], "float32"))
        with builder.function("less", [inner], private=True):
            with builder.dataflow():
                mean = builder.emit(op.mean(inner, [0], keepdims=True))
                less = builder.emit(op.sum(op.subtract(inner, mean), [0]))
                less = builder.emit_output(op.reshape(less, [2, 3]))
            less = builder.emit_func_output(less)
    with builder.function("main", [x], attrs={"num_input": 1}):
        with builder.dataflow():
            if private:
                out = builder.emit(relax.Call(less, [x]))
            else:
                mean = builder.emit(op.mean(x, [0], keepdims=True))
                terms = builder.emit(op.subtract(x, mean))
                out = builder.emit(op.reshape(builder.emit(op.sum(terms, [0])), [2, 3]))
            squares = builder.emit(op.sum(op.multiply(x, x), [0]))
            out = builder.emit_output(relax.Tuple([squares, out]))
        builder.emit_func_output(out)
    return builder.get()


@pytest.mark.parametrize("private", [False, True])
def test_sums_that_cancel_are_equal(private):
    mod = centred(private)
    plan = make_plan(mod, "data_parallel", {"dp": 4})
    report = td.verify(mod, plan)
    first, second = report.outputs
    assert report.equal and second.max_rel_diff > 1e-2  # of rounding, which is all there is
    assert second.atol < 1e-4 and first.atol < 1e-2


def test_what_is_wrong_differs_all_the_same():
    mod = centred(False)
    values = [np.random.default_rng(0).standard_normal((64, 6)).astype("float32")]
    ref = [np.zeros(6, "float32"), np.zeros((2, 3), "float32")]
    for wrong in (0.01, np.nan):
        got = [np.zeros(6, "float32"), np.full((2, 3), wrong, "float32")]
        reports = compare_outputs(got, ref, "float32", False, None, None)
        judged = with_terms(reports, mod, values, got, ref)
        assert [each.equal for each in judged] == [True, False]
