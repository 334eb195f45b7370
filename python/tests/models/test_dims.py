# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Symbolic dims get sizes: in ONNX files, in TVMScript, in functions that are called."""

from __future__ import annotations

import pytest
import tvm_ffi
from onnx import TensorProto, helper
from tvm import relax

import tvm_distir as td
from tvm_distir.models.model import load_model
from tvm_distir.models.tvmscript import from_tvmscript
from tvm_distir.support.errors.tree import ModelError

HEAD = """
from tvm.script import ir as I
from tvm.script import relax as R


@I.ir_module
class Module:
"""

LAYERS = (
    HEAD
    + """
    @R.function(private=True)
    def layer(
        x: R.Tensor(("b", "s", 8), "float32"), w: R.Tensor((8, 8), "float32")
    ) -> R.Tensor(("b", "s", 8), "float32"):
        with R.dataflow():
            y = R.matmul(x, w)
            z = R.nn.relu(y)
            R.output(z)
        return z

    @R.function
    def main(
        x: R.Tensor(("batch", "seq", 8), "float32"), w: R.Tensor((8, 8), "float32")
    ) -> R.Tensor(("batch", "seq", 8), "float32"):
        cls = Module
        with R.dataflow():
            a = cls.layer(x, w)
            z = cls.layer(a, w)
            R.output(z)
        return z
"""
)

SIZES = (
    HEAD
    + """
    @R.function(private=True)
    def twice(x: R.Tensor(("k",), "float32")) -> R.Tensor(("k * 2",), "float32"):
        with R.dataflow():
            z = R.concat((x, x), axis=0)
            R.output(z)
        return z

    @R.function
    def main(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n * 4",), "float32"):
        cls = Module
        with R.dataflow():
            a = cls.twice(x)
            z = cls.twice(a)
            R.output(z)
        return z
"""
)


def static(text: str, **sizes: int) -> str:
    """The module of a text with numbers in place of names."""
    for name, size in sizes.items():
        text = text.replace(f'"{name}"', str(size))
    return text


def test_callees_have_the_sizes_of_their_calls() -> None:
    bound = from_tvmscript(LAYERS, dims={"batch": 4, "seq": 16})
    same = from_tvmscript(static(LAYERS, batch=4, seq=16, b=4, s=16))
    tvm_ffi.structural_equal(bound, same) or pytest.fail(str(bound))
    tvm_ffi.structural_equal(
        td.bind_dims(td.bind_dims(from_tvmscript(LAYERS), {"seq": 16}), {"batch": 4}), same
    ) or pytest.fail("one by one")


def test_a_callee_at_two_sizes_becomes_two() -> None:
    bound = from_tvmscript(SIZES, dims={"n": 3})
    shapes = {
        str(gv.name_hint): [int(n) for n in fn.params[0].ty.shape]
        for gv, fn in bound.functions.items()
    }
    assert shapes == {"main": [3], "twice": [3], "twice_1": [6]}
    relax.analysis.well_formed(bound)
    assert [int(n) for n in bound["main"].ret_ty.shape] == [12]


def test_a_bound_module_is_distributed_and_an_open_one_keeps_its_dims() -> None:
    plan = td.planning.compose(
        from_tvmscript(LAYERS, dims={"batch": 4, "seq": 16}),
        {"dp": 2},
        td.planning.parse("data_parallel"),
    )
    td.distribute(from_tvmscript(LAYERS, dims={"batch": 4, "seq": 16}), plan)
    dist = td.distribute(from_tvmscript(LAYERS), plan)
    assert [str(n) for n in dist["main"].params[0].ty.shape][:2] == ["batch", "seq"]
    assert dict(dist["main"].attrs["dist.io"]["dims"].items()) == {"batch": 2, "seq": 1}


@pytest.mark.parametrize(
    ("dims", "word"),
    [({"sek": 4}, '"seq"'), ({"seq": 0}, "seq=0"), ({"seq": True}, "True"), ({"b": 4}, "batch")],
)
def test_what_no_dim_can_be(dims: dict[str, int], word: str) -> None:
    with pytest.raises(ModelError) as caught:
        from_tvmscript(LAYERS, dims=dims)
    assert caught.value.code == "DIST0313" and word in str(caught.value)


def test_the_zoo_has_keys_instead() -> None:
    with pytest.raises(ModelError, match=r"DIST0313 .*zoo:gpt\?seq=4"):
        load_model("zoo:gpt?size=tiny", dims={"seq": 4})


def onnx_model(*dims: str | int | None) -> object:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, list(dims))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    graph = helper.make_graph(nodes, "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def test_dims_of_onnx_by_name_by_sum_and_by_place() -> None:
    model = onnx_model("batch", "past + seq", "2*heads", None)
    mod = td.from_onnx(model, dims={"batch": 2, "past": 3, "seq": 4, "heads": 5, "x.3": 7})
    assert [int(n) for n in mod["main"].params[0].ty.shape] == [2, 7, 10, 7]


def test_all_open_dims_of_onnx_are_told_with_their_options() -> None:
    with pytest.raises(ModelError) as caught:
        td.from_onnx(onnx_model("batch", "past + seq", None), dims={"past": 3})
    assert caught.value.code == "DIST0313"
    assert "--dim batch=N --dim seq=N --dim x.2=N" in caught.value.remedy
    assert 'dims={"batch": N, "seq": N, "x.2": N}' in caught.value.remedy
    with pytest.raises(ModelError, match=r'there is no dim "sek".*"seq"'):
        td.from_onnx(onnx_model("batch", "seq"), dims={"sek": 3})
