# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Programs of narrow floats: the original in float32, the bound of rounding, planted faults."""

from __future__ import annotations

import itertools
from importlib import import_module

import ml_dtypes
import numpy as np
import pytest
import tvm_ffi
from tvm import ir, relax, te
from tvm.relax.expr_functor import mutator

import tvm_distir as td
from tvm_distir.core.passes.lower import moves
from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.execution.runtime.engines.virtual.engine import VirtualEngine
from tvm_distir.execution.runtime.program.io_layout import np_dtype
from tvm_distir.execution.runtime.program.tensors import to_array, to_tensor
from tvm_distir.execution.verification.float32_reference import (
    NARROW,
    Float32Reference,
    widened,
    widened_inputs,
)
from tvm_distir.execution.verification.rounding import (
    PEAK_FACTOR,
    RMS_FACTOR,
    RoundingBound,
    RoundingError,
    judge,
    most_operations,
    rounding_errors,
    unit_roundoff,
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
    assert report.positive
    (single,), (wide,) = report.outputs, report.float32_outputs
    assert single.dtype == dtype
    assert 0 < single.rms_diff <= single.rms_allowed
    assert single.max_abs_diff <= single.atol
    assert wide.dtype == "float32"
    assert wide.max_abs_diff <= wide.atol < 0.02 * single.atol
    assert report.to_dict()["float32_outputs"][0]["equal"] is True


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
    """Even one that rounding hides: both programs are compared in float32.

    1.005 rounds to 1.0078 in bfloat16.
    """
    _plant(monkeypatch, change)
    report = verify(chain("bfloat16"), PLAN)
    assert not report.equal
    assert not report.float32_outputs[0].equal
    assert report.fault is not None
    assert report.fault.op == "matmul"
    with pytest.raises(MismatchError, match=r"DIST0690 main/lv\w* \(matmul\): the first value"):
        report.check()


def test_what_16_bits_alone_spoil_is_found(monkeypatch):
    """A distributed program that rounds much more than its types do, equal in float32."""

    def coarse(writer, result, _):
        once = writer.emit(result, "once")
        ty = result.ty
        if str(ty.dtype) != "bfloat16":
            return once
        big = relax.const(np.array(64, ml_dtypes.bfloat16), "bfloat16")
        return R.subtract(writer.emit(R.add(once, big), "far"), big)

    _plant(monkeypatch, coarse)
    report = verify(chain("bfloat16"), PLAN, locate=False)
    assert all(each.equal for each in report.float32_outputs)
    assert not report.equal


def test_a_tolerance_given_is_used_instead():
    report = verify(chain("bfloat16"), PLAN, atol=10.0, rtol=0.0)
    assert (report.equal, report.float32_outputs, report.atol) == (True, (), 10.0)
    assert not verify(chain("bfloat16"), PLAN, atol=1e-9, rtol=0.0, locate=False).equal


def test_widening_reaches_types_attributes_constants_and_kernels():
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
    copy = widened(mod)
    assert mod.script(show_meta=True) == before
    assert "float16" not in copy.script(show_meta=True)
    values = [np.random.default_rng(0).standard_normal((4, 8)).astype(ml_dtypes.bfloat16)]
    (wide,) = Reference(copy).run(widened_inputs(values))
    assert wide.dtype == np.float32
    exact = values[0].astype("float64") @ np.full((8, 3), 0.5) * 2
    assert np.allclose(wide, exact, rtol=1e-6, atol=1e-6)
    (narrow,) = Reference(mod).run(values)
    assert not np.allclose(narrow.astype("float64"), exact, rtol=1e-6, atol=1e-6)


def test_a_wide_module_stays_as_it_is():
    mod = chain("float32")
    assert tvm_ffi.structural_equal(widened(mod), mod)


def test_a_distributed_module_runs_in_float32():
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


BOUND = RoundingBound("bfloat16", 2.0**-8, 100, 4)


def test_the_bounds_are_factors_of_the_error_of_rounding():
    """Exact numbers: rounding moves one of 256 elements by 1/8; sqrt(r) is 2."""
    truth = np.zeros(256, "float32")
    rounded = truth.copy()
    rounded[7] = 0.125
    (error,) = rounding_errors([([rounded], [truth])])
    assert (error.peak, error.rms()) == (0.125, 0.125 / 16)

    def equal(got):
        (report,) = judge([got], [truth], [error], BOUND, ["bfloat16"])
        assert report.atol == 0.125 * PEAK_FACTOR * 2
        assert report.rms_allowed == 0.125 / 16 * RMS_FACTOR * 2
        return report.equal

    got = _bf(truth)
    got[:9] = 0.125
    assert equal(got)
    got[9] = 0.125
    assert not equal(got)
    got[:10] = 0
    got[3] = 0.75
    assert not equal(got)


def test_small_outputs_are_judged_over_several_draws():
    """One lucky draw of a scalar says nothing: draws go on until there are enough elements."""
    drawn = []

    def draws():
        for number in range(5):
            drawn.append(number)
            yield [np.array([number / 8], "float32")], [np.zeros(1, "float32")]

    (error,) = rounding_errors(draws())
    assert drawn == [0, 1, 2, 3, 4]
    assert (error.peak, error.elements) == (0.5, 5)
    large = [np.zeros(256, "float32")], [np.zeros(256, "float32")]
    assert rounding_errors(iter([large, large]))[0].elements == 256


def _passes(rng: np.random.Generator, size: int, factor: float) -> bool:
    """Whether normal errors, ``factor`` times those of rounding, count as rounding."""
    truth = np.zeros(size, "float32")

    def drawn(scale: float = 1.0) -> np.ndarray:
        return rng.normal(scale=scale, size=size).astype("float32")

    (error,) = rounding_errors(([drawn()], [truth]) for _ in range(5))
    return judge([_bf(drawn(factor))], [truth], [error], BOUND, ["bfloat16"])[0].equal


@pytest.mark.parametrize("size", [1, 2, 8, 40])
def test_chance_makes_no_fault_of_few_elements(size):
    """A program that rounds as its types do; one that errs 100 times as much."""
    rng = np.random.default_rng(size)
    assert sum(not _passes(rng, size, 1.0) for _ in range(4000)) <= 12  # 0.3 %
    assert sum(_passes(rng, size, 100.0) for _ in range(400)) <= 400 * 16 / 100


def test_integers_that_rounding_does_not_decide_are_compared_exactly():
    ref = np.array([3, 4])
    (report,) = judge([np.array([3, 5])], [ref], [RoundingError()], BOUND, ["int64"])
    assert not report.equal
    error = RoundingError().seen(np.array([3, 6]), ref)
    assert judge([np.array([3, 5])], [ref], [error], BOUND, ["int64"])[0].equal


def test_an_output_of_another_type_differs():
    truth = np.ones(4, "float32")
    (report,) = judge([truth], [truth], [RoundingError()], BOUND, ["bfloat16"])
    assert not report.equal


@pytest.mark.parametrize("dtype", NARROW)
def test_results_of_ops_are_rounded_once(dtype):
    """As NumPy rounds; the reference beside it does not round, casts included."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([64], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(R.astype(x, dtype))
        builder.emit_func_output(out)
    reference = Float32Reference(builder.get())
    values = np.random.default_rng(0).standard_normal(64).astype("float32")
    want = values.astype(np_dtype(dtype)).astype("float32")
    assert np.array_equal(reference.run([values])[0], want)
    assert np.array_equal(reference.truth([values])[0], values)
    assert np.abs(want / values - 1)[np.abs(values) > 0.1].max() <= unit_roundoff(dtype)


def product(dtype, terms, columns=64):
    """``main(x, w)``: a rectified product over ``terms``."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([8, terms], dtype))
    w = relax.Var("w", relax.TensorType([terms, columns], dtype))
    with builder.function("main", [x, w]):
        with builder.dataflow():
            out = builder.emit_output(R.nn.relu(builder.emit(R.matmul(x, w))))
        builder.emit_func_output(out)
    return builder.get()


def test_operations_are_counted_per_element():
    assert most_operations(product("bfloat16", 96)) == 2 * 96


PLANS = {
    "rows": {"mesh": {"dp": 2}, "rules": [{"param": "x", "placement": "S[0]"}]},
    "columns": {"mesh": {"tp": 4}, "rules": [{"param": "w", "placement": "S[1]"}]},
    "sums": {"mesh": {"tp": 8}, "rules": [{"param": "w", "placement": "S[0]", "stationary": True}]},
    "both": {
        "mesh": {"dp": 2, "tp": 2},
        "rules": [
            {"param": "x", "placement": "S[0], R"},
            {"param": "w", "placement": "R, S[0]", "stationary": True},
        ],
    },
}


def _summed_in(a, b):
    """Accumulate in the narrow type."""
    total = np.zeros((a.shape[0], b.shape[1]), a.dtype)
    for k in range(a.shape[1]):
        total = total + np.outer(a[:, k], b[k])
    return total


def _without(share):
    def product(a, b):
        kept = a.shape[1] - a.shape[1] // share
        return (a[:, :kept].astype("float32") @ b[:kept].astype("float32")).astype(a.dtype)

    return product


def _divided_wrongly(a, b):
    """As a mean over 32 of 33 elements."""
    return (a.astype("float32") @ b.astype("float32") * (33 / 32)).astype(a.dtype)


@mutator
class _Replaced(relax.PyExprMutator):
    """Replaces the products of a narrow type by calls of a faulty function."""

    def __init__(self, mod, name):
        super().__init__(mod)
        self.name = name

    def visit_call_(self, call):
        ty = call.ty
        call = super().visit_call_(call)
        if str(getattr(call.op, "name", "")) != "relax.matmul" or str(ty.dtype) not in NARROW:
            return call
        return R.call_pure_packed(self.name, *call.args, ty_args=ty)


class _FaultyKernels(VirtualEngine):
    """Runs programs with a faulty kernel of narrow products."""

    numbers = itertools.count()

    def __init__(self, product):
        super().__init__()
        # Compiled programs are kept, with the functions that they call: each has its own name.
        self.kernel = f"tests.faulty_product{next(self.numbers)}"

        def kernel(*operands):
            a, b = (to_array(tensor) for tensor in operands)
            return to_tensor(product(a, b))

        tvm_ffi.register_global_func(self.kernel, kernel, override=True)

    def run(self, mod, inputs, outputs="whole"):
        functions = {
            gv: _Replaced(mod, self.kernel).visit_expr(fn) if isinstance(fn, relax.Function) else fn
            for gv, fn in mod.functions.items()
        }
        mod = ir.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
        return super().run(mod, inputs, outputs)


def _plan(name):
    return td.Plan.from_dict({"schema_version": 1, **PLANS[name]})


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    ("faulty", "plan", "terms"),
    [
        (_summed_in, "rows", 256),
        (_summed_in, "sums", 4096),
        (_without(8), "columns", 256),
        (_divided_wrongly, "both", 256),
    ],
    ids=["accumulated", "accumulated in parts", "terms left out", "divided wrongly"],
)
def test_a_faulty_kernel_is_found_and_named(dtype, faulty, plan, terms):
    """The distribution is right in float32; only the kernel of the narrow type is wrong."""
    mod = product(dtype, terms)
    report = verify(mod, _plan(plan), engine=_FaultyKernels(faulty))
    assert not report.equal
    assert all(output.equal for output in report.float32_outputs)
    assert report.fault is not None
    assert report.fault.op == "matmul"
    assert "unit roundoff" in report.rounding.text()


def test_an_error_below_the_roundoff_is_not_seen():
    """Results 1e-3 too small: bfloat16 resolves 4e-3, float16 5e-4 of a single value."""

    def small(a, b):
        return (a.astype("float32") @ b.astype("float32") * (1023 / 1024)).astype(a.dtype)

    engine = _FaultyKernels(small)
    assert verify(product("bfloat16", 1024), _plan("rows"), engine=engine).equal


def test_one_of_a_thousand_terms_is_missed():
    """In a sum of terms of either sign it is 3 % of the result."""
    engine = _FaultyKernels(_without(1024))
    assert not verify(product("bfloat16", 1024), _plan("rows"), engine=engine, locate=False).equal


@pytest.mark.parametrize("plan", PLANS)
def test_exact_products_are_equal(plan):
    """Each kernel computes in float32 and rounds once: no fault, on any plan."""
    engine = _FaultyKernels(
        lambda a, b: (a.astype("float32") @ b.astype("float32")).astype(a.dtype)
    )
    for dtype in ("bfloat16", "float16"):
        assert verify(product(dtype, 512), _plan(plan), engine=engine).equal
