# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Programs from JSON: a good one, and everything that is refused."""

from __future__ import annotations

import copy
import json

import pytest

from tvm_distir.performance.program.program import Program
from tvm_distir.support.errors.tree import SimulationError


def good():
    """``main`` calls ``f`` twice; ``f`` gathers over tp; a constant; a transfer to nobody."""
    value = {"name": "v", "shape": [4], "dtype": "float32", "bytes": 16}
    common = {"flops": 8, "bytes_read": 16, "bytes_written": 16, "modelled": True}
    return {
        "schema_version": 1,
        "meshes": [
            {"name": "m0", "axes": ["dp", "tp"], "shape": [2, 2], "device_ids": [0, 1, 2, 3]},
            {"name": "m1", "axes": ["x"], "shape": [1], "device_ids": [4]},
        ],
        "functions": {
            "main": {
                "mesh": 0,
                "params": [0],
                "results": [2],
                "values": [{**value, "role": "input", "whole_shape": [8], "placement": "S[0], R"},
                           value, value],
                "ops": [
                    {"name": "a", "kind": "call", "op": "f", "inputs": [0], "outputs": [1],
                     "callee": "f", **common},
                    {"name": "b", "kind": "call", "op": "f", "inputs": [1], "outputs": [2],
                     "callee": "f", **common},
                ],
            },
            "f": {
                "mesh": 0,
                "params": [1],
                "results": [4],
                "values": [{**value, "role": "constant"}, value, value, value, value],
                "ops": [
                    {"name": "c", "kind": "compute", "op": "relax.add", "inputs": [0, 1],
                     "outputs": [2], "kernel_class": "memory", "dtype": "float32", **common},
                    {"name": "d", "kind": "collective", "op": "relax.dist.all_reduce",
                     "inputs": [2], "outputs": [3], "collective": "all_reduce", "mesh": 0,
                     "mesh_axes": [1], "group_size": 2, "payload_bytes": 16, **common},
                    {"name": "e", "kind": "view", "op": "relax.reshape", "inputs": [3],
                     "outputs": [4], **common},
                ],
            },
            "side": {
                "mesh": 1,
                "params": [],
                "results": [],
                "values": [value],
                "ops": [
                    {"name": "r", "kind": "transfer", "op": "relax.dist.recv", "inputs": [],
                     "outputs": [0], "collective": "recv", "mesh": 1, "peer_mesh": 0, "tag": -3,
                     "payload_bytes": 16, "wire_bytes": 16, **common},
                ],
            },
        },
        "entries": [{"mesh": 0, "function": "main"}, {"mesh": 1, "function": "side"}],
    }  # fmt: skip


def test_good_round_trip(tmp_path):
    program = Program.from_dict(good())
    assert program.functions["f"].ops[1].mesh_axes == (1,)
    assert program.functions["main"].values[0].whole_shape == (8,)
    assert program.device_count() == 5
    assert program.meshes[0].groups((1,)) == ((0, 1), (2, 3))
    assert program.meshes[0].groups((0,)) == ((0, 2), (1, 3))
    assert program.meshes[0].groups((0, 1)) == ((0, 1, 2, 3),)
    path = tmp_path / "program.json"
    program.save(path)
    assert Program.load(path) == program
    assert Program.from_json(program.to_json()).to_dict() == program.to_dict()


def refused(data, code):
    with pytest.raises(SimulationError) as caught:
        Program.from_dict(data)
    assert caught.value.code == code
    assert caught.value.location
    assert caught.value.remedy
    return str(caught.value)


def changed(path, value):
    """The good program with the value at a path replaced (``...`` deletes it)."""
    data = copy.deepcopy(good())
    node = data
    *head, last = [int(key) if key.isdigit() else key for key in path.split("/")]
    for key in head:
        node = node[key]
    if value is ...:
        del node[last]
    else:
        node[last] = value
    return data


FUN = "functions/f/"
WRONG = [
    ("meshes", {}),
    ("meshes/0/axes", "dp"),
    ("meshes/0/axes", ["dp", 3]),
    ("meshes/0/shape", [2, 0]),
    ("meshes/0/shape", [2, -2]),
    ("meshes/0/device_ids", [0, 1, 2, True]),
    ("meshes/0/device_ids", [0, 1, 2, -3]),
    ("meshes/0/colour", "red"),
    ("functions", []),
    ("functions/f", None),
    (FUN + "ops", ...),
    (FUN + "ops/0", 3),
    (FUN + "ops/0/kind", "compyte"),
    (FUN + "ops/0/kind", ["compute"]),
    (FUN + "ops/0/flops", -1),
    (FUN + "ops/0/flops", 1.5),
    (FUN + "ops/0/flops", "8"),
    (FUN + "ops/0/flops", 2**61),
    (FUN + "ops/0/flops", ...),
    (FUN + "ops/0/flop", 1),
    (FUN + "ops/0/callee", "f"),
    (FUN + "ops/0/modelled", 1),
    (FUN + "ops/0/kernel_class", "mamtul"),
    (FUN + "ops/0/op", ""),
    (FUN + "ops/0/inputs", 0),
    (FUN + "ops/0/inputs", [0.0]),
    (FUN + "ops/1/collective", "allreduce"),
    (FUN + "ops/1/collective", "send"),
    (FUN + "values/0/role", "weights"),
    (FUN + "values/0/bytes", -4),
    (FUN + "values/0/dtype", ""),
    (FUN + "values/0/shape", [2**40, 2**40]),
    ("functions/side/ops/0/tag", "x"),
    ("functions/side/ops/0/collective", "all_reduce"),
    ("entries", None),
    ("entries/0/mesh", "0"),
    ("entries/0/function", 3),
]
BROKEN = [
    ("meshes/0/axes", ["dp"]),
    ("meshes/0/axes", ["dp", "dp"]),
    ("meshes/0/shape", [2, 3]),
    ("meshes/0/device_ids", [0, 1, 2, 2]),
    ("meshes/1/device_ids", [3]),
    ("entries", []),
    ("entries/0/function", "mian"),
    ("entries/0/mesh", 2),
    (FUN + "mesh", 7),
    (FUN + "params", [9]),
    (FUN + "params", [0]),
    (FUN + "results", [5]),
    (FUN + "ops/0/inputs", [3]),
    (FUN + "ops/0/inputs", [77]),
    (FUN + "ops/0/outputs", [1]),
    (FUN + "ops/0/outputs", [99]),
    (FUN + "ops/2/inputs", [3, 3]),
    (FUN + "ops/2/outputs", []),
    (FUN + "ops/1/mesh", 2),
    (FUN + "ops/1/mesh_axes", [2]),
    (FUN + "ops/1/mesh_axes", []),
    (FUN + "ops/1/mesh_axes", [1, 1]),
    (FUN + "ops/1/group_size", 4),
    ("functions/main/ops/0/callee", "g"),
    ("functions/main/ops/0/inputs", []),
    ("functions/main/ops/0/callee", "side"),
    ("functions/side/ops/0/peer_mesh", 2),
    ("functions/side/ops/0/collective", "send"),
]


@pytest.mark.parametrize(("path", "value"), WRONG)
def test_wrong(path, value):
    refused(changed(path, value), "DIST0710")


@pytest.mark.parametrize(("path", "value"), BROKEN)
def test_broken(path, value):
    refused(changed(path, value), "DIST0712")


@pytest.mark.parametrize(
    "step",
    [
        ["take", [0], 4, []],
        ["take", [], 4, ["v"]],
        ["take", [0, 1], 4, ["v"]],
        ["free", [], 0, []],
        ["call", [], 0, []],
        ["call", [], 0, ["side", "side"]],
        ["branch", [], 0, ["side"]],
    ],
)
def test_storage_steps_have_the_blocks_and_names_of_their_kind(step):
    data, nothing = good(), {"steps": [], "results": []}
    main = {"steps": [["take", [0], 4, ["v"]], ["free", [0], 0, []]], "results": []}
    data["storage"] = {"entries": ["main", "side"], "functions": {"main": main, "side": nothing}}
    assert Program.from_dict(data).storage.walk("main").peak == 4
    main["steps"].append(step)
    refused(data, "DIST0710")


def test_names_the_nearest():
    assert 'Did you mean "flops"?' in refused(changed(FUN + "ops/0/flop", 1), "DIST0710")
    assert 'Did you mean "main"?' in refused(changed("entries/0/function", "mian"), "DIST0712")


def test_unmodelled_needs_a_reason():
    data = changed(FUN + "ops/0/modelled", False)
    refused(data, "DIST0712")
    data["functions"]["f"]["ops"][0]["reason"] = "no rule"
    op = Program.from_dict(data).functions["f"].ops[0]
    assert (op.modelled, op.reason) == (False, "no rule")
    assert Program.from_dict(Program.from_dict(data).to_dict()).functions["f"].ops[0] == op


@pytest.mark.parametrize("version", [0, 3, "1", None, True, 1.5])
def test_schema_version(version):
    refused(changed("schema_version", version), "DIST0711")
    refused(changed("schema_version", ...), "DIST0711")


@pytest.mark.parametrize("whole", [None, [], 3, "x"])
def test_no_object(whole):
    refused(whole, "DIST0710")


@pytest.mark.parametrize("text", ["", "{", "[1,", "nul", '{"a": NaN', "[" * 100_000])
def test_no_json(text):
    with pytest.raises(SimulationError, match="DIST0710"):
        Program.from_json(text)


def test_truncated_file(tmp_path):
    text = Program.from_dict(good()).to_json()
    for cut in range(0, len(text) - 1, 97):
        with pytest.raises(SimulationError, match="DIST0710"):
            Program.from_json(text[:cut])
    (tmp_path / "binary").write_bytes(b"\xff\x00\x9f")
    for name in ("binary", "none", "."):
        with pytest.raises(SimulationError, match="DIST0710"):
            Program.load(tmp_path / name)


@pytest.mark.parametrize("length", [1, 2, 5])
def test_cyclic_calls(length):
    data = good()
    template = data["functions"]["main"]
    for i in range(length):
        fn = copy.deepcopy(template)
        for op in fn["ops"]:
            op["callee"] = f"c{(i + 1) % length}"
        data["functions"][f"c{i}"] = fn
    text = refused(data, "DIST0713")
    assert "c0 -> " in text
    assert text.count("->") == length


def tower(height):
    """f0 computes, f<i> calls f<i - 1> twice."""
    data = good()
    functions = {"f": data["functions"]["f"]}
    for i in range(height):
        fn = copy.deepcopy(data["functions"]["main"])
        for op in fn["ops"]:
            op["callee"] = f"g{i - 1}" if i else "f"
        functions[f"g{i}"] = fn
    data["functions"] = {**functions, "side": data["functions"]["side"]}
    data["entries"][0]["function"] = f"g{height - 1}"
    return data


def test_a_program_that_unrolls_without_end():
    assert len(Program.from_dict(tower(10)).functions) == 12
    assert "steps" in refused(tower(60), "DIST0712")


def test_a_long_chain_of_calls():
    """2000 functions deep: no recursion in the checks."""
    data = tower(1)
    for i in range(1, 2000):
        fn = copy.deepcopy(data["functions"]["g0"])
        del fn["ops"][0]
        fn["ops"][0].update(callee=f"g{i - 1}", inputs=[0])
        data["functions"][f"g{i}"] = fn
    data["entries"][0]["function"] = "g1999"
    assert len(Program.from_dict(json.loads(json.dumps(data))).functions) == 2002


def test_all_faults_of_a_program_are_reported_with_their_places(tmp_path):
    data = changed("functions/f/ops/0/flops", "8")
    data["functions"]["f"]["ops"][0]["kernel_clas"] = data["functions"]["f"]["ops"][0].pop(
        "kernel_class"
    )
    data["functions"]["f"]["values"][0]["rolle"] = "weight"
    data["meshes"][0]["shape"][0] = 0
    del data["entries"][0]["function"]
    path = tmp_path / "p.json"
    path.write_text(json.dumps(data))
    with pytest.raises(SimulationError, match="DIST0710") as caught:
        Program.load(path)
    faults = {v.location.removeprefix(f"{path}/"): v for v in caught.value.violations}
    assert set(faults) == {
        "functions/f/ops/0/flops",
        "functions/f/ops/0/kernel_clas",
        "functions/f/values/0/rolle",
        "meshes/0/shape/0",
        "entries/0/function",
    }
    assert {v.code for v in faults.values()} == {"DIST0710"}
    assert faults["functions/f/ops/0/kernel_clas"].remedy == 'Did you mean "kernel_class"?'
    assert faults["functions/f/values/0/rolle"].remedy == 'Did you mean "role"?'
