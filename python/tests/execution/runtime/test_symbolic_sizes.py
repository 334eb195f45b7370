# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Programs with symbolic dims: one compiled program runs at all sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import ir, relax

import tvm_distir as td
from tvm_distir.execution.runtime.program.lowered import LoweredProgram
from tvm_distir.support.errors import EngineError, LoweringError, ModelError, SimulationError

MLP = """
from tvm.script import ir as I, relax as R

@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("batch", "seq", 16), "float32"), up: R.Tensor((16, 32), "float32"),
             down: R.Tensor((32, 16), "float32")) -> R.Tensor(("batch", "seq", 16), "float32"):
        with R.dataflow():
            h = R.nn.relu(R.matmul(x, up))
            y = R.matmul(h, down)
            R.output(y)
        return y
"""
CACHE = """
from tvm.script import ir as I, relax as R, tirx as T

@I.ir_module
class Module:
    @T.prim_func(private=True, s_tir=True)
    def shifted(var_x: T.handle, var_cache: T.handle, var_y: T.handle):
        b, s, past = T.int64(), T.int64(), T.int64()
        x = T.match_buffer(var_x, (b, s, T.int64(4), T.int64(8)))
        cache = T.match_buffer(var_cache, (b, past, T.int64(4), T.int64(8)))
        y = T.match_buffer(var_y, (b, s, T.int64(4), T.int64(8)))
        for i, j, k, l in T.grid(b, s, T.int64(4), T.int64(8)):
            with T.sblock("y"):
                v0, v1, v2, v3 = T.axis.remap("SSSS", [i, j, k, l])
                y[v0, v1, v2, v3] = x[v0, v1, v2, v3] + T.Cast("float32", past)

    @R.function
    def main(x: R.Tensor(("batch", "seq", 16), "float32"),
             cache: R.Tensor(("batch", "past", 4, 8), "float32"), w: R.Tensor((16, 32), "float32")):
        batch, seq, past = T.int64(), T.int64(), T.int64()
        cls = Module
        with R.dataflow():
            q = R.reshape(R.matmul(x, w), (batch, seq, 4, 8))
            k = R.call_tir(cls.shifted, (q, cache), R.Tensor((batch, seq, 4, 8), "float32"))
            keys = R.concat((cache, k), axis=1)
            left = R.permute_dims(q, [0, 2, 1, 3])
            scores = R.matmul(left, R.permute_dims(keys, [0, 2, 3, 1]))
            result = R.matmul(R.nn.softmax(scores), R.permute_dims(keys, [0, 2, 1, 3]))
            flat = R.reshape(R.permute_dims(result, [0, 2, 1, 3]), (batch * seq, 32))
            R.output(flat, keys)
        return flat, keys
"""
FUNCTION = """
from tvm.script import ir as I, relax as R

@I.ir_module
class Module:
    @R.function(private=True)
    def layer(x: R.Tensor(("rows", 16), "float32"),
              w: R.Tensor((16, 16), "float32")) -> R.Tensor(("rows", 16), "float32"):
        with R.dataflow():
            y = R.nn.relu(R.matmul(x, w))
            R.output(y)
        return y

    @R.function
    def main(x: R.Tensor(("n", 16), "float32"), a: R.Tensor((16, 16), "float32"),
             b: R.Tensor((16, 16), "float32")):
        cls = Module
        with R.dataflow():
            y = cls.layer(cls.layer(x, a), b)
            R.output(y)
        return y
"""
BOTH = {
    "mesh": {"dp": 2, "tp": 2},
    "rules": [
        {"param": "x", "placement": "S[0], R"},
        {"param": "up", "placement": "R, S[1]"},
        {"param": "down", "placement": "R, S[0]"},
    ],
}


def _drawn(shapes: dict[str, tuple[int, ...]], seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {k: rng.integers(-2, 3, shape).astype("float32") for k, shape in shapes.items()}


def _mlp_inputs(batch: int, seq: int) -> dict[str, Any]:
    return _drawn({"x": (batch, seq, 16), "up": (16, 32), "down": (32, 16)})


def _mlp(x: Any, up: Any, down: Any) -> Any:
    return np.maximum(x @ up, 0) @ down


@pytest.fixture(scope="module")
def mlp() -> ir.IRModule:
    return td.distribute(td.from_tvmscript(MLP), {"schema_version": 1, **BOTH})


@pytest.mark.parametrize("engine", ["threads", "virtual"])
def test_one_library_runs_at_all_sizes(mlp: ir.IRModule, engine: str) -> None:
    program = LoweredProgram(mlp)
    library = program.library(program.entries[0])
    for batch, seq in ((4, 7), (2, 1), (6, 5)):
        inputs = _mlp_inputs(batch, seq)
        (got,) = td.run(program, inputs, engine)
        np.testing.assert_array_equal(got, _mlp(**inputs))
    assert program.library(program.entries[0]) is library


def test_a_folder_runs_at_all_sizes(mlp: ir.IRModule, tmp_path: Path) -> None:
    weights = {k: v for k, v in _mlp_inputs(1, 1).items() if k != "x"}
    td.deploy(mlp, tmp_path, weights)
    for batch, seq in ((2, 3), (8, 1)):
        x = _mlp_inputs(batch, seq)["x"]
        (got,) = td.load(tmp_path).run({"x": x})
        np.testing.assert_array_equal(got, _mlp(x, **weights))


def test_torch_runs_at_all_sizes(mlp: ir.IRModule) -> None:
    pytest.importorskip("torch")
    for batch, seq in ((4, 7), (2, 1)):
        inputs = _mlp_inputs(batch, seq)
        (got,) = td.run(mlp, inputs, "torch")
        np.testing.assert_array_equal(got, _mlp(**inputs))


def test_shards_are_inputs_and_outputs(mlp: ir.IRModule) -> None:
    inputs = _mlp_inputs(4, 3)
    parts = {rank: inputs["x"][rank // 2 * 2 :][:2] for rank in range(4)}
    (got,) = td.run(mlp, {**inputs, "x": td.ShardedArray(parts)}, "threads", "sharded")
    np.testing.assert_array_equal(got.whole(), _mlp(**inputs))


def test_sizes_that_do_not_fit_are_refused(mlp: ir.IRModule) -> None:
    with pytest.raises(EngineError, match=r'input 0 "x": the dim batch has the size 3') as info:
        td.run(mlp, _mlp_inputs(3, 7))
    assert info.value.code == "DIST0624"
    module = td.from_tvmscript(CACHE)
    plan = td.planning.make_plan(module, "data_parallel", {"dp": 2})
    inputs = _drawn({"x": (2, 3, 16), "cache": (4, 5, 4, 8), "w": (16, 32)})
    with pytest.raises(EngineError, match=r"batch has the size 4, and 2 in input 0") as info:
        td.run(td.distribute(module, plan), inputs)
    assert info.value.code == "DIST0602"


@pytest.mark.parametrize(
    "placements", [("S[0]", "S[0]", "R"), ("R", "S[2]", "S[1]"), ("R", "R", "S[1]")]
)
def test_cache_that_grows(placements: tuple[str, ...]) -> None:
    module = td.from_tvmscript(CACHE)
    rules = [{"param": p, "placement": s} for p, s in zip(("x", "cache", "w"), placements)]
    dist = td.distribute(module, {"schema_version": 1, "mesh": {"tp": 2}, "rules": rules})
    for batch, seq, past in ((2, 3, 5), (4, 1, 2)):
        inputs = _drawn({"x": (batch, seq, 16), "cache": (batch, past, 4, 8), "w": (16, 32)})
        inputs["w"] /= 16
        flat, keys = td.run(dist, inputs)
        q = (inputs["x"] @ inputs["w"]).reshape(batch, seq, 4, 8)
        expected = np.concatenate([inputs["cache"], q + past], axis=1)
        scores = np.einsum("bshd,bthd->bhst", q, expected)
        chances = np.exp(scores - scores.max(-1, keepdims=True))
        chances /= chances.sum(-1, keepdims=True)
        result = np.einsum("bhst,bthd->bshd", chances, expected).reshape(batch * seq, 32)
        np.testing.assert_allclose(keys, expected, rtol=1e-6)
        np.testing.assert_allclose(flat, result, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("placement", ["S[0]", "R"])
def test_private_functions(placement: str) -> None:
    module = td.from_tvmscript(FUNCTION)
    rules = [{"param": "x", "placement": placement}]
    dist = td.distribute(module, {"schema_version": 1, "mesh": {"dp": 2}, "rules": rules})
    for n in (4, 6):
        inputs = _drawn({"x": (n, 16), "a": (16, 16), "b": (16, 16)})
        (got,) = td.run(dist, inputs)
        expected = np.maximum(np.maximum(inputs["x"] @ inputs["a"], 0) @ inputs["b"], 0)
        np.testing.assert_array_equal(got, expected)


def test_verify_draws_inputs_of_sizes() -> None:
    module = td.from_tvmscript(MLP)
    report = td.verify(module, {"schema_version": 1, **BOTH}, dims={"batch": 4, "seq": 3})
    assert report.equal and [o.shape for o in report.outputs] == [(4, 3, 16)]
    assert {c.kind: c.count for c in report.collectives} == {"all_reduce": 1}
    with pytest.raises(ModelError, match="--dim NAME=N"):
        td.verify(module, {"schema_version": 1, **BOTH})


def test_costs_need_sizes(mlp: ir.IRModule) -> None:
    with pytest.raises(SimulationError, match="costs need the sizes of batch, seq") as info:
        td.export(mlp)
    assert info.value.code == "DIST0714"
    system, sizes = td.System.load("h100"), {"batch": 8, "seq": 64}
    bound = td.simulate(td.export(td.bind_dims(mlp, sizes)), system)
    assert (
        bound.time_s > td.simulate(td.export(td.bind_dims(mlp, {**sizes, "seq": 1})), system).time_s
    )
    module = td.from_tvmscript(MLP)
    plan = td.planning.make_plan(module, "data_parallel", {"dp": 2})
    after = td.bind_dims(td.distribute(module, plan), sizes)
    before = td.distribute(td.bind_dims(module, sizes), plan)
    times = [td.simulate(td.export(mod), system).time_s for mod in (after, before)]
    assert times[0] == times[1]
    with pytest.raises(ModelError, match="batch=3 cannot be divided into 2"):
        td.bind_dims(mlp, {"batch": 3, "seq": 1})
    with pytest.raises(ModelError, match="seq would stay"):
        td.bind_dims(mlp, {"batch": 4})


def test_ports_name_the_dims(mlp: ir.IRModule) -> None:
    io = mlp["main"].attrs["dist.io"]
    assert list(io["inputs"][0]["shape"]) == ["batch", "seq", 16]
    assert dict(io["dims"].items()) == {"batch": 2, "seq": 1}
    assert relax.analysis.well_formed(mlp) is not False
    module = td.from_tvmscript(CACHE)
    dist = td.distribute(module, td.planning.make_plan(module, "data_parallel", {"dp": 2}))
    shapes = [list(port["shape"]) for port in dist["main"].attrs["dist.io"]["outputs"]]
    assert shapes == [["batch*seq", 32], ["batch", "past + seq", 4, 8]]
    assert "R.dist.all_gather" not in dist.script()  # the kernel reads the shape of the cache alone


def test_a_size_that_decides_is_named() -> None:
    rules = [{"value": "h", "placement": "S[1]"}, {"param": "x", "placement": "R"}]
    plan = {"schema_version": 1, "mesh": {"tp": 2}, "rules": rules}
    with pytest.raises(LoweringError, match='dim "seq" of this value is divided into 2') as info:
        td.distribute(td.from_tvmscript(MLP), plan)
    assert info.value.code == "DIST0502" and '"x"' in info.value.what
    assert "--dim seq=N" in info.value.remedy
    assert info.value.remedy.startswith('Shard "x" along "seq"')
    other = [*rules[:1], {"param": "x", "placement": "S[1]"}]
    td.distribute(td.from_tvmscript(MLP), {**plan, "rules": other})


TWO_RESULTS = """
from tvm.script import ir as I, relax as R

@I.ir_module
class Module:
    @R.function(private=True)
    def block(x: R.Tensor(("n", 30), "float32"), w: R.Tensor((30, 70), "float32")):
        with R.dataflow():
            h = R.matmul(x, w)
            result = (R.nn.gelu(h), h)
            R.output(result)
        return result

    @R.function
    def main(x: R.Tensor(("m", 30), "float32"), w: R.Tensor((30, 70), "float32")):
        cls = Module
        with R.dataflow():
            both = cls.block(x, w)
            y = both[0]
            R.output(y)
        return y
"""


def test_a_result_that_nobody_reads_is_removed_from_a_function(tmp_path: Path) -> None:
    """Types of calls have the dims of the caller, not those of the narrower function."""
    (tmp_path / "m.py").write_text(TWO_RESULTS)
    mod = td.from_tvmscript(tmp_path / "m.py")
    plan = td.Plan(mesh={"dp": 2}, rules={"x": ["dp"]})
    for rows in (2, 6):
        td.verify(mod, plan, dims={"m": rows}, engine="threads").check()
