# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Modules printed with named axes and partial sums, and maps of who holds what."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_distir as td
from tvm_distir.interface.ir_display import annotated_script
from tvm_distir.support.errors import DistIRError, PropagationError, UsageError

AXES = {"dp": 2, "tp": 2}


@pytest.fixture(scope="module")
def levels() -> list[Any]:
    """A GPT at the levels 2, 3 and 4."""
    mod = td.zoo.gpt(size="tiny", layers=1)
    plan = td.planning.make_plan(mod, "data_parallel+megatron", AXES)
    annotated = td.transforms.AnnotateSharding(plan)(mod)
    propagated = td.transforms.PropagateSharding()(annotated)
    return [annotated, propagated, td.transforms.LegalizeRedistribute()(propagated)]


def _plain(text: str) -> str:
    """Take the names of meshes and axes out of a text."""

    def numbers(match: re.Match[str]) -> str:
        words = [str(list(AXES).index(word.strip('" '))) for word in match[1].split(",")]
        return f"mesh_axes=[{', '.join(words)}]"

    text = re.sub(r"\b(?:dp|tp): (?=R|S\[|P)", "", text)
    text = re.sub(r"mesh_axes=\[((?:\"\w+\"(?:, )?)+)\]", numbers, text)
    text = re.sub(r'mesh_axis="(\w+)"', lambda m: f"mesh_axis={list(AXES).index(m[1])}", text)
    return text.replace('"mesh0", "', '"mesh[0]", "').replace('="mesh0"', '="mesh[0]"')


@pytest.mark.parametrize("level", [2, 3, 4])
def test_only_names_are_changed(levels: list[Any], level: int) -> None:
    mod = levels[level - 2]
    text = annotated_script(mod)
    assert '"mesh[0]"' not in text and text != mod.script()
    plain = re.sub(r'(?<=[" ])P(?=[",])', "R", _plain(text))
    assert plain == mod.script()


def test_partial_sums_are_what_reductions_take(levels: list[Any]) -> None:
    text = annotated_script(levels[2])
    partial = set(re.findall(r'(\w+): R\.DTensor\([^=]*"dp: [^"]*tp: P"\) = ', text))
    calls = re.findall(r"R\.dist\.all_reduce\((\w+), [^\n]*mesh_axes=(\S+),", text)
    reduced = {name for name, axes in calls if axes == '["tp"]'}
    assert len(reduced) == 3 and partial == reduced


def test_arguments_of_private_functions_may_be_partial() -> None:
    @I.ir_module
    class Module:
        @R.function(private=True)
        def double(x: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
            with R.dataflow():
                y = R.add(x, x)
                R.output(y)
            return y

        @R.function
        def main(a: R.Tensor((4, 8), "float32"), b: R.Tensor((8, 4), "float32")) -> R.Tensor(
            (4, 4), "float32"
        ):
            cls = Module
            with R.dataflow():
                x = R.matmul(a, b)
                y = cls.double(x)
                R.output(y)
            return y

    plan = td.Plan(mesh={"tp": 2}, rules={"a": td.P(None, "tp"), "b": td.P("tp")})
    mod: Any = td.transforms.AnnotateSharding(plan)(Module)
    mod = td.transforms.LegalizeRedistribute()(td.transforms.PropagateSharding()(mod))
    text = annotated_script(mod)
    declared = [fn for fn in mod.functions.values() if fn.attrs and "dist.partial" in fn.attrs]
    header = next(line for line in text.splitlines() if "def double" in line)
    assert header.count('tp: P"') == (2 if declared else 0)
    assert re.search(r'x\w*: R\.DTensor\(\(4, 4\), "float32", "mesh0", "tp: P"\)', text)


def test_show_prints_plain_text_into_pipes(
    levels: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    td.show(levels[1])
    assert capsys.readouterr().out == annotated_script(levels[1]) + "\n"


def test_modules_without_meshes_are_printed_as_they_are() -> None:
    mod = td.zoo.mlp(layers=1, hidden=8, batch=4)
    assert annotated_script(mod) == mod.script()


PLACEMENTS = ["R, R", "S[0], R", "S[0], S[1]", "S[1], S[0]", "S[0], S[0]", "R, S[2]"]


@pytest.mark.parametrize("text", PLACEMENTS)
def test_a_map_of_a_run_is_that_of_the_placement(text: str) -> None:
    """The ranges that the ranks of a run hold are those that the placement says."""

    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((8, 6, 4), "float32")) -> R.Tensor((8, 6, 4), "float32"):
            with R.dataflow():
                y = R.nn.relu(x)
                R.output(y)
            return y

    rules = [{"param": "x", "placement": text}, {"value": "y", "placement": text}]
    plan = td.Plan.from_dict({"schema_version": 1, "mesh": AXES, "rules": rules})
    local = td.distribute(Module, plan)
    x = np.arange(8 * 6 * 4, dtype=np.float32).reshape(8, 6, 4)
    (output,) = td.run(local, [x], engine="virtual", outputs="sharded")
    ran, planned = td.visualize(output), td.visualize((8, 6, 4), text, AXES)
    for device, part in output.parts.items():
        [shard] = [shard for shard in planned.shards if device in shard.devices]
        box = tuple(slice(*cut) for cut in shard.bounds if cut is not None)
        assert np.array_equal(x[box], part)
    assert ran.shards == planned.shards and ran.counts == planned.counts


def test_a_value_of_a_module_shows_its_partial_sum(levels: list[Any]) -> None:
    drawn = td.visualize(levels[2], "tokens_terms")
    assert drawn.title == "main/tokens_terms: 16 x 16 x 64, S[0], P on mesh0 (dp=2, tp=2)"
    assert [shard.devices for shard in drawn.shards] == [(0, 1), (2, 3)]
    assert "0:8" in str(drawn)
    for name in ("wte.weight", "wte_weight", "main/wte.weight"):
        assert td.visualize(levels[2], name).title.startswith("main/wte_weight: 503 x 64, R, S[0]")
    with pytest.raises(PropagationError, match="tokens_terms"):
        td.visualize(levels[2], "tokens_term")


def test_nodes_are_named_and_coloured() -> None:
    drawn = td.visualize((32, 4), td.P("dp"), {"dp": 4, "tp": 4}, system="dgx-a100")
    assert drawn.nodes == {0: tuple(range(8)), 1: tuple(range(8, 16))}
    assert str(drawn).splitlines()[-2:] == ["node 0: devices 0-7", "node 1: devices 8-15"]
    page = drawn._repr_html_()
    colours = re.findall(r'background:(#\w+);padding:0 4px">([\d, -]+)<', page)
    assert [devices for _, devices in colours] == ["0-3", "4-7", "8-11", "12-15"]
    assert colours[0][0] == colours[1][0] != colours[2][0] == colours[3][0]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (((8, 6),), "DIST0151"),
        (((8, 6), td.P("dp")), "DIST0151"),
        (((8, 6), td.P("pp"), AXES), "DIST0206"),
        (((8, 6), "S[2], R", AXES), "DIST0205"),
        ((td.ShardedArray({0: np.zeros(2)}),), "DIST0151"),
    ],
    ids=str,
)
def test_what_cannot_be_drawn(arguments: Any, code: str) -> None:
    with pytest.raises(DistIRError) as info:
        td.visualize(*arguments)
    assert info.value.code == code
    assert isinstance(info.value, UsageError) == (code == "DIST0151")


def test_the_order_of_axes_is_named():
    mod = td.zoo.build("mlp", {"batch": 8, "layers": 1, "hidden": 8})
    plan = td.Plan(mesh={"dp": 2, "tp": 4}, rules={"x": td.P(("tp", "dp"), None)})
    passes = td.transforms
    ordered = passes.OrderAxes()(passes.PropagateSharding()(passes.AnnotateSharding(plan)(mod)))
    words = "S[0]{tp,dp}, S[0]{tp,dp} on mesh0 (dp=2, tp=4)"
    assert '"mesh0", "dp: S[0]{tp,dp}, tp: S[0]{tp,dp}"' in annotated_script(ordered)
    shards = td.visualize(ordered, "x")
    assert words in str(shards)
    # tp is major: the device of (dp 1, tp 0), number 4, has the second row.
    assert [shard.devices for shard in shards.shards[:3]] == [(0,), (4,), (1,)]
    explained = td.explain(mod, plan, "x", alternatives=False)
    assert f"placement {words}" in str(explained)
