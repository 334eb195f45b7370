# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Variables bound to constants, as LegalizeOps and the PyTorch importer leave them behind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax

import tvm_distir as td
from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.support import GenericConst

ROW = np.arange(8, dtype="float32") - 3
ROWS = np.arange(32, dtype="float32").reshape(4, 8)
PLACEMENTS = ("S[0]", "S[1]", "R")


def made(write: Any) -> Any:
    """Module whose `main` takes x (4, 8) and returns what ``write(builder, x)`` names."""
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([4, 8], "float32"))
    with bb.function("main", [x], attrs={"num_input": 1}):
        with bb.dataflow():
            out = bb.emit_output(write(bb, x))
        bb.emit_func_output(out)
    return bb.get()


def added(bb: Any, x: Any) -> Any:
    return relax.op.add(x, bb.emit(relax.const(ROW)))


def scalar(bb: Any, x: Any) -> Any:
    return relax.op.multiply(x, bb.emit(relax.const(2.0, "float32")))


def twice_named(bb: Any, x: Any) -> Any:
    return relax.op.add(x, bb.emit(bb.emit(relax.const(ROW))))


def field(bb: Any, x: Any) -> Any:
    pair = bb.emit(relax.Tuple([x, relax.const(ROW)]))
    return relax.op.add(bb.emit(relax.TupleGetItem(pair, 0)), bb.emit(relax.TupleGetItem(pair, 1)))


def nested_field(bb: Any, x: Any) -> Any:
    row = bb.emit(relax.const(ROW))
    inner = relax.Tuple([row, x])
    pair = bb.emit(relax.Tuple([inner, row]))
    inner = bb.emit(relax.TupleGetItem(pair, 0))
    return relax.op.add(x, bb.emit(relax.TupleGetItem(inner, 0)))


def cast(bb: Any, x: Any) -> Any:
    row = bb.emit(relax.const(ROW))
    return relax.op.add(x, bb.match_cast(row, relax.TensorType([8], "float32")))


def joined(bb: Any, x: Any) -> Any:
    parts = bb.emit(relax.Tuple([bb.emit(relax.const(ROWS)), x]))
    return relax.op.concat(parts, axis=0)


def cut(bb: Any, x: Any) -> Any:
    """A constant that has to be cut like x."""
    return relax.op.matmul(x, bb.emit(relax.const(ROWS.T.copy())))


CASES = [added, scalar, twice_named, field, nested_field, joined, cut, cast]


def plan_of(placement: str) -> td.Plan:
    rules = [{"param": "x", "placement": placement}]
    return td.Plan.from_dict({"schema_version": 1, "mesh": {"a": 2}, "rules": rules})


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("write", CASES, ids=lambda case: case.__name__)
def test_a_named_constant_is_the_constant(write: Any, placement: str) -> None:
    mod = made(write)
    assert td.verify(mod, plan_of(placement), engine="virtual").equal


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_returned_constant(placement: str) -> None:
    """Verification refuses outputs that no input moves, so the numbers are compared here."""

    def write(bb: Any, x: Any) -> Any:
        row = bb.emit(relax.const(ROW))
        return relax.Tuple([relax.op.add(x, x), row, relax.Tuple([row, x])])

    mod = made(write)
    assert any(isinstance(b.value, GenericConst) for b in bindings(mod))
    inputs = np.random.default_rng(0).standard_normal((4, 8), dtype="float32")
    result = td.run(td.distribute(mod, plan_of(placement)), [inputs], engine="virtual")
    for got, want in zip(result, Reference(mod).run([inputs]), strict=True):
        np.testing.assert_array_equal(got, want)


def bindings(mod: Any) -> list[Any]:
    return [b for block in mod["main"].body.blocks for b in block.bindings]


BRANCHES = """
@I.ir_module
class M:
    @R.function(private=True)
    def f(x: R.Tensor((4, 8), "float32"), c: R.Tensor((), "float32")):
        with R.dataflow():
            d = R.const(3.0, "float32")
            y = R.multiply(x, c)
            R.output(y, d)
        return (y, d)

    @R.function
    def main(x: R.Tensor((4, 8), "float32"), take: R.Tensor((), "bool")):
        R.func_attr({"num_input": 2})
        c = R.const(2.0, "float32")
        t = M.f(x, c)
        if take:
            a = R.const(5.0, "float32")
            z = R.add(t[0], a)
        else:
            b = t[1]
            z = R.multiply(t[0], b)
        return z
"""


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_constants_through_functions_and_branches(placement: str) -> None:
    mod = td.from_tvmscript(BRANCHES)
    assert td.verify(mod, plan_of(placement), engine="virtual").equal
