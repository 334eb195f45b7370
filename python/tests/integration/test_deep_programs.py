# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Programs that are nested more deeply than Python's stack: calls, branches and tuples."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from tvm import ir, relax
from tvm.relax.op import add, matmul
from tvm.relax.transform import Normalize

import tvm_distir as td
from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.execution.runtime.program.tensors import flat_tensors
from tvm_distir.support.errors.tree import LoweringError
from tvm_distir.support.recursion import Steps, resumable, unrolled

SHAPE = relax.TensorType((4, 4), "float32")
PLAN = {"schema_version": 1, "mesh": {"tp": 2}, "rules": [{"param": "w", "placement": "S[1]"}]}
CALLS, BRANCHES, TUPLES = 500, 200, 200


def variables() -> list[Any]:
    return [relax.Var(name, SHAPE) for name in "xw"]


def chain(calls: int) -> ir.IRModule:
    """``f0(x, w) = x w``, and ``f_n(x, w) = f_(n-1)(x + w, w)``."""
    builder, callee = relax.BlockBuilder(), None
    for number in range(calls + 1):
        x, w = variables()
        name = "main" if number == calls else f"f{number}"
        attrs = {"num_input": 1} if number == calls else None
        with builder.function(name, [x, w], private=number < calls, attrs=attrs):
            with builder.dataflow():
                value = matmul(x, w)
                if callee is not None:
                    value = ir.Call(callee, [builder.emit(add(x, w)), w])
                out = builder.emit_output(value)
            callee = builder.emit_func_output(out)
    return builder.get()


def branches(depth: int) -> ir.IRModule:
    """``x + w`` inside of so many branches; each of the others is ``x w``."""
    cond, (x, w) = relax.Var("cond", relax.TensorType((), "bool")), variables()

    def body(value: Any, name: str) -> relax.SeqExpr:
        var = relax.Var(name, SHAPE)
        return relax.SeqExpr([relax.BindingBlock([relax.VarBinding(var, value)])], var)

    inner = body(add(x, w), "y")
    for number in range(depth):
        other = body(matmul(x, w), f"other{number}")
        inner = body(relax.If(cond, inner, other), f"y{number}")
    attrs = ir.make_node("ir.DictAttrs", global_symbol="main", num_input=2)
    mod = ir.IRModule({"main": relax.Function([cond, x, w], inner, SHAPE, attrs=attrs)})
    return Normalize()(mod)


def tuples(depth: int) -> ir.IRModule:
    """``relu(x w)``, put into so many tuples and taken out of them."""
    builder, (x, w) = relax.BlockBuilder(), variables()
    with builder.function("main", [x, w], attrs={"num_input": 1}):
        with builder.dataflow():
            value = builder.emit(matmul(x, w))
            for _ in range(depth):
                value = builder.emit(relax.Tuple([value, x]))
            for _ in range(depth):
                value = builder.emit(relax.TupleGetItem(value, 0))
            out = builder.emit_output(relax.op.nn.relu(value))
        builder.emit_func_output(out)
    return builder.get()


def test_a_long_chain_of_calls_goes_all_the_way() -> None:
    assert sys.getrecursionlimit() <= 1000 < 3 * CALLS
    mod = chain(CALLS)
    program = td.export(td.distribute(mod, PLAN))
    result = td.simulate(program, "h100")
    assert len(program.functions) == CALLS + 1
    assert result.peak_memory_bytes > 0
    assert td.verify(mod, PLAN, engine="virtual").equal


def test_a_long_chain_of_calls_is_differentiated() -> None:
    step = td.train_step(chain(CALLS), loss="mse")
    assert len([gv for gv in step.get_global_vars() if "backward" in str(gv.name_hint)]) == CALLS


def test_a_chain_of_calls_trains() -> None:
    step = td.train_step(chain(60), loss="mse")
    assert td.verify(step, PLAN).equal


def test_a_loss_that_is_a_chain_of_calls_is_split_into_micro_batches() -> None:
    """The mean of squares behind so many functions, each of which hands it on."""
    builder, callee = relax.BlockBuilder(), None
    for number in range(CALLS):
        x, targets = (relax.Var(name, SHAPE) for name in ("x", "targets"))
        name = "loss" if number == CALLS - 1 else f"loss{number}"
        with builder.function(name, [x, targets], private=True):
            with builder.dataflow():
                if callee is None:
                    error = builder.emit(relax.op.subtract(x, targets))
                    value = relax.op.mean(builder.emit(relax.op.square(error)))
                else:
                    value = ir.Call(callee, [x, targets])
                out = builder.emit_output(builder.emit(value))
            callee = builder.emit_func_output(out)
    losses = builder.get()
    mod = chain(0)
    functions = {**dict(mod.functions), **dict(losses.functions)}
    joined = ir.IRModule(functions, attrs=mod.attrs)
    step = td.train_step(joined, "loss", schedule="gpipe:stages=1,micro_batches=2")
    plain = td.train_step(mod, "mse", schedule="gpipe:stages=1,micro_batches=2")
    values = [np.random.default_rng(0).normal(size=(8, 4)).astype("float32") for _ in range(2)]
    weight = np.eye(4, dtype="float32")
    results = [
        Reference(td.transforms.SerializePipeline()(made)).run([values[0], values[1], weight])
        for made in (step, plain)
    ]
    for got, expected in zip(*results, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6)


@pytest.mark.parametrize("mod", [branches(BRANCHES), tuples(TUPLES)], ids=["branches", "tuples"])
def test_deep_nesting_goes_all_the_way(mod: ir.IRModule) -> None:
    assert td.simulate(td.export(td.distribute(mod, PLAN)), "h100").time_s > 0
    assert td.verify(mod, PLAN, engine="virtual").equal


def test_what_is_nested_too_deeply_is_refused_by_its_depth() -> None:
    with pytest.raises(LoweringError, match=r"DIST0513 .* 1000 levels"):
        td.distribute(tuples(1000), PLAN)


def test_the_leaves_of_a_deeply_nested_result_are_found() -> None:
    nested: list[object] = [1, 2]
    for number in range(3, 3003):
        nested = [nested, number]
    assert flat_tensors(nested) == list(range(1, 3003))
    assert flat_tensors(tvm_ffi.Array([tvm_ffi.Array([4, 5]), 6])) == [4, 5, 6]


def test_a_recursion_pauses_where_it_yields_none() -> None:
    def count(depth: int) -> Steps[int]:
        yield None
        return depth and 1 + (yield count(depth - 1))

    steps = resumable(count(3000))
    assert sum(1 for _ in steps) == 3001

    def quick(depth: int) -> Steps[int]:
        return depth and 1 + (yield quick(depth - 1))

    assert unrolled(quick(3000)) == 3000
