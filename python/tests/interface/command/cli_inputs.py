# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Small models and plans as files, whole and broken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, external_data_helper, helper, numpy_helper

MLP = """\
from tvm.script import ir as I
from tvm.script import relax as R


@I.ir_module
class Module:
    @R.function(private=True)
    def mlp(
        x: R.Tensor((8, 16), "float32"),
        a: R.Tensor((16, 32), "float32"),
        b: R.Tensor((32, 16), "float32"),
    ) -> R.Tensor((8, 16), "float32"):
        with R.dataflow():
            lv = R.matmul(x, a)
            lv1 = R.nn.relu(lv)
            lv2 = R.matmul(lv1, b)
            R.output(lv2)
        return lv2

    @R.function
    def main(
        x: R.Tensor((8, 16), "float32"),
        a: R.Tensor((16, 32), "float32"),
        b: R.Tensor((32, 16), "float32"),
    ) -> R.Tensor((8, 16), "float32"):
        cls = Module
        with R.dataflow():
            y = cls.mlp(x, a, b)
            z = cls.mlp(y, a, b)
            R.output(z)
        return z
"""

CYCLE = """\
from tvm.script import ir as I
from tvm.script import relax as R


@I.ir_module
class Module:
    @R.function(private=True)
    def ping(x: R.Tensor((8, 16), "float32")) -> R.Tensor((8, 16), "float32"):
        cls = Module
        y: R.Tensor((8, 16), "float32") = cls.pong(x)
        return y

    @R.function(private=True)
    def pong(x: R.Tensor((8, 16), "float32")) -> R.Tensor((8, 16), "float32"):
        cls = Module
        y: R.Tensor((8, 16), "float32") = cls.ping(x)
        return y

    @R.function
    def main(x: R.Tensor((8, 16), "float32")) -> R.Tensor((8, 16), "float32"):
        cls = Module
        y: R.Tensor((8, 16), "float32") = cls.ping(x)
        return y
"""


def plan(**changes: Any) -> dict[str, Any]:
    """A plan that shards the MLP's batch over dp and its hidden dim over tp."""
    return {
        "schema_version": 1,
        "mesh": {"dp": 2, "tp": 2},
        "rules": [
            {"param": "x", "placement": "S[0], R"},
            {"param": "a", "placement": "R, S[1]"},
            {"param": "b", "placement": "R, S[0]"},
        ],
        **changes,
    }


def one_rule(placement: str, **changes: Any) -> dict[str, Any]:
    """A plan of one rule for ``x``, of shape (8, 16)."""
    return plan(rules=[{"param": "x", "placement": placement}], **changes)


def onnx_mlp(op: str = "Relu", domain: str = "", batch: int = 8) -> onnx.ModelProto:
    """``x @ w`` and an activation, with real weights."""
    weight = np.random.default_rng(0).standard_normal((16, 32)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"]),
            helper.make_node(op, ["h"], ["y"], domain=domain),
        ],
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 32])],
        [numpy_helper.from_array(weight, "w")],
    )
    opsets = [helper.make_opsetid("", 17)]
    if domain:
        opsets.append(helper.make_opsetid(domain, 1))
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def write_inputs(folder: Path) -> None:
    """Write every file that the tests name into ``folder``."""
    whole = onnx_mlp().SerializeToString()
    texts = {
        "mlp.py": MLP,
        "cycle.py": CYCLE,
        "syntax.py": MLP.replace("def main(", "def main((", 1),
        "nomodule.py": "x = 1\n",
        "badop.py": MLP.replace("R.nn.relu", "R.nn.relux"),
        # More digits than Python reads.
        "digits.json": json.dumps(plan()).replace('"dp": 2', f'"dp": {"1" * 5000}'),
        "deep.json": "[" * 100000,
        "notjson.json": '{"schema_version": 1, "mesh": ',
        "list.json": "[1, 2]",
        "latin.py": "",
    }
    plans = {
        "plan.json": plan(),
        "key.json": plan(meshs={}),
        "version.json": plan(schema_version=7),
        "rank.json": one_rule("S[0]"),
        "placement.json": one_rule("S[0], Q"),
        "dim.json": one_rule("S[0], S[5]"),
        "axis.json": plan(
            rules=[{"param": "x", "mesh": "stage7", "placement": "S[0], R"}],
        ),
        "nothing.json": plan(rules=[{"param": "nope", "placement": "S[0], R"}]),
        "nomesh.json": {"schema_version": 1, "rules": []},
        "meshes.json": plan(mesh={"dp": 0}),
        "rulekey.json": plan(rules=[{"param": "x", "placemnt": "S[0], R"}]),
        "many.json": plan(mesh={"dp": 1000, "tp": 1000}),
        "big.json": plan(mesh={"dp": 10**19, "tp": 2}),
        "start.json": {
            "schema_version": 1,
            "meshes": {"m": {"axes": {"dp": 2}, "start": 10**19}},
            "rules": [],
        },
        "bigdim.json": one_rule(f"S[{'1' * 5000}], R"),
        "odddim.json": one_rule("S[²], R"),
        "uneven2.json": one_rule("S[0], S[0]", mesh={"dp": 50, "tp": 70}),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    for name, content in plans.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    (folder / "latin.py").write_bytes(b"x = '\xe9'\n")
    (folder / "mlp.onnx").write_bytes(whole)
    (folder / "cut.onnx").write_bytes(whole[: len(whole) * 2 // 3])
    (folder / "garbage.onnx").write_bytes(bytes(range(256)) * 4)
    (folder / "empty.onnx").write_bytes(b"")
    (folder / "unknown_op.onnx").write_bytes(
        onnx_mlp("Frobnicate", "com.example").SerializeToString()
    )
    pinned = onnx_mlp()
    pinned.graph.node.insert(0, helper.make_node("Transpose", ["x0"], ["x"], perm=[1, 0]))
    pinned.graph.input[0].CopyFrom(helper.make_tensor_value_info("x0", TensorProto.FLOAT, [16, 8]))
    _write_faulty(folder)
    (folder / "pinned.onnx").write_bytes(pinned.SerializeToString())


def _write_faulty(folder: Path) -> None:
    """ONNX files that break one rule each, and names that a terminal would obey."""
    matches = {name: onnx_mlp() for name in FAULTY}
    matches["opset999"].opset_import[0].version = 999
    matches["opset0"].opset_import[0].version = 0
    twice = matches["twice"].graph
    twice.node[1].output[0] = twice.output[0].name = "h"
    matches["twice_input"].graph.input.append(matches["twice_input"].graph.input[0])
    over = matches["over_weight"].graph.node
    over[0].output[0] = over[1].input[0] = "w"
    matches["twice_weight"].graph.initializer.append(matches["twice_weight"].graph.initializer[0])
    matches["no_giver"].graph.node[1].input[0] = "nope"
    matches["no_output"].graph.output[0].name = "nope"
    del matches["no_node"].graph.node[:]
    matches["identity"].graph.output[0].CopyFrom(matches["identity"].graph.input[0])
    del matches["identity"].graph.node[:]
    external = matches["no_data"].graph.initializer[0]
    external_data_helper.set_external_data(external, "missing.bin")
    external.ClearField("raw_data")
    external.data_location = TensorProto.EXTERNAL
    for name, model in matches.items():
        (folder / f"{name}.onnx").write_bytes(model.SerializeToString())
    rude = onnx_mlp(f"Frob{RUDE}nicate", "com.example")
    rude.graph.node[1].name = f"node{RUDE}"
    (folder / "rude.onnx").write_bytes(rude.SerializeToString())
    rules = [{"param": f"no{RUDE}pe", "placement": "S[0], R"}]
    (folder / "rude.json").write_text(json.dumps(plan(rules=rules)), encoding="utf-8")


RUDE = "\x1b[2J\x1b]0;title\x07\r\x9b1m\u202e"
"""Clears a terminal, sets its title, overwrites its line, and turns what follows around."""

FAULTY = (
    "opset999", "opset0", "twice", "twice_input", "over_weight", "twice_weight", "no_giver",
    "no_output", "no_node", "identity", "no_data",
)  # fmt: skip
