# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""NaN, infinities, signed zeros and indices out of range are those of torch, JAX and ONNX."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import tvm_distir as td
from tests.models.special_values_jax import ROWS
from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.support.errors.tree import EngineError

TYPES = ("float32", "float64")
TORCH = {
    "isnan": lambda t, a: t.isnan(a),
    "isinf": lambda t, a: t.isinf(a),
    "isfinite": lambda t, a: t.isfinite(a),
    "unequal": lambda t, a: a != a,
    "unequal numbers": lambda t, a: a != 0.5,
    "bools multiplied": lambda t, a: (a > 0) * (a < 2),
    "nan_to_num": lambda t, a: t.nan_to_num(a),
    "nansum": lambda t, a: t.nansum(a, 1),
    "relu": lambda t, a: t.relu(a),
    "relu6": lambda t, a: t.nn.functional.relu6(a),
    "hardtanh": lambda t, a: t.nn.functional.hardtanh(a),
    "hardsigmoid": lambda t, a: t.nn.functional.hardsigmoid(a),
    "leaky_relu": lambda t, a: t.nn.functional.leaky_relu(a),
    "elu": lambda t, a: t.nn.functional.elu(a),
    "clamp": lambda t, a: a.clamp(-1, 1),
    "clamp_min": lambda t, a: a.clamp(min=0),
    "maximum": lambda t, a: t.maximum(a, a * 0 + 1),
    "minimum": lambda t, a: t.minimum(a * 0 + 1, a),
    "amax": lambda t, a: a.amax(1),
    "amin": lambda t, a: a.amin(0),
    "max of all": lambda t, a: a.max(),
    "max along": lambda t, a: a.max(1)[1],
    "argmax": lambda t, a: a.argmax(1),
    "argmin": lambda t, a: a.argmin(0, keepdim=True),
    "argmax of all": lambda t, a: a.argmax(),
    "sort": lambda t, a: a.sort(dim=1, stable=True)[0],
    "sort descending": lambda t, a: a.sort(0, descending=True)[0],
    "argsort": lambda t, a: t.argsort(a, dim=1, stable=True),
    "topk": lambda t, a: a.topk(3, 1)[0],
    "topk smallest": lambda t, a: a.topk(4, 1, largest=False)[0],
    "sign": lambda t, a: t.sign(a),
    "max_pool1d": lambda t, a: t.nn.functional.max_pool1d(a, 3, 2, 1),
    "max_pool2d": lambda t, a: t.nn.functional.max_pool2d(a[None, None], 3, 1, 1),
    "softmax": lambda t, a: t.softmax(a, 1),
    "times zero": lambda t, a: a * 0,
    "zero over": lambda t, a: 0 / a,
}
ONNX = {
    "IsNaN": {},
    "IsInf": {},
    "Relu": {},
    "Sign": {},
    "Clip": {"lows": [-1.0, 1.0]},
    "Max": {"lows": [0.0]},
    "Min": {"lows": [0.0]},
    "ReduceMax": {"axes": [1]},
    "ReduceMin": {"axes": [1]},
    "ArgMax": {"axis": 1},
    "ArgMin": {"axis": 1},
}
#: Operators of which ONNX Runtime and ONNX's reference evaluator differ in rows that hold NaN: the
#: standard leaves these open. NumPy's NaN counts as the extreme; ONNX Runtime compares with ``<``
#: and ``>``, which are false for NaN, so that its result depends on where the NaN stands.
DISSENT = ("ReduceMax", "ReduceMin", "ArgMax", "ArgMin")


def same(result, expected):
    np.testing.assert_array_equal(np.asarray(result), np.asarray(expected), strict=True)


@pytest.mark.parametrize("dtype", TYPES)
def test_values_are_those_of_torch(dtype):
    torch = pytest.importorskip("torch", reason="the extra torch is not installed")

    class All(torch.nn.Module):
        def forward(self, a):
            return tuple(write(torch, a) for write in TORCH.values())

    a = torch.from_numpy(ROWS.astype(dtype))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mod = td.from_exported_program(torch.export.export(All(), (a,)))
    result = Reference(mod).run([a.numpy()])
    for name, single, expected in zip(TORCH, result, All()(a), strict=True):
        if name in ("softmax", "leaky_relu", "elu", "hardsigmoid"):
            np.testing.assert_allclose(single, expected.numpy(), 1e-6, err_msg=name)
            continue
        np.testing.assert_array_equal(single, expected.numpy(), err_msg=name)


@pytest.mark.parametrize("dtype", TYPES)
def test_values_are_those_of_jax(dtype, tmp_path):
    """JAX runs in a process of its own: its threads forbid others to fork."""
    pytest.importorskip("jax", reason="the extra jax is not installed")
    script = Path(__file__).with_name("special_values_jax.py")
    subprocess.run([sys.executable, str(script), dtype, str(tmp_path)], check=True)
    result = Reference(td.from_stablehlo(tmp_path / "all.mlir")).run([ROWS.astype(dtype)])
    with np.load(tmp_path / "wanted.npz") as expected:
        assert len(result) == len(expected.files) > 0
        for name, single in zip(expected.files, result, strict=True):
            np.testing.assert_array_equal(single, expected[name], err_msg=name)


@pytest.fixture(scope="module")
def onnx_cases():
    """Per operator its model, its input and the result that ONNX's reference evaluator gives."""
    from onnx.reference import ReferenceEvaluator

    a = ROWS.astype("float32")
    models = {op: onnx_model(op) for op in ONNX}
    return {op: (m, a, ReferenceEvaluator(m).run(None, {"x": a})[0]) for op, m in models.items()}


def onnx_model(op):
    from onnx import TensorProto, helper, numpy_helper

    options = dict(ONNX[op])
    lows = options.pop("lows", [])
    names = [f"c{i}" for i in range(len(lows))]
    constants = [numpy_helper.from_array(np.float32(v), n) for v, n in zip(lows, names)]
    kind = {"Is": TensorProto.BOOL, "Ar": TensorProto.INT64}.get(op[:2], TensorProto.FLOAT)
    graph = helper.make_graph(
        [helper.make_node(op, ["x", *names], ["y"], **options)],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ROWS.shape)],
        [helper.make_tensor_value_info("y", kind, None)],
        constants,
    )
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize("op", ONNX)
def test_values_are_those_of_onnx(op, onnx_cases):
    model, a, expected = onnx_cases[op]
    same(Reference(td.from_onnx(model)).run([a])[0], expected)


@pytest.mark.parametrize("op", ONNX)
def test_values_are_those_of_onnxruntime(op, onnx_cases):
    """ONNX Runtime agrees too; of operators in :data:`DISSENT`, in rows without NaN."""
    ort = pytest.importorskip("onnxruntime", reason="the extra fuzz (onnxruntime) is not installed")
    model, a, reference = onnx_cases[op]
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x": a})
    result = np.asarray(Reference(td.from_onnx(model)).run([a])[0])
    if op in DISSENT:
        is_float = expected.dtype.kind == "f"
        assert not np.array_equal(expected, reference, equal_nan=is_float), "they agree by now"
        rows = ~np.isnan(a).any(1)
        assert rows.any()
        result, expected = result[rows], expected[rows]
    same(result, expected)


@pytest.mark.parametrize("value", [63, 64, -1, 100_000])
@pytest.mark.parametrize("kind", ["embedding", "index", "index_select"])
def test_indices_are_refused_where_torch_refuses_them(kind, value):
    torch = pytest.importorskip("torch", reason="the extra torch is not installed")

    class Table(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(64, 4)

        def forward(self, ids):
            if kind == "embedding":
                return self.table(ids)
            if kind == "index":
                return self.table.weight[ids]
            return torch.index_select(self.table.weight, 0, ids)

    model = Table().eval()
    program = torch.export.export(model, (torch.zeros(4, dtype=torch.int64),))
    mod = td.from_exported_program(program)
    ids = torch.tensor([0, 5, value, 2])
    inputs = [ids.numpy(), model.table.weight.detach().numpy()]
    try:
        expected = model(ids).detach().numpy()
    except IndexError:
        with pytest.raises(EngineError) as caught:
            Reference(mod).run(inputs)
        assert caught.value.code == "DIST0619"
    else:
        same(Reference(mod).run(inputs)[0], expected)
