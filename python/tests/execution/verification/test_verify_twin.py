# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""16-bit models: their float32 twin, what one device's own error allows, and planted faults."""

from __future__ import annotations

from importlib import import_module

import ml_dtypes
import numpy as np
import pytest
import tvm_ffi
from tvm import relax, te

import tvm_distir as td
from tvm_distir.core.passes.lower import moves
from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.execution.verification.float32_reference import (
    PEAK_FACTOR,
    RMS_FACTOR,
    OwnError,
    judge,
    own_errors,
    widened,
    widened_inputs,
)
from tvm_distir.execution.verification.verifying import verify
from tvm_distir.support.errors.tree import MismatchError

R = relax.op
WIDTH = 32


def chain(dtype, layers=3):
    """``main(x, w, v)``: products, norms and a softmax that lose bits at every step."""
    builder = relax.BlockBuilder()
    x, w, v = (
        relax.Var(n, relax.TensorType([4 if n == "x" else WIDTH, WIDTH], dtype)) for n in "xwv"
    )
    with builder.function("main", [x, w, v]):
        with builder.dataflow():
            value = x
            for _ in range(layers):
                wide = builder.emit(R.nn.silu(builder.emit(R.matmul(value, w))))
                value = builder.emit(R.add(value, builder.emit(R.matmul(wide, v))))
            out = builder.emit_output(R.nn.softmax(value))
        builder.emit_func_output(out)
    return builder.get()


PLAN = td.Plan.from_dict(
    {
        "schema_version": 1,
        "mesh": {"tp": 4},
        "rules": [
            {"param": "w", "placement": "S[1]", "stationary": True},
            {"param": "v", "placement": "S[0]", "stationary": True},
        ],
    }
)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_right_distribution_is_equal_by_both_tests(dtype):
    report = verify(chain(dtype), PLAN)
    assert report.equal
    (single,), (twin,) = report.outputs, report.twin
    assert single.dtype == dtype
    assert 0 < single.rms_diff <= single.rms_allowed
    assert single.max_abs_diff <= single.atol
    assert twin.dtype == "float32"
    assert twin.max_abs_diff <= twin.atol < 1e-3 * single.atol
    assert report.to_dict()["twin"][0]["equal"] is True


def _plant(monkeypatch, change):
    write = moves.collective

    def collective(writer, kind, attrs, x, want, name):
        result = write(writer, kind, attrs, x, want, name)
        if kind not in ("all_reduce", "reduce_scatter"):
            return result
        return change(writer, writer.builder.normalize(result), x)

    monkeypatch.setattr(moves, "collective", collective)
    # neither what was learnt before counts, nor does the fault outlive the test
    monkeypatch.setattr(import_module("tvm_distir.core.ops.class_memo"), "_memories", {})


def _slightly_off(writer, result, _):
    """Each reduction half a percent too large: far below the rounding of bfloat16."""
    once = writer.emit(result, "once")
    return R.multiply(once, relax.const(np.array(1.005, ml_dtypes.bfloat16), "bfloat16"))


def _left_out(writer, result, operand):
    return R.add(operand, operand)


@pytest.mark.parametrize("change", [_left_out, _slightly_off])
def test_a_planted_fault_in_bfloat16_is_found_and_named(monkeypatch, change):
    """Even one that rounding hides: the twins of both programs are compared in float32.

    1.005 rounds to 1.0078 in bfloat16.
    """
    _plant(monkeypatch, change)
    report = verify(chain("bfloat16"), PLAN)
    assert not report.equal
    assert not report.twin[0].equal
    assert report.fault is not None
    assert report.fault.op == "matmul"
    with pytest.raises(MismatchError, match=r"DIST0690 main/lv\w* \(matmul\): the first value"):
        report.check()


def test_what_16_bits_alone_spoil_is_found(monkeypatch):
    """A distributed program that rounds much more than one device: the twins agree."""

    def coarse(writer, result, _):
        once = writer.emit(result, "once")
        ty = result.ty
        if str(ty.dtype) != "bfloat16":
            return once
        big = relax.const(np.array(64, ml_dtypes.bfloat16), "bfloat16")
        return R.subtract(writer.emit(R.add(once, big), "far"), big)

    _plant(monkeypatch, coarse)
    report = verify(chain("bfloat16"), PLAN, locate=False)
    assert all(each.equal for each in report.twin)
    assert not report.equal


def test_a_tolerance_given_is_used_instead():
    report = verify(chain("bfloat16"), PLAN, atol=10.0, rtol=0.0)
    assert (report.equal, report.twin, report.atol) == (True, (), 10.0)
    assert not verify(chain("bfloat16"), PLAN, atol=1e-9, rtol=0.0, locate=False).equal


def test_the_twin_widens_types_attributes_constants_and_kernels():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([4, 8], "bfloat16"))
    ones = relax.const(np.full((8, 3), 0.5, ml_dtypes.bfloat16), "bfloat16")
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(R.matmul(x, ones, out_dtype="bfloat16"))
            y = builder.emit(R.astype(y, "float16"))
            y = builder.emit_te(lambda t: te.compute(t.shape, lambda *i: t(*i) + t(*i)), y)
            out = builder.emit_output(R.astype(y, "bfloat16"))
        builder.emit_func_output(out)
    mod = builder.get()
    before = mod.script(show_meta=True)
    twin = widened(mod)
    assert mod.script(show_meta=True) == before
    assert "float16" not in twin.script(show_meta=True)
    values = [np.random.default_rng(0).standard_normal((4, 8)).astype(ml_dtypes.bfloat16)]
    (wide,) = Reference(twin).run(widened_inputs(values))
    assert wide.dtype == np.float32
    exact = values[0].astype("float64") @ np.full((8, 3), 0.5) * 2
    assert np.allclose(wide, exact, rtol=1e-6, atol=1e-6)
    (narrow,) = Reference(mod).run(values)
    assert not np.allclose(narrow.astype("float64"), exact, rtol=1e-6, atol=1e-6)


def test_a_wide_module_is_its_own_twin():
    mod = chain("float32")
    assert tvm_ffi.structural_equal(widened(mod), mod)


def test_a_distributed_module_has_a_twin_that_runs():
    local = td.distribute(chain("bfloat16"), PLAN)
    x, w, v = (
        np.random.default_rng(i).standard_normal((4 if i == 0 else WIDTH, WIDTH)).astype("float32")
        / 6
        for i in range(3)
    )
    (got,) = td.run(widened(local), [x, w, v], engine="virtual")
    (ref,) = Reference(chain("float32")).run([x, w, v])
    assert got.dtype == np.float32
    assert np.allclose(got, ref, rtol=1e-4, atol=1e-6)


def _bf(values):
    return np.array(values, "float32").astype(ml_dtypes.bfloat16)


def test_the_bounds_are_factors_of_one_devices_error():
    """Exact numbers: one device is 1/8 off at one of 256 elements."""
    truth = np.zeros(256, "float32")
    ref = _bf(truth)
    ref[7] = 0.125
    (error,) = own_errors([([ref], [truth])])
    assert (error.peak, error.rms()) == (0.125, 0.125 / 16)
    got = _bf(truth)
    got[:4] = 0.125
    (report,) = judge([got], [ref], [truth], [error])
    assert (report.atol, report.rms_allowed) == (0.125 * PEAK_FACTOR, 0.125 / 16 * RMS_FACTOR)
    assert report.equal
    got[4] = 0.125
    assert not judge([got], [ref], [truth], [error])[0].equal
    got[:5] = 0
    got[3] = 0.625
    assert not judge([got], [ref], [truth], [error])[0].equal


def test_small_outputs_are_judged_over_several_draws():
    """One lucky draw of a scalar says nothing: draws go on until there are enough elements."""
    drawn = []

    def draws():
        for number in range(5):
            drawn.append(number)
            yield [_bf([number / 8])], [np.zeros(1, "float32")]

    (error,) = own_errors(draws())
    assert drawn == [0, 1, 2, 3, 4]
    assert (error.peak, error.elements) == (0.5, 5)
    drawn.clear()
    large = [np.zeros(256, ml_dtypes.bfloat16)], [np.zeros(256, "float32")]
    own_errors(iter([large, large]))
    assert OwnError().rms() == 0


def _passes(rng: np.random.Generator, size: int, factor: float) -> bool:
    """Whether normal errors, ``factor`` times those of one device, count as rounding."""
    truth = np.zeros(size, "float32")

    def drawn(scale: float = 1.0) -> np.ndarray:
        return rng.normal(scale=scale, size=size).astype("float32")

    ref = drawn()
    others = [drawn() for _ in range(4)]
    (error,) = own_errors(([each], [truth]) for each in (ref, *others))
    return judge([drawn(factor)], [ref], [truth], [error])[0].equal


@pytest.mark.parametrize("size", [1, 2, 8, 40])
def test_chance_makes_no_fault_of_few_elements(size):
    """A distributed program that rounds as one device does; one that errs 100 times as much."""
    rng = np.random.default_rng(size)
    assert sum(not _passes(rng, size, 1.0) for _ in range(4000)) <= 12  # 0.3 %
    assert sum(_passes(rng, size, 100.0) for _ in range(400)) <= 400 * 16 / 100


def test_integers_of_16_bit_models_are_compared_exactly():
    ref = np.array([3, 4])
    (report,) = judge([np.array([3, 5])], [ref], [ref], [OwnError()])
    assert not report.equal
