# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""ONNX operators that are written as others by the types and values of their operands."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import tvm_distir as td
from tests.nightly import nightly_but
from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.support.errors.tree import ModelError

RNG = np.random.default_rng(0)
Values = dict[str, Any]


def model_of(
    op: str, inputs: Values, constants: Values | None = None, opset: int = 19, **attributes: Any
) -> onnx.ModelProto:
    """A model of one node: the inputs, then the constants; an operand left out is None."""
    constants = constants or {}
    names = [*inputs, *("" if value is None else name for name, value in constants.items())]
    kind = helper.np_dtype_to_tensor_dtype(next(iter(inputs.values())).dtype)
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], **attributes)],
        "one",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
            for n, v in inputs.items()
        ],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items() if v is not None],
    )
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def results(model: onnx.ModelProto, inputs: Values, cut: bool = True) -> list[Any]:
    """On one device, and with each dim of the first input cut over two."""
    mod = td.from_onnx(model)
    values = list(inputs.values())
    result = Reference(mod).run(values)
    for dim in range(values[0].ndim if cut else 0):
        rules = [{"param": next(iter(inputs)), "placement": f"S[{dim}]"}]
        plan = {"schema_version": 1, "mesh": {"a": 2}, "rules": rules}
        result += td.run(td.distribute(mod, plan), values, engine="virtual")
    return result


def expected(model: onnx.ModelProto, inputs: Values) -> Any:
    with np.errstate(all="ignore"):
        return ReferenceEvaluator(model).run(None, inputs)[0]


@pytest.mark.parametrize("fmod", [0, 1])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_modulo_of_infinities_zeros_and_large_numbers(dtype: str, fmod: int) -> None:
    numbers = [0.0, -0.0, 1.0, -3.0, 5.5, 6e4, np.inf, -np.inf, np.nan]
    pairs = np.asarray(list(itertools.product(numbers, numbers)), dtype)
    inputs = {"a": pairs[:, 0].copy(), "b": pairs[:, 1].copy()}
    model = model_of("Mod", inputs, fmod=fmod)
    with np.errstate(all="ignore"):
        want = (np.fmod if fmod else np.mod)(inputs["a"], inputs["b"])
    np.testing.assert_array_equal(expected(model, inputs), want)
    for got in results(model, inputs):
        np.testing.assert_array_equal(got, want)
        real = ~np.isnan(want)
        np.testing.assert_array_equal(np.signbit(got[real]), np.signbit(want[real]))


@pytest.mark.parametrize("op", ["Acos", "Acosh", "Asin", "Asinh", "Atan", "Cosh", "Sinh"])
def test_functions_without_a_16_bit_kernel(op: str) -> None:
    x = RNG.uniform(0, 1, (4, 6)).astype("float16") + np.float16(op == "Acosh")
    model = model_of(op, {"x": x})
    function = getattr(np, op.lower().replace("a", "arc", 1) if op[0] == "A" else op.lower())
    want = function(x.astype("float32")).astype("float16")
    for got in results(model, {"x": x}):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=2.0**-10)  # one unit in the last place


@pytest.mark.parametrize(
    ("shape", "slopes", "dtype"),
    [
        ((3, 4, 5), (4, 1), "float32"),
        ((3, 4, 5), (3, 1, 5), "float32"),
        ((3, 4, 5), (4, 5), "int32"),
        ((3, 4, 5), (1,), "int64"),
        ((), (1,), "float32"),
        ((), (), "float64"),
    ],
)
def test_slopes_broadcast(shape: tuple[int, ...], slopes: tuple[int, ...], dtype: str) -> None:
    inputs = {n: RNG.integers(-4, 5, s).astype(dtype) for n, s in (("x", shape), ("s", slopes))}
    model = model_of("PRelu", inputs)
    want = np.where(inputs["x"] < 0, inputs["x"] * inputs["s"], inputs["x"]).reshape(shape)
    for got in results(model, inputs):
        np.testing.assert_array_equal(got, want)


def test_slopes_of_channels_in_old_operator_sets() -> None:
    inputs = {"x": RNG.standard_normal((2, 3, 4)), "s": RNG.standard_normal(3)}
    model = model_of("PRelu", inputs, opset=6)
    want = np.where(inputs["x"] < 0, inputs["x"] * inputs["s"][:, None], inputs["x"])
    for got in results(model, inputs):
        np.testing.assert_array_equal(got, want)


def test_a_slope_that_fits_no_dim_is_refused() -> None:
    inputs = {"x": RNG.standard_normal((2, 3, 4)), "s": RNG.standard_normal(3)}
    with pytest.raises(ModelError, match="DIST0310"):
        td.from_onnx(model_of("PRelu", inputs))


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
@pytest.mark.parametrize("opset", [2, 19])
def test_negative_pads_crop(mode: str, opset: int) -> None:
    runtime = pytest.importorskip(
        "onnxruntime", reason="ONNX's reference takes no negative pads, onnxruntime does"
    )
    if mode == "wrap" and opset < 19:
        with pytest.raises(ModelError):
            td.from_onnx(padded(np.zeros((5, 6), "float32"), (0, 1, 0, -2), mode, opset))
        return
    x = RNG.standard_normal((5, 6), dtype="float32")
    for pads in ((0, -1, 0, 0), (-1, 1, 0, -2), (1, -1, -1, 1), (-1, -1, -1, -1), (2, 0, -1, 0)):
        model = padded(x, pads, mode, opset)
        session = runtime.InferenceSession(model.SerializeToString())
        (want,) = session.run(None, {"x": x})
        for got in results(model, {"x": x}, cut=min(pads) == -2):
            np.testing.assert_array_equal(got, want, err_msg=str(pads))


def padded(x: Any, pads: tuple[int, ...], mode: str, opset: int) -> onnx.ModelProto:
    """A Pad, filled with 3 where it pads with a constant."""
    if opset < 11:
        return model_of("Pad", {"x": x}, opset=opset, mode=mode, pads=pads, value=3.0)
    constants = {"p": np.asarray(pads, "int64"), "v": np.float32(3)}
    return model_of("Pad", {"x": x}, constants, opset=opset, mode=mode)


def test_negative_pads_of_some_axes() -> None:
    x = RNG.standard_normal((5, 6, 7), dtype="float32")
    constants = {
        "p": np.asarray([-1, 2, 1, -3], "int64"),
        "v": np.float32(2),
        "a": np.asarray([-1, 1], "int64"),
    }
    want = np.pad(x[:, :3, 1:], ((0, 0), (2, 0), (0, 1)), constant_values=2)
    for got in results(model_of("Pad", {"x": x}, constants), {"x": x}):
        np.testing.assert_array_equal(got, want)


COORDINATES = {
    "half_pixel": lambda x, n, m: (x + Fraction(1, 2)) * n / m - Fraction(1, 2),
    "half_pixel_symmetric": lambda x, n, m: (x + Fraction(1, 2)) * n / m - Fraction(1, 2),
    "pytorch_half_pixel": lambda x, n, m: (
        (x + Fraction(1, 2)) * n / m - Fraction(1, 2) if m > 1 else Fraction(0)
    ),
    "asymmetric": lambda x, n, m: Fraction(x * n, m),
    "align_corners": lambda x, n, m: Fraction(x * (n - 1), m - 1) if m > 1 else Fraction(0),
}
"""Where ONNX puts position x of m in a dim of size n, for scales m / n."""

RESIZES = [
    *itertools.product(
        ["nearest"],
        COORDINATES,
        ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"],
    ),
    *itertools.product(["linear", "cubic"], COORDINATES, ["floor"]),
]


def cubic(x: Any, sizes: list[int], coordinates: str) -> Any:
    """Cubic interpolation with rational weights; ONNX's reference has them in float32."""
    a = Fraction(-3, 4)
    for dim, m in enumerate(sizes):
        n = x.shape[dim]
        matrix = np.zeros((m, n), object)
        for position in range(m):
            place = COORDINATES[coordinates](position, n, m) if n != m else Fraction(position)
            for i in range(math.floor(place) - 1, math.floor(place) + 3):
                d = abs(place - i)
                near = (a + 2) * d**3 - (a + 3) * d**2 + 1
                far = a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a
                matrix[position, min(max(i, 0), n - 1)] += near if d <= 1 else far
        x = np.moveaxis(np.tensordot(matrix.astype("float64"), x, (1, dim)), 0, dim)
    return x


# Larger and smaller in turn.
@pytest.mark.parametrize(
    ("mode", "coordinates", "rounding", "sizes"),
    nightly_but(
        [(*resize, sizes) for resize in RESIZES for sizes in ([1, 1, 7, 9], [1, 1, 3, 1])],
        [2 * number + number % 2 for number in range(len(RESIZES))],
    ),
)
def test_resize_in_float64(mode: str, coordinates: str, rounding: str, sizes: list[int]) -> None:
    x = RNG.standard_normal((1, 1, 4, 6))
    model = model_of(
        "Resize",
        {"x": x},
        {"r": None, "f": None, "s": np.asarray(sizes, "int64")},
        mode=mode,
        coordinate_transformation_mode=coordinates,
        nearest_mode=rounding,
    )
    want = cubic(x, sizes, coordinates) if mode == "cubic" else expected(model, {"x": x})
    for got in results(model, {"x": x}, cut=coordinates == "half_pixel" and rounding == "floor"):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=0, atol=0 if mode == "nearest" else 1e-14)


@pytest.mark.parametrize("axes", [None, [3], [2, 3]])
def test_resize_by_scales_and_axes(axes: list[int] | None) -> None:
    """Powers of two: the reference multiplies by scales in float32."""
    x = RNG.standard_normal((1, 1, 4, 6))
    scales = np.asarray([1, 1, 0.5, 2][4 - len(axes or range(4)) :], "float32")
    attributes: dict[str, Any] = {"mode": "linear"} | ({"axes": axes} if axes else {})
    model = model_of("Resize", {"x": x}, {"r": None, "f": scales}, **attributes)
    want = expected(model, {"x": x})
    for got in results(model, {"x": x}):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-15)


def test_nearest_copies_large_integers() -> None:
    x = RNG.integers(-(2**60), 2**60, (1, 1, 4, 6))
    model = model_of("Resize", {"x": x}, {"r": None, "f": np.asarray([1, 1, 2, 2], "float32")})
    for got in results(model, {"x": x}):
        np.testing.assert_array_equal(got, x.repeat(2, 2).repeat(2, 3))


def test_resize_of_float64_that_is_no_selection_is_refused() -> None:
    x = RNG.standard_normal((1, 1, 4, 6))
    constants = {
        "r": np.asarray([0, 0, 0.1, 0.1, 1, 1, 0.9, 0.9], "float64"),
        "f": None,
        "s": np.asarray([1, 1, 3, 3], "int64"),
    }
    model = model_of(
        "Resize", {"x": x}, constants, coordinate_transformation_mode="tf_crop_and_resize"
    )
    with pytest.raises(ModelError, match=r"DIST0312 .*float32"):
        td.from_onnx(model)


def test_erf_of_float64_on_data_and_constants() -> None:
    """ONNX's reference rounds it to float32; the C library does not."""
    x = RNG.standard_normal((4, 6))
    want = np.vectorize(math.erf)(x)
    for got in results(model_of("Erf", {"x": x}), {"x": x}):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-15)
    graph = helper.make_graph(
        [helper.make_node("Erf", ["c"], ["e"]), helper.make_node("Add", ["x", "e"], ["y"])],
        "folded",
        [helper.make_tensor_value_info("x", TensorProto.DOUBLE, [4])],
        [helper.make_tensor_value_info("y", TensorProto.DOUBLE, [4])],
        [numpy_helper.from_array(x[0, :4], "c")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=8)
    (got,) = Reference(td.from_onnx(model)).run([np.zeros(4)])
    np.testing.assert_allclose(got, want[0, :4], rtol=0, atol=1e-15)


def branching(condition: list[onnx.NodeProto], constants: Values) -> onnx.ModelProto:
    """``y = Relu(x) * 3`` where the condition ``c`` holds, else ``-x`` without its dim of 1."""
    val = helper.make_tensor_value_info
    three = numpy_helper.from_array(np.float32(3), "three")
    then = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["t"]), helper.make_node("Mul", ["t", "three"], ["a"])],
        "then", [], [val("a", TensorProto.FLOAT, None)], [three],
    )  # fmt: skip
    inner = [
        helper.make_graph([helper.make_node(op, ["x"], [f"{op}_"])], op, [],
                          [val(f"{op}_", TensorProto.FLOAT, None)])
        for op in ("Neg", "Abs")
    ]  # fmt: skip
    nested = helper.make_node("If", ["c"], ["b"], then_branch=inner[1], else_branch=inner[0])
    other = helper.make_graph([nested], "else", [], [val("b", TensorProto.FLOAT, None)])
    graph = helper.make_graph(
        [*condition, helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)],
        "branching",
        [val("x", TensorProto.FLOAT, [8, 4])],
        [val("y", TensorProto.FLOAT, [8, 4])],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("dims", [[], [1], [1, 1]])
def test_conditions_of_one_element(dims: list[int], sign: int) -> None:
    nodes = [
        helper.make_node("ReduceSum", ["x", "axes"], ["s"], keepdims=0),
        helper.make_node("Greater", ["s", "zero"], ["c"]),
    ]
    model = branching(nodes, {"axes": np.asarray([0, 1]), "zero": np.zeros(dims, "float32")})
    x = sign * np.abs(RNG.standard_normal((8, 4), dtype="float32"))
    want = np.maximum(x, 0) * 3 if sign > 0 else -x
    for got in results(model, {"x": x}):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("size", [8, 7])
def test_known_conditions_choose_a_branch(size: int) -> None:
    """As the exporter of PyTorch writes ``squeeze(dim)``: whether a dim has a size."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "first"], ["dim"]),
        helper.make_node("Equal", ["dim", "size"], ["c"]),
    ]
    constants = {"first": np.asarray([0]), "size": np.asarray([size])}
    model = branching(nodes, constants)
    assert "R.If" not in td.from_onnx(model).script() and "if " not in td.from_onnx(model).script()
    x = RNG.standard_normal((8, 4), dtype="float32")
    want = np.maximum(x, 0) * 3 if size == 8 else -x
    for got in results(model, {"x": x}):
        np.testing.assert_array_equal(got, want)
