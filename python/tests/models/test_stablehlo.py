# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""StableHLO in: programs of JAX equal what JAX computed; names, functions, shardings, refusals."""

from __future__ import annotations

import importlib.util
import random

import numpy as np
import pytest
import tvm
import tvm_ffi

import tvm_distir as td
from tests.models.stablehlo_cases import DATA, NAMES, REFUSED, function, stored
from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.interface.command import main
from tvm_distir.models.model import load_model
from tvm_distir.support.errors.tree import ModelError

MLP = """
module @jit_mlp {
  sdy.mesh @grid = <["dp"=2, "tp"=2]>
  func.func public @main(%arg0: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@grid, [{}, {"tp"}]>} loc("p['up']"),
      %arg1: tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@grid, [{"tp"}, {?}]>} loc("p['down']"),
      %arg2: tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@grid, [{"dp"}, {}]>} loc("x")) -> (tensor<4x8xf32>) {
    %0 = stablehlo.dot_general %arg2, %arg0, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x16xf32>) -> tensor<4x16xf32>
    %1 = stablehlo.tanh %0 : tensor<4x16xf32>
    %2 = stablehlo.dot_general %1, %arg1, contracting_dims = [1] x [0] : (tensor<4x16xf32>, tensor<16x8xf32>) -> tensor<4x8xf32>
    %3 = sdy.sharding_constraint %2 <@grid, [{"dp"}, {}]> : tensor<4x8xf32>
    return %3 : tensor<4x8xf32>
  }
}
"""  # noqa: E501


def close(result, expected):
    scale = np.abs(expected).max() if expected.size else 0
    tolerance = 1e-5 * scale + 1e-6
    np.testing.assert_allclose(
        result.astype("float64"), expected.astype("float64"), 1e-4, tolerance
    )


@pytest.mark.parametrize("name", NAMES)
def test_program_gives_what_jax_computed(name):
    mod = td.from_stablehlo(DATA / f"{name}.mlir")
    inputs, expected = stored(name, mod)
    result = Reference(mod).run(inputs)
    assert [list(array.shape) for array in result] == [list(array.shape) for array in expected]
    for array, other in zip(result, expected, strict=True):
        close(array, other)


def functions(mod):
    return {str(gv.name_hint) for gv in mod.get_global_vars()}


def test_names_order_and_functions():
    mod = td.from_stablehlo(DATA / "gpt_scan.mlir")
    main_ = mod["main"]
    assert [str(n) for n in main_.attrs["dist.param_names"]][:3] == ["ids", "p.b", "p.g"]
    assert int(main_.attrs["num_input"]) == 1
    assert functions(mod) == {"main", "closed_call", "tril"}  # the layer that the scan repeats
    calls = [b.value for block in main_.body.blocks for b in block.bindings]
    layers = [c for c in calls if getattr(getattr(c, "op", None), "name_hint", "") == "closed_call"]
    assert len(layers) == 2
    assert functions(td.from_stablehlo(DATA / "gpt_scan.mlir", inline=1000)) == {"main"}


def test_data_are_named():
    mod = td.from_stablehlo(DATA / "moe_gradient.mlir", data=["data.0"])
    tvm.ir.assert_structural_equal(
        td.from_stablehlo(DATA / "moe_gradient.mlir", data=["data"]), mod
    )
    with pytest.raises(ModelError, match=r"DIST0373 loops: loops=0 is not a bound"):
        td.from_stablehlo(DATA / "moe_gradient.mlir", loops=0)
    assert int(mod["main"].attrs["num_input"]) == 1
    assert str(mod["main"].params[0].name) == "data_0"
    with pytest.raises(ModelError, match="DIST0373") as caught:
        td.from_stablehlo(DATA / "moe_gradient.mlir", data=["data.1"])
    assert "data.0" in str(caught.value)


def test_arguments_without_names_are_data():
    mod = td.from_stablehlo(function("    return %x : tensor<4xf32>"))
    assert [str(n) for n in mod["main"].attrs["dist.param_names"]] == ["arg0"]
    assert int(mod["main"].attrs["num_input"]) == 1


def test_shardings_are_annotations():
    mod = td.from_stablehlo(MLP)
    assert str(mod).count("annotate_sharding") == 4
    assert [list(row) for row in mod.attrs["mesh_axes"]] == [["dp", "tp"]]
    report = td.verify(mod, None)
    assert report.equal
    assert {(c.kind, c.mesh_axis, c.count) for c in report.collectives} == {("all_reduce", "tp", 1)}
    plain = td.from_stablehlo(MLP, shardings=False)
    assert "annotate_sharding" not in str(plain)


@pytest.mark.parametrize(
    "tiles, placement",
    [
        ("{devices=[2,1,2]<=[4] last_tile_dim_replicate}", "S[0], R"),
        ("{devices=[1,2,2]<=[2,2]T(1,0) last_tile_dim_replicate}", "R, S[1]"),
        ("{devices=[1,2,2]0,2,1,3 last_tile_dim_replicate}", "R, S[1]"),
        ("{devices=[2,2]<=[4]}", "S[0], S[1]"),
        ("{replicated}", "R, R"),
    ],
)
def test_tiles_of_gspmd(tiles, placement):
    other = "{devices=[2,1,2]<=[4] last_tile_dim_replicate}"
    text = f"""
module {{
  func.func public @main(%x: tensor<4x4xf32> {{mhlo.sharding = "{tiles}"}}, %y: tensor<4x4xf32>) -> tensor<4x4xf32> {{
    %0 = stablehlo.custom_call @Sharding(%y) {{mhlo.sharding = "{other}"}} : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %1 = stablehlo.add %x, %0 : tensor<4x4xf32>
    return %1 : tensor<4x4xf32>
  }}
}}
"""  # noqa: E501
    mod = td.from_stablehlo(text)
    notes = [line for line in str(mod).splitlines() if "annotate_sharding" in line]
    assert f'placement="{placement}"' in notes[0]
    assert list(mod.attrs["mesh_axes"][0]) == ["axis0", "axis1"]


def test_generic_form_is_the_pretty_one():
    generic = """
"builtin.module"() <{sym_name = "m"}> ({
  "func.func"() <{function_type = (tensor<2x3xf32>) -> tensor<3xf32>, sym_name = "main"}> ({
  ^bb0(%arg0: tensor<2x3xf32>):
    %0 = "stablehlo.constant"() <{value = dense<0.000000e+00> : tensor<f32>}> : () -> tensor<f32>
    %1 = "stablehlo.reduce"(%arg0, %0) <{dimensions = array<i64: 0>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %2 = "stablehlo.add"(%a, %b) : (tensor<f32>, tensor<f32>) -> tensor<f32>
      "stablehlo.return"(%2) : (tensor<f32>) -> ()
    }) : (tensor<2x3xf32>, tensor<f32>) -> tensor<3xf32>
    "func.return"(%1) : (tensor<3xf32>) -> ()
  }) : () -> ()
}) : () -> ()
"""
    result = td.from_stablehlo(generic)
    values = np.arange(6, dtype="float32").reshape(2, 3)
    np.testing.assert_array_equal(Reference(result).run([values])[0], values.sum(0))


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    text, code, words = REFUSED[case]
    with pytest.raises(ModelError) as caught:
        td.from_stablehlo(text)
    assert caught.value.code == code
    assert words in str(caught.value)


BYTECODE = DATA / "recurrent_gradient.mlirbc"
"""What MLIR itself wrote of the text beside it."""


def test_bytecode_is_what_its_text_is():
    pytest.importorskip("jax", reason="bytecode is read with the extra jax, which is not installed")
    expected = td.from_stablehlo(BYTECODE.with_suffix(".mlir"))
    for source in (BYTECODE, BYTECODE.read_bytes()):
        tvm.ir.assert_structural_equal(td.from_stablehlo(source), expected)
    with pytest.raises(ModelError, match="DIST0303"):
        td.from_stablehlo(BYTECODE.read_bytes()[:200])


def test_bytecode_without_jax(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if "jax" in name else find(name)
    )
    for source in (BYTECODE, BYTECODE.read_bytes()):
        with pytest.raises(ModelError, match=r"DIST0304 .*reading MLIR bytecode requires jax"):
            td.from_stablehlo(source)


def damaged(text, rng):
    """The text cut short, or with one letter, line or number changed."""
    at = rng.randrange(1, len(text))
    lines = text.splitlines()
    row = rng.randrange(len(lines))
    line = lines[row]
    numbers = [i for i, letter in enumerate(line) if letter.isdigit()] or [0]
    digit = rng.choice(numbers)
    kind = rng.choice(("cut", "letter", "drop", "twice", "number"))
    if kind == "cut":
        return text[:at] + "\n"
    if kind == "letter":
        return text[:at] + rng.choice('<>[]{}(),:%@#"x0 ') + text[at + 1 :]
    more = {"drop": [], "twice": [line, line], "number": [f"{line[:digit]}9{line[digit + 1 :]}"]}
    return "\n".join([*lines[:row], *more[kind], *lines[row + 1 :], ""])


def test_damaged_texts_are_refused_in_one_way():
    text = (DATA / "recurrent_gradient.mlir").read_text(encoding="utf-8")
    rng, refused = random.Random(0), 0
    for _ in range(60):
        try:
            td.from_stablehlo(damaged(text, rng))
        except ModelError as error:
            assert error.code in ("DIST0370", "DIST0371", "DIST0372")
            refused += 1
    assert refused > 40


def test_command_line(tmp_path, capfd):
    path = tmp_path / "m.mlir"
    path.write_text(MLP, encoding="utf-8")
    assert main(["verify", str(path), "--engine", "virtual"]) == 0
    capfd.readouterr()
    model = load_model(f"{path}?data=x+p.up,inline=0,shardings=0")
    assert model.kind == "stablehlo"
    assert int(model.mod["main"].attrs["num_input"]) == 2
    for spec, code in (
        (f"{path}?data=z", "DIST0373"),
        (f"{path}?other=1", "DIST0373"),
        (str(tmp_path / "none.mlir"), "DIST0301"),
    ):
        assert main(["verify", spec, "--engine", "virtual"]) == 1
        message = capfd.readouterr().err.strip().splitlines()
        assert len(message) == 1 and code in message[0]
    for option, code in (({"batch": 2}, "DIST0314"), ({"dims": {"n": 2}}, "DIST0313")):
        with pytest.raises(ModelError, match=code):
            load_model(str(path), **option)


def test_files_that_are_no_text(tmp_path, monkeypatch, capfd):
    path = tmp_path / "m.mlir"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ModelError, match="DIST0303"):
        td.from_stablehlo(path)
    path.write_bytes(b"ML\xefR\x00")
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name.startswith("jax") else find(name)
    )
    assert main(["verify", str(path), "--engine", "virtual"]) == 1
    assert "DIST0304" in capfd.readouterr().err


def test_custom_calls_run_as_packed_functions_of_their_names(tmp_path):
    text = function(
        "    %0:2 = stablehlo.custom_call @test.halves(%x) {operand_layouts = [dense<[1, 0]> : "
        "tensor<2xindex>]} : (tensor<4x8xf32>) -> (tensor<2x8xf32>, tensor<2x8xf32>)\n"
        "    %1 = stablehlo.subtract %0#0, %0#1 : tensor<2x8xf32>\n"
        "    return %1 : tensor<2x8xf32>",
        "%x: tensor<4x8xf32>",
        "tensor<2x8xf32>",
    )

    @tvm_ffi.register_global_func("test.halves", override=True)
    def halves(x):
        return [tvm.runtime.tensor(x.numpy()[i : i + 2]) for i in (0, 2)]

    with pytest.raises(ModelError, match=r"DIST0371 .*@test.halves .*opaque=True"):
        td.from_stablehlo(text)
    path = tmp_path / "model.mlir"
    path.write_text(text)
    mod = load_model(f"{path}?opaque=1").mod
    x = np.arange(32, dtype="float32").reshape(4, 8) ** 2
    plan = td.planning.make_plan(mod, "data_parallel", {"dp": 2})
    (result,) = td.run(td.distribute(mod, plan), [x])
    np.testing.assert_array_equal(result, x[:2] - x[2:])
    result = td.analyze(mod, plan=plan, system="h100")
    assert "test.halves" in str(result)
