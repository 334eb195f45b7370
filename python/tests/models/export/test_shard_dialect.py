# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""MLIR's dialect ``shard``: what is written is read back, and all else is refused by name."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_distir as td
from tvm_distir import transforms as transform
from tvm_distir.core.analysis.levels import level_of
from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.interface.command import main
from tvm_distir.support.errors.tree import ModelError

MESH = {"dp": 2, "tp": 2}
GRID = '"shard.grid"() <{shape = array<i64: 2, 3>, sym_name = "g"}> : () -> ()\n'
PORT = 'tvm_distir.port = {{grid = @g, index = 0 : i64, placement = "{}", shape = array<i64: {}>}}'


@pytest.fixture(scope="module")
def mlp():
    mod = td.zoo.build("mlp", {"batch": "4", "layers": "2", "hidden": "32"})
    return mod, td.planning.make_plan(mod, "data_parallel+tensor_parallel", MESH)


@pytest.fixture(scope="module")
def levels(mlp):
    mod, plan = mlp
    annotated = transform.AnnotateSharding(plan)(mod)
    placed = transform.PropagateSharding()(annotated)
    local = td.distribute(mod, plan)
    return [mod, annotated, placed, transform.LegalizeRedistribute()(placed), local]


def equal(result, expected):
    tvm.ir.assert_structural_equal(result, expected)


@pytest.mark.parametrize("index", range(5))
def test_every_level_is_read_back(mlp, levels, index):
    text = td.to_stablehlo(levels[index], "shard")
    assert "sdy." not in text and "mhlo." not in text
    back = td.from_stablehlo(text, inline=0)
    assert level_of(back) == ("global", "annotated", "annotated", "annotated", "local")[index]
    equal(td.from_stablehlo(td.to_stablehlo(back, "shard"), inline=0), back)
    inputs = draw_inputs(mlp[0], 0)
    expected = Reference(mlp[0]).run(inputs)
    if index in (1, 2):
        assert td.verify(back, None).equal
    elif index in (0, 4):
        run = Reference(back).run if index == 0 else lambda passed: td.run(back, passed)
        for array, other in zip(run(inputs), expected, strict=True):
            np.testing.assert_allclose(array, other, 2e-4, 2e-5)


def test_attributes_stay(levels):
    local = td.from_stablehlo(td.to_stablehlo(levels[4], "shard"), inline=0)
    for name in ("mesh_axes", "mesh_names", "device_num"):
        equal(local.attrs[name], levels[4].attrs[name])
    for name in ("dist.io", "dist.param_names", "num_input"):
        equal(local["main"].attrs[name], levels[4]["main"].attrs[name])


def read(body, argument="%a: tensor<4x6xf32>", results="tensor<4x6xf32>", attributes="", grid=GRID):
    text = f"{grid}func.func @main({argument}) -> ({results}) {attributes} {{\n{body}\n}}\n"
    return td.from_stablehlo(text, inline=0)


T = "tensor<4x6xf32>"
NUMBERED = f"""  %n = "shard.process_linear_index"() <{{grid = @g}}> : () -> index
  %i = "arith.index_cast"(%n) : (index) -> i64
  %t = "tensor.from_elements"(%i) : (i64) -> tensor<i64>
  %f = stablehlo.convert %t : (tensor<i64>) -> tensor<f32>
  %w = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> {T}
  %x = stablehlo.multiply %a, %w : {T}
"""
"""Each process has the argument times its number."""


def collective(name, operand, axes, notes="", kind=T):
    """A collective along axes of the grid in the generic form, which the writer has."""
    axes = f"grid = @g, grid_axes = array<i16: {axes}>" if axes else "grid = @g"
    return f'%r = "shard.{name}"({operand}) <{{{axes}{notes}}}> : ({T}) -> {kind}'


# A collective, its axes and attributes, the type of its result, and what each process gets of all.
COLLECTIVES = [
    ("all_reduce", "0, 1", "", T, lambda all_, i: sum(all_)),
    ("all_reduce", "1", "reduction = #shard<partial max>", T,
     lambda all_, i: all_[3 * (i // 3) + 2]),
    ("all_reduce", "", "", T, lambda all_, i: all_[i]),
    ("all_gather", "0, 1", "gather_axis = 0 : index", "tensor<24x6xf32>",
     lambda all_, i: np.concatenate(all_)),
    ("all_slice", "1", "slice_axis = 1 : index", "tensor<4x2xf32>",
     lambda all_, i: all_[i][:, 2 * (i % 3) : 2 * (i % 3) + 2]),
    ("reduce_scatter", "0", "scatter_axis = 1 : index", "tensor<4x3xf32>",
     lambda all_, i: (all_[i % 3] + all_[i % 3 + 3])[:, 3 * (i // 3) : 3 * (i // 3) + 3]),
    ("all_to_all", "0", "split_axis = 0 : index, concat_axis = 1 : index", "tensor<2x12xf32>",
     lambda all_, i: np.concatenate(
         [all_[j][2 * (i // 3) : 2 * (i // 3) + 2] for j in (i % 3, i % 3 + 3)], 1)),
    ("shift", "1", "shift_axis = 1 : index, offset = 1 : i64, rotate", T,
     lambda all_, i: all_[3 * (i // 3) + (i - 1) % 3]),
    ("shift", "1", "shift_axis = 1 : index, offset = -1 : i64", T,
     lambda all_, i: all_[i + 1] if i % 3 < 2 else 0 * all_[i]),
]  # fmt: skip


def program(line, kind):
    """Each process makes of ``%x`` what the line says; results lie side by side."""
    rows, columns = (int(n) for n in kind.removeprefix("tensor<").split("x")[:2])
    inputs = PORT.format("S[0], S[1]", f"{2 * rows}, {3 * columns}")
    return read(
        f"{NUMBERED}  {line}\n  return %r : {kind}",
        f"%a: {T} {{{PORT.format('R, R', '4, 6')}}}",
        f"{kind} {{{inputs}}}",
    )


@pytest.mark.parametrize(("name", "axes", "notes", "kind", "expected"), COLLECTIVES)
def test_collectives_mean_what_the_dialect_says(name, axes, notes, kind, expected):
    array = np.arange(1, 25, dtype="float32").reshape(4, 6)
    mod = program(collective(name, "%x", axes, f", {notes}" if notes else "", kind), kind)
    assert level_of(mod) == "local"
    (whole,) = td.run(mod, [array], "virtual")
    stored = [array * np.float32(i) for i in range(6)]
    rows = [[expected(stored, 3 * i + j) for j in range(3)] for i in range(2)]
    np.testing.assert_array_equal(whole, np.block(rows))
    again = td.from_stablehlo(td.to_stablehlo(mod, "shard"), inline=0)
    np.testing.assert_array_equal(td.run(again, [array], "virtual")[0], whole)


def test_uneven_shards_say_where_they_begin():
    x = relax.Var("x", relax.TensorType([5, 6], "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.nn.relu(x)))
    rules = [{"param": "x", "placement": "S[0], R", "mesh": "m"}]
    plan = {"schema_version": 1, "meshes": {"m": {"axes": {"a": 2, "b": 3}}}, "rules": rules}
    mod = transform.AnnotateSharding(td.Plan.from_dict(plan))(builder.get())
    text = td.to_stablehlo(mod, "shard")
    assert "static_sharded_dims_offsets = array<i64: 0, 3, 5>" in text
    assert 'placement="S[0], R"' in td.from_stablehlo(text).script()
    with pytest.raises(ModelError, match=r"DIST0372 .*begin at"):
        td.from_stablehlo(text.replace("0, 3, 5", "0, 2, 5"))


def sharded(axes, grid="g", halo=""):
    """The argument with a sharding."""
    notes = f"grid = @{grid}, split_axes = #shard<axisarray{axes}>"
    notes += f", static_halo_sizes = array<i64{halo}>"
    return f'%s = "shard.sharding"() <{{{notes}}}> : () -> !shard.sharding\n{SHARD}'


SHARD = f'%b = "shard.shard"(%a, %s) : ({T}, !shard.sharding) -> {T}\n  return %b : {T}'
MOVED = "\n  return %r : tensor<4x6xf32>"
UNSAID = [
    (sharded("[[0]]", grid="h"), "DIST0372"),
    (sharded("[[2]]"), "DIST0372"),
    (sharded("[[0], [0]]"), "DIST0372"),
    (sharded("[[1, 0]]"), "DIST0372"),
    (sharded("[[], [], [0]]"), "DIST0372"),
    (sharded("[[0]]", halo=": 1, 1"), "DIST0372"),
    (sharded("[[0]]").replace("#shard<axisarray[[0]]>", "[[0]]"), "DIST0372"),
    (f"%s = stablehlo.add %a, %a : {T}\n{SHARD}".replace("!shard.sharding", T), "DIST0372"),
    (f'%s = "shard.get_sharding"(%a) : ({T}) -> !shard.sharding\n{SHARD}', "DIST0371"),
    (f"%s = shard.sharding @g split_axes = [[0]] : !shard.sharding\n{SHARD}", "DIST0371"),
    *((collective(name, "%a", "0", ", root = array<i64: 0>") + MOVED, "DIST0371")
      for name in ("send", "recv", "update_halo", "reduce", "gather", "broadcast", "scatter")),
    (collective("all_reduce", "%a", "0") + MOVED, "DIST0372"),
    (collective("all_reduce", "%a", "0", ", reduction = #shard<partial average>") + MOVED,
     "DIST0372"),
    (collective("all_gather", "%a", "1, 0", ", gather_axis = 0 : index") + MOVED, "DIST0372"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "code"), UNSAID, ids=[body[5:80] for body, _ in UNSAID])
def test_what_is_not_taken_is_named(body, code):
    with pytest.raises(ModelError) as caught:
        read(body)
    assert caught.value.code == code and "text:" in str(caught.value)


FAULTS = {
    "argument %a has no tvm_distir.port": (PORT.format("S[0], R", "8, 6"), "someone.n = 1"),
    "result 0 has no tvm_distir.port": (PORT.format("R, R", "4, 6"), "someone.n = 1"),
    "argument %a: a shard [4, 6] of an array [8, 7]": ("8, 6", "8, 7"),
    "result 0: a shard [4, 6] of an array [5, 6]": ('R, R", shape = array<i64: 4,',
                                                    'R, R", shape = array<i64: 5,'),
    'argument %a: DIST0203: "S0"': ("S[0]", "S0"),
    "argument %a: DIST0204": ("S[0], R", "S[0]"),
    "result 0: DIST0205": ("R, R", "R, S[2]"),
    "argument %a: a tvm_distir.port without placement": ("index = 0 : i64, ", ""),
    "the grid h, others on g": ("grid = @g, index = 0 : i64, placement = \"R,",
                                "grid = @h, index = 0 : i64, placement = \"R,"),
}  # fmt: skip


@pytest.mark.parametrize("what", FAULTS)
def test_ports_that_do_not_fit(what):
    notes = PORT.format("S[0], R", "8, 6"), PORT.format("R, R", "4, 6")
    first, other = FAULTS[what]
    assert any(first in note for note in notes)
    argument, result = (note.replace(first, other) for note in notes)
    with pytest.raises(ModelError, match=f"DIST0372.*{re.escape(what)}"):
        read(f"return %a : {T}", f"%a: {T} {{{argument}}}", f"{T} {{{result}}}")


def test_what_is_not_written_is_named(mlp):
    mod, _ = mlp
    plan = td.Plan.from_dict(
        {
            "schema_version": 1,
            "meshes": {"m": {"axes": {"dp": 2}, "device_ids": [1, 0]}},
            "rules": [{"param": "x", "placement": "S[0]", "mesh": "m"}],
        }
    )
    with pytest.raises(ModelError, match=r"DIST0380 .*processes of a grid"):
        td.to_stablehlo(transform.AnnotateSharding(plan)(mod), "shard")


def test_on_the_command_line(tmp_path):
    path, local = tmp_path / "m.shard.mlir", tmp_path / "local.shard.mlir"
    plan = ["--strategy", "data_parallel", "--mesh", "dp=2"]
    zoo = "zoo:mlp?batch=4,layers=1,hidden=16"
    assert main(["convert", zoo, str(path), *plan, "--to", "annotated"]) == 0
    assert "shard.shard" in path.read_text(encoding="utf-8")
    assert main(["convert", str(path), str(local), "--to", "local"]) == 0
    assert "shard.grid" in local.read_text(encoding="utf-8")
    assert main(["convert", str(local), str(tmp_path / "out.py")]) == 0
    assert "dist.io" in (tmp_path / "out.py").read_text(encoding="utf-8")
