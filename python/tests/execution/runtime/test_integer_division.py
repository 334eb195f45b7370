# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Integer division has a result for every pair of operands, on every engine and in the padding."""

from __future__ import annotations

import multiprocessing
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

import tvm_distir as td
from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.execution.runtime.program.timing import measure
from tvm_distir.execution.verification.random_inputs import draw_inputs

# JAX, once a test imported it, warns of each fork; the children here call TVM alone.
pytestmark = pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")

OPS = ("divide", "mod", "floor_divide", "floor_mod")
KERNELS = {
    "divide": tirx.truncdiv,
    "mod": tirx.truncmod,
    "floor_divide": tirx.floordiv,
    "floor_mod": tirx.floormod,
}


def module(dtype: str, shape: tuple[int, ...] = (5, 8), kernels: bool = False) -> tvm.IRModule:
    """All four divisions of two inputs, as ops or as kernels of the module."""
    builder = relax.BlockBuilder()
    a, b = (relax.Var(name, relax.TensorType(shape, dtype)) for name in "ab")
    with builder.function("main", [a, b]):
        with builder.dataflow():
            results = []
            for name in OPS:
                if kernels:

                    def compute(x: Any, y: Any, name: str = name) -> Any:
                        return te.compute(
                            shape, lambda *i: KERNELS[name](x(*i), y(*i).astype(dtype)), name
                        )

                    created = builder.call_te(compute, a, b, primfunc_name_hint=f"my_{name}")
                else:
                    created = getattr(relax.op, name)(a, b)
                results.append(builder.emit(created))
            out = builder.emit_output(relax.Tuple(results))
        builder.emit_func_output(out)
    return builder.get()


def operands(dtype: str, shape: tuple[int, ...] = (5, 8)) -> list[Any]:
    """Small numbers of both signs and zeros, and the extremes of the type."""
    info = np.iinfo(dtype)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(max(info.min, -4), 5, shape).astype(dtype) for _ in range(2))
    ends = [info.min, info.max, info.min, info.max, 3]
    a[:, 0], b[:, 0] = ends, np.asarray([-1, -1, 0, 0, 0]).astype(dtype)
    return [a, b]


def expected(a: Any, b: Any) -> list[Any]:
    """As exact integers, wrapped into the type; by zero as StableHLO on XLA gives it."""
    results: list[list[int]] = [[] for _ in OPS]
    for x, y in zip((int(v) for v in a.flat), (int(v) for v in b.flat), strict=True):
        if y == 0:
            both = (-1, x), (-1, x)
        else:
            cut = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
            both = (cut, x - cut * y), divmod(x, y)
        for values, value in zip(results, (n for pair in both for n in pair), strict=True):
            values.append(value)
    bits = np.iinfo(a.dtype).bits
    wrapped = [[v % (1 << bits) for v in values] for values in results]
    unsigned = np.dtype(f"uint{bits}")
    return [np.asarray(v, unsigned).view(a.dtype).reshape(a.shape) for v in wrapped]


def in_child(function: Any, *arguments: Any) -> Any:
    """Call a function in a process of its own: a signal ends that one."""
    context = multiprocessing.get_context("fork")
    here, present = context.Pipe(False)
    child = context.Process(target=lambda: present.send(function(*arguments)))
    child.start()
    child.join(120)
    assert child.exitcode == 0, f"the process ended with {child.exitcode}"
    return here.recv()


@pytest.mark.parametrize("kernels", [False, True], ids=["ops", "kernels"])
@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "uint64"])
def test_every_pair_has_a_result_on_one_device(dtype: str, kernels: bool) -> None:
    values = operands(dtype)
    mod = module(dtype, kernels=kernels)
    result = in_child(lambda: Reference(mod).run(values))
    for name, got, want in zip(OPS, result, expected(*values), strict=True):
        np.testing.assert_array_equal(got, want, err_msg=name)


def plan(placement: str) -> dict[str, Any]:
    rules = [{"param": name, "placement": placement} for name in "ab"]
    return {"schema_version": 1, "mesh": {"dp": 2}, "rules": rules}


@pytest.mark.parametrize("kernels", [False, True], ids=["ops", "kernels"])
@pytest.mark.parametrize("engine", ["virtual", "threads"])
def test_zeros_that_a_user_gives_and_those_of_the_padding(engine: str, kernels: bool) -> None:
    """Five rows over two devices: the last one divides the padding by the padding."""
    values = operands("int32")
    program = td.distribute(module("int32", kernels=kernels), plan("S[0]"))
    result = in_child(lambda: td.run(program, values, engine=engine))
    for name, got, want in zip(OPS, result, expected(*values), strict=True):
        np.testing.assert_array_equal(got, want, err_msg=name)


def test_xla_agrees() -> None:
    pytest.importorskip("jax", reason="the engine xla needs JAX")
    values = operands("int32", (5, 8))
    program = td.distribute(module("int32"), plan("S[1]"))
    result = td.run(program, values, engine="xla")
    for name, got, want in zip(OPS, result, expected(*values), strict=True):
        np.testing.assert_array_equal(got, want, err_msg=name)


def viewed(kind: str) -> tvm.IRModule:
    """An input that reaches the divisor through views, a private function or a kernel."""
    builder = relax.BlockBuilder()
    a = relax.Var("a", relax.TensorType([4, 8], "int32"))
    b = relax.Var("b", relax.TensorType([8], "int8"))
    if kind == "private":
        inner = [relax.Var(n, relax.TensorType([4, 8], "int32")) for n in "xy"]
        with builder.function("rest", inner, private=True):
            with builder.dataflow():
                out = builder.emit_output(relax.op.floor_mod(*inner))
            rest = builder.emit_func_output(out)
    with builder.function("main", [a, b]):
        with builder.dataflow():
            wide = builder.emit(relax.op.astype(b, "int32"))
            wide = builder.emit(relax.op.reshape(wide, [1, 8]))
            wide = builder.emit(relax.op.broadcast_to(wide, [4, 8]))
            if kind == "private":
                created: Any = relax.Call(rest, [a, wide])
            elif kind == "kernel":
                created = builder.call_te(
                    lambda x, y: te.compute((4, 8), lambda i, j: x[i, j] // (y[i, j] * 2), "half"),
                    a,
                    wide,
                )
            else:
                created = relax.op.floor_divide(a, wide)
            out = builder.emit_output(created)
        builder.emit_func_output(out)
    return builder.get()


@pytest.mark.parametrize("kind", ["view", "private", "kernel"])
def test_drawn_divisors_are_not_zero(kind: str) -> None:
    dividends, divisors = draw_inputs(viewed(kind))
    assert divisors.min() > 0 and np.unique(divisors).size > 1
    assert dividends.min() == 0


@pytest.mark.parametrize("op", OPS)
def test_verify_compares_quotients(op: str) -> None:
    mod = td.from_tvmscript(
        f"""
@I.ir_module
class M:
    @R.function
    def main(a: R.Tensor((4, 8), "int32"), b: R.Tensor((4, 8), "int32")):
        with R.dataflow():
            c = R.{op}(a, b)
            R.output(c)
        return c
"""
    )
    report = in_child(lambda: td.verify(mod, plan("S[0]")).equal)
    assert report


def test_kernels_that_divide_are_measured() -> None:
    program = td.distribute(module("int32", kernels=True), plan("S[1]"))
    times = in_child(lambda: [op.measured_ps for op in measured(program) if op.kind == "compute"])
    # The four kernels are elementwise and follow each other: one kernel.
    assert len(times) == 1 and times[0] > 0


def measured(program: tvm.IRModule) -> Any:
    """Ops of the entry, with times of which all integers are zeros."""
    return measure(program, cached=False).functions["main"].ops


@I.ir_module
class Bound:
    @T.prim_func(private=True, s_tir=True)
    def quotient(
        a: T.Buffer((4,), "int32"), b: T.Buffer((4,), "int32"), c: T.Buffer((4,), "int32")
    ):
        for i in range(4):
            with T.sblock("c"):
                place = T.axis.remap("S", [i])
                divisor = T.bind(b[place])
                c[place] = T.truncdiv(a[place], divisor)

    @R.function
    def main(a: R.Tensor((4,), "int32"), b: R.Tensor((4,), "int32")) -> R.Tensor((4,), "int32"):
        cls = Bound
        with R.dataflow():
            c = R.call_tir(cls.quotient, (a, b), out_ty=R.Tensor((4,), "int32"))
            R.output(c)
        return c


def test_a_divisor_that_a_variable_holds() -> None:
    """It was read from a buffer too: a zero in it must not end the process."""
    values = [np.array([1, 2, 3, 4], "int32"), np.array([0, 1, 0, 2], "int32")]
    (result,) = in_child(lambda: Reference(Bound).run(values))
    np.testing.assert_array_equal(result, expected(*values)[0])
