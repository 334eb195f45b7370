# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Modules written with ``R.ccl`` read back as they were, and run on workers of Disco."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from tvm import ir, relax

import tvm_distir as td
from tests.models.disco_workers import run_on_workers
from tvm_distir.core.analysis import check_level
from tvm_distir.execution import draw_inputs
from tvm_distir.execution.runtime.program.dist_io import entries
from tvm_distir.planning import make_plan
from tvm_distir.support.errors import ModelError


def _module(body: str) -> ir.IRModule:
    return td.from_tvmscript("@I.ir_module\nclass Module:\n" + body)


@dataclass(frozen=True)
class Case:
    """A model, its plan, and whether the module that is read back is structurally the same."""

    model: str
    mesh: Mapping[str, int] = field(default_factory=lambda: {"tp": 2})
    strategy: str = "megatron"
    rules: Any = None
    dims: Mapping[str, int] | None = None
    same: bool = True
    emulate: bool = False
    load: int | None = None
    calls: Sequence[str] = ("all_reduce",)

    def modules(self) -> tuple[ir.IRModule, ir.IRModule]:
        """Return the module of one device and that of each of several."""
        zoo = self.model.startswith("zoo:")
        single = td.load_model(self.model).mod if zoo else _module(self.model)
        if self.rules is not None:
            return single, td.distribute(single, td.Plan(mesh=self.mesh, rules=self.rules))
        return single, td.distribute(single, make_plan(single, self.strategy, self.mesh))


MLP = """
    @R.function
    def main(
        x: R.Tensor((4, 16), "float32"),
        up: R.Tensor((16, 32), "float32"),
        down: R.Tensor((32, 16), "float32"),
    ) -> R.Tensor((4, 16), "float32"):
        R.func_attr({"num_input": 1})
        with R.dataflow():
            h = R.matmul(x, up)
            a = R.nn.relu(h)
            y = R.matmul(a, down)
            R.output(y)
        return y
"""
ATTENTION = """
    @R.function
    def main(
        x: R.Tensor((2, 8, 16), "float32"),
        qkv: R.Tensor((16, 48), "float32"),
        o: R.Tensor((16, 16), "float32"),
    ) -> R.Tensor((2, 8, 16), "float32"):
        R.func_attr({"num_input": 1})
        with R.dataflow():
            lv = R.matmul(x, qkv)
            parts = R.split(lv, 3, axis=2)
            q0 = parts[0]
            k0 = parts[1]
            v0 = parts[2]
            q = R.permute_dims(R.reshape(q0, (2, 8, 4, 4)), [0, 2, 1, 3])
            k = R.permute_dims(R.reshape(k0, (2, 8, 4, 4)), [0, 2, 3, 1])
            v = R.permute_dims(R.reshape(v0, (2, 8, 4, 4)), [0, 2, 1, 3])
            p = R.nn.softmax(R.matmul(q, k), axis=-1)
            m = R.reshape(R.permute_dims(R.matmul(p, v), [0, 2, 1, 3]), (2, 8, 16))
            y = R.matmul(m, o)
            R.output(y)
        return y
"""
EMBEDDING = """
    @R.function
    def main(
        ids: R.Tensor((3,), "int32"), table: R.Tensor((11, 8), "float32")
    ) -> R.Tensor((3, 8), "float32"):
        R.func_attr({"num_input": 1})
        with R.dataflow():
            y = R.take(table, ids, axis=0)
            R.output(y)
        return y
"""
LOW = """
    @R.function
    def main(
        x: R.Tensor((4, 16), "bfloat16"),
        w: R.Tensor((16, 8), "int8"),
        scale: R.Tensor((16, 8), "bfloat16"),
    ) -> R.Tensor((4, 8), "bfloat16"):
        R.func_attr({"num_input": 1})
        with R.dataflow():
            wide = R.astype(w, "bfloat16")
            full = R.multiply(wide, scale)
            y = R.matmul(x, full)
            R.output(y)
        return y
"""
SYMBOLIC = MLP.replace("(4, 16)", '("n", 16)')
TWO = """
    @R.function
    def main(
        x: R.Tensor((4, 16), "float32"), w: R.Tensor((16, 16), "float32")
    ) -> R.Tuple(R.Tensor((4, 16), "float32"), R.Tensor((4,), "float32")):
        R.func_attr({"num_input": 1})
        with R.dataflow():
            h = R.matmul(x, w)
            s = R.max(h, axis=1)
            R.output(h, s)
        return (h, s)
"""
IF = """
    @R.function
    def main(
        x: R.Tensor((4, 16), "float32"),
        flag: R.Tensor((), "bool"),
        w: R.Tensor((16, 16), "float32"),
    ) -> R.Tensor((4, 16), "float32"):
        R.func_attr({"num_input": 2})
        if flag:
            a = R.matmul(x, w)
            y = R.add(a, a)
        else:
            y = R.multiply(x, x)
        return y
"""
GATHER = """
    @R.function
    def main(
        x: R.Tensor((4, 6), "float32"), w: R.Tensor((6, 8), "float32")
    ) -> R.Tensor((4, 8), "float32"):
        R.func_attr({"num_input": 1})
        with R.dataflow():
            h = R.matmul(x, w)
            y = R.nn.softmax(h, axis=DIM)
            R.output(y)
        return y
"""
ROW, COLUMN = td.P("tp", None), td.P(None, "tp")
CASES = {
    "mlp": Case(MLP, rules={"up": COLUMN, "down": ROW}),
    "attention": Case(
        ATTENTION,
        rules=[
            {"param": "qkv", "placement": "S[1]", "segments": [16, 16, 16]},
            {"param": "o", "placement": "S[0]"},
        ],
        load=1,
    ),
    "gpt2": Case("zoo:gpt?size=tiny,layers=1,batch=2,seq=8", calls=("all_reduce",) * 3),
    "llama": Case(
        "zoo:llama?layers=1,hidden=32,heads=4,kv_heads=2,ffn=48,vocab=40,batch=2,seq=4,entry=serve,dtype=float32",
        same=False,
        calls=("all_reduce",) * 3,
    ),
    "llama_replicas": Case(
        "zoo:llama?layers=1,hidden=32,heads=4,kv_heads=2,ffn=48,vocab=40,batch=4,seq=4,dtype=float32",
        {"dp": 2, "tp": 2},
        "data_parallel+megatron",
        calls=("all_reduce",) * 3,
    ),
    "vocabulary": Case(EMBEDDING, rules={"table": ROW}, load=1),
    "two_axes": Case(EMBEDDING, {"a": 2, "b": 3}, rules={"table": td.P(("a", "b"), None)}, load=1),
    "batch": Case(MLP, {"dp": 4}, "data_parallel", calls=()),
    "low_precision": Case(LOW, rules={"w": ROW, "scale": ROW}, load=1),
    "symbolic": Case(SYMBOLIC, rules={"up": COLUMN, "down": ROW}, dims={"n": 3}),
    "two_outputs": Case(TWO, rules={"w": COLUMN}),
    "branches": Case(IF, rules={"w": ROW}, same=False, emulate=True),
    "gather_0": Case(
        GATHER.replace("DIM", "1"),
        rules=[{"param": "x", "placement": "S[0]"}, {"value": "y", "placement": "R"}],
        calls=("all_gather",),
    ),
    "gather_1": Case(
        GATHER.replace("DIM", "0"),
        rules=[{"param": "w", "placement": "S[1]"}, {"value": "y", "placement": "R"}],
        calls=("all_gather",),
        same=False,
    ),
    "all_to_all": Case(
        GATHER.replace("DIM", "1"),
        rules=[{"param": "w", "placement": "S[1]"}, {"value": "y", "placement": "S[0]"}],
        same=False,
        emulate=True,
        calls=("all_gather",),
    ),
    "emulated": Case(
        "zoo:mlp?batch=4,layers=2,hidden=8", {"tp": 2}, "tensor_parallel", same=False, emulate=True
    ),
}


def _assert_close(got: Sequence[Any], wanted: Sequence[Any]) -> None:
    for a, b in zip(got, wanted, strict=True):
        a, b = a.astype("float64"), b.astype("float64")
        np.testing.assert_allclose(a, b, 1e-5, 2e-5 * np.abs(b).max())


@pytest.mark.parametrize("name", CASES)
def test_a_written_module_reads_back_and_runs(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    single, local = case.modules()
    written = td.to_ccl(local, emulate=case.emulate)
    check_level(written, "global")
    size = math.prod(case.mesh.values())
    read = td.from_ccl(written, size)
    check_level(read, "local")
    assert tvm_ffi.structural_equal(local, read) == case.same
    if case.dims:
        single, local, read = (td.bind_dims(mod, case.dims) for mod in (single, local, read))
        written = td.to_ccl(local)
    values = draw_inputs(single, seed=3, exact=not case.model.startswith("zoo:"))
    wanted = td.run(local, values)
    if not case.same:
        _assert_close(td.run(read, values), wanted)
    (entry,) = entries(local)
    got, calls = run_on_workers(written, entry, values, tmp_path, case.load)
    assert calls == case.calls
    _assert_close(got, wanted)


def test_collectives_that_are_packed_calls_already_are_written() -> None:
    _, local = CASES["mlp"].modules()
    written = td.to_ccl(relax.transform.LegalizeOps()(local))
    assert "tvm_distir.ccl" not in written.script()
    assert td.from_ccl(written, 2)["main"].script().count("R.dist.all_reduce") == 1


def test_a_written_module_parses_back() -> None:
    _, local = CASES["vocabulary"].modules()
    written = td.to_ccl(local)
    text = written.script(show_meta=True)
    assert tvm_ffi.structural_equal(td.from_tvmscript(text), written)


def test_symbolic_dims_stay_and_are_bound_when_read() -> None:
    single, local = CASES["symbolic"].modules()
    read = td.from_ccl(td.to_ccl(local), 2, dims={"n": 6})
    assert td.verify(td.bind_dims(single, {"n": 6}), dist=read).equal


def _swapped() -> ir.IRModule:
    return td.distribute(
        _module(MLP), td.Plan(mesh={"tp": 2, "dp": 2}, rules={"up": COLUMN, "down": ROW})
    )


def _split() -> ir.IRModule:
    return td.transforms.SplitCollectives()(CASES["mlp"].modules()[1])


def _two_group_sizes() -> ir.IRModule:
    placements = {"up": "R, R, S[1]", "down": "R, R, S[0]", "w": "R, S[0], S[0]"}
    rules = [{"param": name, "placement": text} for name, text in placements.items()]
    rules += [{"value": name, "placement": "R, R, R"} for name in ("y", "z")]
    model = MLP.replace("            R.output(y)\n        return y", TWO_PRODUCTS)
    model = model.replace("    ) -> R", '        w: R.Tensor((16, 16), "float32"),\n    ) -> R', 1)
    return td.distribute(_module(model), td.Plan(mesh={"a": 2, "b": 2, "c": 2}, rules=rules))


TWO_PRODUCTS = """            z = R.matmul(y, w)
            s = R.nn.softmax(z, axis=1)
            R.output(s)
        return s"""


@pytest.mark.parametrize(
    ("make", "problem", "remedy"),
    [
        (_swapped, "not consecutive workers", "the last one"),
        (_split, "no all_reduce_start", "pass split"),
        (_two_group_sizes, "groups of", "one size"),
        (lambda: CASES["emulated"].modules()[1], "no reduce_scatter", "emulate=True"),
    ],
)
def test_what_disco_cannot_do_is_refused(
    make: Callable[[], ir.IRModule], problem: str, remedy: str
) -> None:
    with pytest.raises(ModelError, match=problem) as info:
        td.to_ccl(make())
    assert info.value.code == "DIST0381" and remedy in info.value.remedy
    assert info.value.location.startswith(("main", "layer"))


def test_a_weight_that_entries_shard_in_different_ways_is_refused() -> None:
    two = _module(EMBEDDING + EMBEDDING.replace("def main", "def other"))
    rule = {"param": "table", "placement": "S[0]"}  # of "main"
    both = td.Plan(mesh={"tp": 2}, rules=[rule, {**rule, "function": "other"}])
    assert "shard_0" in str(td.to_ccl(td.distribute(two, both))["get_shard_info"])
    with pytest.raises(ModelError, match='"table" is sharded in another way') as info:
        td.to_ccl(td.distribute(two, td.Plan(mesh={"tp": 2}, rules=[rule])))
    assert info.value.code == "DIST0381"


def test_the_number_of_workers_is_that_of_the_mesh() -> None:
    written = td.to_ccl(CASES["mlp"].modules()[1])
    with pytest.raises(ModelError, match="for 2 workers, not 4") as info:
        td.from_ccl(written, 4)
    assert info.value.code == "DIST0343"
