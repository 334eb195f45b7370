# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Steps side by side: the figures are those of each result, whatever it is read from."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.interface.report.report_samples import GIB, sample
from tvm_distir.interface.analysis import analyze
from tvm_distir.interface.report.comparison import compare
from tvm_distir.interface.report.document import to_dict, to_json
from tvm_distir.performance.simulation.device_results import CollectiveTotal
from tvm_distir.support.errors.tree import SimulationError, UsageError


def test_figures_are_those_of_the_results():
    first, other = to_dict(sample()), to_dict(sample(layers=6, peak_bytes=20 * GIB))
    result = compare(first, other, names=["a", "b"])
    assert result.ratios == (1.0, pytest.approx(1.5))
    for each, data in zip(result.outcomes, (first, other), strict=True):
        assert (each.time_s, each.peak_memory_bytes) == (data["time_s"], data["peak_memory_bytes"])
        assert dict(each.spent_s) == data["spent_s"] and each.bound_by == data["bound_by"]
        assert each.fits is data["fits"] and each.mesh == "dp=2,tp=2"
    assert dict(result.outcomes[1].wire_bytes) == {"all_reduce": 6 * GIB}
    text = result.to_text()
    assert "model.onnx on box" in text and "1.5x" in text and "NO" in text
    rows = result.to_dict()["results"]
    assert [row["name"] for row in rows] == ["a", "b"] and rows[1]["ratio"] == pytest.approx(1.5)


def test_traffic_is_that_of_the_mesh_with_most():
    totals = [CollectiveTotal(kind, mesh, "tp", 2, 1, size, size, 0.0) for kind, mesh, size in
              (("all_reduce", "one", 5), ("send", "one", 4), ("all_reduce", "two", 8))]  # fmt: skip
    data = to_dict(replace(sample(), collectives=tuple(totals)))
    assert compare(data).outcomes[0].wire_bytes == {"all_reduce": 5, "send": 4}


def test_files_folders_and_folders_of_them(tmp_path):
    text = to_json(to_dict(sample()))
    (tmp_path / "x.json").write_text(text)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "analysis.json").write_text(text)
    names = [each.name for each in compare(tmp_path / "x.json", tmp_path / "run").outcomes]
    assert names == ["x", "run"]
    inside = [each.name for each in compare(tmp_path).outcomes]
    assert inside == [f"{tmp_path.name}/x", f"{tmp_path.name}/run"]


@pytest.mark.parametrize(
    ("change", "places"),
    [
        ({"time_s": "soon"}, ["time_s"]),
        (
            {"spent_s": {"compute": 1.0, "idle": 1.0, "memory": -1, "lunches": 1.0}},
            [f"spent_s/{key}" for key in ("memory", "communication", "lunches")],
        ),
        ({"schema_version": 9}, ["schema_version"]),
        (
            {"meshes": [{}], "time_s": None, "pipeline": {"bubble": "1"}},
            ["time_s", "meshes/0/axes", "pipeline/bubble"],
        ),
        (
            {"collectives": [{"mesh": "m"}]},
            ["collectives/0/kind", "collectives/0/wire_bytes_per_device"],
        ),
    ],
)
def test_what_is_no_result_is_refused(change, places, tmp_path):
    path = tmp_path / "r.json"
    path.write_text(json.dumps({**to_dict(sample()), **change}))
    with pytest.raises(SimulationError, match="DIST0740") as caught:
        compare(path)
    assert [v.location for v in caught.value.violations] == [f"{path}/{place}" for place in places]


def test_nothing_to_compare(tmp_path):
    with pytest.raises(SimulationError, match="no result"):
        compare(tmp_path)
    with pytest.raises(UsageError):
        compare()
    with pytest.raises(UsageError):
        compare(to_dict(sample()), names=["a", "b"])
    with pytest.raises(UsageError, match="operand 2 is of type int"):
        compare(to_dict(sample()), 3)


def test_results_of_analyze():
    first, other = (
        analyze("zoo:mlp?layers=2,hidden=8,batch=4", strategy=name, mesh=mesh, system="h100")
        for name, mesh in (("data_parallel", {"dp": 2}), ("tensor_parallel", {"tp": 2}))
    )
    result = compare(first, other.simulation)
    assert [x.time_s for x in result.outcomes] == [first.time_s, other.time_s]
    assert result.outcomes[0].to_dict() == compare(first.to_dict()).outcomes[0].to_dict()
