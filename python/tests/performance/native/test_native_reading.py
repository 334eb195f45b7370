# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Which bindings the native sweep calls alike, and what it says that they read."""

import pytest
from tvm import relax
from tvm.relax import op

from tvm_distir.core.ir.handles import handle
from tvm_distir.core.rewriting.native.function_index import (
    ITEM,
    OP_CALL,
    TUPLE,
    read_functions,
    read_module,
)
from tvm_distir.core.rewriting.substitute import variables
from tvm_distir.support.errors.tree import LoweringError

pytestmark = pytest.mark.usefixtures("kernels")


def function(*values):
    """``main(x, y, z)`` of (4, 4), (4, 4) and (4, 2) that binds each of the values."""
    builder = relax.BlockBuilder()
    shapes = {"x": (4, 4), "y": (4, 4), "z": (4, 2)}
    params = [relax.Var(n, relax.TensorType(s, "float32")) for n, s in shapes.items()]
    with builder.function("main", params):
        created = [builder.emit(value(*params)) for value in values]
        builder.emit_func_output(created[-1])
    return builder.get()["main"]


def alike(left, other):
    (reading,) = read_functions([function(left, other)])
    first, second = reading.like
    return first == second


PAIRS = {
    "other variables": (lambda x, y, z: op.add(x, y), lambda x, y, z: op.add(y, x), True),
    "one variable twice": (lambda x, y, z: op.add(x, y), lambda x, y, z: op.add(x, x), True),
    "another op": (lambda x, y, z: op.add(x, y), lambda x, y, z: op.subtract(x, y), False),
    "an attribute": (lambda x, y, z: op.sum(x, 0), lambda x, y, z: op.sum(x, 1), False),
    "a type": (lambda x, y, z: op.exp(x), lambda x, y, z: op.exp(z), False),
    "an argument that is no tensor": (
        lambda x, y, z: op.reshape(x, (2, 8)),
        lambda x, y, z: op.reshape(x, (8, 2)),
        False,
    ),
    "the data of a constant": (
        lambda x, y, z: op.add(x, relax.const(1.0)),
        lambda x, y, z: op.add(x, relax.const(2.0)),
        True,
    ),
    "the type of a constant": (
        lambda x, y, z: op.take(x, relax.const([1, 1], "int32"), 0),
        lambda x, y, z: op.take(x, relax.const([1, 1], "int64"), 0),
        False,
    ),
    "a constant for a variable": (
        lambda x, y, z: op.add(x, y),
        lambda x, y, z: op.add(x, relax.const([[0.0] * 4] * 4, "float32")),
        False,
    ),
    "the order of a tuple": (
        lambda x, y, z: op.concat([x, z], 1),
        lambda x, y, z: op.concat([z, x], 1),
        False,
    ),
    "the place of a tuple": (
        lambda x, y, z: op.concat([x, y], 1),
        lambda x, y, z: op.concat([y, x], 1),
        True,
    ),
}


@pytest.mark.parametrize("case", PAIRS)
def test_what_makes_calls_alike(case):
    single, other, expected = PAIRS[case]
    assert alike(single, other) is expected


def test_fields_of_a_tuple_are_told_apart():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 4), "float32"))
    with builder.function("main", [x]):
        parts = builder.emit(op.split(x, 2, 0))
        fields = [builder.emit(relax.TupleGetItem(parts, i)) for i in (0, 1, 0)]
        builder.emit_func_output(builder.emit(relax.Tuple(fields)))
    (reading,) = read_functions([builder.get()["main"]])
    assert list(reading.kinds) == [OP_CALL, ITEM, ITEM, ITEM, TUPLE]
    assert reading.like[1] == reading.like[3] != reading.like[2]


def test_reads_are_those_of_a_walk():
    fn = function(*(value for left, other, _ in PAIRS.values() for value in (left, other)))
    (reading,) = read_functions([fn])
    for number, value in enumerate(reading.values):
        read = [reading.variables[n] for n in reading.used(number) if n >= 0]
        assert [handle(v) for v in read] == [handle(v) for v in variables(value)]
    assert reading.names == [v.name for v in reading.variables]
    assert [handle(reading.variables[n]) for n in reading.result] == [handle(fn.body.body)]


def test_classes_are_those_of_all_functions_read_together():
    call = lambda x, y, z: op.add(x, y)  # noqa: E731
    first, other = read_functions([function(call), function(PAIRS["another op"][1], call)])
    assert first.like[0] == other.like[1] != other.like[0]


def test_classes_are_those_of_all_modules():
    call = lambda x, y, z: op.add(x, y)  # noqa: E731
    (single,), (other,) = read_functions([function(call)]), read_functions([function(call)])
    assert single.like == other.like
    assert single.types == other.types


def test_a_class_that_mentions_a_function_is_of_its_module():
    """Two functions of a name may do different things, and callees are told apart by address."""

    def calls():
        builder = relax.BlockBuilder()
        inner = builder.add_func(function(lambda x, y, z: op.add(x, y)), "inner")
        shapes = {"x": (4, 4), "y": (4, 4), "z": (4, 2)}
        params = [relax.Var(n, relax.TensorType(s, "float32")) for n, s in shapes.items()]
        with builder.function("main", params):
            first, second = (builder.emit(relax.Call(inner, params)) for _ in range(2))
            builder.emit_func_output(builder.emit(op.add(first, second)))
        return read_functions([builder.get()["main"]])[0].like

    left, other = calls(), calls()
    assert left[0] == left[1]
    assert left[0] not in other
    assert left[2] == other[2]


def test_a_branch_is_refused_by_name():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    c = relax.Var("c", relax.TensorType((), "bool"))
    with builder.function("main", [x, c]):
        seqs = [
            relax.SeqExpr([relax.BindingBlock([relax.VarBinding(v, value)])], v)
            for v, value in ((relax.Var("p", x.ty), op.exp(x)), (relax.Var("q", x.ty), op.abs(x)))
        ]
        builder.emit_func_output(builder.emit(relax.If(c, *seqs)))
    mod = builder.get()
    with pytest.raises(LoweringError, match=r"DIST0504 main/.* \(If\)"):
        read_module(mod)
