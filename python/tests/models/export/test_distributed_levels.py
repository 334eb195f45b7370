# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Levels 3 and 4 as StableHLO: what is read is what was written, and the text is checked."""

from __future__ import annotations

import re

import pytest
import tvm_ffi
from tvm import ir, relax

import tvm_distir as td
from tvm_distir import transforms as transform
from tvm_distir.core.analysis.levels import level_of
from tvm_distir.support.errors.tree import ModelError


def levels(mod, strategy, mesh):
    """A module at the levels 3 and 4."""
    plan = td.strategy.make_plan(mod, strategy, mesh)
    placed = transform.PropagateSharding()(transform.AnnotateSharding(plan)(mod))
    return placed, transform.LegalizeRedistribute()(placed)


def mlp(**sizes):
    return td.zoo.build("mlp", {"batch": "8", "layers": "3", "hidden": "16", **sizes})


def split_model():
    """Two fields of a split, multiplied and summed."""
    x = relax.Var("x", relax.TensorType([8, 8], "float32"))
    weight = relax.Var("weight", relax.TensorType([8, 16], "float32"))
    attrs = {"num_input": 1, "dist.param_names": ["x", "weight"]}
    builder = relax.BlockBuilder()
    with builder.function("main", [x, weight], attrs=attrs):
        with builder.dataflow():
            parts = builder.emit(relax.op.split(relax.op.matmul(x, weight), 2, 1))
            both = builder.emit(relax.op.multiply(parts[0], parts[1]))
            total = builder.emit(relax.op.sum(both, [0]))
            output = builder.emit_output(relax.Tuple([both, total]))
        builder.emit_func_output(output)
    return relax.transform.Normalize()(builder.get())


def same(found, mod):
    """Whether functions and meshes are structurally equal, attributes of functions too."""
    public = [str(gv.name_hint) for gv in mod.functions]
    assert sorted(public) == sorted(str(gv.name_hint) for gv in found.functions)
    return tvm_ffi.structural_equal(
        *(ir.IRModule(dict(one.functions), global_infos=one.global_infos) for one in (found, mod))
    )


pytestmark = pytest.mark.filterwarnings("ignore:tensor_parallel over")
CASES = {
    "partial sums": (mlp, "tensor_parallel", {"tp": 4}),
    "two axes": (mlp, "data_parallel+tensor_parallel", {"dp": 2, "tp": 2}),
    "uneven": (lambda: mlp(batch="6", hidden="10"), "data_parallel+tensor_parallel",
               {"dp": 2, "tp": 3}),
    "private partial": (lambda: td.zoo.build("vit", {"size": "tiny", "batch": "4"}),
                        "data_parallel+tensor_parallel", {"dp": 2, "tp": 2}),
}  # fmt: skip


@pytest.mark.parametrize("title", CASES)
def test_what_is_read_is_what_was_written(title):
    make, strategy, mesh = CASES[title]
    for name, mod in zip(("distributed", "legalized"), levels(make(), strategy, mesh), strict=True):
        found = td.from_stablehlo(td.to_stablehlo(mod), inline=0)
        assert level_of(found) == level_of(mod) == name
        assert same(found, mod)
    steps = mod.script()
    assert "R.dist.all_reduce" in steps or "R.dist.reduce_scatter" in steps


def test_the_cases_hold_what_they_are_for():
    first = levels(mlp(), "tensor_parallel", {"tp": 4})[0].script()
    assert "R.dist.partial" in first and "R.dist.redistribute" in first
    make, strategy, mesh = CASES["private partial"]
    mod = levels(make(), strategy, mesh)[0]
    assert any("dist.partial" in (fn.attrs or {}) for fn in mod.functions.values())


def test_results_that_are_tuples_lie_field_by_field():
    for mod in levels(split_model(), "data_parallel", {"dp": 4}):
        text = td.to_stablehlo(mod)
        assert "tvm_distir.placement = [" in text
        assert same(td.from_stablehlo(text, inline=0), mod)


def test_without_shardings_steps_and_placements_are_left_out():
    mod = levels(mlp(), "data_parallel+tensor_parallel", {"dp": 2, "tp": 2})[1]
    found = td.from_stablehlo(td.to_stablehlo(mod), inline=0, shardings=False)
    assert level_of(found) == "global" and "R.dist" not in found.script()


def test_the_plain_form_has_neither_and_is_read_as_annotated():
    for mod in levels(mlp(), "data_parallel+tensor_parallel", {"dp": 2, "tp": 2}):
        text = td.to_stablehlo(mod, composites=False)
        assert "composite" not in text and "tvm_distir.placement" not in text
        assert level_of(td.from_stablehlo(text, inline=0)) == "annotated"


STEP = r'(reduce_scatter"[^\n]*tvm_distir.placement = )"mesh0: [^"]*"'


@pytest.mark.parametrize(
    ("pattern", "new", "what"),
    [
        (STEP, r'\1"mesh0: R, R"', "reduce_scatter that gives"),
        (STEP, r'\1"mesh0: S[7], R"', "S[7], R"),
        (STEP, r'\1"mesh9: R, R"', "mesh9"),
        (STEP, r'\1"R, R"', "placement"),
        (r'("stablehlo.add"[^\n]*) \{tvm_distir.placement = "[^"]*"\}', r"\1", "how it lies"),
        (r'op = "sum"', 'op = "median"', "reduce_scatter of"),
        (r'device_mesh = "mesh0"', "device_mesh = 3 : i64", "grid"),
    ],
)
def test_texts_that_do_not_fit_are_refused(pattern, new, what):
    mod = levels(mlp(), "data_parallel+tensor_parallel", {"dp": 2, "tp": 2})[1]
    text = td.to_stablehlo(mod)
    changed = re.sub(pattern, new, text)
    assert changed != text
    with pytest.raises(ModelError, match="DIST037") as caught:
        td.from_stablehlo(changed, inline=0)
    assert what in str(caught.value)
