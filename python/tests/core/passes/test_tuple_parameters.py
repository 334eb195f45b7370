# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Tests of opening tuple parameters: names, attributes, plans, and equal results."""

from __future__ import annotations

import numpy as np
import pytest
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_distir as td
from tvm_distir.core.rewriting.entries import keep_entry
from tvm_distir.core.rewriting.tuple_parameters import open_tuples
from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.support.errors import PlanError


@I.ir_module
class Packed:
    """A module in which two entry points read a tuple of weights, under two numbers."""

    @R.function
    def embed(
        ids: R.Tensor((6,), "int32"),
        packed: R.Tuple(R.Tensor((12, 8), "float32"), R.Tensor((8, 4), "float32")),
    ) -> R.Tensor((6, 8), "float32"):
        R.func_attr({"num_input": 1})
        with R.dataflow():
            table = packed[0]
            rows = R.take(table, ids, axis=0)
            R.output(rows)
        return rows

    @R.function
    def project(
        x: R.Tensor((6, 8), "float32"),
        cache: R.Tuple(R.Tensor((2, 4), "float32"), R.Tuple(R.Tensor((1, 4), "float32"))),
        packed: R.Tuple(R.Tensor((12, 8), "float32"), R.Tensor((8, 4), "float32")),
    ):
        R.func_attr({"num_input": 2})
        with R.dataflow():
            table1 = packed[0]
            weight1 = packed[1]
            inner = cache[1]
            lv = R.matmul(x, weight1)
            lv1 = R.add(lv, inner[0])
            lv2 = R.matmul(R.permute_dims(table1), R.matmul(table1, weight1))
            gv = (lv1, lv2, cache)
            R.output(gv)
        return gv


@I.ir_module
class Branching:
    """A module whose branches read the fields of a tuple."""

    @R.function
    def main(
        cond: R.Tensor((), "bool"),
        pair: R.Tuple(R.Tensor((4, 4), "float32"), R.Tensor((4, 4), "float32")),
    ) -> R.Tensor((4, 4), "float32"):
        if cond:
            out = pair[0]
        else:
            out = R.multiply(pair[1], R.const(2.0, "float32"))
        return out


def test_fields_become_parameters() -> None:
    """Fields have the names of reads without number; `num_input` counts tensors."""
    mod = open_tuples(Packed)
    names = [str(p.name) for p in mod["project"].params]
    assert names == ["x", "cache_0", "cache_1_0", "table", "weight"]
    assert [str(p.name) for p in mod["embed"].params] == ["ids", "table", "weight"]
    assert int(mod["project"].attrs["num_input"]) == 3
    fields = [str(field) for field in mod["project"].attrs["dist.fields"]]
    assert fields == ["", "cache.0", "cache.1.0", "packed.0", "packed.1"]
    assert [str(p.name) for p in Packed["embed"].params] == ["ids", "packed"]
    assert open_tuples(mod).same_as(mod)


@pytest.mark.parametrize("entry", ["embed", "project"])
def test_opened_module_computes_the_same(entry: str) -> None:
    """The opened module and the original give equal bits."""
    before, after = (keep_entry(mod, entry) for mod in (Packed, open_tuples(Packed)))
    values = draw_inputs(before, 3)
    pairs = zip(Reference(before).run(values), Reference(after).run(values), strict=True)
    assert all(np.array_equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("cond", [True, False])
def test_branches_read_the_tuple(cond: bool) -> None:
    """Branches that read fields compute what they did."""
    rng = np.random.default_rng(0)
    values = [np.array(cond), *rng.standard_normal((2, 4, 4)).astype("float32")]
    (after,) = Reference(open_tuples(Branching)).run(values)
    assert np.array_equal(after, values[1] if cond else 2 * values[2])


@pytest.mark.parametrize("name", ["packed[1]", "packed.1", "weight", "packed_1"])
def test_rules_name_fields(name: str) -> None:
    """A rule names a field by its number or by its name, and applies."""
    plan = {
        "schema_version": 1,
        "mesh": {"tp": 2},
        "rules": [{"param": name, "placement": "S[1]", "function": "project"}],
    }
    report = td.verify(Packed, plan, entry="project", exact=True)
    assert report.equal
    dist = td.distribute(Packed, plan)
    io = dist["project"].attrs["dist.io"]["inputs"]
    assert {str(p["name"]): str(p["placement"]) for p in io}["weight"] == "S[1]"


def test_pattern_of_fields() -> None:
    """A pattern selects all fields of a tuple; a field that does not exist is refused."""
    rule = {"param": "cache.*", "placement": "S[1]", "function": "project"}
    plan = {"schema_version": 1, "mesh": {"tp": 2}, "rules": [rule]}
    io = td.distribute(Packed, plan)["project"].attrs["dist.io"]["inputs"]
    placed = {str(p["name"]): str(p["placement"]) for p in io}
    assert (placed["cache_0"], placed["cache_1_0"]) == ("S[1]", "S[1]")
    rule["param"] = "packed[7]"
    with pytest.raises(PlanError, match="DIST0223"):
        td.distribute(Packed, plan)
    rule["param"] = "packed"
    with pytest.raises(PlanError, match="DIST0223") as caught:
        td.distribute(Packed, plan)
    assert (
        caught.value.remedy == "It is a tuple: name its tensors, packed.0, packed.1, or packed.*."
    )
    for name in ("packed.0", "packed.1", "packed.*"):
        rule["param"] = name
        td.distribute(Packed, plan)
