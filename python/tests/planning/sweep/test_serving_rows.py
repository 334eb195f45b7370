# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Sweeps of serving steps over requests and contexts."""

from __future__ import annotations

import pytest

import tvm_distir as td
from tvm_distir.planning.strategies.composition import make_plan
from tvm_distir.planning.sweep.outcome import bound_by
from tvm_distir.support.errors.tree import UsageError

SYSTEM = "dgx-h100"
LLAMA = {"size": "tiny", "kv_heads": 4}
MOE = {"size": "tiny", "layers": 5}


def as_text(model, keys):
    words = ",".join(f"{key}={value}" for key, value in keys.items())
    return f"zoo:{model}?{words},entry=serve,seq=1"


@pytest.mark.parametrize(
    ("model", "keys", "tensor", "strategy", "mesh"),
    [
        ("llama3", LLAMA, "", "data_parallel+megatron", {"dp": 2, "tp": 2}),
        ("mixtral", MOE, "expert_parallel", "expert_parallel", {"ep": 2}),
    ],
)
def test_a_predicted_row_is_the_step_written_out(model, keys, tensor, strategy, mesh):
    """Time, memory and bound of a row are those of the step of this size."""
    grid = {
        "tp": [2], "dp": [mesh.get("dp", 1)], "batch": [2, 6, 40, 130, 300],
        "past": [0, 17, 300, 1000, 9000],
    }  # fmt: skip
    observed = td.sweep(as_text(model, keys), grid, SYSTEM, tensor=tensor)
    assert all(check.equal for check in observed.checked)
    rows = observed.to_dicts()
    assert {(row["way"], row["status"]) for row in rows} == {("structure", "ok")}
    pools = mesh.get("dp", 1) * mesh.get("ep", 1)
    for row in (rows[1], rows[13], rows[24]):
        sizes = {"batch": int(row["batch"]), "past": int(row["past"]), "pools": pools}
        mod = getattr(td.zoo, model)(entry="serve", seq=1, **keys, **sizes)
        result = td.simulate(td.export(td.distribute(mod, make_plan(mod, strategy, mesh))), SYSTEM)
        assert row["time_s"] == result.time_s
        assert row["peak_memory_bytes"] == result.peak_memory_bytes
        assert row["bound_by"] == bound_by(result)
        assert row["global_batch"] == sizes["batch"]


def test_impossible_serving_rows_say_why():
    grid = {"dp": [2], "batch": [3, 4, "x"], "kv_dtype": ["float16", "none"]}
    rows = td.sweep(as_text("llama3", LLAMA), grid, SYSTEM).to_dicts()
    status = {(row["batch"], row["kv_dtype"]): row["status"] for row in rows}
    assert "batch=3 is not a multiple of dp = 2" in status["3", "float16"]
    assert 'batch is "x"' in status["x", "float16"]
    assert 'unknown kv_dtype "none"' in status["4", "none"]
    assert status["4", "float16"] == "ok"


@pytest.mark.parametrize(("keys", "train"), [(",pools=2", None), ("", {})])
def test_sizes_that_follow_from_rows_are_refused(keys, train):
    with pytest.raises(UsageError, match="DIST0151"):
        td.sweep(as_text("llama3", LLAMA) + keys, {"batch": [4]}, SYSTEM, train=train)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_plan_that_is_impossible_is_named_in_all_rows():
    grid = {"tp": [3], "batch": [1, 2, 3, 4, 5], "past": [0, 1, 2, 3, 4]}
    rows = td.sweep(as_text("llama3", LLAMA), grid, SYSTEM).to_dicts()
    assert len(rows) == 25
    assert all("not divisible by the mesh axis" in row["status"] for row in rows)
