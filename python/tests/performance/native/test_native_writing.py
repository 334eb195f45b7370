# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Calls written natively against the same written one by one, and classes against union by hand."""

from __future__ import annotations

import random

import pytest
import tvm
from tvm import relax
from tvm.script import from_source

from tvm_distir.core.ir.handles import handle
from tvm_distir.core.rewriting.native.call_rewriting import CallWriter
from tvm_distir.core.rewriting.native.function_index import unpack
from tvm_distir.core.rewriting.native.union_find import union_find
from tvm_distir.core.rewriting.nodes import make_binding, make_call, make_var
from tvm_distir.support import GenericConst

pytestmark = pytest.mark.usefixtures("kernels")

SOURCE = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((4, 4)), y: R.Tensor((4, 4))) -> R.Tensor((2, 8)):
        with R.dataflow():
            a: R.Tensor((4, 4)) = R.add(x, y)
            b: R.Tensor((2, 8)) = R.reshape(a, (2, 8))
            c: R.Tensor((2, 8)) = R.multiply(b, R.const(2.0, "float32"))
            d: R.Tensor((4, 8)) = R.concat((c, c), axis=0)
            e: R.Tensor((2, 8)) = R.nn.softmax(c, axis=1)
            R.output(c, e)
        return e
"""
PLAIN, OTHER = relax.TensorType((4, 4), "float16"), relax.TensorType((2, 8), "float16")
WHICH = [0, 1, 1, 1, 1]


@pytest.fixture(scope="module")
def function():
    return from_source(SOURCE)["main"]


def opened(function, which, dataflow=True, inside=()):
    """A writer that knows other parameters, these, and what it asked of constants."""
    requests, known = [], [make_var(str(p.name), PLAIN) for p in function.params]

    def constant(old, number):
        requests.append((old, number))
        return relax.const(old.value.numpy().astype("float16"))

    writer = CallWriter(constant)
    writer.know([handle(p) for p in function.params], known)
    block = function.body.blocks[0].bindings
    writer.open(block, [PLAIN, OTHER], which, dataflow, inside)
    return writer, known, requests


def test_calls_are_as_written_one_by_one(function):
    writer, known, requests = opened(function, WHICH)
    old = unpack(function.body.blocks[0].bindings)
    variables, bindings = writer.write(0)
    assert len(variables) == len(bindings) == 3  # the fourth takes a tuple
    assert [number for _, number in requests] == [1]
    read = dict(zip(map(handle, function.params), known))
    for binding, var, new, number in zip(old, variables, bindings, WHICH):
        call, ty = binding.value, (PLAIN, OTHER)[number]
        args = [read.get(handle(arg), arg) for arg in call.args]
        if type(args[-1]) is GenericConst:
            args[-1] = new.value.args[-1]
        single = make_call(call.op, args, call.attrs, call.ty_args, ty)
        created = make_var(str(binding.var.name), ty, type(binding.var) is relax.DataflowVar)
        expected = make_binding(created, single)
        tvm.ir.assert_structural_equal(new, expected, map_free_vars=True)
        assert new.var.same_as(var) and type(var) is type(created) and var.name == created.name
        assert all(a.same_as(b) for a, b in zip(new.value.args, args))
        read[handle(binding.var)] = var
    assert writer.write(3) == ([], [])
    assert len(writer.write(4)[0]) == 1  # what was written is known


def test_what_others_write_is_left_to_them(function):
    writer, _, _ = opened(function, [0, -1, 1, 1, 1])
    assert len(writer.write(0)[0]) == 1
    assert writer.write(2) == ([], [])  # it reads what nobody told of
    b = make_var("b", OTHER)
    old = unpack(function.body.blocks[0].bindings)
    writer.know([handle(old[1].var)], [b])
    (_,), (binding,) = writer.write(2)
    assert binding.value.args[0].same_as(b)


@pytest.mark.parametrize(("dataflow", "hidden"), [(True, [True, True]), (False, [False, False])])
def test_what_a_block_hides(function, dataflow, hidden):
    old = unpack(function.body.blocks[0].bindings)
    writer, _, _ = opened(function, [0, 1, 1, -1, -1], dataflow, [handle(old[2].var)])
    (a, _, c), _ = writer.write(0)
    assert [type(v) is relax.DataflowVar for v in (a, c)] == hidden


@pytest.mark.parametrize("kernels", ["native"], indirect=True)
def test_writer_refuses_what_does_not_fit(function):
    writer, known, _ = opened(function, WHICH)
    block = function.body.blocks[0].bindings
    with pytest.raises(ValueError, match="a type for each binding"):
        writer.open(block, [PLAIN], [0], True)
    with pytest.raises(IndexError, match="5 is not in"):
        writer.open(block, [PLAIN], [0, 0, 0, 0, 5], True)
    with pytest.raises(ValueError, match="an expression for each handle"):
        writer.know([1, 2], known[:1])
    with pytest.raises(IndexError, match="no binding -1"):
        writer.write(-1)


def test_classes():
    draw = random.Random(7)
    for _ in range(50):
        count = draw.randint(1, 30)
        groups = [
            draw.choices(range(count), k=draw.randint(1, 4)) for _ in range(draw.randint(0, 12))
        ]
        sets = [{x} for x in range(count)]
        for group in groups:
            joined = set().union(*(s for s in sets if s & set(group)))
            sets = [s for s in sets if not s & joined] + [joined]
        lowest = {x: min(s) for s in sets for x in s}
        flat = [x for group in groups for x in (len(group), *group)]
        assert union_find(count, flat) == tuple(lowest[x] for x in range(count))
    for count, groups, kind in (
        (2, [3, 0, 1], ValueError),
        (2, [0], ValueError),
        (2, [1, 2], IndexError),
    ):
        with pytest.raises(kind):
            union_find(count, groups)
