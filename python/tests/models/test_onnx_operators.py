# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""ONNX operators that TVM's importer writes as PrimFuncs, reads wrongly, or cannot read."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from tvm import tirx

import tvm_distir as td
from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.execution.runtime.program.dist_io import entries
from tvm_distir.models.frontends import load_weights
from tvm_distir.planning import strategies as strategy
from tvm_distir.support.errors.tree import ModelError, PropagationError

RNG = np.random.default_rng(0)


def model_of(
    op: str,
    shape: tuple[int, ...] = (4, 6),
    constants: dict[str, Any] | None = None,
    kind: int = TensorProto.FLOAT,
    opset: int = 17,
    outputs: int = 1,
    **attributes: Any,
) -> onnx.ModelProto:
    """A model of one node: the input x, then constants (an omitted operand is None)."""
    constants = constants or {}
    names = ["x", *(name if value is not None else "" for name, value in constants.items())]
    results = [f"y{i}" for i in range(outputs)]
    graph = helper.make_graph(
        [helper.make_node(op, names, results, **attributes)],
        "one",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in results],
        [numpy_helper.from_array(v, n) for n, v in constants.items() if v is not None],
    )
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def ints(*values: int) -> Any:
    return np.asarray(values, "int64")


def number(value: float) -> Any:
    return np.asarray(value, "float32")


WRITTEN = {
    "einsum transpose": model_of("Einsum", equation="ij->ji"),
    "einsum row sums": model_of("Einsum", equation="ij->i"),
    "pad constant": model_of("Pad", constants={"p": ints(0, 1, 0, 2)}),
    "pad with 3": model_of("Pad", constants={"p": ints(0, 1, 0, 2), "v": number(3)}),
    "pad the cut dim": model_of("Pad", constants={"p": ints(2, 0, 1, 0), "v": number(3)}),
    "pad reflect": model_of("Pad", constants={"p": ints(1, 1, 1, 1)}, mode="reflect"),
    "pad edge": model_of("Pad", constants={"p": ints(1, 1, 1, 1)}, mode="edge"),
    "pad wrap": model_of("Pad", constants={"p": ints(1, 1, 1, 1)}, mode="wrap", opset=19),
    "clip": model_of("Clip", constants={"a": number(-0.5), "b": number(0.5)}),
    "clip below": model_of("Clip", constants={"a": number(0.25)}),
    "clip above": model_of("Clip", constants={"none": None, "b": number(0.25)}),
    "cumsum reverse": model_of("CumSum", constants={"a": ints(1)[0]}, reverse=1),
    "tile": model_of("Tile", constants={"r": ints(2, 3)}),
    "resize a signal": model_of(
        "Resize", (2, 2, 8), {"r": None, "s": np.asarray([1, 1, 2], "float32")}, mode="linear"
    ),
}


def cuts(shape: tuple[int, ...]) -> list[str]:
    return [f"S[{d}]" for d in range(len(shape))] + ["R"]


def plan_of(placement: str) -> td.Plan:
    rules = [{"param": "x", "placement": placement}]
    return td.Plan.from_dict({"schema_version": 1, "mesh": {"a": 2}, "rules": rules})


@pytest.mark.parametrize("name", WRITTEN)
def test_what_the_importer_writes_as_primfuncs(name: str) -> None:
    """Its functions are kept, and every cut of the input gives ONNX's numbers."""
    model = WRITTEN[name]
    mod = td.from_onnx(model)
    shape = tuple(int(n) for n in mod["main"].params[0].ty.shape)
    assert any(isinstance(fn, tirx.PrimFunc) for _, fn in mod.functions.items())
    x = RNG.standard_normal(shape, dtype="float32")
    (want,) = ReferenceEvaluator(model).run(None, {"x": x})
    for placement in cuts(shape):
        (got,) = td.run(td.distribute(mod, plan_of(placement)), [x], engine="virtual")
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6, err_msg=placement)


def written_model() -> onnx.ModelProto:
    """A small network with padding, clipping, tiling and an Einsum between its layers."""
    nodes = [
        helper.make_node("Pad", ["x", "pads"], ["padded"], mode="edge"),
        helper.make_node("MatMul", ["padded", "up"], ["wide"]),
        helper.make_node("Clip", ["wide", "low", "high"], ["clipped"]),
        helper.make_node("MatMul", ["clipped", "down"], ["narrow"]),
        helper.make_node("Einsum", ["narrow", "narrow"], ["scores"], equation="bij,bkj->bik"),
        helper.make_node("Tile", ["scores", "twice"], ["y"]),
    ]
    stored = {
        "pads": ints(0, 0, 1, 0, 0, 1),
        "up": RNG.standard_normal((8, 16), dtype="float32"),
        "low": number(-1),
        "high": number(1),
        "down": RNG.standard_normal((16, 8), dtype="float32"),
        "twice": ints(1, 1, 2),
    }
    graph = helper.make_graph(
        nodes,
        "written",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 5, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 5, 10])],
        [numpy_helper.from_array(value, name) for name, value in stored.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize("engine", ["virtual", "threads"])
@pytest.mark.parametrize(("name", "axis"), [("data_parallel", "dp"), ("tensor_parallel", "tp")])
def test_a_network_of_primfuncs_by_strategy(name: str, axis: str, engine: str) -> None:
    model = written_model()
    mod = td.from_onnx(model)
    weights = load_weights(model)
    program = td.distribute(mod, strategy.make_plan(mod, name, {axis: 2}))
    ports = [port for entry in entries(program) for port in entry.inputs]
    assert any(label >= 0 for port in ports for label in port.labels)
    x = RNG.standard_normal((4, 5, 6), dtype="float32")
    (want,) = ReferenceEvaluator(model).run(None, {"x": x})
    (got,) = td.run(program, [x, weights["up"], weights["down"]], engine=engine)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_data_parallel_gathers_nothing_of_the_batch() -> None:
    """The rules derived from these PrimFuncs let dim 0 stay cut from the input to the result."""
    mod = td.from_onnx(written_model())
    program = td.distribute(mod, strategy.make_plan(mod, "data_parallel", {"dp": 2}))
    text = program.script()
    assert "R.dist.all_gather" not in text
    assert "R.dist.all_to_all" not in text
    assert [int(n) for n in program["main"].ret_ty.shape] == [2, 5, 10]


def gathered_constants() -> onnx.ModelProto:
    """The position embedding of a BERT that torch.onnx exports: indices shorter than the data."""
    nodes = [
        helper.make_node("GatherElements", ["d", "i"], ["e"], axis=1),
        helper.make_node("Add", ["x", "e"], ["y"]),
    ]
    stored = {
        "d": np.arange(1024, dtype="int64").reshape(2, 512) ** 2,
        "i": RNG.integers(-512, 512, (1, 16)),
    }
    graph = helper.make_graph(
        nodes,
        "gathered",
        [helper.make_tensor_value_info("x", TensorProto.INT64, [4, 16])],
        [helper.make_tensor_value_info("y", TensorProto.INT64, [4, 16])],
        [numpy_helper.from_array(value, name) for name, value in stored.items()],
    )
    opsets = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def test_constant_gather_elements_are_evaluated() -> None:
    model = gathered_constants()
    data, indices = (numpy_helper.to_array(t) for t in model.graph.initializer)
    want = np.asarray([data[0, i] for i in indices[0]])
    x = RNG.integers(0, 9, (4, 16))
    mod = td.from_onnx(model)
    (got,) = td.run(td.distribute(mod, plan_of("S[0]")), [x], engine="virtual")
    np.testing.assert_array_equal(got, x + want)


def test_constants_may_come_to_infinities_without_a_word() -> None:
    """As T5's logarithm of distances, of which the smallest are taken elsewhere."""
    graph = helper.make_graph(
        [helper.make_node("Log", ["c"], ["l"]), helper.make_node("Max", ["x", "l"], ["y"])],
        "logarithm",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 2])],
        [numpy_helper.from_array(np.asarray([0, 1], "float32"), "c")],
    )
    opsets = [helper.make_opsetid("", 18)]
    mod = td.from_onnx(helper.make_model(graph, opset_imports=opsets, ir_version=8))
    x = np.full((4, 2), -3, "float32")
    (got,) = td.run(td.distribute(mod, plan_of("S[0]")), [x], engine="virtual")
    np.testing.assert_array_equal(got, np.tile([-3, 0], (4, 1)))


@pytest.mark.parametrize(
    "given",
    [
        {"value_float": 0.5},
        {"value_floats": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]},
        {"value_int": 3},
        {"value_ints": [2, 1, 0, -1, -2, 4]},
    ],
    ids=str,
)
def test_constants_that_are_no_tensors(given: dict[str, Any], tmp_path: Any) -> None:
    whole = "int" in next(iter(given))
    kind = TensorProto.INT64 if whole else TensorProto.FLOAT
    nodes = [
        helper.make_node("Constant", [], ["k"], **given),
        helper.make_node("Add", ["x", "k"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, kind, (4, 6)) for name in "xy"]
    graph = helper.make_graph(nodes, "constants", ends[:1], ends[1:])
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")
    x = RNG.integers(-4, 5, (4, 6)).astype("int64" if whole else "float32")
    (result,) = Reference(td.load_model(str(tmp_path / "m.onnx")).mod).run([x])
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_array_equal(result, expected)
    assert result.dtype == expected.dtype


def test_topk_in_any_order_comes_in_sorted() -> None:
    model = model_of("TopK", constants={"k": ints(3)}, outputs=2, sorted=0)
    mod = td.from_onnx(model)
    x = RNG.permutation(24).astype("float32").reshape(4, 6)
    values, places = td.run(td.distribute(mod, plan_of("S[0]")), [x], engine="virtual")
    np.testing.assert_array_equal(values, np.sort(x, axis=1)[:, :-4:-1])
    np.testing.assert_array_equal(np.take_along_axis(x, places, 1), values)


def with_inputs(
    op: str, *inputs: tuple[int, tuple[int, ...]], opset: int = 18, **attributes: Any
) -> Any:
    """A model of one node, all operands of which are inputs: element type and shape of each."""
    names = [f"x{i}" for i in range(len(inputs))]
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], **attributes)],
        "one",
        [helper.make_tensor_value_info(n, t, s) for n, (t, s) in zip(names, inputs, strict=True)],
        [helper.make_tensor_value_info("y", TensorProto.UNDEFINED, None)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def sequence_input() -> onnx.ModelProto:
    model = with_inputs("SequenceLength", (TensorProto.FLOAT, (2,)))
    inner = helper.make_tensor_type_proto(TensorProto.FLOAT, [2])
    model.graph.input[0].type.CopyFrom(helper.make_sequence_type_proto(inner))
    return model


def optional_input() -> onnx.ModelProto:
    model = with_inputs("OptionalHasElement", (TensorProto.FLOAT, (2,)))
    inner = helper.make_tensor_type_proto(TensorProto.FLOAT, [2])
    model.graph.input[0].type.CopyFrom(helper.make_optional_type_proto(inner))
    return model


def stored_strings() -> onnx.ModelProto:
    model = with_inputs("Equal", (TensorProto.STRING, (2,)), (TensorProto.STRING, (2,)))
    model.graph.initializer.append(helper.make_tensor("x0", TensorProto.STRING, [2], [b"a", b"b"]))
    del model.graph.input[0]
    model.graph.initializer.append(helper.make_tensor("x1", TensorProto.STRING, [2], [b"a", b"c"]))
    del model.graph.input[0]
    return model


FLOATS, INT64 = TensorProto.FLOAT, TensorProto.INT64
REFUSED = {
    "string input": (
        "DIST0316", '"x0" is a tensor of string',
        lambda: with_inputs("Equal", (TensorProto.STRING, (2,)), (TensorProto.STRING, (2,))),
    ),
    "stored strings": ("DIST0316", "a tensor of string", stored_strings),
    "complex input": (
        "DIST0316", '"x0" is a tensor of complex64',
        lambda: with_inputs("Identity", (TensorProto.COMPLEX64, (2,))),
    ),
    "cast to 8-bit floats": (
        "DIST0316", "y (Cast): its result",
        lambda: with_inputs("Cast", (FLOATS, (2,)), opset=19, to=TensorProto.FLOAT8E4M3FN),
    ),
    "a type newer than the operator": (
        "DIST0310", "y (Cast)",
        lambda: with_inputs("Cast", (FLOATS, (2,)), opset=18, to=TensorProto.FLOAT8E4M3FN),
    ),
    "cast to strings": (
        "DIST0316", "y (Cast): its result",
        lambda: with_inputs("Cast", (FLOATS, (2,)), to=TensorProto.STRING),
    ),
    "sequence input": ("DIST0316", '"x0" is of sequence type', sequence_input),
    "optional input": ("DIST0316", '"x0" is of optional type', optional_input),
    "nonzero": ("DIST0317", "y (NonZero)", lambda: with_inputs("NonZero", (FLOATS, (2, 3)))),
    "unique": ("DIST0317", "y (Unique)", lambda: with_inputs("Unique", (FLOATS, (6,)))),
    "compress": (
        "DIST0317", "y (Compress)",
        lambda: with_inputs("Compress", (FLOATS, (2, 3)), (TensorProto.BOOL, (2,)), axis=0),
    ),
    "boxes": (
        "DIST0317", "y (NonMaxSuppression)",
        lambda: with_inputs("NonMaxSuppression", (FLOATS, (1, 6, 4)), (FLOATS, (1, 1, 6))),
    ),
    "expand by data": (
        "DIST0317", 'y (Expand): the size of its result depends on data: the operand "x1"',
        lambda: with_inputs("Expand", (FLOATS, (3, 1)), (INT64, (3,))),
    ),
    "reshape by data": (
        "DIST0317", "y (Reshape)",
        lambda: with_inputs("Reshape", (FLOATS, (3, 4)), (INT64, (2,))),
    ),
    "filled by data": (
        "DIST0317", "y (ConstantOfShape)", lambda: with_inputs("ConstantOfShape", (INT64, (2,))),
    ),
    "no kernel": (
        "DIST0312", "no kernel for R.power",
        lambda: with_inputs("Pow", (INT64, (4,)), (INT64, (4,))),
    ),
    "inf of one sign": (
        "DIST0312", "y (IsInf)", lambda: with_inputs("IsInf", (FLOATS, (4,)), detect_negative=0),
    ),
    "training dropout": (
        "DIST0312", "y (Dropout)",
        lambda: with_inputs("Dropout", (FLOATS, (4,)), (FLOATS, ()), (TensorProto.BOOL, ())),
    ),
    "output_shape": (
        "DIST0312", "y (ConvTranspose)",
        lambda: with_inputs(
            "ConvTranspose", (FLOATS, (1, 1, 3, 3)), (FLOATS, (1, 2, 3, 3)), output_shape=[6, 6],
            strides=[2, 2],
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_come_in_is_refused_by_name(name: str, capfd: Any) -> None:
    code, words, make = REFUSED[name]
    with pytest.raises(ModelError) as caught:
        td.from_onnx(make())
    assert caught.value.code == code
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""


@pytest.mark.parametrize("stored", [np.asarray([True, False, True]), np.asarray([0, 1, 1])])
def test_stored_integers_and_booleans_in_old_operator_sets(stored: Any) -> None:
    """There a Constant node may hold floats only; an initializer always could be anything."""
    kind = TensorProto.BOOL if stored.dtype == bool else INT64
    op = "And" if stored.dtype == bool else "Gather"
    model = model_of(op, (4, 3), {"c": stored}, kind=kind, opset=7)
    mod = td.from_onnx(model)
    x = RNG.integers(0, 2, (4, 3)).astype(stored.dtype)
    (got,) = td.run(td.distribute(mod, plan_of("S[1]")), [x], engine="virtual")
    np.testing.assert_array_equal(got, x & stored if op == "And" else x[stored])


def test_an_unread_dropout_mask_does_not_matter() -> None:
    model = model_of("Dropout", outputs=2)
    del model.graph.output[1]
    x = RNG.standard_normal((4, 6), dtype="float32")
    program = td.distribute(td.from_onnx(model), plan_of("S[0]"))
    np.testing.assert_array_equal(td.run(program, [x], engine="virtual")[0], x)


def test_a_size_computed_from_data_is_refused_in_any_module() -> None:
    mod = td.from_tvmscript(
        """
@I.ir_module
class M:
    @R.function
    def main(x: R.Tensor((4, 6), "float32"), s: R.Tensor((2,), "int64")):
        n = T.int64()
        m = T.int64()
        t = R.tensor_to_shape(s)
        z = R.match_cast(t, R.Shape([n, m]))
        y = R.broadcast_to(x, R.shape([n, m]))
        return y
"""
    )
    with pytest.raises(PropagationError, match=r"DIST0401 relax.tensor_to_shape"):
        td.distribute(mod, plan_of("S[0]"))
