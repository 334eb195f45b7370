# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The native sweep over a function against TVM's own comparison, node by node."""

from __future__ import annotations

import pytest
import tvm
import tvm_ffi
from tvm import ir, relax

import tvm_distir as td
from tvm_distir.core.ir.types import static_shape
from tvm_distir.core.ops.lookup import rule_of
from tvm_distir.core.rewriting.native.survey import survey
from tvm_distir.models import zoo
from tvm_distir.support import GenericConst

pytestmark = pytest.mark.usefixtures("kernels")

ANNOTATE = ir.Op.get("relax.dist.annotate_sharding")


def bindings(fn):
    return [b for block in fn.body.blocks for b in block.bindings]


def variables(fn):
    return [*fn.params, *[b.var for b in bindings(fn)]]


def is_known(ty):
    shape = static_shape(ty)
    return (
        isinstance(ty, relax.TensorType)
        and shape is not None
        and all(isinstance(n, int) for n in shape)
    )


def first_of_type(fn):
    """Index of the first variable of the same known tensor type, by structural equality."""
    types = [v.ty for v in variables(fn)]
    return [
        next(j for j, other in enumerate(types) if tvm_ffi.structural_equal(other, ty))
        if is_known(ty)
        else -1
        for ty in types
    ]


def flat(expr, numbers):
    if isinstance(expr, relax.Tuple):
        return [n for field in expr.fields for n in flat(field, numbers)]
    if isinstance(expr, relax.Var):
        return [numbers.index(expr.__chandle__())]
    return [-1] if isinstance(expr, GenericConst) else []


def kinds(expr):
    """What an argument is, apart from which variable it is."""
    if isinstance(expr, relax.Tuple):
        return [kinds(field) for field in expr.fields]
    if isinstance(expr, relax.Var | GenericConst):
        return type(expr) is GenericConst, str(expr.ty)
    return str(expr)


def check(fn):
    result = survey(fn, ANNOTATE)
    numbers = [v.__chandle__() for v in variables(fn)]
    assert result.names == [v.name for v in variables(fn)]
    assert list(result.handles) == numbers
    assert list(result.hidden) == [isinstance(v, relax.DataflowVar) for v in variables(fn)]
    assert list(result.first) == first_of_type(fn)
    calls, requests = [], {}
    for i, b in enumerate(bindings(fn)):
        value = b.value
        is_call = isinstance(b, relax.VarBinding) and isinstance(value, ir.Call)
        annotated = is_call and ANNOTATE.same_as(value.op)
        assert result.sources[i] == (flat(value.args[0], numbers)[0] if annotated else -1)
        if annotated and result.first[result.sources[i]] >= 0:
            attrs = value.attrs
            label = (attrs.device_mesh.__chandle__(), attrs.placement.__chandle__(), str(b.var.ty))
            assert result.asked[i] == requests.setdefault(label, i)
        else:
            assert result.asked[i] == -1
        if result.like[i] < 0:
            assert result.classes[i] == -1
            continue
        operands = [n for a in value.args for n in flat(a, numbers)]
        assert list(result.operands[result.begin[i] : result.begin[i + 1]]) == operands
        attrs = tvm_ffi.structural_hash(value.attrs) if value.attrs is not None else None
        args = [kinds(a) for a in value.args]
        callee = getattr(value.op, "name", None) or value.op.name_hint
        label = (callee, attrs, str(value.ty_args), str(b.var.ty), args)
        calls.append((i, label))
    for i, label in calls:
        assert result.like[i] == next(j for j, other in calls if other == label)
        mentioned = [bindings(fn)[i].value.op, *bindings(fn)[i].value.args]
        if any(isinstance(part, ir.GlobalVar) for part in mentioned):
            assert result.classes[i] == -1
        else:
            assert result.classes[i] >= 0
            assert result.classes[i] == result.classes[result.like[i]]
    reported = {result.like[i]: result.classes[i] for i, _ in calls if result.classes[i] >= 0}
    assert len(set(reported.values())) == len(reported)
    return result, [i for i, _ in calls]


def test_a_training_step():
    mod = zoo.gpt(layers=2, hidden=32, heads=4, vocab=64, seq=8, batch=2, nested=0)
    fn = td.train_step(mod)["main"]
    result, reported = check(fn)
    assert len(reported) > 100
    assert len({result.like[i] for i in reported}) < len(reported) / 2


MIXED = """
@I.ir_module
class Module:
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})
    @R.function
    def main(
        x: R.Tensor((4, 8), "float32"),
        n: R.Tensor(("m", 8), "float32"),
        o: R.Tensor(("p", 8), "float32"),
        u: R.Tensor(ndim=2, dtype="float32"),
        i: R.Tensor((4, 8), "int32"),
    ):
        with R.dataflow():
            a = R.dist.annotate_sharding(x, device_mesh="mesh[0]", placement="S[0]")
            b = R.add(a, x)
            s = R.split(b, 2, axis=1)
            s0 = s[0]
            c = R.concat((s0, s0), axis=1)
            c2 = R.concat((c, c), axis=1)
            d = R.add(n, n)
            e = R.add(d, n)
            f = R.add(o, o)
            g = R.add(c, R.const(1.0))
            h = R.add(b, R.const(2.0))
            j = R.add(b, R.const([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]))
            q = R.match_cast(u, R.Tensor((4, 8), "float32"))
            r = R.add(q, q)
            t = R.split(r, 2, axis=0)
            v = R.split(r, 2, axis=1)
            R.output(r, e, f, g, h, j, t, v, c2)
        return (r, e, f, g, h, j, t, v, c2, i)
"""


def test_tuples_symbols_constants_and_casts():
    fn = tvm.script.from_source(MIXED)["main"]
    names = [b.var.name for b in bindings(fn)]
    result, reported = check(fn)
    like = {names[i]: names[result.like[i]] for i in reported}
    assert like["r"] == like["b"] == "b"  # what a cast gives has the type it casts to
    assert like["h"] == "g"  # constants of one type
    assert like["j"] == "j"
    assert like["d"] == like["e"] == "d"  # one symbol
    assert like["f"] == "f"  # another
    assert like["v"] == "s"  # equal attributes
    assert like["t"] == "t"  # others
    assert "s0" not in like and "q" not in like


def test_names():
    fn = tvm.script.from_source(MIXED)["main"]
    result = survey(fn, ANNOTATE, ["d", "no_such_name", "v"])
    assert [b.var.name for b, hit in zip(bindings(fn), result.named) if hit] == ["d", "v"]


def test_what_is_no_function():
    with pytest.raises(TypeError, match="Function is needed"):
        survey(relax.const(1.0), ANNOTATE)


def test_calls_of_functions():
    mod = zoo.gpt(layers=3, hidden=32, heads=4, vocab=64, seq=8, batch=2, nested=1)
    fn = mod["main"]
    result, reported = check(fn)
    calls = [i for i in reported if isinstance(bindings(fn)[i].value.op, ir.GlobalVar)]
    assert len(calls) == 3 and {result.like[i] for i in calls} == {calls[0]}


def test_classes_are_those_of_all_functions():
    """What one function has learnt of a class of calls holds in the others."""
    single, two = (
        td.train_step(zoo.gpt(layers=n, hidden=32, heads=4, vocab=64, seq=8, batch=2, nested=0))
        for n in (1, 2)
    )
    first, second = (survey(mod["main"], ANNOTATE) for mod in (single, two))
    shared = set(first.classes) & set(second.classes) - {-1}
    assert len(shared) > 30
    for kind in shared:
        a, b = (
            bindings(mod["main"])[list(result.classes).index(kind)].value
            for mod, result in ((single, first), (two, second))
        )
        assert a.op.same_as(b.op) and [kinds(x) for x in a.args] == [kinds(x) for x in b.args]
        assert tvm_ffi.structural_equal(a.attrs, b.attrs)
        assert rule_of(a).factors == rule_of(b).factors
